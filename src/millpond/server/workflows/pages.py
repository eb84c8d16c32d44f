"""Pages of rows that come in order: a limit, and a bookmark where there are more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from millpond.errors import Corrupt, Invalid
from millpond.kernel.keys import decode
from millpond.workflows.store.search import LIMIT_MAX

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ("LIMIT_DEFAULT", "limit_of", "page_of")

LIMIT_DEFAULT = 100
_BOOKMARK = b"\x02"


def page_of(page_type: type[Message], rows: Iterable[tuple[bytes, Message]], request: Any) -> Message:
    """A page of rows with their places, which come in order.

    Raises: `Invalid` for a limit or a bookmark that is none.
    """
    limit, after = limit_of(request), _after(request)
    page: Any = page_type()
    last = b""
    for place, row in rows:
        if after is not None and place <= after:
            continue
        if len(page.results) == limit:
            page.bookmark = _BOOKMARK + last
            break
        page.results.append(row)
        last = place
    return cast("Message", page)


def limit_of(request: Any) -> int:
    """The number of results that a request wants at most.

    Raises: `Invalid`.
    """
    limit = request.limit if request.HasField("limit") else LIMIT_DEFAULT
    if not 0 < limit <= LIMIT_MAX:
        raise Invalid("not a number of results", kind="search_limit", limit=limit, hint=f"1 to {LIMIT_MAX:,}")
    return int(limit)


def _after(request: Any) -> bytes | None:
    """The place of the last row of the page before."""
    if not request.HasField("bookmark"):
        return None
    bookmark: bytes = request.bookmark
    place = bookmark[len(_BOOKMARK) :]
    if not (bookmark.startswith(_BOOKMARK) and _is_key(place)):
        raise Invalid(
            "the bookmark is of no such list", kind="search_bookmark", bookmark=bookmark[:32].hex(),
            hint="begin again without it",
        )  # fmt: skip
    return place


def _is_key(place: bytes) -> bool:
    try:
        decode(place)
    except Corrupt:
        return False
    return True
