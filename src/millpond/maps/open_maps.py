"""The maps of a pond that are open in this process: one handle a map, shared by all who ask for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial

from millpond.maps.loads.loading import Loading
from millpond.maps.map import Map, go_over
from millpond.maps.model.catalogue import check_map
from millpond.maps.model.definition import MapDefinition, Store, folder_name
from millpond.maps.shard.shard import Shard

__all__ = ("OpenMaps",)


class OpenMaps:
    """Open maps by name, safe to share between threads."""

    def __init__(self, loading: Loading) -> None:
        self._loading = loading
        self._maps: dict[str, Map] = {}
        self._used_at: dict[str, float] = {}
        self._lock = threading.RLock()

    def map(self, definition: MapDefinition) -> Map:
        """The open map of a definition; one that was open with other settings takes these on."""
        with self._lock:
            self._used_at[definition.name] = self._loading.clock.monotonic()
            cached = self._maps.get(definition.name)
            if cached is not None and cached.definition == definition:
                return cached
            if cached is not None:
                cached.close()
            shard = self._shard(definition)
            if cached is not None and cached.definition.incarnation == definition.incarnation:
                go_over(cached, definition, shard)  # who has it in hand goes on with it
                return cached
            folder, name = self._loading.folder, folder_name(definition)
            pond_map = Map(definition, self._loading, shard, folder / "snapshots" / name)
            self._maps[definition.name] = pond_map
            return pond_map

    def _shard(self, definition: MapDefinition) -> Shard | None:
        if definition.store is not Store.SHARD:
            return None
        missing = partial(check_map, self._loading.space, definition)
        return Shard(self._loading.folder / "shards" / folder_name(definition), definition, missing=missing)

    def cached(self, definition: MapDefinition) -> Map | None:
        """The map of a definition if it is open already, and nobody has to be waited for to know."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            pond_map = self._maps.get(definition.name)
            if pond_map is None or pond_map.definition != definition:
                return None
            self._used_at[definition.name] = self._loading.clock.monotonic()
            return pond_map
        finally:
            self._lock.release()

    def forget(self, names: Iterable[str] | None = None) -> None:
        """Close these maps, or all: the next request opens them anew."""
        with self._lock:
            for name in list(self._maps) if names is None else names:
                pond_map = self._maps.pop(name, None)
                if pond_map is not None:
                    pond_map.close()

    def close_idle(self, seconds: float) -> int:
        """Let go of the files of maps that nobody asked for so long; how many. They open by themselves when asked."""
        due = self._loading.clock.monotonic() - seconds
        with self._lock:
            idle = [name for name, last in self._used_at.items() if last < due and name in self._maps]
            for name in idle:
                self._maps[name].close()
                del self._used_at[name]
        return len(idle)
