"""Merges, and the merge base of two refs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from starlette.responses import Response

from millpond.server.lakefs.bodies import OneOf, takes
from millpond.server.lakefs.errors import CONFLICTS, json_answer, wording
from millpond.server.lakefs.models import commit_answer
from millpond.versions.merges import MergeConflict, Resolution, Take

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call

__all__ = ("HANDLERS",)

_PATH = "/repositories/{repository}/refs/{sourceRef}/merge/{destinationBranch}"
_WORDS = {
    "no_changes": "update branch {branch}: no changes",
    "ref_not_found": "update branch {branch}: get commit by ref {ref}: not found",
}


@dataclass(frozen=True, slots=True)
class _Resolution:
    """The side to take at a path, or below a prefix, that both sides changed."""

    take: Annotated[str, OneOf(*Take)]
    path: str | None = None
    prefix: str | None = None


@dataclass(frozen=True, slots=True)
class _Merge:
    """`resolutions`, which lakeFS does not know: the first that fits a path counts, before the strategy.

    `committer` holds on a node without tokens.
    """

    message: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    strategy: str = ""
    force: bool = False
    allow_empty: bool = False
    squash_merge: bool = False
    resolutions: list[_Resolution] = field(default_factory=list)
    committer: str | None = None


@takes(_Merge)
def _merge(call: Call) -> Response:
    """A conflict has the body of a result, with the conflicting paths besides."""
    merge = call.json(_Merge) if call.body.strip() else _Merge()
    source, target = call.names["sourceRef"], call.names["destinationBranch"]
    try:
        with wording(_WORDS, branch=target):
            commit = call.repository.branch(target).merge(
                source, merge.message, committer=call.committer(merge.committer), metadata=merge.metadata,
                strategy=merge.strategy,
                resolutions=[Resolution(Take(rule.take), rule.path, rule.prefix) for rule in merge.resolutions],
                squash=merge.squash_merge, allow_empty=merge.allow_empty, force=merge.force,
            )  # fmt: skip
    except MergeConflict as conflict:
        if call.own:
            raise
        return json_answer({"reference": "", CONFLICTS: conflict.paths}, 409)
    call.note(commit=commit.id)
    return commit_answer(call, commit, json_answer({"reference": commit.id}))


def _find_base(call: Call) -> Response:
    source, target = call.names["sourceRef"], call.names["destinationBranch"]
    repository = call.repository
    return json_answer({
        "source_commit_id": repository.ref(source).head().id,
        "destination_commit_id": repository.ref(target).head().id,
        "base_commit_id": repository.merge_base(source, target).id,
    })  # fmt: skip


HANDLERS = {("POST", _PATH): _merge, ("GET", _PATH): _find_base}
