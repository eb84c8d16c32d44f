"""Runs of workflows on a node, as SQL reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from millpond.client.operations import ask_primary
from millpond.errors import Unavailable
from millpond.tables.runs import IDS_MAX, RUNS, RunSearch

if TYPE_CHECKING:
    from millpond.client.transport import Nodes
    from millpond.tables.rows import Row

__all__ = ("RemoteRuns",)

_PATH = "/v1/runs"


class RemoteRuns:
    """The runs of a pond on nodes that the token may read."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def tenants(self) -> list[str]:
        """The tenants whose runs may be read; none on a node without workflows."""
        try:
            tenants: list[str] = self._ask(f"{_PATH}/tenants", {})["tenants"]
        except Unavailable as error:
            if error.kind != "workflows_absent":
                raise
            return []
        return tenants

    def named(self, tenant: str, ids: Sequence[str]) -> list[Row]:
        chunks = (ids[start : start + IDS_MAX] for start in range(0, len(ids), IDS_MAX))
        return [row for some in chunks for row in _rows(self._ask(_PATH, {"tenant": tenant, "id": list(some)}))]

    def page(self, tenant: str, search: RunSearch, bookmark: bytes) -> tuple[list[Row], bytes | None]:
        query = {
            "tenant": tenant, "after": bookmark.hex(), "workflow": search.workflow, "status": search.status,
            "start_ms": search.start_ms, "stop_ms": search.stop_ms,
        }  # fmt: skip
        page = self._ask(_PATH, {name: value for name, value in query.items() if value is not None})
        return list(_rows(page)), None if page["next"] is None else bytes.fromhex(page["next"])

    def _ask(self, path: str, query: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = ask_primary(self._nodes, "GET", path, query=query).json()
        return answer


def _rows(page: dict[str, Any]) -> Iterator[Row]:
    return (tuple(run[name] for name in RUNS.names) for run in page["runs"])
