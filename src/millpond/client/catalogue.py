"""The maps of a pond that lies on nodes, `pond.catalogue`: made, altered and dropped at the primary; others follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millpond.client.catching_up import come_up_to
from millpond.client.map import definition_of
from millpond.client.operations import ask_primary
from millpond.client.transport import Nodes
from millpond.client.upload import ON_MAIN
from millpond.clock import Clock
from millpond.errors import Invalid, NotFound, Unavailable
from millpond.kernel.operations import Operation
from millpond.maps.model.definition import MapDefinition, check_name
from millpond.maps.model.field_changes import CHANGES

__all__ = ("RemoteCatalogue", "map_path")


class RemoteCatalogue:
    """The definitions of a pond's maps, as its nodes have them; `at` a branch or a ref, as those are there."""

    def __init__(self, nodes: Nodes, clock: Clock, at: Mapping[str, str] = ON_MAIN) -> None:
        self._nodes, self._clock, self._at = nodes, clock, at

    def find(self, name: str) -> MapDefinition:
        """The map of that name.

        Raises: `NotFound` naming maps with a similar name.
        """
        return definition_of(self._nodes.first(lambda node: node.request("GET", map_path(name), query=self._at)).json())

    def create(self, operation: Operation, arguments: Mapping[str, Any]) -> MapDefinition:
        """Make a map on every node, as `create_map` is declared. Without `commit` that is staged on a branch.

        Raises: `AlreadyExists`, `Invalid`; `Unavailable` when the primary cannot be reached.
        """
        value, commit = arguments["value"], arguments.get("commit", True)
        typed = {**arguments, "value": None if value is None else str(value), "commit": None}
        body = operation.request({}, typed).body
        return definition_of(self._change("POST", "/v1/maps", body, repeatable=body["exist_ok"], commit=commit))

    def alter(self, name: str, settings: Mapping[str, Any], *, commit: bool = True) -> MapDefinition:
        """Change settings of a map on every node, see `Pond.alter_map`; without `commit` that is staged on a branch.

        Raises: `Invalid`; `NotFound`.
        """
        # A field that was renamed is not there to be renamed again.
        repeatable = settings.keys().isdisjoint(CHANGES)
        return definition_of(self._change("PATCH", map_path(name), settings, repeatable=repeatable, commit=commit))

    def copy(self, name: str, new: str, *, commit: bool = True) -> MapDefinition:
        """Copy a layered map under a new name.

        Raises: `AlreadyExists`; `Invalid` for a map in a shard; `NotFound`.
        """
        return self._copied(name, {"name": new}, commit=commit)

    def rename(self, name: str, new: str, *, commit: bool = True) -> MapDefinition:
        """Give a layered map another name.

        Raises: as `copy`.
        """
        return self._copied(name, {"name": new, "drop": True}, commit=commit)

    def _copied(self, name: str, body: Mapping[str, Any], *, commit: bool) -> MapDefinition:
        return definition_of(self._change("POST", f"{map_path(name)}/copies", body, repeatable=False, commit=commit))

    def drop(self, name: str, *, commit: bool = True) -> None:
        """Drop a map on every node; without `commit` that is staged on a branch.

        Raises: `NotFound`.
        """
        self._change("DELETE", map_path(name), None, repeatable=False, commit=commit)

    def _change(self, method: str, path: str, body: Any, *, repeatable: bool, commit: bool = True) -> dict[str, Any]:
        nodes, query = self._nodes, {**self._at, **({} if commit else {"commit": "false"})}
        answer = ask_primary(nodes, method, path, query=query, json=body, repeatable=repeatable)
        response: dict[str, Any] = answer.json()
        # The next question may go to any node. One that is down learns of it later.
        applied_at = come_up_to(
            nodes, response["position"], self._clock, applied=False, there=answer.node, patient=False
        )
        for outcome in applied_at:
            if outcome.error is not None and not isinstance(outcome.error, Unavailable):
                raise outcome.error
        return response

    def list(self) -> Sequence[MapDefinition]:
        """All maps, by name."""
        response = self._nodes.first(lambda node: node.request("GET", "/v1/maps", query=self._at)).json()
        return [definition_of(description) for description in response["maps"]]


def map_path(name: str) -> str:
    """The path of a map at a node.

    Raises: `NotFound` for what is no name of a map.
    """
    try:
        return f"/v1/maps/{check_name(name)}"
    except Invalid:
        hint = "names are lower case letters, digits and underscores"
        raise NotFound("no such map", kind="map_not_found", map=name, hint=hint) from None
