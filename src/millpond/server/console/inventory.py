"""Pages of maps, and of what the node does by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from millpond.console import bars, link
from millpond.errors import Invalid, NotFound
from millpond.json_forms import plain
from millpond.maps.map import Map
from millpond.maps.model.aggregation import Form, Rule
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.pond import Pond
from millpond.refs.face import MAIN, POND
from millpond.refs.map_entries import MAPS
from millpond.refs.pond import RefPond
from millpond.server.console.actions import actions_of
from millpond.server.console.histories import TIMES, drawn_history, time_span
from millpond.server.console.loads import by_hour, loads_of
from millpond.server.console.maps_at_refs import actions_at, pond_at, ref_shown
from millpond.server.console.pages import PAGE_ROWS, answered, pages
from millpond.server.console.tables import newest_rows, shown_cell, shown_rows
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import may as may_repository
from millpond.server.routes.table import MONITOR, SCAN_BYTES, On, read
from millpond.server.wire import relative
from millpond.settings import all_in_words
from millpond.settings.types import TokenSetting
from millpond.stores.objects import at_once
from millpond.times.durations import format_duration

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.nodes.tokens import Caller
    from millpond.versions.repository import Named, Repository

__all__ = ("routes", "rows_of_key", "settings_of")

_HISTORY_MAX = 200
_KINDS = [*map(str, Kind), *map(str, Form)]


def routes(node: Node) -> Routes:
    """The routes of maps and of jobs."""
    router = pages("/console")
    _add_maps(router, node)
    _add_map(router, node)
    _add_jobs(router, node)
    return router


def _add_maps(router: Routes, node: Node) -> None:
    @router.get("/maps", read(On.ANY_MAP), summary="Maps")
    def list_maps(request: Request, caller: Caller, prefix: str = "", ref: str = "", after: str = "") -> Response:
        """A page of the maps that the caller may read, by name; at a ref, as they are there."""
        pond, branch = pond_at(request, ref)
        names = [definition.name for definition in pond.catalogue.list()] if pond is node.pond else [
            pond_map.name for pond_map in pond.maps()
        ]  # fmt: skip
        readable = (name for name in names if name > after and name.startswith(prefix) and caller.may("read", name))
        page = list(islice(readable, PAGE_ROWS + 1))
        shown, now_ms = page[:PAGE_ROWS], node.clock.now_ms()
        of_main = shown if pond is node.pond else []
        loads = loads_of(node, of_main)
        branches, more_branches = _branches_of_maps(node, caller) if of_main else ({}, "")
        maps = [
            _facts(pond_map) | {"loaded_ms": next((load["time_ms"] for load in loads.get(name, ())), None),
                              "hours": by_hour(loads[name], now_ms) if of_main else None,
                              "branches": branches.get(name, [])}
            for name in shown if (pond_map := _opened(pond, name)) is not None
        ]  # fmt: skip
        more = link("/console/maps", prefix=prefix, ref=ref, after=shown[-1]) if len(page) > PAGE_ROWS else None
        drawn = {own["name"]: bars(own["hours"] or (), f"rows loaded by hour into {own['name']}") for own in maps}
        values = {
            "maps": maps, "more_branches": bool(more_branches), "prefix": prefix, "next": more,
            "actions": actions_at(caller, actions_of(caller, On.ANY_MAP), ref, branch=branch), "kinds": _KINDS,
            "ref": ref_shown(ref),
            "branched": not node.follower.members.replicates and may_repository(caller, "read", POND),
        }  # fmt: skip
        return answered(request, "maps", values, {"loads": drawn})


def _add_map(router: Routes, node: Node) -> None:
    @router.get("/maps/{name}", read(On.MAP, memory_bytes=SCAN_BYTES, when_ready=True), summary="A map")
    def show_map(
        request: Request, caller: Caller, name: str, key: str | None = None, at: str | None = None,
        known_at: str | None = None, where: str | None = None, resolution: str | None = None, ref: str = "",
        after_branch: str = "", when: str | None = None, buckets: str | None = None, since: str | None = None,
    ) -> Response:  # fmt: skip
        """Its facts, loads, layers and branches; with a key its value and history; with a condition, rows, or with
        `when` the alerts of a rule that is tried.
        """
        pond, branch = pond_at(request, ref)
        pond_map = pond.map(name)
        fields = {
            "key": key, "at": at, "known_at": known_at, "where": where, "resolution": resolution, "when": when,
            "buckets": buckets, "since": since,
        }  # fmt: skip
        question: dict[str, str | None] = {field: text or None for field, text in fields.items()}
        actions = actions_at(caller, actions_of(caller, On.MAP, pond_map.name), ref, branch=branch)
        values: dict[str, Any] = {
            "map": _facts(pond_map), "question": question, "answer": None, "history": None, "problem": None,
            "rows": None, "ref": ref_shown(ref), "branched": pond_map.layers is not None, "loads": [],
            "settings": settings_of(pond_map.definition), "actions": actions,
            "layers": _layers(pond_map), "branches": [], "next_branches": None, "alerts": [],
            "trial": None, "on_main": pond is node.pond or _opened(node.pond, pond_map.name) is not None,
        }  # fmt: skip
        if pond is node.pond:
            values["loads"] = loads_of(node, [pond_map.name])[pond_map.name][:PAGE_ROWS]
            if pond_map.definition.aggregation is not None:
                values["alerts"] = [plain(rule) for rule in pond_map.alerts.list()]
        if pond is node.pond and pond_map.layers is not None:
            branches, after = _branches_of_maps(node, caller, after_branch)
            values["branches"] = branches.get(pond_map.name, [])
            values["next_branches"] = link(request.url.path, after_branch=after) if after else None
        try:
            values |= _answer(node, pond_map, question)
        except Invalid as error:
            values["problem"] = {"message": error.message, "hint": error.hint}
        return answered(request, "map", values, _drawn(values, node.clock.now_ms()))


def _drawn(values: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """The drawings of the history of a key, and the times between which sliders go."""
    history, loads = values["history"], values["loads"]
    since_loads = (loads[-1]["time_ms"], now_ms) if loads and history is not None else None
    sliders = {"at": time_span(history, now_ms), "known_at": since_loads}
    return {"history": drawn_history(history, now_ms), "sliders": sliders}


def _add_jobs(router: Routes, node: Node) -> None:
    @router.get("/jobs", MONITOR, summary="Jobs and nodes")
    def show_jobs(request: Request, caller: Caller) -> Response:
        """Its own work, the nodes of its pond, parts that are not merged; settings, tokens and what was changed."""
        values = {
            "actions": actions_of(caller, On.POND), "draining": node.drain.active, "repair": node.repairs.status(),
            "node": node.facts(), "others": list(_others(node)), "jobs": plain(node.scheduler.status()),
            "parts": [
                plain(part) for part in islice(
                    (part for part in node.pond.parts.list() if part.state != "retained"), PAGE_ROWS
                )
            ],
        }  # fmt: skip
        shown = relative(values, node.pond.folder)
        owner = caller.may("admin")
        shown["settings"] = all_in_words(node.settings) if owner else {}
        shown["tokens"] = [_token(own) for own in node.tokens.listed()] if owner else []
        shown["audit"] = node.audit.newest(PAGE_ROWS) if owner else []
        return answered(request, "jobs", shown)


def _others(node: Node) -> Iterator[dict[str, Any]]:
    """The other nodes of the pond, each with its last word, or the reason why it does not answer."""
    survey, members = node.follower.survey, node.follower.members
    for url in (url for url in members.urls if url != node.url):
        heard, failure = survey.heard(url), survey.failures.get(url)
        ago = None if heard is None else round(1000 * (node.clock.monotonic() - heard.at))
        yield {
            "url": url, "role": "primary" if url == members.primary else "replica", "heard_ms_ago": ago,
            "position": heard and heard.status.position, "behind": heard and heard.behind,
            "sound": heard and heard.status.sound, "error": failure and failure.message,
        }  # fmt: skip


def _token(own: TokenSetting) -> dict[str, Any]:
    """A token without its secret."""
    return {"name": own.name, "access_key": own.access_key, "rights": dict(own.rights), "expires_ms": own.expires_ms}


def _opened(pond: Pond | RefPond, name: str) -> Map | None:
    try:
        return pond.map(name)
    except NotFound:  # it was dropped meanwhile
        return None


def _facts(pond_map: Map) -> dict[str, Any]:
    """A map as pages show it; `aggregation` is of an aggregate."""
    info, own = pond_map.info(), pond_map.definition
    names = ("name", "store", "rows", "shard_bytes", "position", "parts_queued", "query")
    parts = [] if own.value is None else own.value.parts
    rules = own.aggregation and {
        "fields": [
            f"{field} {kind} {rule}" for (field, kind), rule in zip(parts, own.aggregation.rules, strict=True)
            if rule is not Rule.INSTANT
        ],
        "resolution": own.aggregation.resolution,
        "time_zone": own.aggregation.time_zone, "tags": own.tagged,
    }  # fmt: skip
    return plain({name: info.get(name) for name in names}) | {
        "kind": own.kind_name, "value": None if own.shown is None else str(own.shown), "aggregation": rules,
    }  # fmt: skip


def _answer(node: Node, pond_map: Map, question: Mapping[str, str | None]) -> dict[str, Any]:
    """The answer to a question, and the history of its key; or the rows that meet a condition, or a trial of a rule.

    Raises: `Invalid` for a key, a time or a condition that the map cannot have.
    """
    if question["when"] is not None:
        trial = pond_map.alerts.try_(question["when"], buckets=question["buckets"] or 1, since=question["since"])
        return {"trial": plain(trial)}
    key, at, known_at, wider = (question[name] for name in ("key", "at", "known_at", "resolution"))
    if question["where"] is not None:
        return {"rows": shown_rows(node.lookups.scan(pond_map, question["where"], None, known_at, wider), _HISTORY_MAX)}
    if key is None:
        return {}
    answer = node.lookups.get(pond_map, key, at, known_at)
    answer["shown"] = _without_types(answer)
    rows = node.lookups.scan(pond_map, rows_of_key(pond_map, key), None, known_at, wider)
    column = next((name for name in TIMES if name in rows.schema.names), None)
    history = shown_rows(rows, _HISTORY_MAX) if column is None else newest_rows(rows, column, _HISTORY_MAX)
    return {"answer": answer, "history": history}


def rows_of_key(pond_map: Map, key: str) -> list[tuple[str, str, str | int]]:
    """The condition that the rows of a key meet.

    Raises: `Invalid` for a key of a map of ranges that is no number.
    """
    if pond_map.kind.keyed:
        return [("key", "=", key)]
    try:
        number = int(key)
    except ValueError:
        raise Invalid("the key is no whole number", kind="key_number", map=pond_map.name, key=key,
                      hint="give a number, such as 42") from None  # fmt: skip
    return [("key_start", "<=", number), ("key_end", ">", number)]


def settings_of(definition: MapDefinition) -> dict[str, str]:
    """The settings of a map that may be altered, as a form has them: nothing for what is off."""
    ages = {"condense": definition.condense_ms, "retain": definition.retain_ms}
    switches = {"overwrite": definition.overwrite, "maintenance_suspended": definition.maintenance_suspended}
    roll_up = {} if definition.aggregation is None else {"roll_up": definition.roll_up or ""}
    return {
        **{name: "" if age is None else format_duration(age) for name, age in ages.items()},
        **roll_up,
        **{name: "yes" if on else "no" for name, on in switches.items()},
    }


def _without_types(answer: Any) -> Any:
    """A value as a page shows it: times as text, fields without their types."""
    if isinstance(answer["value"], dict):
        return {name: _without_types(field) if isinstance(field, dict) and "type" in field else field
                for name, field in answer["value"].items()}  # fmt: skip
    if answer.get("type") == "timestamp" and isinstance(answer["value"], int):
        return shown_cell(pa.scalar(answer["value"], pa.timestamp("us", "UTC")).as_py())
    return answer["value"]


def _layers(pond_map: Map) -> list[dict[str, Any]]:
    layers = pond_map.layers
    manifest = None if layers is None else layers.head().manifest
    if manifest is None:
        return []
    return [
        {"layer": layer.index[:12], "groups": layer.groups, "bytes": layer.size, "mode": str(layer.mode.value)}
        for layer in manifest.layers
    ]  # fmt: skip


_MAPS_MAX = 1_000
"""The maps of one branch that are looked at, of those that it changed."""


def _branches_of_maps(node: Node, caller: Caller, after: str = "") -> tuple[dict[str, list[str]], str]:
    """The branches that maps differ on, of a page of branches; and the place of the page behind it, if there is one.

    They differ from `main` by what was committed there since both parted, or is staged there. Each branch is compared
    by the parts of two commits that differ. There are none for a caller that may not read them.
    """
    if not may_repository(caller, "read", POND):
        return {}, ""
    try:
        repository = node.pond.repository(POND)
        page = repository.branches(after=after, amount=PAGE_ROWS)
    except NotFound:  # no map was ever branched
        return {}, ""
    differing: dict[str, list[str]] = {}
    main = repository.branches(MAIN, amount=1).items[0].commit_id
    branches = [branch for branch in page.items if branch.name != MAIN]
    # In a bucket each comparison waits for objects that no other one needs.
    acts = [partial(_changed, repository, main, branch) for branch in branches]
    compared = at_once(repository.context.ranges.inner, acts)
    for branch, names in zip(branches, compared, strict=True):
        for name in names:
            differing.setdefault(name, []).append(branch.name)
    return differing, page.next_offset if page.has_more else ""


def _changed(repository: Repository, main: str, branch: Named) -> set[str]:
    """The maps that were changed on a branch; none on one that was deleted meanwhile."""
    try:
        committed = repository.diff(main, branch.commit_id, MAPS, amount=_MAPS_MAX)
        staged = repository.branch(branch.name).diff(MAPS, amount=_MAPS_MAX)
    except NotFound:
        return set()
    return {change.path.removeprefix(MAPS) for page in (committed, staged) for change in page.items}
