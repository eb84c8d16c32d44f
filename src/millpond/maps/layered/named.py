"""The manifests of a map that somebody above names, and keeps: commits and branches do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.maps.model.keyspaces import NAMED

if TYPE_CHECKING:
    from millpond.kernel.space import Space
    from millpond.maps.model.definition import MapDefinition

__all__ = ("named_in", "named_manifests")


def named_manifests(space: Space, definition: MapDefinition) -> set[str]:
    """The ids of the manifests of a map that are named."""
    return named_in(space, f"{definition.name}.{definition.incarnation}")


def named_in(space: Space, folder: str) -> set[str]:
    """The same, by the folder of the map's files: also of a map that was dropped."""
    with space.read() as tx:
        return {str(NAMED.unpack(key)[1]) for key in tx.keys(NAMED[folder].range())}
