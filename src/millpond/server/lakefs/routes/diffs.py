"""Differences: of a branch from its head, and of two refs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from millpond.server.lakefs.errors import wording
from millpond.server.lakefs.models import page_answer
from millpond.server.lakefs.stats import stats_model
from millpond.versions.paging import CommonPrefix

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call
    from millpond.versions.diffs import Change
    from millpond.versions.objects.entries import Entry
    from millpond.versions.repository_context import Site

__all__ = ("HANDLERS",)

_REPOSITORY = "/repositories/{repository}"
_TYPES = ("two_dot", "three_dot")


def _own_model(site: Site) -> Callable[[Change | CommonPrefix], Any]:
    """The function that writes a change with both of its sides, for clients of Millpond."""

    def side(entry: Entry | None) -> Any:
        return None if entry is None else stats_model(site, entry)

    def write(change: Change | CommonPrefix) -> dict[str, Any]:
        if isinstance(change, CommonPrefix):
            return {"type": "prefix_changed", "path": change.path}
        return {"type": change.type, "path": change.path, "left": side(change.left), "right": side(change.right)}

    return write


def _model(*, right_stats: bool = False, uncommitted: bool = False) -> Callable[[Change | CommonPrefix], Any]:
    """The function that writes a change; what is removed has no size where it is not committed."""

    def write(change: Change | CommonPrefix) -> dict[str, Any]:
        if isinstance(change, CommonPrefix):
            return {"type": "prefix_changed", "path": change.path, "path_type": "common_prefix"}
        sized = change.right or (None if uncommitted else change.left)
        model: dict[str, Any] = {
            "type": change.type, "path": change.path, "path_type": "object",
            "size_bytes": 0 if sized is None else sized.size,
        }  # fmt: skip
        if right_stats and change.right is not None:
            right = change.right
            model["right"] = {
                "checksum": right.checksum, "mtime": right.mtime, "content_type": right.content_type,
                "metadata": right.metadata,
            }  # fmt: skip
        return model

    return write


def _diff_branch(call: Call) -> Response:
    query = call.query
    with wording({"ref_not_found": "branch not found"}):
        page = call.branch.diff(
            query.text("prefix"), delimiter=query.text("delimiter"), after=query.text("after"), amount=query.amount()
        )
    if call.own:
        return page_answer(page, _own_model(call.repository.site))
    return page_answer(page, _model(uncommitted=True, right_stats=query.flag("include_right_stats")))


def _diff_refs(call: Call) -> Response:
    query, names = call.query, call.names
    three_dots = query.choice("type", _TYPES, "three_dot") == "three_dot"
    with wording({"ref_not_found": "get commit by ref {ref}: not found"}):
        page = call.repository.diff(
            names["leftRef"], names["rightRef"], query.text("prefix"), three_dots=three_dots,
            delimiter=query.text("delimiter"), after=query.text("after"), amount=query.amount(),
        )  # fmt: skip
    if call.own:
        return page_answer(page, _own_model(call.repository.site))
    return page_answer(page, _model(right_stats=query.flag("include_right_stats")))


HANDLERS = {
    ("GET", f"{_REPOSITORY}/branches/{{branch}}/diff"): _diff_branch,
    ("GET", f"{_REPOSITORY}/refs/{{leftRef}}/diff/{{rightRef}}"): _diff_refs,
}
