"""The files of a snapshot, read from nodes: each is checked against its name, and another node is asked when one fails.

Files are named by their content, so it does not matter which node a file comes from. A file that is cut short or
changed on its way, or that is damaged where it lies, is refused, and the next node is asked for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from millpond.client.connections import answers_nothing
from millpond.errors import Corrupt, MillpondError, NotFound, Unavailable
from millpond.ranges.verify import check_file

if TYPE_CHECKING:
    from millpond.client.transport import Connection, Nodes

__all__ = ("SnapshotSource", "unreachable_kind")

_LOG = logging.getLogger(__name__)
NODE_UNREACHABLE = "node_unreachable"


def unreachable_kind(error: MillpondError) -> bool:
    """True for a node that cannot be reached, or is not ready: a reader goes on to the next node."""
    return answers_nothing(error)


@dataclass(slots=True)
class SnapshotSource:
    """The snapshot files of one map: what `copy_snapshot` reads from. Threads may share it.

    `first` is asked before the others; `prefix` is where the files of a subset lie; `at` names the branch or ref.
    """

    nodes: Nodes
    map: str
    first: Connection | None = None
    prefix: str = ""
    at: Mapping[str, str] = field(default_factory=dict)
    _lost: dict[str, MillpondError] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """A name of these files for error messages."""
        urls = ",".join(node.url for node in self._order())
        return f"{urls}#{self.map}"

    def get(self, name: str) -> pa.Buffer:
        """All bytes of a file, which are what its name says.

        Raises: `Corrupt` or `NotFound`, naming the file, each node and what was wrong with it; `Unavailable` when no
        node can be reached.
        """
        failed: list[tuple[str, MillpondError]] = []
        for node in self._order():
            lost = self._lost.get(node.url)
            try:
                if lost is not None:
                    raise lost
                data = self._ask(node, name)
            except MillpondError as error:
                failed.append((node.url, error))
                if unreachable_kind(error):
                    self._lost[node.url] = error  # it is not waited for again, for every file
                if lost is None:
                    _LOG.warning("%s was not taken from %s: %s", name, node.url, error)
            else:
                return data
        raise _failure(self.map, name, failed)

    def _order(self) -> Sequence[Connection]:
        nodes = self.nodes.connections
        if self.first is None:
            return nodes
        return [self.first, *(node for node in nodes if node.url != self.first.url)]

    def _ask(self, node: Connection, name: str) -> pa.Buffer:
        connection = node.once if len(self.nodes.connections) > 1 else node
        path = f"/v1/maps/{quote(self.map)}/objects/{self.prefix}{name}"
        answer = connection.request("GET", path, query=self.at)
        data = pa.py_buffer(answer.data)
        try:
            check_file(data, name, node.url)
        except Corrupt as error:
            raise Corrupt(
                "the file is not what was written", kind="snapshot_damaged", object=name, node=node.url,
                bytes=len(answer.data), hint="run 'millpond verify' on that node",
            ) from error  # fmt: skip
        return data


def _failure(name: str, file: str, failed: Sequence[tuple[str, MillpondError]]) -> MillpondError:
    """One error for what every node said; the first node had the snapshot, so its word names the class."""
    first = failed[0][1]
    reasons = "; ".join(f"{node}: {error}" for node, error in failed)
    values = {"map": name, "object": file, "node": failed[0][0], "reason": reasons}
    if isinstance(first, Corrupt):
        hint = "run 'millpond verify' on that node"
        return Corrupt("no node has the file as it was written", kind="snapshot_damaged", hint=hint, **values)
    if isinstance(first, NotFound):
        hint = "the snapshot was replaced meanwhile: ask for it again"
        return NotFound("no node has the file", kind="snapshot_not_found", hint=hint, **values)
    if unreachable_kind(first):
        return Unavailable("no node gives the file", kind=NODE_UNREACHABLE, **values)
    return first
