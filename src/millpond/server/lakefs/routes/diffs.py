"""Differences: of a branch from its head, and of two refs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import json_answer, wording
from millpond.server.lakefs.models import AMOUNT, Amount, Listing, listed, page_size
from millpond.server.lakefs.needs import BRANCH, REPOSITORY, read
from millpond.server.lakefs.stats import stats_model
from millpond.versions.diffs import Change
from millpond.versions.objects.entries import Entry
from millpond.versions.paging import CommonPrefix, Page
from millpond.versions.repository_context import RepositoryContext

__all__ = ("Diff", "DiffObject", "routes")

routes = operations("diffs")


class DiffObject(msgspec.Struct):
    """The right side of a change."""

    checksum: str
    mtime: int
    content_type: str
    metadata: dict[str, str]


class Diff(msgspec.Struct):
    """A change, or changes below a common prefix."""

    type: str
    path: str
    path_type: str = "object"
    size_bytes: int | UnsetType = UNSET
    right: DiffObject | UnsetType = UNSET


def _own_model(context: RepositoryContext, change: Change | CommonPrefix) -> dict[str, Any]:
    """A change with both of its sides, for clients of Millpond."""

    def side(entry: Entry | None) -> Any:
        return None if entry is None else stats_model(context, entry)

    if isinstance(change, CommonPrefix):
        return {"type": "prefix_changed", "path": change.path}
    return {"type": change.type, "path": change.path, "left": side(change.left), "right": side(change.right)}


def _model(*, right_stats: bool, uncommitted: bool = False) -> Callable[[Change | CommonPrefix], Diff]:
    """The function that writes a change; what is removed has no size where it is not committed."""

    def write(change: Change | CommonPrefix) -> Diff:
        if isinstance(change, CommonPrefix):
            return Diff("prefix_changed", change.path, "common_prefix")
        right, sized = change.right, change.right or (None if uncommitted else change.left)
        model = Diff(change.type, change.path, size_bytes=0 if sized is None else sized.size)
        if right_stats and right is not None:
            model.right = DiffObject(right.checksum, right.mtime, right.content_type, dict(right.metadata))
        return model

    return write


def _answer(
    call: Call, page: Page[Change], write: Callable[[Change | CommonPrefix], Diff]
) -> Listing[Diff] | Response:  # fmt: skip
    if call.own:
        context = call.repository.context
        return json_answer(listed(page, lambda change: _own_model(context, change)))
    return listed(page, write)


@routes.get(f"{BRANCH}/diff", read(large=True), answer=Listing[Diff])
def _diff_branch(
    call: Call, prefix: str = "", after: str = "", amount: Amount = AMOUNT, delimiter: str = "", *,
    include_right_stats: bool = False,
) -> Listing[Diff] | Response:  # fmt: skip
    with wording({"ref_not_found": "branch not found"}):
        page = call.branch.diff(prefix, delimiter=delimiter, after=after, amount=page_size(amount))
    return _answer(call, page, _model(uncommitted=True, right_stats=include_right_stats))


@routes.get(f"{REPOSITORY}/refs/{{leftRef}}/diff/{{rightRef}}", read(large=True), answer=Listing[Diff])
def _diff_refs(
    call: Call, prefix: str = "", after: str = "", amount: Amount = AMOUNT, delimiter: str = "",
    type: Literal["two_dot", "three_dot"] = "three_dot", *, include_right_stats: bool = False,
) -> Listing[Diff] | Response:  # fmt: skip
    with wording({"ref_not_found": "get commit by ref {ref}: not found"}):
        page = call.repository.diff(
            call.names["leftRef"], call.names["rightRef"], prefix, three_dots=type == "three_dot",
            delimiter=delimiter, after=after, amount=page_size(amount),
        )  # fmt: skip
    return _answer(call, page, _model(right_stats=include_right_stats))
