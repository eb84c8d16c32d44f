"""The content of one folder alone: no replica has a copy of it, and backups take it beside the log.

Repositories, streams of events and runs of workflows are rows of the folder's space that the log does not bring, and
objects beside it. Those in a database, in Redis, or in RocksDB are in no backup.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from millpond.events.keyspaces import HEAD
from millpond.events.keyspaces import LOCATION as EVENTS_LOCATION
from millpond.stores.objects import FolderObjects
from millpond.versions.keyspaces import LOCATION as VERSIONS_LOCATION
from millpond.versions.keyspaces import REPOSITORY
from millpond.versions.location import LOCAL
from millpond.workflows.keyspaces import INITIALIZED

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.kernel.space import Space
    from millpond.pond import Pond
    from millpond.stores.objects.protocol import ObjectInfo

__all__ = (
    "OBJECTS_PAGE", "RUNS", "lying_elsewhere", "not_backed_up", "objects_folder", "only_here", "own_objects",
    "runs_elsewhere",
)  # fmt: skip

OBJECTS_PAGE = 10_000
"""The objects of repositories that are listed at once."""
_SCRATCH = "/scratch/"
RUNS = "runs of workflows"
_KEYSPACES = {"repositories": REPOSITORY, "streams of events": HEAD, RUNS: INITIALIZED}


def only_here(space: Space) -> list[str]:
    """The kinds of content that only this folder has, named as a reader knows them."""
    with space.read() as tx:
        return [kind for kind, keyspace in _KEYSPACES.items() if next(tx.keys(keyspace.range()), None) is not None]


def not_backed_up(pond: Pond) -> list[str]:
    """The kinds of content of a pond that a backup has not, for they are in another place."""
    return lying_elsewhere(pond) + runs_elsewhere(pond.folder)


def lying_elsewhere(pond: Pond) -> list[str]:
    """The kinds of content of a pond that are in another place, but for runs."""
    with pond.space.read() as tx:
        locations = {"repositories in a database": VERSIONS_LOCATION, "streams of events in Redis": EVENTS_LOCATION}
        kinds = [kind for kind, location in locations.items() if tx.get(location.packed) is not None]
        rows = [value for _, value in tx.scan(REPOSITORY.range())]
    if any(f'"namespace":"{LOCAL}'.encode() not in row for row in rows):
        kinds.append("objects of repositories in other places")
    return kinds


def runs_elsewhere(folder: Path) -> list[str]:
    """The kinds of runs of the pond in a folder that do not lie in its space."""
    runs = {"workflows": f"{RUNS} in RocksDB", "shared-workflows": f"{RUNS} in Kafka"}
    return [kind for name, kind in runs.items() if (folder / name).exists()]


def objects_folder(folder: Path) -> Path:
    """The folder with the objects of a pond's repositories that have no other place."""
    return folder / "repositories"


def own_objects(folder: Path, after: str = "") -> list[ObjectInfo]:
    """The objects of repositories whose names follow `after`, in their order, at most `OBJECTS_PAGE`."""
    location = objects_folder(folder)
    if not location.is_dir():
        return []
    infos = (info for info in FolderObjects(location).list(after=after) if _SCRATCH not in info.name)
    return list(islice(infos, OBJECTS_PAGE))
