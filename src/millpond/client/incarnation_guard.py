"""Handles of maps on nodes: a request says which incarnation of its map it is for, and is refused by any other.

A handle sends `INCARNATION_HEADER`. A node whose map of that name is another, or that has none, answers `NotFound`,
kind `map_dropped`: so does a replica that has not heard of a new map yet. What the primary says decides which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from millpond.client.operations import ask_primary
from millpond.errors import Conflict, NotFound, Unavailable
from millpond.maps.model.catalogue import dropped_map

if TYPE_CHECKING:
    from millpond.client.transport import Nodes
    from millpond.maps.model.definition import MapDefinition

__all__ = ("INCARNATION_HEADER", "incarnation_headers", "of_same_map")

INCARNATION_HEADER = "Millpond-Incarnation"
_ANOTHER = ("map_dropped", "map_not_found", "map_incarnation")
T = TypeVar("T")


def incarnation_headers(definition: MapDefinition) -> dict[str, str]:
    """The header of a request for this map and no other."""
    return {INCARNATION_HEADER: definition.incarnation}


def of_same_map(nodes: Nodes, definition: MapDefinition, act: Callable[[], T]) -> T:
    """Do what asks nodes about a map.

    Raises: `NotFound`, kind `map_dropped`, when the map was dropped; `Unavailable`, kind `node_behind`, when a node has
    not heard of it yet; what `act` raises.
    """
    try:
        return act()
    except (NotFound, Conflict) as error:
        if error.kind not in _ANOTHER:
            raise
        if _is_there(nodes, definition):
            raise Unavailable(
                "a node has not heard of the map yet", kind="node_behind", map=definition.name,
                hint="it follows the primary: ask again in a moment",
            ) from error  # fmt: skip
        raise dropped_map(definition.name) from error


def _is_there(nodes: Nodes, definition: MapDefinition) -> bool:
    path, headers = f"/v1/maps/{quote(definition.name)}", incarnation_headers(definition)
    try:
        ask_primary(nodes, "GET", path, headers=headers)
    except NotFound:
        return False
    except Unavailable:
        return False  # the node that answered is the one to believe, then
    return True
