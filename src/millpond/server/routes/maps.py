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
from millpond.server.map_refs import Branch, Commits, Ref, branch_of, map_of, pond_of
from millpond.server.routes.table import On, order, read
from millpond.server.wire import RequestBody

__all__ = ("Definition", "Dropped", "MapChanged", "MapResponse", "Maps", "NewMap", "NewName", "alter", "copy", "create",
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
    condense_by: Annotated[
        str | msgspec.UnsetType, Meta(description="the time that makes a repeat old, where it is update_time")
    ] = msgspec.UNSET
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
    version: Annotated[int, Meta(description="raised by every change of the shard")]
    shard_bytes: int
    snapshot: Annotated[str | None, Meta(description="id of its latest snapshot")]
    ref: Annotated[str | msgspec.UnsetType, Meta(description="the branch or ref that it is at")] = msgspec.UNSET
    position: Annotated[
        int | msgspec.UnsetType, Meta(description="position of the log up to which the map is applied; on main")
    ] = msgspec.UNSET
    parts_queued: Annotated[
        int | msgspec.UnsetType, Meta(description="parts that are entered, but not merged here yet; on main")
    ] = msgspec.UNSET
    rows_queued: int | msgspec.UnsetType = msgspec.UNSET
    snapshot_current: Annotated[
        bool | msgspec.UnsetType, Meta(description="whether that snapshot shows everything that is merged; on main")
    ] = msgspec.UNSET


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
    condense_by: str = "effective_time"
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


_OF_MAIN = frozenset(("scheme", "hash_bytes", "hash_bits", "store"))
"""The settings of a new map that one on a branch does not have."""


def _as_json(pond_map: Map) -> dict[str, Any]:
    return pond_map.definition.to_dict() | pond_map.info()


def routes(node: Node) -> Routes:
    """The routes of one node."""
    router = Routes(prefix="/v1/maps", tag="maps")

    @router.get("", read(On.ANY_MAP, at_readers=True), summary="All maps that you may read", answer=Maps)
    def list_maps(
        request: Request, caller: Caller,
        unready: Annotated[bool, Meta(description="also when the node is not ready; needs admin")] = False,
        branch: Branch = None, ref: Ref = None,
    ) -> dict[str, Any]:  # fmt: skip
        if unready:
            caller.need("admin")
        else:
            node.need_ready()
        maps = pond_of(request, branch, ref).maps()
        return {"maps": [_as_json(pond_map) for pond_map in maps if caller.may("read", pond_map.name)]}

    @router.get("/{name}", read(On.MAP, when_ready=True, at_readers=True), summary="One map", answer=MapResponse)
    def get_map(request: Request, name: str, branch: Branch = None, ref: Ref = None) -> dict[str, Any]:
        return _as_json(map_of(request, name, branch, ref))

    @router.post("", order(On.BODY_MAPS), summary="Make a map", answer=MapChanged)
    def create_map(request: Request, made: NewMap, branch: Branch = None, commit: Commits = True) -> dict[str, Any]:
        opened = create(node, request, made, branch, commit=commit)
        return _as_json(opened) | {"position": node.pond.log.position()[0]}

    @router.patch("/{name}", order(On.MAP), summary="Change the settings of a map", answer=MapChanged)
    def alter_map(
        request: Request, name: str, settings: dict[str, Any], branch: Branch = None, commit: Commits = True
    ) -> dict[str, Any]:
        """`store` converts the map: the answer comes when that is done."""
        opened = alter(node, request, name, settings, branch, commit=commit)
        return _as_json(opened) | {"position": node.pond.log.position()[0]}

    @router.post("/{name}/copies", order(On.MAP), summary="Copy a layered map, or rename it", answer=MapChanged)
    def copy_map(
        request: Request, name: str, copied: NewName, branch: Branch = None, commit: Commits = True
    ) -> dict[str, Any]:
        made = copy(node, request, name, copied, branch, commit=commit)
        return _as_json(made) | {"position": node.pond.log.position()[0]}

    @router.delete("/{name}", order(On.MAP, 0), summary="Drop a map with all its rows", answer=Dropped)
    def drop_map(request: Request, name: str, branch: Branch = None, commit: Commits = True) -> dict[str, Any]:
        drop(node, request, name, branch, commit=commit)
        return {"position": node.pond.log.position()[0]}

    return router


def create(node: Node, request: Request, made: NewMap, branch: str | None = None, *, commit: bool = True) -> Map:
    """Make a map for the caller of a request.

    Raises: `Denied`; as `Pond.create_map`.
    """
    caller_in(request).need("admin", made.name)
    note_change(request, map=made.name)
    settings = msgspec.structs.asdict(made)
    settings["as_"] = settings.pop("query")
    if branch is not None:
        own = {name: value for name, value in settings.items() if name not in _OF_MAIN}
        with node.appending():
            return branch_of(request, branch).create_map(commit=commit, **own)
    _refuse_layers(node, made.name, made.store)
    if made.store is None and node.follower.members.replicates:
        settings["store"] = "shard"
    with node.appending():
        return node.pond.create_map(**settings)


def alter(
    node: Node, request: Request, name: str, settings: Mapping[str, Any], branch: str | None = None, *,
    commit: bool = True,
) -> Map:  # fmt: skip
    """Change settings of a map.

    Raises: as `Pond.alter_map`.
    """
    if branch is not None:
        with node.appending():
            return branch_of(request, branch).alter_map(name, **{**settings, "commit": commit})
    _refuse_layers(node, name, settings.get("store"))
    with node.appending():
        return node.pond.alter_map(name, **settings)


def copy(
    node: Node, request: Request, name: str, copied: NewName, branch: str | None = None, *, commit: bool = True
) -> Map:
    """Copy a map for the caller of a request, or rename it.

    Raises: `Denied`; as `Catalogue.copy`.
    """
    caller_in(request).need("admin", copied.name)
    note_change(request, map=name, new=copied.name)
    pond = node.pond if branch is None else branch_of(request, branch)
    staged: dict[str, Any] = {} if branch is None else {"commit": commit}
    with node.appending():
        map_ = (pond.catalogue.rename if copied.drop else pond.catalogue.copy)(name, copied.name, **staged)
    return pond.map(map_.name)


def drop(node: Node, request: Request, name: str, branch: str | None = None, *, commit: bool = True) -> None:
    """Drop a map.

    Raises: as `Pond.drop_map`.
    """
    with node.appending():
        if branch is None:
            node.pond.drop_map(name)
        else:
            branch_of(request, branch).drop_map(name, commit=commit)


def _refuse_layers(node: Node, name: str, store: object) -> None:
    if store == "layers" and node.follower.members.replicates:
        raise unsupported(name, "replication")
