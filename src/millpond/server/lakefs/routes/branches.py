"""Branches and tags: made, found, listed, deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import Response

from millpond.server.lakefs.bodies import takes
from millpond.server.lakefs.errors import json_answer, wording
from millpond.server.lakefs.models import commit_answer, named_model, page_answer

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call

__all__ = ("AT_ONCE", "HANDLERS")

_REPOSITORY = "/repositories/{repository}"
_BRANCH = f"{_REPOSITORY}/branches/{{branch}}"
_TAG = f"{_REPOSITORY}/tags/{{tag}}"


@dataclass(frozen=True, slots=True)
class _BranchCreation:
    name: str
    source: str
    force: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class _TagCreation:
    id: str
    ref: str
    force: bool = False


def _list_branches(call: Call) -> Response:
    query = call.query
    page = call.repository.branches(
        query.text("prefix"), after=query.text("after"), amount=query.amount(), hidden=query.flag("show_hidden")
    )
    return page_answer(page, named_model)


@takes(_BranchCreation)
def _create_branch(call: Call) -> Response:
    """The body of the answer is the id of the commit, as text."""
    creation = call.json(_BranchCreation)
    call.need("write", call.names["repository"], creation.name)
    call.note(branch=creation.name)
    repository = call.repository
    with wording({"ref_staged": "source reference '{ref}': can't create a branch without commit"}):
        made = repository.create_branch(creation.name, creation.source, hidden=creation.hidden, force=creation.force)
    return Response(made.staging.record().commit_id, 201, media_type="text/plain")


def _get_branch(call: Call) -> Response:
    return json_answer({"id": call.branch.name, "commit_id": call.branch.staging.record().commit_id})


def _delete_branch(call: Call) -> Response:
    call.repository.delete_branch(call.names["branch"], force=call.query.flag("force"))
    return Response(status_code=204)


def _list_tags(call: Call) -> Response:
    query = call.query
    page = call.repository.tags(query.text("prefix"), after=query.text("after"), amount=query.amount())
    return page_answer(page, named_model)


@takes(_TagCreation)
def _create_tag(call: Call) -> Response:
    creation = call.json(_TagCreation)
    call.note(tag=creation.id)
    commit = call.repository.create_tag(creation.id, creation.ref, force=creation.force)
    return commit_answer(call, commit, json_answer({"id": creation.id, "commit_id": commit.id}, 201))


def _get_tag(call: Call) -> Response:
    return json_answer({"id": call.names["tag"], "commit_id": call.repository.tag(call.names["tag"])})


def _delete_tag(call: Call) -> Response:
    call.repository.delete_tag(call.names["tag"], force=call.query.flag("force"))
    return Response(status_code=204)


AT_ONCE = frozenset((_get_branch, _get_tag))
"""Handlers that read rows alone."""
HANDLERS = {
    ("GET", f"{_REPOSITORY}/branches"): _list_branches,
    ("POST", f"{_REPOSITORY}/branches"): _create_branch,
    ("GET", _BRANCH): _get_branch,
    ("DELETE", _BRANCH): _delete_branch,
    ("GET", f"{_REPOSITORY}/tags"): _list_tags,
    ("POST", f"{_REPOSITORY}/tags"): _create_tag,
    ("GET", _TAG): _get_tag,
    ("DELETE", _TAG): _delete_tag,
}
