"""The protocol between nodes: the log, parts, copies, digests.

A peer answers, refuses (the error it raises itself), or cannot be reached (`Unavailable`, kind `node_unreachable`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.client.download import Fetched, fetch_file
from millpond.client.part_download import fetch_part
from millpond.client.transport import Connection
from millpond.maps.log.log import Entry
from millpond.maps.log.node_list import NodeList
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartManifest
from millpond.nodes.replication.own_source import PeerOwn
from millpond.nodes.replication.status import NodeStatus

__all__ = ("LogPage", "Peer")

LOG_PAGE_MAX = 1000
_NODE_SECONDS = 5.0
"""A primary that starts asks all its peers this, and does not wait long for one that says nothing."""
_REST_SECONDS = 30.0
_COPY_SECONDS = 900.0
"""A copy is written whole before its first byte is sent."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Some entries of a peer's log, where that log ends, `(position, chain)`, and the list of nodes the peer had."""

    entries: list[Entry]
    last: tuple[int, str]
    nodes: NodeList = field(default_factory=lambda: NodeList(0, ()))


class Peer:
    """Another node of the pond."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.own = PeerOwn(connection)

    @property
    def url(self) -> str:
        """Base URL."""
        return self.connection.url

    def _get(self, path: str, *, query: Mapping[str, object] | None = None, seconds: float = _REST_SECONDS) -> Any:
        # Who asks keeps asking by itself: waiting here as well would multiply the pauses.
        return self.connection.once.request("GET", path, query=query, timeout=seconds).json()

    def node(self) -> dict[str, Any]:
        """The peer's status document: pond, role, position, chain …"""
        return self._get("/v1/node", seconds=_NODE_SECONDS)

    def exchange(self, status: NodeStatus) -> NodeStatus:
        """Send this node's status, and read the peer's."""
        sent = self.connection.once.request(
            "POST", "/v1/nodes/status", json=status.to_dict(), timeout=_NODE_SECONDS, question=True
        )
        return NodeStatus.from_dict(sent.json())

    def replicate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send `POST /v1/log/replication`, and wait for its answer."""
        seconds = float(body["timeout"]) + _NODE_SECONDS
        return self.connection.once.request(
            "POST", "/v1/log/replication", json=body, timeout=seconds, question=True
        ).json()

    def log(self, after: int, *, limit: int = LOG_PAGE_MAX, wait_seconds: float = 0) -> LogPage:
        """The entries after a position; when there are none yet, it waits for one so long.

        Raises: `NotFound` kind `log_trimmed` when it does not keep that entry any more.
        """
        query = {"after": after, "limit": limit, "wait": wait_seconds}
        response = self._get("/v1/log", query=query, seconds=wait_seconds + _REST_SECONDS)
        last = response["last"]
        nodes = NodeList(int(response.get("epoch", 0)), tuple(response.get("nodes", ())))
        entries = [Entry.from_dict(entry) for entry in response["entries"]]
        return LogPage(entries, (last["position"], last["chain"]), nodes)

    def digest(self, name: str, position: int, seconds: float) -> dict[str, Any]:
        """`{position, entry, rows, digest}` of a map, when everything up to a position has been applied there.

        Raises: `Unavailable` kind `merge_slow` when that takes longer than `seconds`; `NotFound` for the map.
        """
        query = {"position": position, "timeout": seconds}
        return self._get(f"/v1/maps/{name}/digest", query=query, seconds=seconds + 600)

    def maps(self) -> list[dict[str, Any]]:
        """Its maps, each a definition with what it holds."""
        return self._get("/v1/maps", query={"unready": True})["maps"]

    def fetch_part(self, part_id: str, folder: Path, bytes_max: int) -> PartManifest:
        """Fetch a part into a new folder, checked.

        Raises: `NotFound` when it is not there, or not any more; as `fetch_part`.
        """
        return fetch_part(self.connection, part_id, folder, bytes_max=bytes_max)

    def fetch_stream(self, part_id: str, target: Path) -> Fetched:
        """Fetch a part's stream, for a backup.

        Raises: `NotFound` when it is not there, or not any more.
        """
        return fetch_file(self.connection, f"/v1/parts/{part_id}/stream", target)

    def fetch_shard(self, definition: MapDefinition, target: Path, *, position: int = 0) -> Fetched:
        """Fetch a copy of a map's shard, taken when everything up to `position` had been applied there.

        Raises: `NotFound` kind `shard_empty` when it has no row yet, else when the map is another one now.
        """
        query = {"position": str(position), "incarnation": definition.incarnation}
        return fetch_file(
            self.connection, f"/v1/maps/{definition.name}/shard", target, query=query, timeout=_COPY_SECONDS
        )

    def fetch_state(self, target: Path) -> Fetched:
        """Fetch what its space has in common with those of its peers."""
        return fetch_file(self.connection, "/v1/log/state", target, timeout=_COPY_SECONDS)

    def fetch_quarantine(self, target: Path) -> Fetched:
        """Fetch which parts it has quarantined."""
        return fetch_file(self.connection, "/v1/log/quarantine", target)
