"""The maps of a pond that lies on nodes. They are made, altered and dropped at the primary; the others follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millpond.client.loads import RemoteLoading
from millpond.client.map import RemoteMap, definition_of
from millpond.client.upload import come_up_to
from millpond.errors import Invalid, NotFound, Unavailable
from millpond.maps.model.definition import Kind, Scheme, ValueType, check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millpond.client.lookup import Questions

__all__ = ("RemoteCatalogue",)


class RemoteCatalogue:
    """Maps by name."""

    loading: RemoteLoading
    questions: Questions

    def create_map(
        self, name: str, *, kind: str | Kind, value: str | ValueType | None = None, scheme: str | Scheme = "auto",
        hash_bytes: int = 8, overwrite: bool = True, condense: str | int | None = None,
        retain: str | int | None = None, retain_by: str = "effective_time", exist_ok: bool = False,
        hash_bits: int = 64,
    ) -> RemoteMap:  # fmt: skip
        """Make a map on every node, see `Pond.create_map`.

        Raises: `AlreadyExists`, `Invalid`; `Unavailable` when the primary cannot be reached.
        """
        body = {
            "name": name, "kind": str(kind), "value": None if value is None else str(value), "scheme": str(scheme),
            "hash_bytes": hash_bytes, "hash_bits": hash_bits, "overwrite": overwrite, "condense": condense,
            "retain": retain, "retain_by": retain_by, "exist_ok": exist_ok,
        }  # fmt: skip
        return self._change("POST", "/v1/maps", body, repeatable=exist_ok)

    def map(self, name: str) -> RemoteMap:
        """The map of that name.

        Raises: `NotFound` naming maps with a similar name.
        """
        return self._map(self.loading.nodes.first(lambda node: node.request("GET", _path(name))).json())

    def maps(self) -> list[RemoteMap]:
        """All maps, by name."""
        response = self.loading.nodes.first(lambda node: node.request("GET", "/v1/maps")).json()
        return [self._map(description) for description in response["maps"]]

    def alter_map(self, name: str, **settings: Any) -> RemoteMap:
        """Change settings of a map on every node, see `Pond.alter_map`.

        Raises: `Invalid`; `NotFound`.
        """
        return self._change("PATCH", _path(name), settings, repeatable=True)

    def drop_map(self, name: str) -> None:
        """Drop a map with all its rows, parts and snapshots on every node.

        Raises: `NotFound`.
        """
        self._request("DELETE", _path(name), None, repeatable=False)
        self.questions.changed(name.lower())

    def _change(self, method: str, path: str, body: Mapping[str, Any], *, repeatable: bool) -> RemoteMap:
        return self._map(self._request(method, path, body, repeatable=repeatable))

    def _request(self, method: str, path: str, body: Any, *, repeatable: bool) -> dict[str, Any]:
        nodes = self.loading.nodes
        answer = nodes.on_primary(lambda node: node.request(method, path, json=body, repeatable=repeatable))
        response: dict[str, Any] = answer.json()
        # The next question may go to any node. One that is down learns of it later.
        known = come_up_to(
            nodes, response["position"], self.loading.clock, applied=False, there=answer.node, patient=False
        )
        for outcome in known:
            if outcome.error is not None and not isinstance(outcome.error, Unavailable):
                raise outcome.error
        return response

    def _map(self, description: Mapping[str, Any]) -> RemoteMap:
        return RemoteMap(definition_of(description), self.loading, self.questions)


def _path(name: str) -> str:
    try:
        return f"/v1/maps/{check_name(name)}"
    except Invalid:
        hint = "names are lower case letters, digits and underscores"
        raise NotFound("no such map", kind="map_not_found", map=name, hint=hint) from None
