"""The protocols of whoever a pond, or a part of it, is copied from: another node, a folder, or a backup."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from millpond.client.transfer import Fetched

if TYPE_CHECKING:
    from millpond.maps.layered.stored_heads import StoredLayers
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.parts.part import PartManifest
    from millpond.nodes.replication.peer import LogPage
    from millpond.ranges.index import Source
    from millpond.stores.objects.protocol import ObjectInfo

__all__ = ("BackupSource", "ObjectFile", "PartSource", "PondFile", "PondSource", "ShardFile", "SpaceFile", "StreamFile")


class SpaceFile(Enum):
    """Rows of a pond's space, as an Arrow stream: those of the pond, its quarantined parts, those of its folder alone,
    the heads of its layered maps (`maps/layered/stored_heads.py`).

    Of an earlier release there are no rows of the folder alone, and no heads: `NotFound`.
    """

    STATE = "state"
    QUARANTINE = "quarantine"
    OWN = "own"
    LAYERS = "layers"


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A copy of a map's shard, taken when everything up to `position` had been applied to it.

    `NotFound`, kind `shard_empty`, when it has no row yet; else when the map is another one now.
    """

    definition: MapDefinition
    position: int = 0


@dataclass(frozen=True, slots=True)
class StreamFile:
    """The stream of a part; `NotFound` when it is not there, or not any more."""

    part: str


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """An object of a repository; `NotFound` when it was collected meanwhile."""

    name: str


PondFile: TypeAlias = SpaceFile | ShardFile | StreamFile | ObjectFile
"""A file that a pond gives. Its headers say what it is a copy of, see `FileCopies`."""


class PondSource(Protocol):
    """A pond whose state, shards and log can be fetched. `Peer` is one."""

    @property
    def url(self) -> str:
        """Its address, for messages."""

    def node(self) -> dict[str, Any]:
        """`pond`, `position` and `chain` at least."""

    def log(self, after: int, *, limit: int = ..., wait_seconds: float = 0) -> LogPage:
        """The entries after a position.

        Raises: `NotFound`, kind `log_trimmed`.
        """

    def fetch(self, source: PondFile, target: Path) -> Fetched:
        """Bring a file, checked.

        Raises: `NotFound` as the file says.
        """


class BackupSource(PondSource, Protocol):
    """A pond that can be backed up: it gives the streams of its parts, and what only its folder has. `Peer` is one."""

    def own_objects(self, after: str) -> list[ObjectInfo]:
        """A page of the objects of repositories in its folder, by name; an empty one is the end."""

    def snapshot_files(self, stored: StoredLayers) -> Source:
        """The files of the snapshots of a map."""


class PartSource(Protocol):
    """A place that has parts. `Peer` is one, and so is a backup."""

    @property
    def url(self) -> str:
        """Its address, for messages."""

    def fetch_part(self, part_id: str, file: Path, bytes_max: int) -> PartManifest:
        """Fetch a part into a new folder, checked; nothing is in the folder when it raises.

        Raises: `NotFound`.
        """
