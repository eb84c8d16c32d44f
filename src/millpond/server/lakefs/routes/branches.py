"""Branches and tags: made, found, listed, deleted."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import wording
from millpond.server.lakefs.models import AMOUNT, Amount, Listing, Ref, commit_answer, listed, page_size, ref_model
from millpond.server.lakefs.needs import BRANCH, REPOSITORY, change, declared, read
from millpond.server.routes.declared import serve
from millpond.server.routes.table import On
from millpond.versions.protocols import RepositoryOperations

__all__ = ("BranchCreation", "TagCreation", "routes")

routes = operations("branches")


class BranchCreation(msgspec.Struct):
    """A new branch."""

    name: str
    source: str
    force: bool = False
    hidden: bool = False


class TagCreation(msgspec.Struct):
    """A new tag."""

    id: str
    ref: str
    force: bool = False


@routes.get(f"{REPOSITORY}/branches", read())
def _list_branches(
    call: Call, prefix: str = "", after: str = "", amount: Amount = AMOUNT, *, show_hidden: bool = False
) -> Listing[Ref]:
    page = call.repository.branches(prefix, after=after, amount=page_size(amount), hidden=show_hidden)
    return listed(page, ref_model)


@routes.post(
    f"{REPOSITORY}/branches", change("write", On.BODY_BRANCH), status=201,
    responses={201: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)  # fmt: skip
def _create_branch(call: Call, creation: BranchCreation) -> Response:
    """The body of the answer is the id of the commit, as text."""
    call.need("write", call.names["repository"], creation.name)
    call.note(branch=creation.name)
    repository = call.repository
    with wording({"ref_staged": "source reference '{ref}': can't create a branch without commit"}):
        branch = repository.create_branch(creation.name, creation.source, hidden=creation.hidden, force=creation.force)
    return Response(branch.staging.record().commit_id, 201, media_type="text/plain")


@routes.get(BRANCH, read(), at_once=True)
def _get_branch(call: Call) -> Ref:
    return Ref(call.branch.name, call.branch.staging.record().commit_id)


@routes.get(f"{REPOSITORY}/tags", read())
def _list_tags(call: Call, prefix: str = "", after: str = "", amount: Amount = AMOUNT) -> Listing[Ref]:
    return listed(call.repository.tags(prefix, after=after, amount=page_size(amount)), ref_model)


@routes.post(f"{REPOSITORY}/tags", change("write", On.REPOSITORY), status=201, answer=Ref)
def _create_tag(call: Call, creation: TagCreation) -> Ref | Response:
    call.note(tag=creation.id)
    commit = call.repository.create_tag(creation.id, creation.ref, force=creation.force)
    return commit_answer(call, commit, Ref(creation.id, commit.id))


@routes.get(f"{REPOSITORY}/tags/{{tag}}", read(), at_once=True)
def _get_tag(call: Call) -> Ref:
    return Ref(call.names["tag"], call.repository.tag(call.names["tag"]))


serve(routes, RepositoryOperations, lambda request: Call(request).repository, declared)
