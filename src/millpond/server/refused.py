"""The parts that a node on a bucket does not have: their routes are refused by name.

Their callers need a token, and the right that the route names, all the same: nobody else learns of the pond.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.maps.loads.pond_folder import StorageLocation
    from millpond.server.dispatch import Route

__all__ = ("refuse_routes", "refused_part")

_PARTS = {
    "replication": (
        "/v1/nodes/status", "/v1/nodes/promote", "/v1/nodes/add", "/v1/nodes/remove", "/v1/nodes/promise",
        "/v1/nodes/confirmation", "/v1/log/acknowledgement", "/v1/log/state", "/v1/log/quarantine", "/v1/log/own",
        "/v1/log/layers", "/v1/log/objects", "/v1/maps/{name}/shard", "/v1/parts/{part_id}/stream", "/v1/repair",
        "/console/jobs/repair",
    ),
}  # fmt: skip
"""The beginnings of the paths of each part."""


def refused_part(path: str) -> str | None:
    """The part of a path that a node on a bucket does not have; None for one that it has.

    >>> refused_part("/v1/log/state"), refused_part("/v1/events/watch")
    ('replication', None)
    """
    return next((part for part, beginnings in _PARTS.items() if path.startswith(beginnings)), None)


def refuse_routes(location: StorageLocation, routes: Iterable[Route]) -> None:
    """Let the routes of what a place does not have answer so, in their dialects."""
    for route in routes:
        part = refused_part(route.path)
        if part is not None:
            route.refuse = lambda part=part: location.refuse(part)
