"""A swap whose answer may be lost: it is tried again, and what is there tells if it was made."""

from __future__ import annotations

from contextlib import suppress

from millpond.clock import Clock
from millpond.errors import Conflict, NotFound, Uncertain
from millpond.retry import Backoff, only, retry
from millpond.stores.objects.protocol import ObjectStore

__all__ = ("settled_swap",)

_PAUSES = Backoff(first_seconds=0.2, seconds_max=5.0, attempts_max=8)


def settled_swap(objects: ObjectStore, name: str, data: bytes, expected: str | None, clock: Clock) -> str:
    """As `ObjectStore.swap`, for bytes that nobody else puts, such as those with a random id.

    Raises: as `swap`; `Uncertain` when no answer comes for long.
    """
    lost = False

    def act() -> str:
        nonlocal lost
        try:
            return objects.swap(name, data, expected)
        except Uncertain:
            lost = True
            raise
        except Conflict:
            with suppress(NotFound):
                there = objects.get_tagged(name)
                if lost and there.data.to_pybytes() == data:
                    return there.tag
            raise

    return retry(act, only(Uncertain, _PAUSES), clock)
