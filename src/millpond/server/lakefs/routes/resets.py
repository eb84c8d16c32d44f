"""Resets of a branch: what is staged is taken back, or its head is moved to another commit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from starlette.responses import Response

from millpond.server.lakefs.bodies import OneOf, takes
from millpond.server.lakefs.errors import ApiError, json_answer, wording
from millpond.server.lakefs.models import commit_answer

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call

__all__ = ("HANDLERS",)

_BRANCH = "/repositories/{repository}/branches/{branch}"


@dataclass(frozen=True, slots=True)
class _ResetCreation:
    type: Annotated[str, OneOf("object", "common_prefix", "reset")]
    path: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class _Restoration:
    ref: str
    prefix: str = ""
    force: bool = False


@takes(_ResetCreation)
def _reset(call: Call) -> Response:
    creation, branch = call.json(_ResetCreation), call.branch
    if creation.type == "reset":
        branch.reset(force=creation.force)
    elif not creation.path:
        raise ApiError(400, "argument path: missing path: required value: validation error")
    elif creation.type == "object":
        branch.reset(path=creation.path, force=creation.force)
    else:
        branch.reset(prefix=creation.path, force=creation.force)
    return Response(status_code=204)


def _reset_hard(call: Call) -> Response:
    ref = call.query.needed("ref")
    with wording({"ref_not_found": "hard-reset {branch} to {ref}: not found"}, branch=call.names["branch"]):
        commit = call.branch.staging.reset_hard(ref, force=call.query.flag("force"))
    call.note(commit=commit.id)
    return commit_answer(call, commit, Response(status_code=204))


@takes(_Restoration)
def _restore(call: Call) -> Response:
    """`changes`: the paths that are staged to be what they were at the ref."""
    restoration = call.json(_Restoration)
    return json_answer(
        {"changes": call.branch.staging.restore(restoration.prefix, restoration.ref, force=restoration.force)}
    )


HANDLERS = {
    ("PUT", _BRANCH): _reset,
    ("PUT", f"{_BRANCH}/hard_reset"): _reset_hard,
    ("POST", f"{_BRANCH}/restore"): _restore,
}
