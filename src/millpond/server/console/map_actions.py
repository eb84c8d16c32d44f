"""Changes of maps that pages ask for; a file that is dropped on a page is loaded on a branch, and looked at there.

    file ─▶ disk ─▶ load on a new branch ─▶ page with its differences ─┬─▶ publish: merged into main, branch deleted
                      │ refused                                        └─▶ discard: branch deleted
                      ▼
                  no branch is left

Invariants:
* what a branch of a load changes on main is published by a caller that may write each map that it changes;
* after a kill there is at most the branch, which the page of the map names; the file is swept with those of writers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from millpond.console import link, segment
from millpond.errors import Invalid, MillpondError
from millpond.json_forms import plain
from millpond.maps.loads.pond_folder import writer_folder
from millpond.maps.model.definition import Store
from millpond.nodes.node import Node
from millpond.refs.face import MAIN, POND
from millpond.server.access import caller_in, note_change, share_in
from millpond.server.confined import prepare
from millpond.server.confined_files import MEMORY_BYTES, read_confined
from millpond.server.console.actions import ACTIONS, Form, action, answer_of, check_origin, check_secret
from millpond.server.console.inventory import rows_of_key, settings_of
from millpond.server.console.pages import answered, pages
from millpond.server.console.tables import shown_rows
from millpond.server.console.version_actions import merged
from millpond.server.dispatch import Routes
from millpond.server.lakefs.errors import ApiError
from millpond.server.lakefs.forms import FormContent, boundary_of
from millpond.server.lakefs.streaming import BodyStream
from millpond.server.memory import process_room_of
from millpond.server.parameters import typed
from millpond.server.presence import presence_in
from millpond.server.routes.jobs import MaintenanceRequest, tend
from millpond.server.routes.maps import NewMap, alter, create, drop
from millpond.server.routes.table import SCAN_BYTES, On, RouteNeeds, Work
from millpond.server.thread_limits import in_thread
from millpond.stores.files import check_room, remove_tree
from millpond.versions.merges import common_base

__all__ = ("FILE_BYTES_MAX", "routes")

FILE_BYTES_MAX = 1 << 30
"""The largest file that a page loads; `millpond load` has no such limit."""
_ROWS_SHOWN = 200
_SWITCHES = ("overwrite", "maintenance_suspended")
_BRANCHES = "load-"
"""The beginning of the names of branches that loads of pages make."""


def routes(node: Node) -> Routes:
    """The routes of changes of maps."""
    router = pages("/console")
    _add_definitions(router, node)
    _add_rows(router, node)
    _add_loads(router, node)
    return router


def _page(name: str) -> str:
    return f"/console/maps/{segment(name)}"


def _add_definitions(router: Routes, node: Node) -> None:
    @action(router, "create")
    def create_map(request: Request, form: Form) -> str:
        fields = {name: text for name, text in form.items() if name in NewMap.__struct_fields__}
        return _page(create(node, request, typed("form", fields, NewMap)).name)

    @action(router, "alter")
    def alter_map(request: Request, form: Form) -> str:
        """A setting that is as the page has it stays as it is."""
        name = request.path_params["name"]
        before = settings_of(node.pond.map(name).definition)
        absent = {field: before[field] for field in _SWITCHES}  # an age that is not there is switched off
        changes = {
            field: form.get(field) for field in before if form.get(field, absent.get(field, "")) != before[field]
        }
        note_change(request, **changes)
        return _page(alter(node, name, {field: _setting(field, text) for field, text in changes.items()}).name)

    @action(router, "drop")
    def drop_map(request: Request, form: Form) -> str:
        drop(node, request.path_params["name"])
        return "/console/maps"


def _setting(field: str, text: str | None) -> Any:
    return text == "yes" if field in _SWITCHES else text


def _add_rows(router: Routes, node: Node) -> None:
    @action(router, "tend")
    def maintain(request: Request, form: Form) -> Response:
        name = request.path_params["name"]
        order = typed("form", {field: form[field] for field in ("what", "before") if field in form}, MaintenanceRequest)
        note_change(request, what=str(order.what))
        return _done(request, str(order.what), name, tend(node, node.pond.map(name), order)["report"])

    @action(router, "delete")
    def delete_key(request: Request, form: Form) -> Response:
        node.need_primary()
        opened, key = node.pond.map(request.path_params["name"]), form["key"]
        note_change(request, key=key)
        return _done(request, f"deleted the rows of {key}", opened.name, plain(opened.delete(rows_of_key(opened, key))))


def _done(request: Request, what: str, name: str, report: dict[str, Any]) -> Response:
    return answered(request, "done", {"what": what, "report": report, "back": _page(name), "name": name})


def _add_loads(router: Routes, node: Node) -> None:
    row = ACTIONS["load"]

    @router.post(row.path.removeprefix("/console"), row.needs, summary=row.summary)
    async def load(request: Request) -> Response:
        """A form with the file as its field `content`, behind the secret."""
        check_origin(request)
        boundary = boundary_of(request.headers.get("content-type", ""))
        stream = BodyStream(request)
        whole = await stream.start()

        with ExitStack() as held:

            def save() -> _Dropped:
                try:
                    content = FormContent(boundary or b"-", stream.chunks() if whole is None else iter([whole]))
                    check_secret(request, content.fields.get("secret", ""))
                    return _saved(node, request, content, held)
                except ApiError as error:
                    raise _no_form(str(error)) from None

            dropped = await in_thread(request, save)
            room = process_room_of(request)
            room.name = share_in(request)
            await presence_in(request.scope).during(room.queue(MEMORY_BYTES))
            return answer_of(await in_thread(request, _load, node, request, dropped))

    needs = RouteNeeds("write", On.MAP, Work.LARGE, memory_bytes=SCAN_BYTES, when_ready=True)

    @router.get("/maps/{name}/load", needs, summary="The changes of a load, before they are published")
    def show(request: Request, name: str, branch: str) -> Response:
        """The keys that differ between main and the branch of a load."""
        _check_branch(branch)
        opened = node.pond.map(name)
        differing = node.pond.refs.diff(MAIN, branch, map=opened.name, limit=_ROWS_SHOWN + 1).drop_columns("map")
        values = {"map": opened.name, "branch": branch, "keys": shown_rows(differing, _ROWS_SHOWN)}
        return answered(request, "load", values)

    @action(router, "publish")
    def publish(request: Request, form: Form) -> str | Response:
        branch = _branch_of(node, request, form)
        node.need_primary()
        name, main = request.path_params["name"], node.pond.repository(POND).branch(MAIN)
        made = merged(request, form, main, branch, f"Load into {name}", {"branch": branch})
        if isinstance(made, Response):
            return made
        node.pond.refs.delete_branch(branch)
        return _page(name)

    @action(router, "discard")
    def discard(request: Request, form: Form) -> str:
        node.pond.refs.delete_branch(_branch_of(node, request, form))
        return _page(request.path_params["name"])


@dataclass(frozen=True, slots=True)
class _Dropped:
    """A file that was dropped on the page of a map: its own name, and its place until it is loaded."""

    map: str
    name: str
    path: Path

    def named(self, error: MillpondError) -> MillpondError:
        """An error about the file, which calls it by its own name."""

        def own(text: object) -> Any:
            return str(text).replace(str(self.path), self.name) if isinstance(text, str | Path) else text

        values = {name: own(value) for name, value in error.values.items()}
        return type(error)(own(error.message), kind=error.kind, hint=own(error.hint), **values)


def _saved(node: Node, request: Request, content: FormContent, held: ExitStack) -> _Dropped:
    """The file of a form, saved in a folder that `held` removes."""
    name = request.path_params["name"]
    node.need_primary()
    if node.pond.map(name).definition.store is not Store.LAYERS:
        raise Invalid(
            "only a layered map has branches", kind="map_not_layered", map=name,
            hint=f"first: millpond alter {name} --store layers; or load the file with millpond load",
        )  # fmt: skip
    prepare()
    file = PurePath(content.file_name.replace("\\", "/")).name
    folder = writer_folder(node.pond.folder, node.clock)
    folder.mkdir(parents=True)
    held.callback(remove_tree, folder)
    path = folder / f"file{''.join(_endings(file))}"
    _save(content.chunks(), path)
    return _Dropped(name, file, path)


def _load(node: Node, request: Request, dropped: _Dropped) -> str:
    branch = f"{_BRANCHES}{node.clock.random_id()[:12]}"
    note_change(request, map=dropped.map, file=dropped.name, branch=branch)
    with node.pond.branch(branch, source=MAIN) as pond:
        try:
            pond.load_files(dropped.path, dropped.map, source=dropped.name, read=read_confined)
        except MillpondError as error:
            with suppress(MillpondError):
                node.pond.refs.delete_branch(pond.ref)
            raise dropped.named(error) from error
    return link(f"{_page(dropped.map)}/load", branch=branch)


def _endings(file: str) -> list[str]:
    """The endings of a name, which say the format of a file.

    >>> _endings("weather.2026.csv.gz"), _endings("..")
    (['.csv', '.gz'], [])
    """
    return [ending for ending in PurePath(file).suffixes[-2:] if ending[1:].isascii() and ending[1:].isalpha()]


def _save(chunks: Iterable[bytes], path: Path) -> None:
    size = 0
    with path.open("xb") as file:
        for chunk in chunks:
            size += len(chunk)
            check_room(path.parent, len(chunk))
            if size > FILE_BYTES_MAX:
                raise Invalid(
                    "the file is larger than a page loads", kind="body_too_large", bytes_max=FILE_BYTES_MAX,
                    hint="load it with millpond load",
                )  # fmt: skip
            file.write(chunk)


def _check_branch(branch: str) -> None:
    if not branch.startswith(_BRANCHES):
        raise Invalid("it is no branch that a page made", kind="branch_not_of_load", branch=branch,
                      hint="merge it as any other: millpond merge")  # fmt: skip


def _branch_of(node: Node, request: Request, form: Form) -> str:
    """The branch of a load whose changes the caller may publish.

    Raises: `Denied` for a map that it changes; `Invalid` for a branch of another kind.
    """
    branch = form.get("branch", "")
    _check_branch(branch)
    note_change(request, branch=branch)
    states = node.pond.refs.states
    head = states.commit(branch)
    base = common_base(states.repository.site, states.commit(MAIN).id, head.id)
    before, after = states.maps(base.id), states.maps(head.id)
    caller_in(request).need("write", *(name for name, entry in after.items() if before.get(name) != entry))
    return branch


def _no_form(reason: str) -> Invalid:
    return Invalid("the request is not understood", kind="request_invalid", where="form", reason=reason,
                   hint="send the form of a page")  # fmt: skip
