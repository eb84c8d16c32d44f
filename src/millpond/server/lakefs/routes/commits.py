"""Commits: made, found, listed, reverted and picked."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile, islice

import msgspec
from starlette.responses import Response

from millpond.errors import Invalid
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import ApiError, wording
from millpond.server.lakefs.models import (
    AMOUNT,
    Amount,
    Commit,
    Listing,
    Long,
    commit_answer,
    commit_model,
    listing,
    page_size,
)
from millpond.server.lakefs.needs import BRANCH, REPOSITORY, change, read
from millpond.server.routes.table import On
from millpond.times.instants import parse_instant
from millpond.versions.graph import commits as graph
from millpond.versions.graph.history import Window

__all__ = ("CherryPickCreation", "CommitCreation", "CommitOverrides", "RevertCreation", "routes")

_ABSENT = {"ref_not_found": "get commit from ref {ref}: not found"}
routes = operations("commits")


class CommitCreation(msgspec.Struct):
    """The words of a commit, and more than lakeFS knows.

    `prefixes`: only what lies below them. `committer` holds on a node without tokens.
    """

    message: str
    metadata: dict[str, str] = {}
    date: Long | None = None
    allow_empty: bool = False
    force: bool = False
    prefixes: list[str] | None = None
    committer: str | None = None


class CommitOverrides(msgspec.Struct, frozen=True):
    """Other words than those of the commit that is taken."""

    message: str | None = None
    metadata: dict[str, str] | None = None


_AS_IT_IS = CommitOverrides()


class RevertCreation(msgspec.Struct):
    """The commit to revert."""

    ref: str
    parent_number: Long
    commit_overrides: CommitOverrides = _AS_IT_IS
    force: bool = False
    allow_empty: bool = False
    committer: str | None = None


class CherryPickCreation(msgspec.Struct):
    """The commit to pick."""

    ref: str
    parent_number: Long | None = None
    commit_overrides: CommitOverrides = _AS_IT_IS
    force: bool = False
    committer: str | None = None


@routes.post(f"{BRANCH}/commits", change("write", On.BRANCH), status=201)
def _commit(call: Call, creation: CommitCreation, source_metarange: str = "") -> Commit:
    words = {"no_changes": "commit: no changes"}
    if source_metarange:
        words["branch_dirty"] = "cannot use source MetaRange on a branch with uncommitted changes"
    with wording(words):
        commit = call.branch.commit(
            creation.message, committer=call.committer(creation.committer), metadata=creation.metadata,
            created=creation.date, allow_empty=creation.allow_empty, force=creation.force, prefixes=creation.prefixes,
            source_tree=source_metarange or None,
        )  # fmt: skip
    call.note(commit=commit.id)
    return commit_model(commit)


@routes.get(f"{REPOSITORY}/commits/{{commitId}}", read(), at_once=True)
def _get_commit(call: Call) -> Commit:
    with wording({"ref_not_found": "commit not found"}):
        return commit_model(call.repository.ref(call.names["commitId"]).head())


@routes.get(f"{REPOSITORY}/refs/{{ref}}/commits", read())
def _log(
    call: Call, after: str = "", amount: Amount = AMOUNT, since: str = "", stop_at: str = "",
    objects: list[str] | None = None, prefixes: list[str] | None = None, *,
    limit: bool = False, first_parent: bool = False,
) -> Listing[Commit]:  # fmt: skip
    """A page of the log; with `limit` it is the only one."""
    repository, size = call.repository, page_size(amount)
    window = Window(
        first_parent=first_parent, since=_since(since),
        stop_at=repository.ref(stop_at).head().id if stop_at else None,
    )  # fmt: skip
    commits = repository.ref(call.names["ref"]).log(window, paths=objects or [], prefixes=prefixes or [])
    page = list(islice(_behind(commits, after), size + 1))
    shown, has_more = page[:size], len(page) > size and not limit
    results = [commit_model(commit) for commit in shown]
    return listing(results, has_more=has_more, next_offset=shown[-1].id if has_more else "")


def _behind(commits: Iterator[graph.Commit], after: str) -> Iterator[graph.Commit]:
    """The commits behind the one where the page before ended."""
    if not after:
        return commits
    return islice(dropwhile(lambda commit: commit.id != after, commits), 1, None)


def _since(text: str) -> int | None:
    if not text:
        return None
    try:
        return parse_instant(text) // 1000
    except Invalid:
        reason = f"value {text}: not an instant, such as 2026-01-31T12:00:00Z"
        raise ApiError(400, f'parameter "since" in query has an error: {reason}') from None


@routes.post(f"{BRANCH}/revert", change("write", On.BRANCH), status=204)
def _revert(call: Call, creation: RevertCreation) -> Response | None:
    overrides = creation.commit_overrides
    with wording({"no_changes": "update branch: no changes", **_ABSENT}):
        commit = call.branch.revert(
            creation.ref, parent_number=creation.parent_number or None,
            committer=call.committer(creation.committer), message=overrides.message or "",
            metadata=overrides.metadata, allow_empty=creation.allow_empty, force=creation.force,
        )  # fmt: skip
    call.note(commit=commit.id)
    return commit_answer(call, commit, None)


@routes.post(f"{BRANCH}/cherry-pick", change("write", On.BRANCH), status=201)
def _cherry_pick(call: Call, creation: CherryPickCreation) -> Commit:
    overrides = creation.commit_overrides
    with wording(_ABSENT):
        commit = call.branch.cherry_pick(
            creation.ref, parent_number=creation.parent_number,
            committer=call.committer(creation.committer), message=overrides.message or None,
            metadata=overrides.metadata, force=creation.force,
        )  # fmt: skip
    call.note(commit=commit.id)
    return commit_model(commit)
