"""Maintenance that lakeFS has no calls for: the layers of what is staged, their compaction, and garbage collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.responses import Response

from millpond.errors import Invalid
from millpond.server.lakefs.bodies import takes
from millpond.server.lakefs.errors import ApiError, json_answer
from millpond.versions.collect import GRACE_MS

if TYPE_CHECKING:
    from millpond.server.lakefs.call import Call

__all__ = ("HANDLERS",)

_REPOSITORY = "/repositories/{repository}"


@dataclass(frozen=True, slots=True)
class _Collection:
    """`grace_ms`: what is younger stays; not less than the default, for an upload may be on its way."""

    dry_run: bool = False
    grace_ms: int = GRACE_MS


def _compact(call: Call) -> Response:
    """`done`, or the reason why nothing was switched; the layers that were folded, and the time."""
    return json_answer(call.branch.staging.compact())


@takes(_Collection)
def _collect(call: Call) -> Response:
    collection = call.json(_Collection) if call.body.strip() else _Collection()
    if collection.grace_ms < GRACE_MS:
        raise ApiError(400, f"argument grace_ms: at least {GRACE_MS}: validation error") from Invalid(
            "the grace time of a node is a day or more: uploads may be on their way", kind="grace_short",
            grace_ms=collection.grace_ms,
            hint="leave it at its default, a day; a folder that no node serves takes a minute",
        )  # fmt: skip
    return json_answer(call.repository.collect(grace_ms=collection.grace_ms, dry_run=collection.dry_run))


def _get_staging(call: Call) -> Response:
    """The layers of what is staged."""
    return json_answer(call.branch.staging.state())


HANDLERS = {
    ("GET", f"{_REPOSITORY}/branches/{{branch}}/staging"): _get_staging,
    ("POST", f"{_REPOSITORY}/branches/{{branch}}/compact"): _compact,
    ("POST", f"{_REPOSITORY}/gc/collect"): _collect,
}
