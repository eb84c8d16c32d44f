"""The protocols of whoever a pond, or a part of it, is copied from: another node, a folder, or a backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from millpond.client.download import Fetched

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.parts.part import PartManifest
    from millpond.nodes.replication.peer import LogPage
    from millpond.stores.objects.protocol import ObjectInfo

__all__ = ("BackupSource", "OwnSource", "PartSource", "PondSource")


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

    def fetch_shard(self, definition: MapDefinition, target: Path, *, position: int = 0) -> Fetched:
        """Fetch a copy of a map's shard, taken when everything up to `position` had been applied to it.

        Raises: `NotFound`, kind `shard_empty` when it has no row yet, else when the map is another one now.
        """

    def fetch_state(self, target: Path) -> Fetched:
        """Fetch the rows of the space that belong to the pond, not to one node."""

    def fetch_quarantine(self, target: Path) -> Fetched:
        """Fetch the list of quarantined parts."""


class OwnSource(Protocol):
    """The content that only the folder of a pond has."""

    def fetch_own(self, target: Path) -> Fetched:
        """Fetch the rows of the space that only its folder has.

        Raises: `NotFound` when it is of an earlier release, which does not send them.
        """

    def own_objects(self, after: str) -> list[ObjectInfo]:
        """A page of the objects of repositories in its folder, by name; an empty one is the end."""

    def fetch_object(self, name: str, target: Path) -> Fetched:
        """Fetch one of these objects.

        Raises: `NotFound` when it was collected meanwhile.
        """


class BackupSource(PondSource, Protocol):
    """A pond that can be backed up: its parts can be fetched as they travel, too. `Peer` is one."""

    def fetch_stream(self, part_id: str, target: Path) -> Fetched:
        """Fetch a part's stream.

        Raises: `NotFound`.
        """

    @property
    def own(self) -> OwnSource:
        """The content that only its folder has."""


class PartSource(Protocol):
    """A place that has parts. `Peer` is one, and so is a backup."""

    @property
    def url(self) -> str:
        """Its address, for messages."""

    def fetch_part(self, part_id: str, folder: Path, bytes_max: int) -> PartManifest:
        """Fetch a part into a new folder, checked; nothing is in the folder when it raises.

        Raises: `NotFound`.
        """
