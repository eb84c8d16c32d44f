"""Merges, and the merge base of two refs."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import CONFLICTS, json_answer, wording
from millpond.server.lakefs.models import commit_answer
from millpond.server.lakefs.needs import REPOSITORY, change, read
from millpond.server.routes.table import On
from millpond.versions.graph.names import check_branch
from millpond.versions.merges import MergeConflict, Resolution, Take

__all__ = ("Merge", "MergeBase", "MergeResult", "Rule", "routes")

_PATH = f"{REPOSITORY}/refs/{{sourceRef}}/merge/{{destinationBranch}}"
_WORDS = {
    "branch_name": "argument destination: branch id: invalid value: validation error",
    "no_changes": "update branch {branch}: no changes",
    "ref_not_found": "update branch {branch}: get commit by ref {ref}: not found",
}
routes = operations("merges")


class Rule(msgspec.Struct):
    """The side to take at a path, or below a prefix, that both sides changed."""

    take: Take
    path: str | None = None
    prefix: str | None = None


class Merge(msgspec.Struct):
    """`resolutions`, which lakeFS does not know: the first that fits a path counts, before the strategy.

    `committer` holds on a node without tokens.
    """

    message: str = ""
    metadata: dict[str, str] = {}
    strategy: str = ""
    force: bool = False
    allow_empty: bool = False
    squash_merge: bool = False
    resolutions: list[Rule] = []
    committer: str | None = None


class MergeResult(msgspec.Struct):
    """The commit of a merge."""

    reference: str


class MergeBase(msgspec.Struct):
    """The commits of two refs, and the one that both descend from."""

    source_commit_id: str
    destination_commit_id: str
    base_commit_id: str


@routes.get(_PATH, read())
def _find_merge_base(call: Call) -> MergeBase:
    source, target = call.names["sourceRef"], call.names["destinationBranch"]
    repository = call.repository
    heads = repository.ref(source).head().id, repository.ref(target).head().id
    return MergeBase(*heads, repository.merge_base(source, target).id)


@routes.post(_PATH, change("write", On.BRANCH), answer=MergeResult)
def _merge(call: Call, merge: Merge | None = None) -> MergeResult | Response:
    """A conflict has the body of a result, with the conflicting paths besides."""
    merge = merge or Merge()
    allow_empty = merge.allow_empty or (merge.force and not call.own)  # to clients of lakeFS force means both
    source, target = call.names["sourceRef"], call.names["destinationBranch"]
    try:
        with wording(_WORDS, branch=target):
            commit = call.repository.branch(check_branch(target)).merge(
                source, merge.message, committer=call.committer(merge.committer), metadata=merge.metadata,
                strategy=merge.strategy,
                resolutions=[Resolution(rule.take, rule.path, rule.prefix) for rule in merge.resolutions],
                squash=merge.squash_merge, allow_empty=allow_empty, force=merge.force,
            )  # fmt: skip
    except MergeConflict as conflict:
        if call.own:
            raise
        return json_answer({"reference": "", CONFLICTS: conflict.paths}, 409)
    call.note(commit=commit.id)
    return commit_answer(call, commit, MergeResult(commit.id))
