"""The protocol between nodes: the log, parts, copies, digests.

A peer answers, refuses (the error it raises itself), or cannot be reached (`Unavailable`, kind `node_unreachable`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from millpond.client.snapshots.source import SnapshotSource
from millpond.client.transfer import Fetched, fetch_file, fetch_part
from millpond.client.transport import Connection, Nodes
from millpond.json_forms import plain
from millpond.maps.layered.stored_heads import StoredLayers
from millpond.maps.log.log import Entry
from millpond.maps.log.node_list import NodeList
from millpond.maps.parts.part import PartManifest
from millpond.nodes.replication.source import ObjectFile, PondFile, ShardFile, SpaceFile, StreamFile
from millpond.nodes.replication.status import NodeStatus
from millpond.stores.objects.protocol import ObjectInfo

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
            "POST", "/v1/nodes/status", json=plain(status), timeout=_NODE_SECONDS, question=True
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

    def fetch_part(self, part_id: str, file: Path, bytes_max: int) -> PartManifest:
        """Fetch a part into a new folder, checked.

        Raises: `NotFound` when it is not there, or not any more; as `fetch_part`.
        """
        return fetch_part(self.connection, part_id, file, bytes_max=bytes_max)

    def fetch(self, source: PondFile, target: Path) -> Fetched:
        """Fetch a file.

        Raises: as the file says; as `fetch_file`.
        """
        query, seconds = None, None
        match source:
            case SpaceFile():
                path, seconds = f"/v1/log/{source.value}", _COPY_SECONDS
            case ShardFile(definition, position):
                path, seconds = f"/v1/maps/{definition.name}/shard", _COPY_SECONDS
                query = {"position": str(position), "incarnation": definition.incarnation}
            case StreamFile(part):
                path = f"/v1/parts/{part}/stream"
            case ObjectFile(name):
                path = f"/v1/log/objects/{quote(name)}"
        return fetch_file(self.connection, path, target, query=query, timeout=seconds)

    def own_objects(self, after: str) -> list[ObjectInfo]:
        """A page of the objects of repositories that only its folder has, by name; an empty one is the end."""
        objects = self.connection.request("GET", "/v1/log/objects", query={"after": after}).json()["objects"]
        return [ObjectInfo(str(row["name"]), int(row["bytes"])) for row in objects]

    def snapshot_files(self, stored: StoredLayers) -> SnapshotSource:
        """The files of the snapshots of a map, each checked against its name."""
        at = {} if stored.manifests else {"incarnation": stored.incarnation}  # earlier releases have heads alone
        return SnapshotSource(Nodes(self.url, self.connection.settings), stored.map, at=at)
