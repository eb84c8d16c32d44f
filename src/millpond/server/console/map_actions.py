"""Changes of maps that pages ask for; a file that is dropped on a page is loaded on a branch, and looked at there.

    file ─▶ disk ─▶ load on a new branch ─▶ page with its differences ─┬─▶ publish: merged into main, branch deleted
                      │ refused                                        └─▶ discard: branch deleted
                      ▼
                  no branch is left

Invariants:
* a form that has a `branch` changes the map there, of a caller that may write the branch besides;
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
from millpond.maps.alerts.map_alerts import MapAlerts
from millpond.maps.loads.deletion import condition_text
from millpond.maps.loads.pond_folder import writer_folder
from millpond.maps.model.definition import Store
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.refs.face import MAIN, POND
from millpond.refs.refs import Refs
from millpond.server.access import caller_in, note_change, share_in
from millpond.server.confined import prepare
from millpond.server.confined_files import MEMORY_BYTES, read_confined
from millpond.server.console.actions import ACTIONS, Form, action, answer_of, check_origin, check_secret
from millpond.server.console.inventory import rows_of_key, settings_of
from millpond.server.console.key_differences import keys_that_differ
from millpond.server.console.maps_at_refs import branch_in, pond_changed
from millpond.server.console.pages import answered, pages
from millpond.server.console.version_actions import merged
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import need as need_repository
from millpond.server.lakefs.errors import ApiError
from millpond.server.lakefs.forms import FormContent, boundary_of
from millpond.server.lakefs.streaming import BodyStream
from millpond.server.map_refs import branch_of
from millpond.server.memory import process_room_of
from millpond.server.parameters import typed
from millpond.server.presence import presence_in
from millpond.server.routes.jobs import DeleteRequest, MaintenanceRequest, delete, tend
from millpond.server.routes.maps import NewMap, NewName, alter, copy, create, drop
from millpond.server.routes.table import SCAN_BYTES, On, RouteNeeds, Work
from millpond.server.thread_limits import in_thread
from millpond.stores.files import check_room, remove_tree
from millpond.versions.merges import common_base

__all__ = ("FILE_BYTES_MAX", "routes")

FILE_BYTES_MAX = 1 << 30
"""The largest file that a page loads; `millpond load` has no such limit."""
_SWITCHES = ("overwrite", "maintenance_suspended")
_PURGES = ("now", "now, from all refs")
"""The words by which the form of a delete purges the rows, too."""
_BRANCHES = "load-"
"""The beginning of the names of branches that loads of pages make."""


def routes(node: Node) -> Routes:
    """The routes of changes of maps."""
    router = pages("/console")
    _add_definitions(router, node)
    _add_rows(router, node)
    _add_alerts(router, node)
    _add_loads(router, node)
    return router


def _page(name: str, branch: str | None = None) -> str:
    return link(f"/console/maps/{segment(name)}", ref=branch)


def _add_definitions(router: Routes, node: Node) -> None:
    @action(router, "create")
    def create_map(request: Request, form: Form) -> str:
        fields = {name: text for name, text in form.items() if name in NewMap.__struct_fields__}
        if "query" in fields:  # it says the kind
            fields.pop("kind", None)
        branch = branch_in(form)
        return _page(create(node, request, typed("form", fields, NewMap), branch).name, branch)

    @action(router, "alter")
    def alter_map(request: Request, form: Form) -> str:
        """A setting that is as the page has it stays as it is."""
        name, branch = request.path_params["name"], branch_in(form)
        before = settings_of(pond_changed(request, form).map(name).definition)
        absent = {field: before[field] for field in _SWITCHES}  # an age that is not there is switched off
        changes = {
            field: form.get(field) for field in before if form.get(field, absent.get(field, "")) != before[field]
        }
        note_change(request, **changes)
        settings = {field: _setting(field, text) for field, text in changes.items()}
        return _page(alter(node, request, name, settings, branch).name, branch)

    @action(router, "drop")
    def drop_map(request: Request, form: Form) -> str:
        branch = branch_in(form)
        drop(node, request, request.path_params["name"], branch)
        return link("/console/maps", ref=branch)

    @action(router, "copy")
    def copy_map(request: Request, form: Form) -> str:
        """The form says by `what` is done if the map stays under its old name."""
        branch, copied = branch_in(form), NewName(form.get("new", ""), form.get("what") == "rename")
        return _page(copy(node, request, request.path_params["name"], copied, branch).name, branch)

    @action(router, "restore")
    def restore_map(request: Request, form: Form) -> str:
        name, branch, ref = request.path_params["name"], branch_in(form), form.get("ref", "")
        note_change(request, branch=form.get("branch", MAIN), ref=ref)
        need_repository(caller_in(request), "write", POND, branch or MAIN)
        with node.appending():
            commit = Refs(node.at_refs.refs, caller_in(request).need).restore(ref, branch or MAIN, maps=[name])
        note_change(request, commit=commit.id)
        return _page(name, branch)


def _setting(field: str, text: str | None) -> Any:
    return text == "yes" if field in _SWITCHES else text


def _add_rows(router: Routes, node: Node) -> None:
    @action(router, "tend")
    def maintain(request: Request, form: Form) -> Response:
        name = request.path_params["name"]
        order = typed("form", {field: form[field] for field in ("what", "before") if field in form}, MaintenanceRequest)
        note_change(request, what=str(order.what))
        pond_map = pond_changed(request, form).map(name)
        return _done(request, form, str(order.what), name, tend(node, pond_map, order)["report"])

    @action(router, "delete")
    def delete_key(request: Request, form: Form) -> Response:
        pond_map, key = pond_changed(request, form).map(request.path_params["name"]), form["key"]
        note_change(request, key=key)
        purge = form.get("purge")
        where = condition_text(pond_map.definition, rows_of_key(pond_map, key))
        order = DeleteRequest(where, now=purge in _PURGES, branches=purge == _PURGES[1])
        report = delete(node, request, pond_map, order)
        return _done(request, form, f"deleted the rows of {key}", pond_map.name, report)


def _add_alerts(router: Routes, node: Node) -> None:
    def alerts_of(request: Request) -> MapAlerts:
        node.need_primary()
        return node.pond.map(request.path_params["name"]).alerts

    def page_of(request: Request) -> str:
        return f"{_page(request.path_params['name'])}#alerts"

    @action(router, "alert")
    def add_alert(request: Request, form: Form) -> str:
        rule = alerts_of(request).add(form.get("when", ""), name=form.get("name", ""), buckets=form.get("buckets", "1"))
        note_change(request, alert=rule.name, when=rule.when, buckets=rule.buckets)
        return page_of(request)

    @action(router, "unalert")
    def remove_alert(request: Request, form: Form) -> str:
        note_change(request, alert=form["alert"])
        alerts_of(request).remove(form["alert"])
        return page_of(request)


def _done(request: Request, form: Form, what: str, name: str, report: dict[str, Any]) -> Response:
    back = _page(name, branch_in(form))
    return answered(request, "done", {"what": what, "report": report, "back": back, "name": name})


def _add_loads(router: Routes, node: Node) -> None:
    row = ACTIONS["load"]

    @router.post(row.path.removeprefix("/console"), row.needs, summary=row.summary)
    async def load(request: Request) -> Response:
        """A form with the file as its field `content`, behind the secret."""
        check_origin(request)
        boundary = boundary_of(request.headers.get("content-type", ""))
        stream = BodyStream(request)
        whole = await stream.start()

        with ExitStack() as stack:

            def save() -> _Dropped:
                try:
                    content = FormContent(boundary or b"-", stream.chunks() if whole is None else iter([whole]))
                    check_secret(request, content.fields.get("secret", ""))
                    return _saved(node, request, content, stack)
                except ApiError as error:
                    raise _no_form(str(error)) from None

            dropped = await in_thread(request, save)
            room = process_room_of(request)
            room.name = share_in(request)
            await presence_in(request.scope).during(room.queue(MEMORY_BYTES))
            return answer_of(await in_thread(request, _load, node, request, dropped))

    needs = RouteNeeds("write", On.MAP, Work.LARGE, memory_bytes=SCAN_BYTES, when_ready=True)

    @router.get("/maps/{name}/load", needs, summary="The changes of a load, before they are published")
    def show(request: Request, caller: Caller, name: str, branch: str, after: str = "") -> Response:
        """The keys that the load changed since its branch parted from main."""
        _check_branch(branch)
        pond_map = node.pond.map(name)
        keys, following = keys_that_differ(node, caller, MAIN, branch, map=pond_map.name, three_dots=True, after=after)
        more = link(request.url.path, branch=branch, after=following["after"]) if following else None
        return answered(request, "load", {"map": pond_map.name, "branch": branch, "keys": keys, "next": more})

    @action(router, "publish")
    def publish(request: Request, form: Form) -> str | Response:
        branch = _branch_of(node, request, form)
        node.need_primary()
        name, main = request.path_params["name"], node.pond.repository(POND).branch(MAIN)
        commit = merged(request, form, main, branch, f"Load into {name}", {"branch": branch})
        if isinstance(commit, Response):
            return commit
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
    branch: str | None
    """The branch of the page; None where the load begins one of its own, at `main`."""

    def named(self, error: MillpondError) -> MillpondError:
        """An error about the file, which calls it by its own name."""

        def own(text: object) -> Any:
            return str(text).replace(str(self.path), self.name) if isinstance(text, str | Path) else text

        values = {name: own(value) for name, value in error.values.items()}
        return type(error)(own(error.message), kind=error.kind, hint=own(error.hint), **values)


def _saved(node: Node, request: Request, content: FormContent, stack: ExitStack) -> _Dropped:
    """The file of a form, saved in a folder that `stack` removes."""
    name = request.path_params["name"]
    if pond_changed(request, content.fields).map(name).definition.store is not Store.LAYERS:
        raise Invalid(
            "only a layered map has branches", kind="map_not_layered", map=name,
            hint=f"first: millpond alter {name} --store layers; or load the file with millpond load",
        )  # fmt: skip
    prepare()
    file = PurePath(content.file_name.replace("\\", "/")).name
    folder = writer_folder(node.pond.folder, node.clock)
    folder.mkdir(parents=True)
    stack.callback(remove_tree, folder)
    path = folder / f"file{''.join(_endings(file))}"
    _save(content.chunks(), path)
    return _Dropped(name, file, path, branch_in(content.fields))


def _load(node: Node, request: Request, dropped: _Dropped) -> str:
    note_change(request, map=dropped.map, file=dropped.name)
    if dropped.branch is not None:
        try:
            branch_of(request, dropped.branch).load_files(
                dropped.path, dropped.map, source=dropped.name, read=read_confined
            )
        except MillpondError as error:
            raise dropped.named(error) from error
        return link(
            f"/console/versions/{POND}/diff", left=MAIN, right=dropped.branch, map=dropped.map, three_dots="true"
        )
    branch = f"{_BRANCHES}{node.clock.random_id()[:12]}"
    note_change(request, branch=branch)
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
    base = common_base(states.repository.context, states.commit(MAIN).id, head.id)
    before, after = states.maps(base.id), states.maps(head.id)
    caller_in(request).need("write", *(name for name, entry in after.items() if before.get(name) != entry))
    return branch


def _no_form(reason: str) -> Invalid:
    return Invalid("the request is not understood", kind="request_invalid", where="form", reason=reason,
                   hint="send the form of a page")  # fmt: skip
