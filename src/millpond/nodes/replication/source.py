"""The protocol of whoever a pond is copied from: another node, a folder, or a backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from millpond.client.download import Fetched

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition
    from millpond.nodes.replication.peer import LogPage

__all__ = ("PondSource",)


class PondSource(Protocol):
    """A pond whose state, shards, log and parts can be fetched. `Peer` is one."""

    @property
    def url(self) -> str:
        """Its address, for messages."""

    def node(self) -> dict[str, Any]:
        """`pond`, `position` and `chain` at least."""

    def log(self, after: int, *, limit: int = ..., wait_seconds: float = 0) -> LogPage:
        """The entries after a position.

        Raises: `NotFound`, kind `log_trimmed`.
        """

    def fetch_bundle(self, part_id: str, target: Path) -> Fetched:
        """Fetch a part's bundle.

        Raises: `NotFound`.
        """

    def fetch_shard(self, definition: MapDefinition, target: Path, *, position: int = 0) -> Fetched:
        """Fetch a copy of a map's shard, taken when everything up to `position` had been applied to it.

        Raises: `NotFound`, kind `shard_empty` when it has no row yet, else when the map is another one now.
        """

    def fetch_state(self, target: Path) -> Fetched:
        """Fetch the rows of the space that belong to the pond, not to one node."""

    def fetch_quarantine(self, target: Path) -> Fetched:
        """Fetch the list of quarantined parts."""
