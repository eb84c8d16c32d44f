"""Maintenance that lakeFS has no calls for: the layers of what is staged, their compaction, and garbage collection."""

from __future__ import annotations

import msgspec

from millpond.errors import Invalid
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import ApiError
from millpond.server.lakefs.models import Long
from millpond.server.lakefs.needs import REPOSITORY, change, declared
from millpond.server.routes.declared import serve
from millpond.server.routes.table import On
from millpond.versions.collect import GRACE_MS, Garbage
from millpond.versions.protocols import StagingOperations

__all__ = ("Collection", "routes")

routes = operations("maintenance")


class Collection(msgspec.Struct):
    """`grace_ms`: what is younger stays; not less than the default, for an upload may be on its way."""

    dry_run: bool = False
    grace_ms: Long = GRACE_MS


serve(routes, StagingOperations, lambda request: Call(request).branch.staging, declared)


@routes.post(f"{REPOSITORY}/gc/collect", change("admin", On.REPOSITORY))
def _collect(call: Call, collection: Collection | None = None) -> Garbage:
    collection = collection or Collection()
    if collection.grace_ms < GRACE_MS:
        raise ApiError(400, f"argument grace_ms: at least {GRACE_MS}: validation error") from Invalid(
            "the grace time of a node is a day or more: uploads may be on their way", kind="grace_short",
            grace_ms=collection.grace_ms,
            hint="leave it at its default, a day; a folder that no node serves takes a minute",
        )  # fmt: skip
    return call.repository.collect(grace_ms=collection.grace_ms, dry_run=collection.dry_run)
