"""The first rows of a pond: its id, and how long it retains merged parts and the history of maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.maps.model.keyspaces import HISTORY_AGE, PART_RETENTION, POND_ID
from millpond.times.durations import is_off, optional_duration

__all__ = ("AS_BEFORE", "HISTORY_MS", "Retention", "begin")

HISTORY_MS = 30 * 86_400_000
"""The age up to which what a layered map was known to hold is kept, unless the pond says otherwise."""

_ID, _PARTS, _HISTORY = POND_ID.pack(), PART_RETENTION.pack(), HISTORY_AGE.pack()


class Retention(NamedTuple):
    """The ages up to which a pond keeps merged parts, and the history of layered maps, in ms; None: as it does."""

    parts_ms: int | None = None
    history_ms: int | None = None

    @classmethod
    def of(cls, parts: str | int | None, history: str | int | None) -> Self:
        """The durations as they are stated, such as `7d`; `off`: not at all."""
        return cls(*(0 if is_off(stated) else optional_duration(stated) for stated in (parts, history)))


AS_BEFORE = Retention()


def begin(space: Space, draw_id: Callable[[], str], retention: Retention) -> tuple[int, int]:
    """Give a pond what it needs before it is used, an id. How long it keeps parts, and history, in ms."""

    def act(tx: Transaction) -> tuple[int, int]:
        if tx.get(_ID) is None:
            tx.put(_ID, draw_id().encode())
        for key, stated in zip((_PARTS, _HISTORY), retention, strict=True):
            if stated is not None:
                tx.put(key, str(stated).encode())
        return _stored(tx)

    with space.read() as tx:
        begun, stored = tx.get(_ID) is not None, _stored(tx)
    stays = all(stated in (None, before) for stated, before in zip(retention, stored, strict=True))
    return stored if begun and stays else space.write(act)


def _stored(tx: ReadTransaction) -> tuple[int, int]:
    return int(tx.get(_PARTS) or 0), int(tx.get(_HISTORY) or HISTORY_MS)
