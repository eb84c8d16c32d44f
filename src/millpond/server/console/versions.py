"""Pages of repositories: their branches, commits, objects and differences."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from millpond.console import commit_graph, link, segment
from millpond.json_forms import plain
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.refs.face import POND
from millpond.refs.map_entries import MAPS
from millpond.server.console.actions import actions_of
from millpond.server.console.key_differences import keys_that_differ
from millpond.server.console.maps_at_refs import is_branch
from millpond.server.console.pages import PAGE_ROWS, answered, pages
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import may
from millpond.server.lakefs.routes.repositories import readable_repositories
from millpond.server.routes.table import SCAN_BYTES, On, read
from millpond.versions.diffs import Change
from millpond.versions.graph.commits import Commit
from millpond.versions.paging import CommonPrefix, Page
from millpond.versions.repository import Named, Repository

__all__ = ("routes",)

_OF_THE_BRANCH = ("commit", "unbranch")
"""Actions on the branch that a page shows; others name one in their form."""


def routes(node: Node) -> Routes:
    """The routes of repositories."""
    router = pages("/console/versions")
    _add_lists(router, node)
    _add_contents(router, node)
    return router


def _add_lists(router: Routes, node: Node) -> None:
    @router.get("", read(On.ANY_REPOSITORY), summary="Repositories")
    def list_repositories(request: Request, caller: Caller, after: str = "") -> Response:
        """A page of the repositories that the caller may read."""
        page, has_more = readable_repositories(node, caller, "", after, PAGE_ROWS)
        shown = [
            {"name": item.name, "default_branch": item.default_branch, "created": item.created,
             "namespace": item.namespace}
            for item in page
        ]  # fmt: skip
        more = link("/console/versions", after=page[-1].name) if has_more else None
        return answered(request, "repositories", {"repositories": shown, "next": more})

    @router.get("/{repository}", read(On.REPOSITORY, memory_bytes=SCAN_BYTES), summary="A repository")
    def show_repository(
        request: Request, caller: Caller, repository: str, ref: str = "", after: str = "", after_tag: str = ""
    ) -> Response:
        """Its branches and tags, and the commits back from a ref."""
        opened, base = node.pond.repository(repository), f"/console/versions/{segment(repository)}"
        record = opened.record
        ref = ref or record.default_branch
        commits = list(islice(opened.ref(ref).log(), PAGE_ROWS))
        lists = {
            "branches": _named(opened.branches(after=after, amount=PAGE_ROWS), base, "after", ref),
            "tags": _named(opened.tags(after=after_tag, amount=PAGE_ROWS), base, "after_tag", ref),
        }
        actions = [*actions_of(caller, On.BODY_BRANCH, record.name), *actions_of(caller, On.REPOSITORY, record.name)]
        on_branch = is_branch(opened, ref)
        if not (on_branch and may(caller, "write", record.name, ref)):
            actions = [name for name in actions if name not in _OF_THE_BRANCH]
        uncommitted = _uncommitted(opened, ref) if on_branch else []
        values = {
            "actions": actions, "is_branch": on_branch, "uncommitted": uncommitted[:PAGE_ROWS],
            "more_uncommitted": len(uncommitted) > PAGE_ROWS,
            "repository": {"name": record.name, "default_branch": record.default_branch}, "ref": ref, **lists,
            "commits": [_commit(commit) for commit in commits], "further": _further(commits),
        }  # fmt: skip
        graph = commit_graph([(commit.id, commit.parents) for commit in commits])
        return answered(request, "repository", values, {"graph": graph})


def _add_contents(router: Routes, node: Node) -> None:
    @router.get("/{repository}/objects", read(On.REPOSITORY, memory_bytes=SCAN_BYTES), summary="Objects at a ref")
    def list_objects(request: Request, repository: str, ref: str, prefix: str = "", after: str = "") -> Response:
        """A page of the objects, and of the folders, below a prefix."""
        page = node.pond.repository(repository).ref(ref).list(prefix, delimiter="/", after=after, amount=PAGE_ROWS)
        objects = [
            {"path": item.path, "size": None} if isinstance(item, CommonPrefix)
            else {"path": item.path, "size": item.size, "mtime": item.mtime, "content_type": item.content_type}
            for item in page.results
        ]  # fmt: skip
        here = f"/console/versions/{segment(repository)}/objects"
        more = link(here, ref=ref, prefix=prefix, after=page.next_offset) if page.has_more else None
        values = {"repository": repository, "ref": ref, "prefix": prefix, "objects": objects, "next": more}
        return answered(request, "objects", values)

    @router.get("/{repository}/diff", read(On.REPOSITORY, memory_bytes=SCAN_BYTES), summary="Differences of two refs")
    def show_diff(
        request: Request, caller: Caller, repository: str, left: str, right: str = "", map: str = "",
        three_dots: bool = False, after: str = "", after_path: str = "",
    ) -> Response:  # fmt: skip
        """The changes from `left` to `right`: in the pond's own repository keys of maps, and in all of them paths.

        Without `right`, what is staged on the branch `left`, and of another ref what differs on the default branch;
        with `three_dots`, what `right` changed since both parted.
        """
        opened = node.pond.repository(repository)
        if not right and not is_branch(opened, left):
            right = opened.record.default_branch
        values: dict[str, Any] = {
            "repository": repository, "left": left, "right": right or None, "map": map or None,
            "three_dots": three_dots, "keys": None, "paths": None, "next": None, "next_paths": None,
        }  # fmt: skip
        here = partial(
            link, f"/console/versions/{segment(repository)}/diff", map=map, three_dots="true" if three_dots else ""
        )
        if repository == POND:
            values["keys"], following = keys_that_differ(
                node, caller, left, right or None, map=map, three_dots=three_dots, after=after
            )
            values["next"] = here(**following) if following else None
        if not map and not after:
            page = opened.branch(left).diff(after=after_path, amount=PAGE_ROWS) if not right else opened.diff(
                left, right, three_dots=three_dots, after=after_path, amount=PAGE_ROWS
            )  # fmt: skip
            values["paths"] = [_path(item) for item in page.items]
            if repository == POND:
                values["paths"] = [changed for changed in values["paths"] if not changed["path"].startswith(MAPS)]
            if page.has_more:
                values["next_paths"] = here(left=left, right=right, after_path=page.next_offset)
        return answered(request, "diff", values)


def _path(item: Change) -> dict[str, Any]:
    """A path that differs, with its sizes."""
    before, after = (None if side is None else side.size for side in (item.left, item.right))
    return {"type": item.type, "path": item.path, "before": before, "after": after}


def _uncommitted(repository: Repository, branch: str) -> list[dict[str, str]]:
    """The changes that are staged on a branch: one more than a page shows, if there are as many."""
    staged: list[dict[str, str]] = []
    for batch in repository.branch(branch).staging.uncommitted():
        staged += batch.select(["type", "path"]).slice(0, PAGE_ROWS + 1 - len(staged)).to_pylist()
        if len(staged) > PAGE_ROWS:
            break
    return staged


def _named(page: Page[Named], base: str, field: str, ref: str) -> dict[str, Any]:
    named = [
        {"name": item.name, "commit_id": item.commit_id}
        for item in page.items
    ]  # fmt: skip
    more = link(base, ref=ref, **{field: page.next_offset}) if page.has_more else None
    return {"results": named, "next": more}


def _commit(commit: Commit) -> dict[str, Any]:
    names = ("id", "parents", "committer", "message", "created", "moment_ms", "metadata")
    return {name: plain(getattr(commit, name)) for name in names}


def _further(commits: list[Commit]) -> list[str]:
    """The commits that those shown lead to, each the beginning of a further page."""
    shown = {commit.id for commit in commits}
    return list(dict.fromkeys(parent for commit in commits for parent in commit.parents if parent not in shown))
