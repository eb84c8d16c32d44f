"""Changes of repositories that pages ask for; where a merge conflicts, a page asks for the side of each path.

    merge ──▶ conflict ──▶ page with the first paths, each with a choice ──▶ merge with the choices ──▶ …
      │                                                                        │
      └─▶ commit ◀─────────────────────────────────────────────────────────────┘

Invariant: choices that were made before are sent again with each form, so that nothing about a merge is stored.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from millpond.console import link, segment
from millpond.nodes.node import Node
from millpond.refs.face import POND
from millpond.refs.map_entries import MAPS
from millpond.server.access import caller_in, note_change, share_in
from millpond.server.console.actions import Form, action
from millpond.server.console.pages import answered, pages
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import need as need_repository
from millpond.server.parameters import typed
from millpond.server.repositories import opened_repository
from millpond.versions.branch import Branch
from millpond.versions.graph.commits import Commit
from millpond.versions.merges import MergeConflict, Resolution, Take
from millpond.versions.repository import Repository

__all__ = ("merged", "routes")

_TAKE = "take:"
"""The beginning of the names of fields that are choices; a path follows."""
_PATHS_SHOWN = 50


def routes(node: Node) -> Routes:
    """The routes of changes of repositories."""
    router = pages("/console/versions")

    @action(router, "branch")
    def create_branch(request: Request, form: Form) -> str:
        repository, name = _opened(node, request, form, "name")
        repository.create_branch(name, form.get("source", ""))
        return _page(request, name)

    @action(router, "unbranch")
    def delete_branch(request: Request, form: Form) -> str:
        repository, name = _opened(node, request, form, "branch")
        repository.delete_branch(name)
        return _page(request)

    @action(router, "commit")
    def commit(request: Request, form: Form) -> str:
        repository, name = _opened(node, request, form, "branch")
        made = repository.branch(name).commit(form.get("message", ""), committer=share_in(request) or "")
        note_change(request, commit=made.id)
        return _page(request, name)

    @action(router, "revert")
    def revert(request: Request, form: Form) -> str:
        repository, name = _opened(node, request, form, "branch")
        made = repository.branch(name).revert(form.get("commit", ""), committer=share_in(request) or "")
        note_change(request, reverted=form.get("commit", ""), commit=made.id)
        return _page(request, name)

    @action(router, "tag")
    def create_tag(request: Request, form: Form) -> str:
        name = form.get("name", "")
        note_change(request, tag=name)
        repository = opened_repository(node, caller_in(request), request.path_params["repository"])
        repository.create_tag(name, form.get("ref", ""))
        return _page(request, name)

    @action(router, "merge")
    def merge(request: Request, form: Form) -> str | Response:
        repository, into = _opened(node, request, form, "into")
        source, message = form.get("source", ""), form.get("message", "")
        sent = {"source": source, "into": into, "message": message}
        made = merged(request, form, repository.branch(into), source, message, sent)
        return made if isinstance(made, Response) else _page(request, into)

    return router


def merged(
    request: Request, form: Form, into: Branch, source: str, message: str, sent: Mapping[str, str]
) -> Commit | Response:
    """Merge a ref with the choices of a form; of a conflict, a page with a choice for each of its first paths.

    `sent` are the fields that the form of that page has besides; it is sent to where this one was.

    Raises: as `Branch.merge`, but for conflicts; `Invalid` for a choice.
    """
    chosen = {name: side for name, side in form.items() if name.startswith(_TAKE)}
    resolutions = [Resolution(typed(name, side, Take), name.removeprefix(_TAKE)) for name, side in chosen.items()]
    try:
        commit = into.merge(
            source, message, committer=share_in(request) or "", resolutions=resolutions,
            strategy=form.get("strategy", ""),
        )  # fmt: skip
    except MergeConflict as conflict:
        paths = list(conflict.paths[:_PATHS_SHOWN])
        changed = (path.removeprefix(MAPS).partition("/")[0] for path in paths if path.startswith(MAPS))
        values = {
            "action": request.url.path, "source": source, "into": into.name, "sent": {**sent, **chosen}, "paths": paths,
            "maps": sorted(set(changed)) if into.context.name == POND else [],
        }  # fmt: skip
        return answered(request, "conflict", values, status=409)
    note_change(request, source=source, commit=commit.id)
    return commit


def _opened(node: Node, request: Request, form: Form, field: str) -> tuple[Repository, str]:
    """The repository that the path names, and the branch in a field, which the caller may change.

    Raises: `Denied`; `NotFound`.
    """
    repository, branch = request.path_params["repository"], form.get(field, "")
    note_change(request, branch=branch)
    need_repository(caller_in(request), "write", repository, branch)
    return opened_repository(node, caller_in(request), repository), branch


def _page(request: Request, ref: str = "") -> str:
    return link(f"/console/versions/{segment(request.path_params['repository'])}", ref=ref)
