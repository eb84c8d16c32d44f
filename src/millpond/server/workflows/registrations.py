"""The workers that registered lately: what `GetTaskWorkerGroup` shows.

A worker registers every minute at the process that it was begun with; each process knows its own, and asks the others.
Nothing of it is stored, for it says who is there now: after a restart a group is whole again within that minute.

Invariants:
* a worker that was silent for `SILENT_SECONDS` is in no group;
* at most `REGISTERED_MAX` are known at a time; beyond it the one that was silent for the longest time is forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from millpond.clock import Clock
from millpond.kernel.keys import encode
from millpond.server.workflows.shared.wire import parts_of
from millpond.workflows.partitions import METADATA

__all__ = ("NAME_CHARACTERS_MAX", "REGISTERED_MAX", "SILENT_SECONDS", "Registration", "Registrations", "merged")

SILENT_SECONDS = 90
"""The time after which a worker that does not register again is gone."""
REGISTERED_MAX = 10_000
NAME_CHARACTERS_MAX = 300
"""The characters of a worker's id, and of a task's name; a worker with a longer one is in no group."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A worker: when it registered first, and last."""

    worker: str
    began_ms: int
    seen_ms: int


async def _alone(_request: bytes) -> list[bytes]:
    return []


class Registrations:
    """The workers that registered at this process. `ask` gives the answers of all others. Used from one event loop."""

    def __init__(self, clock: Clock, ask: Callable[[bytes], Awaitable[Iterable[bytes]]] = _alone) -> None:
        self._clock, self._ask = clock, ask
        self._seen: dict[tuple[str, str, str], Registration] = {}
        """By tenant, task and worker; in the order of their last registration."""

    def note(self, tenant: str, task: str, worker: str) -> None:
        """Note that a worker registered now."""
        if max(len(task), len(worker)) > NAME_CHARACTERS_MAX:
            return
        now, key = self._clock.now_ms(), (tenant, task, worker)
        self._forget(now)
        earlier = self._seen.pop(key, None)
        self._seen[key] = Registration(worker, now if earlier is None else earlier.began_ms, now)
        if len(self._seen) > REGISTERED_MAX:
            del self._seen[next(iter(self._seen))]

    def of(self, tenant: str, task: str) -> list[Registration]:
        """The workers of a task, by their ids."""
        self._forget(self._clock.now_ms())
        return sorted(
            (registration for key, registration in self._seen.items() if key[:2] == (tenant, task)),
            key=lambda registration_: registration_.worker,
        )

    async def everywhere(self, tenant: str, task: str) -> list[Registration]:
        """The workers of a task that registered at any process that can be reached."""
        answers = await self._ask(encode((METADATA, tenant, task)))
        parts = [iter(parts_of(answer)) for answer in answers]
        others = (
            Registration(*row) for row_parts in parts for row in zip(row_parts, row_parts, row_parts, strict=True)
        )
        return merged([*self.of(tenant, task), *others])

    async def for_peer(self, request: bytes) -> bytes:
        """The workers that registered here, for another process."""
        _, tenant, task = parts_of(request)
        return encode(
            tuple(
                part
                for registration in self.of(tenant, task)
                for part in (registration.worker, registration.began_ms, registration.seen_ms)
            )
        )

    def _forget(self, now: int) -> None:
        """Forget those that were silent for too long: the first ones."""
        while self._seen:
            first = next(iter(self._seen))
            if now - self._seen[first].seen_ms < SILENT_SECONDS * 1000:
                return
            del self._seen[first]


def merged(registrations: Iterable[Registration]) -> list[Registration]:
    """The registrations of several processes: of each worker one, by their ids."""
    whole: dict[str, Registration] = {}
    for registration in registrations:
        earlier = whole.get(registration.worker, registration)
        began, seen = min(earlier.began_ms, registration.began_ms), max(earlier.seen_ms, registration.seen_ms)
        whole[registration.worker] = Registration(registration.worker, began, seen)
    return [whole[worker] for worker in sorted(whole)]
