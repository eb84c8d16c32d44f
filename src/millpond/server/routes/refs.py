"""Refs of maps, as far as they are about keys; branches, commits and merges are those of the repository `pond`.

| route | answers |
|---|---|
| `GET /v1/refs/commit?ref` | the commit of a ref, or of a time |
| `GET /v1/refs/diff?left&right&map&three_dots&limit&bookmark` | a page of addresses that differ, as an Arrow stream |
| `GET /v1/refs/history?map&ref&limit` | the commits that changed a map, as an Arrow stream |
| `POST /v1/refs/restore` | maps as they were at a ref, by a new commit |

Invariant: nothing is told of maps that the caller may not read, and none is changed that it may not write.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import pyarrow as pa
from msgspec import Meta, field
from starlette.requests import Request
from starlette.responses import Response

from millpond.arrays.arrow_streams import stream_pieces
from millpond.client.lookup import ARROW_STREAM
from millpond.nodes.node import Node
from millpond.refs.diffs import Position, compared, difference_page, map_differences
from millpond.refs.face import MAIN, POND
from millpond.refs.refs import Refs
from millpond.server.access import caller_in, note_change
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import need as need_repository
from millpond.server.lakefs.models import Commit, commit_model
from millpond.server.routes.table import ORDER_BYTES_MAX, On, RouteNeeds, Work, read
from millpond.server.wire import RequestBody

__all__ = ("DIFF_BYTES_MAX", "Restore", "routes")

DIFF_BYTES_MAX = 16 << 20
"""About so many bytes of differences are a page: the keys that are compared at once are all in it."""
_DIFF = read(On.QUERY_MAP, memory_bytes=8 * DIFF_BYTES_MAX, when_ready=True)
_HISTORY = read(On.QUERY_MAP, when_ready=True)
_RESTORE = RouteNeeds("write", On.BODY_MAPS, Work.ADMINISTRATION, ORDER_BYTES_MAX, when_ready=True, audited=True)
_ARROW: dict[int | str, Any] = {200: {"content": {ARROW_STREAM: {}}}}
Limit = Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="at most so many rows")]


class Restore(RequestBody):
    """Maps that become on a branch what they are at a ref; all of the ref by default."""

    ref: str
    branch: str = MAIN
    maps: list[str] = field(default_factory=list)
    message: str = ""


def routes(node: Node) -> Routes:
    """The routes of one node."""
    router = Routes(prefix="/v1/refs", tag="refs")

    def refs_of(request: Request, branch: str | None = None) -> Refs:
        """The refs of the pond, for the sender of a request, who changes a branch if one is named.

        Raises: `Denied`; as `PondsAtRefs.refs`.
        """
        caller = caller_in(request)
        need_repository(caller, "read" if branch is None else "write", POND, branch)
        return Refs(node.at_refs.refs, caller.need)

    @router.get("/commit", read(On.ANY_MAP, when_ready=True), summary="The commit of a ref", answer=Commit)
    def commit(
        request: Request, ref: Annotated[str, Meta(description="a branch, a commit, a tag, `main~1`, a time")]
    ) -> Commit:
        return commit_model(refs_of(request).states.commit(ref))

    @router.get("/diff", _DIFF, summary="The keys of maps that differ between two refs", responses=_ARROW)
    def diff(
        request: Request, left: str,
        right: Annotated[str | None, Meta(description="by default, what is staged on the branch `left`")] = None,
        map: str | None = None,
        three_dots: Annotated[bool, Meta(description="what `right` changed since both parted")] = False,
        limit: Limit = None,
        bookmark: Annotated[str | None, Meta(description="of the page before, with its `left` and `right`")] = None,
    ) -> Response:  # fmt: skip
        """Columns `map`, `change`, those of addresses, `old` and `new`: of one map in its types, of several as JSON.

        A page, in the order of keys. The metadata of its schema has `left` and `right`, and, unless it is the last, the
        `bookmark` of the next one.
        """
        states = refs_of(request).states
        sides = compared(
            states, left, right, map=map, three_dots=three_dots, only_of=partial(caller_in(request).may, "read")
        )
        bookmarks = sides.bookmarks()
        after = None if bookmark is None else Position.of(bookmarks.position(_bytes_of(bookmark)))
        steps = map_differences(sides.old, sides.new, states.layers_for, after)
        page, position = difference_page(steps, sides, limit=limit, bytes_max=DIFF_BYTES_MAX)
        following = None if position is None else bookmarks.of(position.packed()).hex()
        about = {"left": sides.pins[0], "right": sides.pins[1], "bookmark": following}
        return _table(page.replace_schema_metadata({name: text for name, text in about.items() if text is not None}))

    @router.get("/history", _HISTORY, summary="The commits that changed a map", responses=_ARROW)
    def history(request: Request, map: str, ref: str = MAIN, limit: Limit = None) -> Response:
        """Columns `time`, `commit`, `message`, `version`, `rows`, `removed`, `source`; the newest first."""
        return _table(refs_of(request).history(map, ref, limit=limit, only_of=partial(caller_in(request).may, "read")))

    @router.post("/restore", _RESTORE, summary="Let maps be what they were at a ref", answer=Commit)
    def restore(request: Request, order: Restore) -> Commit:
        """By a new commit on a branch."""
        note_change(request, branch=order.branch, ref=order.ref)
        refs = refs_of(request, order.branch)
        with node.appending():
            made = refs.restore(order.ref, order.branch, maps=order.maps, message=order.message)
        note_change(request, commit=made.id)
        return commit_model(made)

    return router


def _bytes_of(bookmark: str) -> bytes:
    try:
        return bytes.fromhex(bookmark)
    except ValueError:
        return b""  # it is of no listing


def _table(table: pa.Table) -> Response:
    return Response(b"".join(stream_pieces(table.schema, [table])), media_type=ARROW_STREAM)
