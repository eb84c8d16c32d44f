"""Healing: parts that this node quarantined come back whole from a peer, or else the whole map does.

A part that was damaged here is whole elsewhere. It is fetched and put in its place in the order of loads. Where that
would not give the rows it should have given (it says why), or no peer keeps the part any more, the map is copied from a
peer that lacks nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from millpond.clock import Clock
from millpond.errors import Conflict, MillpondError, NotFound
from millpond.maps.log.queue import Quarantined
from millpond.nodes.replication.clone import clone_map
from millpond.nodes.replication.part_sources import PartSources
from millpond.nodes.replication.peer import Peer
from millpond.pond import Pond

__all__ = ("Healer",)

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 600.0
"""A part that stays quarantined is tried again after pauses that double."""

_LOG = logging.getLogger(__name__)


class Healer:
    """Heals one node; `healed` counts the parts."""

    def __init__(self, pond: Pond, sources: PartSources, peers: Callable[[], Sequence[Peer]], clock: Clock) -> None:
        self._pond, self._sources, self._peers, self._clock = pond, sources, peers, clock
        self._due: dict[str, tuple[float, float]] = {}
        self.healed = 0

    def heal(self, *, again: bool = False) -> list[str]:
        """Heal what was quarantined, and can be; the ids of these parts.

        `again`: also what did not get better a moment ago.
        """
        quarantine = self._pond.parts.quarantined()
        done = []
        for part in quarantine if self._peers() else ():
            if not self._is_due(part.part) and not again:
                continue
            try:
                self._heal(part)
            except MillpondError as error:
                _LOG.warning("part %s of map %s stays quarantined: %s", part.part, part.map, error)
            else:
                done.append(part.part)
        self.healed += len(done)
        return done

    def _is_due(self, part: str) -> bool:
        now = self._clock.monotonic()
        due, pause = self._due.get(part, (now, PAUSE_SECONDS))
        if now < due:
            return False
        self._due[part] = now + pause, min(2 * pause, PAUSE_SECONDS_MAX)
        return True

    def _heal(self, quarantined: Quarantined) -> None:
        try:
            self._pond.parts.replace(quarantined.part, self._sources.fetch(quarantined.part))
        except (Conflict, NotFound) as error:
            _LOG.info("%s; taking a copy of the map", error)
            self._copy_map(quarantined.map)

    def _copy_map(self, name: str) -> None:
        failed: MillpondError | None = None
        for peer in self._peers():
            try:
                clone_map(self._pond, peer, name)
            except MillpondError as error:
                failed = error
            else:
                return
        assert failed is not None, "who heals has peers"
        raise failed
