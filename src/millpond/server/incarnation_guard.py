"""The incarnation that a request is for, checked before the route of a map is run (`client/incarnation_guard.py`)."""

from __future__ import annotations

from anyio.to_thread import run_sync
from starlette.requests import Request

from millpond.client.incarnation_guard import INCARNATION_HEADER
from millpond.maps.model.catalogue import dropped_map, known_map
from millpond.nodes.node import Node

__all__ = ("check_incarnation", "incarnation_of")

_MAPS = "/v1/maps/"
_HEADER = INCARNATION_HEADER.lower().encode()


def incarnation_of(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The incarnation that the headers of a request name."""
    for name, value in headers:
        if name == _HEADER:
            return value.decode("latin-1")
    return None


async def check_incarnation(request: Request) -> None:
    """A dependency of every route; it acts on requests about one map that name an incarnation.

    Each of these routes needs a right on the map, so that only its readers learn of it.

    Raises: `NotFound`, kind `map_dropped`; as `Node.need_ready`.
    """
    incarnation = request.headers.get(INCARNATION_HEADER)
    name = request.path_params.get("name")
    if incarnation is None or name is None or not request.url.path.startswith(_MAPS):
        return
    if "branch" in request.query_params or "ref" in request.query_params:
        return  # `map_of` compares it with the map there
    node: Node = request.app.state.node
    if not node.answers:
        await run_sync(node.need_ready)  # it may not know of the map yet
    if not await run_sync(_is_there, node, name, incarnation):
        raise dropped_map(name)


def _is_there(node: Node, name: str, incarnation: str) -> bool:
    with node.pond.space.read() as tx:
        definition = known_map(tx, name.lower())
    return definition is not None and definition.incarnation == incarnation
