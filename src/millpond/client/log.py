"""The log of a pond on nodes, `pond.log`."""

from __future__ import annotations

from millpond.client.catalogue import map_path
from millpond.client.transport import Nodes
from millpond.maps.log.log import Entry

__all__ = ("RemoteLog",)


class RemoteLog:
    """The log of a pond: the primary's, and the copies that the others have of it. `pond_id` is the same on all."""

    def __init__(self, nodes: Nodes, pond_id: str) -> None:
        self._nodes, self.pond_id = nodes, pond_id

    def __repr__(self) -> str:
        return f"RemoteLog({', '.join(self._nodes.urls)!r})"

    def position(self) -> tuple[int, str]:
        """The primary's last position, and the chain up to it; (0, "") for a new pond."""
        status = self._nodes.on_primary(lambda node: node.request("GET", "/v1/node"), repeatable=True).json()
        return status["position"], status["chain"]

    def entries(self, after: int, limit: int = 1000) -> list[Entry]:
        """Log entries after a position.

        Raises: `NotFound` kind `log_trimmed` when that is not kept any more; `Denied`.
        """
        query = {"after": after, "limit": limit}
        response = self._nodes.first(lambda node: node.request("GET", "/v1/log", query=query)).json()
        return [Entry.from_dict(entry) for entry in response["entries"]]

    def applied(self, name: str) -> int:
        """Every entry about this map up to this position has been applied, where it is asked."""
        return int(self._nodes.first(lambda node: node.request("GET", map_path(name))).json()["position"])
