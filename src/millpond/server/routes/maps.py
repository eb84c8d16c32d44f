"""Maps: list them, make, alter and drop them. Changes are made at the primary, and every node follows its log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from millpond.maps.map import Map
from millpond.nodes.node import Node
from millpond.server.access import RequestCaller, note_change
from millpond.server.limits import GuardedRoute
from millpond.server.wire import RequestBody

__all__ = ("Definition", "Dropped", "MapChanged", "MapResponse", "Maps", "NewMap", "routes")


class Definition(BaseModel):
    """A map, as it was made."""

    name: str
    kind: str = Field(examples=["temporal_state"])
    incarnation: str = Field(description="tells it from an earlier map of the same name")
    value: str | None = Field(description="type of its values; null: each row has its own", examples=["temp double"])
    scheme: str
    hash_bytes: int
    hash_bits: int
    overwrite: bool
    condense_ms: int | None
    retain_ms: int | None
    retain_by: str
    maintenance_suspended: bool


class MapResponse(Definition):
    """A map, and what it holds on this node."""

    rows: int
    position: int = Field(description="position of the log up to which the map is applied here")
    version: int = Field(description="raised by every change of the shard")
    shard_bytes: int
    parts_queued: int = Field(description="parts that are entered, but not merged here yet")
    rows_queued: int
    snapshot: str | None = Field(description="id of its latest snapshot")
    snapshot_current: bool = Field(description="whether that snapshot shows everything that is merged")


class MapChanged(MapResponse):
    """A map after a change, and the position of the log at which it was made."""

    position: int


class Maps(BaseModel):
    """All maps that the caller may read."""

    maps: list[MapResponse]


class Dropped(BaseModel):
    """The position of the log at which it was dropped."""

    position: int


class NewMap(RequestBody):
    """The body of `create_map`."""

    name: str = Field(examples=["weather"])
    kind: str = Field(examples=["temporal_state"])
    value: str | None = Field(None, examples=["temp double, wind_speed double"])
    scheme: str = "auto"
    hash_bytes: int = 8
    hash_bits: int = Field(64, description="for tests only")
    overwrite: bool = True
    condense: str | int | None = Field(None, description="age from which repeats are dropped, such as 30d")
    retain: str | int | None = Field(None, description="age at which rows are deleted, such as 10y")
    retain_by: str = "effective_time"
    exist_ok: bool = Field(False, description="accept a map that is there already and alike")


def _as_json(opened: Map) -> dict[str, Any]:
    """A map as JSON."""
    return opened.definition.to_dict() | opened.info()


def routes(node: Node) -> APIRouter:
    """The routes of one node."""
    router = APIRouter(route_class=GuardedRoute, prefix="/v1/maps", tags=["maps"])

    @router.get("", summary="All maps that you may read", response_model=Maps)
    def list_maps(
        caller: RequestCaller,
        unready: Annotated[bool, Query(description="also when the node is not ready; needs admin")] = False,
    ) -> dict[str, Any]:
        if unready:
            caller.need("admin")
        else:
            node.need_ready()
        return {"maps": [_as_json(pond_map) for pond_map in node.pond.maps() if caller.may("read", pond_map.name)]}

    @router.get("/{name}", summary="One map", response_model=MapResponse)
    def get_map(name: str) -> dict[str, Any]:
        return _as_json(node.pond.map(name))

    @router.post("", summary="Make a map", response_model=MapChanged)
    def create_map(request: Request, made: NewMap, caller: RequestCaller) -> dict[str, Any]:
        caller.need("admin", made.name)
        note_change(request, map=made.name)
        with node.appending():
            opened = node.pond.create_map(**made.model_dump())
        return _as_json(opened) | {"position": node.pond.log.position()[0]}

    @router.patch("/{name}", summary="Change the settings of a map", response_model=MapChanged)
    def alter_map(name: str, settings: dict[str, Any]) -> dict[str, Any]:
        with node.appending():
            opened = node.pond.alter_map(name, **settings)
        return _as_json(opened) | {"position": node.pond.log.position()[0]}

    @router.delete("/{name}", summary="Drop a map with all its rows", response_model=Dropped)
    def drop_map(name: str) -> dict[str, Any]:
        with node.appending():
            node.pond.drop_map(name)
        return {"position": node.pond.log.position()[0]}

    return router
