"""Marks: a key of each shard that is there as long as its server has not lost its keys, as after `FLUSHALL`.

    place:{shard}:lost      the id up to which the streams of the shard were lost; 0 at first

Scripts store and read nothing in a shard without its mark. A process that knew the mark makes it anew, with the time of
then: readers from before it get a gap, and the process counts a loss. A process that began since makes it as at first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from millpond.clock import SystemClock
from millpond.events.ids import place_before
from millpond.events.redis.keys import SHARDS
from millpond.events.redis.rows import id_bytes
from millpond.events.redis.servers import Call

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.events.protocol import Losses
    from millpond.events.redis.keys import Place

__all__ = ("Marks",)

_LOG = logging.getLogger(__name__)


class Marks:
    """The marks of a place, as far as a process knows them; safe to share between threads."""

    def __init__(self, place: Place, clock: Clock, run: Callable[[Sequence[Call]], list[Any]], losses: Losses) -> None:
        self._place, self._clock, self._run, self._losses = place, clock, run, losses
        self._known: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def settle(self) -> None:
        """Read the marks of all shards, and make those that are missing.

        Raises:
            Unavailable: a server is out of reach.
        """
        keys = {shard: self._place.lost(shard) for shard in range(SHARDS)}
        rows = dict(zip(keys, self._run([Call(shard, (b"GET", key)) for shard, key in keys.items()]), strict=True))
        missing = [shard for shard, mark in rows.items() if mark is None]
        new = {shard: self._now(shard) if shard in self._known else id_bytes(0) for shard in missing}
        there = self._run([Call(shard, (b"SET", keys[shard], mark, b"NX", b"GET")) for shard, mark in new.items()])
        rows |= {shard: other or new[shard] for shard, other in zip(missing, there, strict=True)}
        with self._lock:
            lost = [shard for shard, mark in rows.items() if self._known.get(shard, mark) != mark]
            self._known |= rows
            self._losses.count += bool(lost)
        if lost:
            _LOG.error("Redis lost all of its keys, and the streams of %s of %s shards", len(lost), SHARDS)

    def _now(self, shard: int) -> bytes:
        """The place before all that is appended from now on."""
        now_ms = self._clock.now_ms()
        if isinstance(self._clock, SystemClock):
            ((seconds, microseconds),) = self._run([Call(shard, (b"TIME",))])
            now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        return id_bytes(place_before(now_ms))
