"""A pond on nodes, and its maps, as SQL asks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from millpond.deferred import opened_once

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.client.map import RemoteMap
    from millpond.clock import Clock
    from millpond.maps.predicates.predicate import Where
    from millpond.maps.snapshots.snapshot import Snapshot

__all__ = ("QueryablePond",)


class _Maps(Protocol):
    @property
    def clock(self) -> Clock: ...
    def maps(self) -> Sequence[RemoteMap]: ...


class QueryablePond:
    """A pond as SQL asks it."""

    def __init__(self, pond: _Maps) -> None:
        self._pond, self.clock = pond, pond.clock

    def maps(self) -> list[_QueryableMap]:
        return [_QueryableMap(pond_map) for pond_map in self._pond.maps()]


class _QueryableMap:
    """A map as SQL asks it: keys are looked up as `RemoteMap.lookup` does, some thousand at a time."""

    def __init__(self, pond_map: RemoteMap) -> None:
        self._map, self.name, self.definition = pond_map, pond_map.name, pond_map.definition

    def scan(
        self, where: Where = None, columns: Sequence[str] | None = None, *, known_at: object = None,
        resolution: str | None = None,
    ) -> pa.RecordBatchReader:  # fmt: skip
        return self._map.scan(where, columns, known_at=known_at, resolution=resolution)

    def snapshot(self) -> _Lookups:
        return _Lookups(self._map)

    def lookup(self, keys: Any, at: Any = None, *, known_at: Any = None, window: str | None = None) -> pa.Array:
        return self._map.lookup(keys, at, known_at=known_at, window=window)


class _Lookups:
    """The lookups of one query; those of windows in one snapshot."""

    def __init__(self, pond_map: RemoteMap) -> None:
        self._map = pond_map

    def lookup(self, keys: Any, at: Any = None, *, window: str | None = None) -> pa.Array:
        return self._map.lookup(keys, at) if window is None else self._snapshot.lookup(keys, at, window=window)

    @opened_once
    def _snapshot(self) -> Snapshot:
        return self._map.snapshot()
