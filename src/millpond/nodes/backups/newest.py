"""The newest backup of a pond, for monitors: a node looks for it where its setting `objects.backups` says.

Backups are made by a command, on any machine. So what counts is what lies in the place, not what a node has seen.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from millpond.nodes.backups.layout import newest_backup
from millpond.stores.objects import open_objects

if TYPE_CHECKING:
    from millpond.pond import Pond
    from millpond.settings import Settings

__all__ = ("NewestBackup",)


class NewestBackup:
    """The newest backup as it was seen last."""

    def __init__(self, pond: Pond, settings: Settings) -> None:
        self._pond, self._settings = pond, settings
        self.created_ms: float | None = None
        """The time at which it was made; minus infinity where the place has none, None before the first look."""

    def look(self) -> str | None:
        """Look for it; its id.

        Raises: `Unavailable`, `Denied`: the place cannot be read; what was seen before counts on. `Corrupt`.
        """
        newest = newest_backup(open_objects(self._settings.objects.backups), self._pond.log.pond_id)
        self.created_ms = -inf if newest is None else newest.created_ms
        return None if newest is None else newest.id
