"""The peer protocol answered locally: this node's own maps, in the form in which a peer answers (`peer.py`)."""

from __future__ import annotations

import threading
from typing import Any

from millpond.clock import Clock
from millpond.errors import NotFound, Unavailable
from millpond.maps.layered.history import change_to
from millpond.maps.log.queue import ORDER_KINDS, maintenance_orders
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.keyspaces import QUARANTINE
from millpond.maps.shard.digest import DigestCache
from millpond.pond import Pond

__all__ = ("LocalPeer",)

_ENTRIES_AT_ONCE = 1000


class LocalPeer:
    """This node as a peer of others."""

    def __init__(self, pond: Pond, clock: Clock, url: str) -> None:
        self._pond, self._clock, self.url = pond, clock, url
        self._digests = DigestCache()
        self._lock = threading.Lock()
        self._orders: dict[str, tuple[int, int]] = {}

    def node(self) -> dict[str, Any]:
        """The end of its log."""
        position, chain = self._pond.log.position()
        return {"position": position, "chain": chain, "url": self.url}

    def maps(self) -> list[dict[str, Any]]:
        """Its maps, each a definition."""
        return [pond_map.definition.to_dict() for pond_map in self._pond.maps()]

    def digest(self, name: str, position: int = 0, seconds: float = 0) -> dict[str, Any]:
        """`{position, entry, rows, digest}` of a map, when everything up to a position has been applied.

        Raises: `Unavailable` kind `merge_slow` with the position it is at when that takes longer than `seconds`;
        `NotFound` for the map; `Corrupt` when its shard is damaged.
        """
        self.wait_applied(name, position, seconds)

        def look() -> dict[str, Any] | None:
            # Asked for before the view is taken: what was applied by then is in it.
            applied = self._pond.log.applied(name)
            shard = self._pond.map(name).shard
            with shard.view() as view:
                if not self._cared_for(name) and view.version == shard.version:
                    entry = max(view.number("position"), self._last_order(shard.definition, applied))
                    of_view = self._digests.digest(shard, view)
                    # Had an order been carried out before the view was taken, `entry` would not tell of it.
                    if self._last_order(shard.definition, self._pond.log.applied(name)) <= entry:
                        return {
                            "position": max(applied, entry),
                            "entry": entry,
                            "rows": of_view.rows,
                            "digest": str(of_view),
                        }
            return None

        digest = self._pond.loading.loads.changed.wait_for(look, self._clock.monotonic() + seconds)
        if digest is None:
            raise _slow(name, self._pond.log.applied(name), position)
        return digest

    def shaped(self, name: str, version: int) -> int:
        """The last entry of the log that shaped a version of a map; 0 when it is unknown.

        Two nodes that name the same entry of a map hold the same rows. It is unknown while the map moves on, while
        a maintenance order is carried out, and where a part was quarantined.
        """
        applied = self._pond.log.applied(name)
        pond_map = self._pond.map(name)
        if pond_map.layers is not None:
            with self._pond.space.read() as tx:
                change = change_to(tx, pond_map.name, version)
            return 0 if change is None else change.position
        with pond_map.shard.view() as view:
            entry = max(view.number("position"), self._last_order(pond_map.definition, applied))
            still = view.version == version and pond_map.shard is self._pond.map(name).shard
        whole = not self._cared_for(name) and not self._has_quarantined(name)
        # Had an order been carried out after `applied` was asked for, it would be larger now.
        same = self._last_order(pond_map.definition, self._pond.log.applied(name)) <= entry
        return entry if still and whole and same else 0

    def _last_order(self, definition: MapDefinition, applied: int) -> int:
        """The last maintenance order of a map up to a position: it shaped the rows; the shard does not record it."""
        with self._lock:
            seen, last = self._orders.get(definition.incarnation, (0, 0))
            if seen > applied:  # the node was cloned over
                seen, last = 0, 0
            while seen < applied:
                try:
                    entries = self._pond.log.entries(seen, min(_ENTRIES_AT_ONCE, applied - seen))
                except NotFound as error:
                    seen = int(str(error.values["first"])) - 1
                    continue
                about = [
                    entry.position for entry in entries if definition.name in entry.maps and entry.kind in ORDER_KINDS
                ]
                seen, last = entries[-1].position if entries else applied, max([last, *about])
            if definition.incarnation not in self._orders:
                there = {map.definition.incarnation for map in self._pond.maps()}
                self._orders = {name: order for name, order in self._orders.items() if name in there}
            self._orders[definition.incarnation] = seen, last
        return last

    def _cared_for(self, name: str) -> bool:
        """True when a maintenance order is queued: it may be carried out in part, and rows at no position of the
        log.
        """
        with self._pond.space.read() as tx:
            return next(maintenance_orders(tx, name), None) is not None

    def _has_quarantined(self, name: str) -> bool:
        with self._pond.space.read() as tx:
            return next(tx.keys(QUARANTINE[name].range()), None) is not None

    def wait_applied(self, name: str, position: int, seconds: float) -> None:
        """Wait until everything up to a position has been entered, and of one map applied.

        Raises: `Unavailable` kind `merge_slow`; `NotFound` for the map.
        """
        until = self._clock.monotonic() + seconds
        self._pond.log.wait_position(position, seconds)
        at = self._pond.loading.loads.changed.wait_for(
            lambda: min(self._pond.log.position()[0], self._pond.log.applied(name)), until, lambda at: at >= position
        )
        if at < position:
            raise _slow(name, at, position)


def _slow(name: str, position: int, target: int) -> Unavailable:
    return Unavailable(
        "not everything has been merged yet", kind="merge_slow", map=name, position=position, wanted=target,
        hint="ask again; 'millpond parts' shows what waits, and what was quarantined",
    )  # fmt: skip
