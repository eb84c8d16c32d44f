"""A folder that no node serves, as a source of backups. A node is one as a `Peer`."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

from millpond.client.transfer import Fetched
from millpond.clock import Clock
from millpond.errors import NotFound
from millpond.maps.layered.stored_heads import StoredLayers
from millpond.maps.parts.stream import PartStream
from millpond.nodes.backups.layout import fetch_object
from millpond.nodes.folder_content import not_backed_up, objects_folder, only_here, own_objects
from millpond.nodes.replication.copies import Copy, FileCopies
from millpond.nodes.replication.peer import LogPage
from millpond.nodes.replication.source import ObjectFile, PondFile, ShardFile, SpaceFile, StreamFile
from millpond.pond import Pond
from millpond.ranges.index import Source
from millpond.stores.files import disk_errors
from millpond.stores.objects import FolderObjects
from millpond.stores.objects.protocol import ObjectInfo

__all__ = ("FolderSource",)


class FolderSource:
    """A pond in a folder of this machine, opened here, that no node serves; close it when the backup is made."""

    def __init__(self, pond: Pond, clock: Clock) -> None:
        self._pond, self._copies = pond, FileCopies(pond, clock)

    def close(self) -> None:
        """Leave nothing of the backup in the pond."""
        self._copies.close()

    @property
    def url(self) -> str:
        """The folder."""
        return str(self._pond.folder)

    def node(self) -> dict[str, Any]:
        """`pond`, `position`, `chain`, `only_here` and `not_backed_up`."""
        position, chain = self._pond.log.position()
        here = only_here(self._pond.space)
        return {"pond": self._pond.log.pond_id, "position": position, "chain": chain, "only_here": here,
                "not_backed_up": not_backed_up(self._pond)}  # fmt: skip

    def log(self, after: int, *, limit: int = 1000, wait_seconds: float = 0) -> LogPage:
        """The entries after a position; it never waits."""
        return LogPage(self._pond.log.entries(after, limit), self._pond.log.position())

    def fetch(self, source: PondFile, target: Path) -> Fetched:
        """Copy a file; of a shard, when everything up to its position has been applied.

        Raises: as the file says.
        """
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
        match source:
            case SpaceFile():
                return _linked(self._copies.space(source), target)
            case ShardFile(definition, position):
                self._pond.log.wait_applied(position, [definition.name])
                if self._pond.map(definition.name).definition.incarnation != definition.incarnation:
                    raise NotFound("the map is another one now", kind="map_incarnation", map=definition.name)
                return _linked(self._copies.shard(definition.name), target)
            case StreamFile(part):
                self._write_stream(part, target)
            case ObjectFile(name):
                fetch_object(FolderObjects(objects_folder(self._pond.folder)), name, target)
        return Fetched(target, {}, target.stat().st_size)

    def _write_stream(self, part_id: str, target: Path) -> None:
        file = self._pond.parts.file(part_id)
        if file is None:
            raise _no_part(part_id)
        try:
            with disk_errors(target), target.open("wb") as sink:
                sink.writelines(PartStream(file).chunks())
        except FileNotFoundError as error:
            raise _no_part(part_id) from error

    def own_objects(self, after: str) -> list[ObjectInfo]:
        """A page of the objects of repositories in the folder."""
        return own_objects(self._pond.folder, after)

    def snapshot_files(self, stored: StoredLayers) -> Source:
        """The folder of the snapshots of a map."""
        return self._pond.loading.map_files(stored.folder)


def _no_part(part_id: str) -> NotFound:
    return NotFound("the part is not here, or not any more", kind="part_not_found", part=part_id,
                    hint="parts are retained for maps.part_retention after they were merged")  # fmt: skip


def _linked(copy: Copy, target: Path) -> Fetched:
    with disk_errors(target):
        try:
            target.hardlink_to(copy.file)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.copyfile(copy.file, target)  # the scratch folder lies on another disk than the pond
    return Fetched(target, {name.lower(): value for name, value in copy.headers.items()}, copy.bytes)
