"""Single values that a node has cached: one thread can answer all such requests, because it never waits.

An answer is cached when the map and the file of its shard are open, nobody is about to move them, and the last answers
were cheap. Answers that had to be read from the disk, or that took long to find, make those of their map go to threads
for a while: there they wait beside each other, and nobody else waits for them.

    quick ──(took long)──▶ measured ──(dear twice in a row)──▶ in threads, for `APART_SECONDS`
      ▲                       │ cheap                                │
      └───────────────────────┴──────────────────────────────────────┘

To measure costs a tenth of an answer. So a map whose answers take no time is not measured, and one whose answers turn
dear goes to threads after three of them.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from millpond.clock import Clock, thread_seconds
from millpond.errors import Closed
from millpond.kernel.moments import Moments
from millpond.kernel.space import WouldBlock
from millpond.maps.model.catalogue import known_map
from millpond.maps.model.json_values import typed_value
from millpond.nodes.lookup_service import single_question

if TYPE_CHECKING:
    from millpond.maps.map import Map
    from millpond.maps.model.definition import MapDefinition
    from millpond.pond import Pond

__all__ = ("FastGet", "Effort", "effort_of_thread")

SLOW_SECONDS = 0.00025
"""An answer that takes longer has the next ones measured: one read from a quick disk takes about as long."""
CPU_SECONDS_MAX = 0.001
"""An answer that takes longer keeps others waiting for no good: a thread costs a tenth of that."""
DEAR_MAX = 2
"""So many in a row, and it is the map: one alone may have met the collector of garbage."""
APART_SECONDS = 1.0
"""The time for which lookups of such a map go to threads."""

_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class Effort(NamedTuple):
    """The cost of a thread's work: seconds of CPU, and pages of memory it had to wait for."""

    cpu: float
    pages: int


def effort_of_thread() -> Effort:
    """Of this thread; pages of the process, where the system does not tell them apart."""
    return Effort(thread_seconds(), resource.getrusage(_THREAD).ru_majflt)


class FastGet:
    """Cached answers of one pond: for one thread."""

    def __init__(self, pond: Pond, clock: Clock, effort: Callable[[], Effort] = effort_of_thread) -> None:
        self.pond, self.clock = pond, clock
        self._effort = effort
        self._definitions: Moments[MapDefinition | None] = Moments()
        self._dear: dict[str, int] = {}  # dear answers in a row, of the maps that are measured
        self._apart: dict[str, float] = {}

    def get(self, name: str, key: str | bytes, at: str | None, *, incarnation: str | None = None) -> dict[str, Any]:
        """As `LookupService.get`.

        Raises: `WouldBlock` when that may have to wait, or when there is no such map (of this `incarnation`); `Invalid`
        for a key or time the map cannot have.
        """
        try:
            pond_map = self._map(name)
            name = pond_map.name
            if self._is_apart(name) or incarnation not in (None, pond_map.definition.incarnation):
                raise _not_cached()
            encoded, instant = single_question(pond_map.definition, key, at, self.clock)
            before = self._effort() if name in self._dear else None
            began = self.clock.monotonic()
            answer = _lookup(pond_map, encoded, instant)
        except Closed:
            raise _not_cached() from None  # its file was switched to another just now
        if before is not None:
            self._judge(name, before, self._effort())
        elif self.clock.monotonic() - began > SLOW_SECONDS:
            self._dear[name] = 0
        return answer

    def _map(self, name: str) -> Map:
        with self.pond.space.read(wait=False) as tx:
            definition = self._definitions.get(tx, name, lambda: known_map(tx, name.lower()))
        pond_map = None if definition is None else self.pond.open_maps.cached(definition)
        if pond_map is None:
            raise _not_cached()
        return pond_map

    def _judge(self, name: str, before: Effort, after: Effort) -> None:
        dear = self._dear.pop(name) + 1
        if after.pages == before.pages and after.cpu - before.cpu <= CPU_SECONDS_MAX:
            return
        if dear < DEAR_MAX:
            self._dear[name] = dear
        else:
            self._apart[name] = self.clock.monotonic() + APART_SECONDS

    def _is_apart(self, name: str) -> bool:
        until = self._apart.get(name)
        if until is None:
            return False
        if self.clock.monotonic() < until:
            return True
        del self._apart[name]
        return False


def _lookup(pond_map: Map, encoded: bytes | int | None, instant: int | None) -> dict[str, Any]:
    if encoded is None:
        return typed_value(None, pond_map.definition.shown)
    single = pond_map.opened_shard is not None and pond_map.definition.aggregation is None
    generation = pond_map.shard.cached if single else None
    if generation is None or generation.env is None:
        raise _not_cached()
    with generation.env.read(wait=False) as tx:
        value = generation.get(tx, encoded, instant)
    return typed_value(value, pond_map.definition.shown)


def _not_cached() -> WouldBlock:
    return WouldBlock("the answer is not cached")
