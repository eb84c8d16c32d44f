"""Maps: list them, make, alter and drop them. Changes are made at the primary, and every node follows its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from millpond.maps.map import Map
from millpond.maps.model.store_limits import unsupported
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.server.access import caller_in, note_change
from millpond.server.dispatch import Routes
from millpond.server.routes.table import On, order, read
from millpond.server.wire import RequestBody

__all__ = ("Definition", "Dropped", "MapChanged", "MapResponse", "Maps", "NewMap", "NewName", "alter", "create",
           "drop", "routes")  # fmt: skip


class Definition(msgspec.Struct, kw_only=True):
    """A map, as it was made."""

    name: str
    kind: Annotated[str, Meta(examples=["temporal_state"])]
    incarnation: Annotated[str, Meta(description="tells it from an earlier map of the same name")]
    value: Annotated[
        str | None, Meta(description="type of its values; null: each row has its own", examples=["temp double"])
    ]
    scheme: str
    hash_bytes: int
    hash_bits: int
    overwrite: bool
    condense_ms: int | None
    retain_ms: int | None
    retain_by: str
    maintenance_suspended: bool
    store: Annotated[str, Meta(description="where its rows are: shard or layers")]
    roll_up: Annotated[
        str | msgspec.UnsetType, Meta(description="buckets to which old rows of an aggregate are combined")
    ] = msgspec.UNSET
    query: Annotated[
        str | msgspec.UnsetType, Meta(description="the query over raw rows that a table by query answers")
    ] = msgspec.UNSET
    fields: Annotated[
        dict[str, Any] | msgspec.UnsetType, Meta(description="ids of the fields, when they changed: see layers.md")
    ] = msgspec.UNSET
    aggregation: Annotated[
        dict[str, Any] | msgspec.UnsetType, Meta(description="of an aggregate: rules, resolution and time zone")
    ] = msgspec.UNSET


class MapResponse(Definition, kw_only=True):
    """A map, and what it holds on this node."""

    rows: int
    position: Annotated[int, Meta(description="position of the log up to which the map is applied here")]
    version: Annotated[int, Meta(description="raised by every change of the shard")]
    shard_bytes: int
    parts_queued: Annotated[int, Meta(description="parts that are entered, but not merged here yet")]
    rows_queued: int
    snapshot: Annotated[str | None, Meta(description="id of its latest snapshot")]
    snapshot_current: Annotated[bool, Meta(description="whether that snapshot shows everything that is merged")]


class MapChanged(MapResponse, kw_only=True):
    """A map after a change, and the position of the log at which it was made."""

    position: int


class Maps(msgspec.Struct):
    """All maps that the caller may read."""

    maps: list[MapResponse]


class Dropped(msgspec.Struct):
    """The position of the log at which it was dropped."""

    position: int


class NewMap(RequestBody):
    """The body of `create_map`."""

    name: Annotated[str, Meta(examples=["weather"])]
    kind: Annotated[str | None, Meta(description="none with a query", examples=["temporal_state"])] = None
    value: Annotated[str | None, Meta(examples=["temp double, wind_speed double"])] = None
    scheme: str = "auto"
    hash_bytes: int = 8
    hash_bits: Annotated[int, Meta(description="for tests only")] = 64
    overwrite: bool = True
    condense: Annotated[str | int | None, Meta(description="age from which repeats are dropped, such as 30d")] = None
    retain: Annotated[str | int | None, Meta(description="age at which rows are deleted, such as 10y")] = None
    retain_by: str = "effective_time"
    exist_ok: Annotated[bool, Meta(description="accept a map that is there already and alike")] = False
    store: Annotated[str | None, Meta(description="where its rows are: layers or shard; else as maps.store says")] = (
        None
    )
    resolution: Annotated[str | None, Meta(description="the buckets of an aggregate", examples=["1 hour"])] = None
    time_zone: Annotated[str | None, Meta(description="the clocks of its buckets; UTC by default")] = None
    key: Annotated[str | None, Meta(description="what its keys are: text or tags")] = None
    roll_up: Annotated[str | None, Meta(description="buckets to which its old rows are combined")] = None
    query: Annotated[str | None, Meta(description="a query over raw rows that says what the aggregate is")] = None


class NewName(RequestBody):
    """The body of `copy_map`."""

    name: Annotated[str, Meta(description="the name of the copy", examples=["climate"])]
    drop: Annotated[bool, Meta(description="drop the map under its old name: it is renamed")] = False


def _as_json(opened: Map) -> dict[str, Any]:
    return opened.definition.to_dict() | opened.info()


def routes(node: Node) -> Routes:
    """The routes of one node."""
    router = Routes(prefix="/v1/maps", tag="maps")

    @router.get("", read(On.ANY_MAP, at_readers=True), summary="All maps that you may read", answer=Maps)
    def list_maps(
        caller: Caller,
        unready: Annotated[bool, Meta(description="also when the node is not ready; needs admin")] = False,
    ) -> dict[str, Any]:
        if unready:
            caller.need("admin")
        else:
            node.need_ready()
        return {"maps": [_as_json(pond_map) for pond_map in node.pond.maps() if caller.may("read", pond_map.name)]}

    @router.get("/{name}", read(On.MAP, when_ready=True, at_readers=True), summary="One map", answer=MapResponse)
    def get_map(name: str) -> dict[str, Any]:
        return _as_json(node.pond.map(name))

    @router.post("", order(On.BODY_MAPS), summary="Make a map", answer=MapChanged)
    def create_map(request: Request, made: NewMap) -> dict[str, Any]:
        return _as_json(create(node, request, made)) | {"position": node.pond.log.position()[0]}

    @router.patch("/{name}", order(On.MAP), summary="Change the settings of a map", answer=MapChanged)
    def alter_map(name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """`store` converts the map: the answer comes when that is done."""
        return _as_json(alter(node, name, settings)) | {"position": node.pond.log.position()[0]}

    @router.post("/{name}/copies", order(On.MAP), summary="Copy a layered map, or rename it", answer=MapChanged)
    def copy_map(request: Request, name: str, copied: NewName, caller: Caller) -> dict[str, Any]:
        caller.need("admin", copied.name)
        note_change(request, map=name, new=copied.name)
        catalogue = node.pond.catalogue
        with node.appending():
            made = (catalogue.rename if copied.drop else catalogue.copy)(name, copied.name)
        return _as_json(node.pond.map(made.name)) | {"position": node.pond.log.position()[0]}

    @router.delete("/{name}", order(On.MAP, 0), summary="Drop a map with all its rows", answer=Dropped)
    def drop_map(name: str) -> dict[str, Any]:
        drop(node, name)
        return {"position": node.pond.log.position()[0]}

    return router


def create(node: Node, request: Request, made: NewMap) -> Map:
    """Make a map for the caller of a request.

    Raises: `Denied`; as `Pond.create_map`.
    """
    caller_in(request).need("admin", made.name)
    note_change(request, map=made.name)
    _refuse_layers(node, made.name, made.store)
    settings = msgspec.structs.asdict(made)
    settings["as_"] = settings.pop("query")
    if made.store is None and node.follower.members.replicates:
        settings["store"] = "shard"
    with node.appending():
        return node.pond.create_map(**settings)


def alter(node: Node, name: str, settings: Mapping[str, Any]) -> Map:
    """Change settings of a map.

    Raises: as `Pond.alter_map`.
    """
    _refuse_layers(node, name, settings.get("store"))
    with node.appending():
        return node.pond.alter_map(name, **settings)


def drop(node: Node, name: str) -> None:
    """Drop a map.

    Raises: as `Pond.drop_map`.
    """
    with node.appending():
        node.pond.drop_map(name)


def _refuse_layers(node: Node, name: str, store: object) -> None:
    if store == "layers" and node.follower.members.replicates:
        raise unsupported(name, "replication")
