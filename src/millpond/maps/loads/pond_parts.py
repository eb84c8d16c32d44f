"""The parts of an open pond, `pond.parts`: those that wait, are merged, were quarantined or are retained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from millpond.errors import Invalid
from millpond.maps.loads.loading import Loading
from millpond.maps.loads.retention import expire, part_file, part_statuses
from millpond.maps.loads.retries import replace_part, retry_parts
from millpond.maps.log.queue import PartStatus, Quarantined

__all__ = ("PartsByNode", "PondParts", "unknown_node")


@dataclass(frozen=True, slots=True)
class PartsByNode:
    """Parts, each with the node that has it; "" where there is one place only. `error`: why a node did not answer."""

    parts: tuple[tuple[str, PartStatus], ...]
    error: Exception | None = None


class PondParts:
    """The parts of a pond in a folder."""

    def __init__(self, loading: Loading) -> None:
        self._loading = loading

    def file(self, part_id: str) -> Path | None:
        """The file of a part that waits, is merged now or is kept; None when there is none."""
        return part_file(self._loading.loads, part_id)

    def quarantined(self) -> Sequence[Quarantined]:
        """The parts that were quarantined, with what was queued of them."""
        return self._loading.loads.queue.quarantined()

    def queued_maps(self) -> Sequence[str]:
        """The maps that parts or maintenance orders wait for."""
        return self._loading.loads.queue.maps()

    def by_node(self) -> PartsByNode:
        """All parts, as `RemoteParts.by_node` lists them: a folder is one place without a name."""
        return PartsByNode(tuple(("", part) for part in self.list()))

    def retry(self, part_ids: Sequence[str] | None = None, *, node: str = "") -> Sequence[PartStatus]:
        """Take parts that were quarantined (all: None) again, each in its place; how each stands now.

        A part comes before what was entered after it, so what was applied meanwhile is applied again, from kept parts.
        `node` is a name that `by_node` gave: none, for a folder.

        Raises: `NotFound`; `Invalid` for the name of a node; `Conflict`, kind `part_order`, when a part that was named
        cannot be put in its place.
        """
        if node:
            raise unknown_node(node, ())
        with self._loading.writing():
            return retry_parts(self._loading, part_ids)

    def replace(self, part_id: str, file: Path) -> Sequence[PartStatus]:
        """Hand in an intact copy of a part that was quarantined, which is moved away, and take it again.

        Raises: `Corrupt` when the copy is damaged; `Invalid` when it is another part; else as `retry`.
        """
        with self._loading.writing():
            return replace_part(self._loading, part_id, file)

    def expire(self, before_ms: int) -> int:
        """Remove the kept parts that were merged before a time, and trim the log to what is left; how many."""
        with self._loading.writing():
            return expire(self._loading.loads, before_ms)

    def list(self, name: str | None = None, state: str | None = None) -> Sequence[PartStatus]:
        """The parts that wait, are merged now, were quarantined or are kept; of one map, or in one state."""
        return [part for part in part_statuses(self._loading.loads, name) if state in (None, part.state)]


def unknown_node(node: str, nodes: Iterable[str]) -> Invalid:
    """The error for a node that a pond does not have."""
    return Invalid(
        "no node of the pond has this name", kind="node_unknown", node=node,
        hint=f"name one of {', '.join(nodes)}" if nodes else "a pond in a folder has none: leave it out",
    )  # fmt: skip
