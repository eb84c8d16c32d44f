"""Requests to the primary of a pond on nodes; declared operations, performed by it or by the first node that is up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from millpond.client.request_values import encoded
from millpond.json_forms import JsonForm, plain

if TYPE_CHECKING:
    from millpond.client.response import Response
    from millpond.client.transport import Connection, Nodes
    from millpond.kernel.operations import Operation

__all__ = ("LARGE_SECONDS_MAX", "ask_primary", "perform")

LARGE_SECONDS_MAX = 3600.0
"""The time limit for waiting on what takes as long as the data is large; what takes longer is done all the same."""


def ask_primary(nodes: Nodes, method: str, path: str, *, repeatable: bool = False, **options: Any) -> Response:
    """The response of the primary; what is `repeatable`, or a GET, goes to a new primary when that one is gone.

    Raises: as `Nodes.on_primary`; the options are those of `Connection.request`.
    """
    return nodes.on_primary(
        lambda node: node.request(method, path, repeatable=repeatable, **options),
        repeatable=repeatable or method == "GET",
    )


def perform(
    nodes: Nodes, operation: Operation, names: Mapping[str, str], arguments: Mapping[str, Any],
    headers: Mapping[str, str] | None = None, at: Mapping[str, str] | None = None,
) -> Any:  # fmt: skip
    """The result of an operation on a thing with these names, `at` a branch or a ref.

    Raises: what a node answers; `Unavailable` when none can be reached.
    """
    requested, reads = operation.request(names, encoded(arguments, plain)), operation.right == "read"
    path = "".join(f"/{quote(segment, safe='')}" for segment in requested.segments)
    query = {**(at or {}), **requested.query}
    query = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}

    def ask(node: Connection) -> Response:
        return node.request(
            operation.method, path, query=query, json=requested.body or None, headers=headers,
            timeout=LARGE_SECONDS_MAX if operation.large else None, repeatable=operation.repeatable, question=reads,
        )  # fmt: skip

    answer = nodes.first(ask) if reads else nodes.on_primary(ask, repeatable=operation.repeatable)
    result = operation.result
    if operation.answer:
        return JsonForm(result).build(answer.json()[operation.answer])
    return None if result is type(None) else answer.read(JsonForm(result))
