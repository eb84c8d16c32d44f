"""The parts of a pond on nodes, `pond.parts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millpond.client.operations import ask_primary
from millpond.client.transfer import fetch_part
from millpond.client.transport import Connection, Nodes
from millpond.errors import NotFound, Unavailable
from millpond.json_forms import JsonForm
from millpond.maps.loads.pond_parts import PartsByNode, unknown_node
from millpond.maps.log.queue import PartStatus
from millpond.maps.parts.part import PartManifest

__all__ = ("RemoteParts",)


@dataclass(frozen=True, slots=True)
class _PartList:
    parts: tuple[PartStatus, ...]


_LIST = JsonForm(_PartList)


class RemoteParts:
    """The parts of a pond: each node has its own copies, in states of their own."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def by_node(self) -> PartsByNode:
        """The parts of every node that answers; where there are several, with its address."""
        outcomes = self._nodes.all(lambda node: node.request("GET", "/v1/parts").read(_LIST).parts)
        several = len(outcomes) > 1
        parts = tuple((outcome.node if several else "", part) for outcome in outcomes for part in outcome.value or ())
        return PartsByNode(parts, next((outcome.error for outcome in outcomes if outcome.error is not None), None))

    def retry(self, part_ids: Sequence[str] | None = None, *, node: str = "") -> Sequence[PartStatus]:
        """Merge parts that were quarantined once more, on every node or on one; what the primary, or that, retries.

        Raises: `NotFound`; `Invalid` for a name of no node; `Unavailable` when a node cannot be reached.
        """
        body = {} if part_ids is None else {"parts": list(part_ids)}

        def order(node: Connection) -> Sequence[PartStatus]:
            return node.request("POST", "/v1/parts/retry", json=body, repeatable=True).read(_LIST).parts

        if node:
            by_url = {connection.url: connection for connection in self._nodes.connections}
            if node not in by_url:
                raise unknown_node(node, by_url)
            return order(by_url[node])
        primary = self._nodes.primary()
        outcomes = self._nodes.all(lambda node: () if node.withheld and node is not primary else order(node))
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return outcomes[0].value or ()

    def fetch(self, part_id: str, file: Path) -> PartManifest:
        """Bring a part, checked, into a file.

        Raises: `NotFound` when no node keeps it any more.
        """

        missing: NotFound | None = None
        for node in self._nodes.readable:
            try:
                return fetch_part(node, part_id, file)
            except NotFound as error:
                missing = error
            except Unavailable as error:
                if error.kind != "node_unreachable":
                    raise
        if missing is not None:
            raise missing
        return self._nodes.first(lambda node: fetch_part(node, part_id, file))

    def list(self) -> Sequence[PartStatus]:
        """The parts that wait, are merged, kept or quarantined, as the primary has them."""
        return ask_primary(self._nodes, "GET", "/v1/parts").read(_LIST).parts
