"""Folders that belong to nothing: what a crash, or a removal that could not end, left behind.

| folder | belongs to |
|---|---|
| `shards/<map>.<incarnation>`, `snapshots/…` | a map of the catalogue; snapshots also commits and branches |
| `parts/<part id>` | a part that is retained, or waits |
| `.<name>….gone`, `.<name>….unfinished` | a removal that could not end, a writer that died |

Invariants:
* no folder is removed that is younger than an hour, by its own time: it may be about to belong to something;
* folders are listed first and the catalogue is read afterwards, so that what appears in between is known;
* a catalogue that cannot be read, or names no map at all, removes nothing: better an orphan than a lost map;
* what was quarantined in `quarantine/` is never an orphan.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.maps.loads.pond_folder import sweep_pond
from millpond.maps.model.definition import folder_name
from millpond.stores.files import remove_tree

if TYPE_CHECKING:
    from millpond.pond import Pond

__all__ = ("AGE_MS_MIN", "remove_orphans")

AGE_MS_MIN = 3_600_000
_MAPS = ("shards", "snapshots")
_PARTS = ("parts",)

_log = logging.getLogger(__name__)


def remove_orphans(pond: Pond, now_ms: int) -> list[str]:
    """Remove the folders that belong to nothing; their names, such as `shards/weather.000…`.

    Raises: what reading the catalogue raises; nothing is removed then.
    """
    sweep_pond(pond.folder)
    old = [folder for parent in (*_MAPS, *_PARTS) for folder in _old_folders(pond.folder / parent, now_ms)]
    if not old:
        return []
    definitions = [pond_map.definition for pond_map in pond.maps()]
    if not definitions:
        return []
    folders = {f"{parent}/{folder_name(definition)}" for definition in definitions for parent in _MAPS}
    folders |= {f"{parent}/{part.part}" for part in pond.parts.list() for parent in _PARTS}
    gone = []
    for folder in old:
        name = f"{folder.parent.name}/{folder.name}"
        if name not in folders:
            if folder.parent.name not in _MAPS:
                remove_tree(folder)
            elif not pond.catalogue.remove_dropped(folder):
                continue  # of a map that was dropped, and somebody names or reads what is in it
            _log.warning("removed a folder that belonged to nothing: %s", folder)
            gone.append(name)
    return gone


def _old_folders(parent: Path, now_ms: int) -> list[Path]:
    return [folder for folder in sorted(parent.glob("[!.]*")) if _age_ms(folder, now_ms) >= AGE_MS_MIN]


def _age_ms(folder: Path, now_ms: int) -> int:
    """Age of a folder in ms; −1 if it is not a folder or has vanished."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return -1
    return now_ms - status.st_mtime_ns // 1_000_000 if stat.S_ISDIR(status.st_mode) else -1
