"""Pages of rows that come in order: a limit, and a bookmark where there are more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from google.protobuf.message import Message

from millpond.errors import Corrupt, Invalid
from millpond.kernel.keys import decode, encode
from millpond.kernel.page import Bookmarks, check_limit, cut
from millpond.workflows.engine import Key
from millpond.workflows.store.search import LIMIT_MAX

__all__ = ("LIMIT_DEFAULT", "limit_of", "page_behind", "page_of")

LIMIT_DEFAULT = 100


def page_of(page_type: type[Message], rows: Iterable[tuple[bytes, Message]], request: Any) -> Message:
    """A page of rows with their places, which come in order.

    Raises: `Invalid` for a limit or a bookmark that is none.
    """
    position = _position_in(request)
    return _page(page_type, (entry for entry in rows if entry[0] > position), request)


def page_behind(
    page_type: type[Message], read: Callable[[Key | None], Iterable[tuple[Key, Message]]], request: Any
) -> Message:
    """A page of rows that `read` brings, each with its key, from the one behind a key on.

    Raises: `Invalid` for a limit or a bookmark that is none.
    """
    try:
        after = cast("Key", decode(_position_in(request))) or None
    except Corrupt:
        raise Invalid("the bookmark is made up", kind="search_bookmark", hint="begin again without it") from None
    return _page(page_type, ((encode(key), row) for key, row in read(after)), request)


def _position_in(request: Any) -> bytes:
    return _bookmarks(request).position(request.bookmark) if request.HasField("bookmark") else b""


def _page(page_type: type[Message], rows: Iterable[tuple[bytes, Message]], request: Any) -> Message:
    shown, more = cut(rows, limit_of(request))
    page: Any = page_type(results=[row for _, row in shown])
    if more:
        page.bookmark = _bookmarks(request).of(shown[-1][0])
    return cast("Message", page)


def limit_of(request: Any) -> int:
    """The number of results that a request wants at most.

    Raises: `Invalid`.
    """
    return check_limit(request.limit if request.HasField("limit") else LIMIT_DEFAULT, LIMIT_MAX)


def _bookmarks(request: Any) -> Bookmarks:
    """The bookmarks of a list: of all that a request says, but for what differs from page to page."""
    listing = type(request)()
    listing.CopyFrom(request)
    listing.ClearField("bookmark")
    listing.ClearField("limit")
    return Bookmarks(request.DESCRIPTOR.full_name.encode() + listing.SerializeToString(deterministic=True))
