"""Maps as steps of a run read them: on a branch, at one commit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from millpond.errors import Invalid, NotFound

if TYPE_CHECKING:
    from millpond.client.map import RemoteMap
    from millpond.client.pond import RemotePond
    from millpond.maps.map import Map
    from millpond.pond import Pond
    from millpond.refs.protocols import RefsLike
    from millpond.versions.graph.commits import Commit

__all__ = ("commit_of", "head_of", "map_of", "maps_among", "paths_among", "pinned", "tables_among")


def head_of(refs: RefsLike, branch: str) -> Commit:
    """The commit of a branch.

    Raises: `NotFound`.
    """
    return next(refs.log(branch))


def pinned(pond: Pond | RemotePond, value: Any) -> Any:
    """A value of the run; a map on a branch at the commit that the branch is at, or was before it was deleted."""
    if not isinstance(value, Mapping) or not value.get("branch") or "map" not in value:
        return value
    commit = value["commit"]
    with suppress(NotFound):
        commit = head_of(pond.refs, value["branch"]).id
    return {**value, "ref": commit}


def map_of(pond: Pond | RemotePond, value: Any) -> Map | RemoteMap:
    """The map of a value of the run, or of a name; one that is pinned as it is there.

    Raises: `NotFound`.
    """
    if not isinstance(value, Mapping):
        return pond.map(str(value))
    pin = pinned(pond, value)
    return pond.at(pin["ref"]).map(pin["map"]) if "ref" in pin else pond.map(str(pin["map"]))


def maps_among(values: list[Any]) -> list[dict[str, Any]]:
    """The maps, and the loads into them, among outputs: each of a loop, and none that was skipped."""
    maps = [value if isinstance(value, Mapping) else {"map": str(value)} for value in values]
    return [cast("dict[str, Any]", own) for value in maps for own in value.get("items", [value]) if "map" in own]


def tables_among(templates: list[Any], values: list[Any]) -> dict[str, Any]:
    """The tables, which are no maps, among outputs, by the names of their steps."""
    return {
        template["$value"][0]: value for template, value in zip(templates, values, strict=True)
        if isinstance(value, Mapping) and "path" in value and "map" not in value and "$value" in template
    }  # fmt: skip


def paths_among(files: Any) -> list[str]:
    """The files that a step loads: paths, and those of tables, also of each item of a loop.

    Raises: `Invalid` for what is neither.
    """
    paths = list[str]()
    for value in files if isinstance(files, list) else [files]:
        for own in value.get("items", [value]) if isinstance(value, Mapping) else [value]:
            path = own.get("path") if isinstance(own, Mapping) else own
            if not isinstance(path, str):
                raise Invalid("neither files nor a table", kind="pipeline_value", type=type(path).__name__,
                              hint="load paths, or the output of sql or enrich")  # fmt: skip
            paths.append(path)
    return paths


def commit_of(values: list[Any]) -> dict[str, Any]:
    """The branch, and the commit of it, that some pinned values were read at, as a check says it."""
    return next(({"branch": value["branch"], "commit": value["ref"]} for value in values
                 if isinstance(value, Mapping) and "ref" in value), {})  # fmt: skip
