"""Resets of a branch: what is staged is taken back, or its head is moved to another commit."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.responses import Response

from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import ApiError, wording
from millpond.server.lakefs.models import Text, commit_answer
from millpond.server.lakefs.needs import BRANCH, change
from millpond.server.routes.table import On

__all__ = ("ResetCreation", "Restoration", "RestoredPrefix", "routes")

routes = operations("resets")


class ResetCreation(msgspec.Struct):
    """The part of what is staged that is taken back."""

    type: Literal["object", "common_prefix", "reset"]
    path: str | None = None
    force: bool = False


class Restoration(msgspec.Struct):
    """The ref whose objects below a prefix are staged."""

    ref: str
    prefix: str = ""
    force: bool = False


class RestoredPrefix(msgspec.Struct):
    """`changes`: the paths that are staged to be what they were at the ref."""

    changes: int


@routes.put(BRANCH, change("write", On.BRANCH), status=204)
def _reset(call: Call, creation: ResetCreation) -> None:
    branch = call.branch
    if creation.type == "reset":
        branch.reset(force=creation.force)
    elif not creation.path:
        raise ApiError(400, "argument path: missing path: required value: validation error")
    elif creation.type == "object":
        branch.reset(path=creation.path, force=creation.force)
    else:
        branch.reset(prefix=creation.path, force=creation.force)


@routes.put(f"{BRANCH}/hard_reset", change("write", On.BRANCH, 0), status=204)
def _reset_hard(call: Call, ref: Text, *, force: bool = False) -> Response | None:
    with wording({"ref_not_found": "hard-reset {branch} to {ref}: not found"}, branch=call.names["branch"]):
        commit = call.branch.staging.reset_hard(ref, force=force)
    call.note(commit=commit.id)
    return commit_answer(call, commit, None)


@routes.post(f"{BRANCH}/restore", change("write", On.BRANCH))
def _restore(call: Call, restoration: Restoration) -> RestoredPrefix:
    staging = call.branch.staging
    return RestoredPrefix(staging.restore(restoration.prefix, restoration.ref, force=restoration.force))
