"""Commits: made, found, listed, reverted and picked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import dropwhile, islice
from typing import TYPE_CHECKING

from starlette.responses import Response

from millpond.errors import Invalid
from millpond.server.lakefs.bodies import takes
from millpond.server.lakefs.errors import json_answer, wording
from millpond.server.lakefs.models import commit_answer, commit_model, listing
from millpond.server.lakefs.query import wrong_parameter
from millpond.times.instants import parse_instant
from millpond.versions.graph.history import Window

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call
    from millpond.versions.graph.commits import Commit

__all__ = ("AT_ONCE", "HANDLERS")

_REPOSITORY = "/repositories/{repository}"
_BRANCH = f"{_REPOSITORY}/branches/{{branch}}"
_ABSENT = {"ref_not_found": "get commit from ref {ref}: not found"}


@dataclass(frozen=True, slots=True)
class _CommitCreation:
    """The words of a commit, and more than lakeFS knows.

    `prefixes`: only what lies below them. `committer` holds on a node without tokens.
    """

    message: str
    metadata: dict[str, str] = field(default_factory=dict)
    date: int | None = None
    allow_empty: bool = False
    force: bool = False
    prefixes: list[str] | None = None
    committer: str | None = None


@dataclass(frozen=True, slots=True)
class _CommitOverrides:
    message: str | None = None
    metadata: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _RevertCreation:
    ref: str
    parent_number: int
    commit_overrides: _CommitOverrides = field(default_factory=_CommitOverrides)
    force: bool = False
    allow_empty: bool = False
    committer: str | None = None


@dataclass(frozen=True, slots=True)
class _CherryPickCreation:
    ref: str
    parent_number: int = 0
    commit_overrides: _CommitOverrides = field(default_factory=_CommitOverrides)
    force: bool = False
    committer: str | None = None


@takes(_CommitCreation)
def _commit(call: Call) -> Response:
    creation = call.json(_CommitCreation)
    with wording({"no_changes": "commit: no changes"}):
        commit = call.branch.commit(
            creation.message, committer=call.committer(creation.committer), metadata=creation.metadata,
            created=creation.date, allow_empty=creation.allow_empty, force=creation.force, prefixes=creation.prefixes,
            source_tree=call.query.text("source_metarange") or None,
        )  # fmt: skip
    call.note(commit=commit.id)
    return json_answer(commit_model(commit), 201)


def _get_commit(call: Call) -> Response:
    with wording({"ref_not_found": "commit not found"}):
        return json_answer(commit_model(call.repository.ref(call.names["commitId"]).head()))


def _log(call: Call) -> Response:
    """A page of the log; with `limit` it is the only one."""
    query, amount = call.query, call.query.amount()
    commits = _behind(_commits(call), query.text("after"))
    page = list(islice(commits, amount + 1))
    shown, has_more = page[:amount], len(page) > amount and not query.flag("limit")
    results = [commit_model(commit) for commit in shown]
    return json_answer(listing(results, has_more=has_more, next_offset=shown[-1].id if has_more else ""))


def _commits(call: Call) -> Iterator[Commit]:
    query, repository = call.query, call.repository
    stop = query.text("stop_at")
    window = Window(
        first_parent=query.flag("first_parent"), since=_since(query.text("since")),
        stop_at=repository.ref(stop).head().id if stop else None,
    )  # fmt: skip
    return repository.ref(call.names["ref"]).log(window, paths=query.texts("objects"), prefixes=query.texts("prefixes"))


def _behind(commits: Iterator[Commit], after: str) -> Iterator[Commit]:
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
        raise wrong_parameter("since", f"value {text}: not an instant, such as 2026-01-31T12:00:00Z") from None


@takes(_RevertCreation)
def _revert(call: Call) -> Response:
    creation = call.json(_RevertCreation)
    overrides = creation.commit_overrides
    with wording({"no_changes": "update branch: no changes", **_ABSENT}):
        commit = call.branch.revert(
            creation.ref, parent_number=creation.parent_number or None,
            committer=call.committer(creation.committer), message=overrides.message or "",
            metadata=overrides.metadata, allow_empty=creation.allow_empty, force=creation.force,
        )  # fmt: skip
    call.note(commit=commit.id)
    return commit_answer(call, commit, Response(status_code=204))


@takes(_CherryPickCreation)
def _cherry_pick(call: Call) -> Response:
    creation = call.json(_CherryPickCreation)
    overrides = creation.commit_overrides
    with wording(_ABSENT):
        commit = call.branch.cherry_pick(
            creation.ref, parent_number=creation.parent_number or None,
            committer=call.committer(creation.committer), message=overrides.message or None,
            metadata=overrides.metadata, force=creation.force,
        )  # fmt: skip
    call.note(commit=commit.id)
    return json_answer(commit_model(commit), 201)


AT_ONCE = frozenset((_get_commit,))
"""Handlers that read rows alone."""
HANDLERS = {
    ("POST", f"{_BRANCH}/commits"): _commit,
    ("GET", f"{_REPOSITORY}/commits/{{commitId}}"): _get_commit,
    ("GET", f"{_REPOSITORY}/refs/{{ref}}/commits"): _log,
    ("POST", f"{_BRANCH}/revert"): _revert,
    ("POST", f"{_BRANCH}/cherry-pick"): _cherry_pick,
}
