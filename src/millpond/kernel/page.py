"""Pages of rows that come in an order: so many behind a place, and where the next page goes on.

    behind(keys, place) ─▶ scan ─▶ cut(rows, limit) ─▶ rows, more ─▶ bookmark of a place ─▶ the caller ─▶ that place

Invariants:
* Pages joined are the whole: a row that stays is in exactly one of them, and others may come and go meanwhile.
* A place is exclusive and need not exist any more; it may lie before or behind the keys.
* A bookmark serves only the listing that gave it: another's, an older one, or one that was made up, is refused.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from millpond.errors import Invalid
from millpond.kernel.keys import EVERYTHING, KeyRange

__all__ = ("Bookmarks", "Page", "behind", "check_limit", "cut", "all_behind", "pages")

_SUM_BYTES = 4
T = TypeVar("T")
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows in their order. `bookmark` is for the next page; None at the end."""

    rows: tuple[T, ...]
    bookmark: bytes | None


def check_limit(limit: int, most: int) -> int:
    """The limit of a page.

    Raises: `Invalid`, kind `search_limit`.
    """
    if not 0 < limit <= most:
        raise Invalid("not a number of results", kind="search_limit", limit=limit, hint=f"1 to {most:,}")
    return limit


def behind(keys: KeyRange, position: bytes, *, reverse: bool = False) -> KeyRange:
    """Those of the keys that a scan meets behind a place.

    >>> behind(KeyRange(b"a", b"c"), b"b"), behind(KeyRange(b"a", b"c"), b"b", reverse=True)
    (KeyRange(start=b'b\\x00', stop=b'c'), KeyRange(start=b'a', stop=b'b'))
    """
    if reverse:
        return KeyRange(keys.start, position if keys.stop is None else min(position, keys.stop))
    return KeyRange(max(keys.start, position + b"\0"), keys.stop)  # no key lies between a key and it with a zero behind


def cut(rows: Iterable[T], limit: int) -> tuple[list[T], bool]:
    """The first rows, and true when there are more: one more is read to learn that.

    >>> cut("abc", 2), cut("ab", 2)
    ((['a', 'b'], True), (['a', 'b'], False))
    """
    items = list(islice(rows, limit + 1))
    return items[:limit], len(items) > limit


def pages(read: Callable[[P], T], position: P, position_after: Callable[[T], P | None]) -> Iterator[T]:
    """The pages that `read` brings from a place on; `position_after` is where the next begins, None at the end."""
    following: P | None = position
    while following is not None:
        page = read(following)
        yield page
        following = position_after(page)


def all_behind(read: Callable[[T | None], Sequence[T]], position: T | None = None) -> Iterator[T]:
    """Rows that are their own places, page by page, until a page is empty."""
    while page := read(position):
        yield from page
        position = page[-1]


class Bookmarks:
    """The bookmarks of a listing: a place, behind a sum over it and all that says which listing it is.

    The sum keeps mistakes out, not people: a place that somebody made up only says where their own page begins.
    """

    def __init__(self, listing: bytes) -> None:
        self._sum = zlib.crc32(listing)

    def of(self, position: bytes) -> bytes:
        """The bookmark of a place."""
        return zlib.crc32(position, self._sum).to_bytes(_SUM_BYTES, "big") + position

    def position(self, bookmark: bytes, keys: KeyRange = EVERYTHING) -> bytes:
        """The place of a bookmark, which lies within the keys.

        Raises: `Invalid`, kind `search_bookmark`.
        """
        position = bookmark[_SUM_BYTES:]
        if self.of(position) != bookmark or not keys.holds(position):
            raise Invalid(
                "the bookmark is of no such listing", kind="search_bookmark", bookmark=bookmark[:32].hex(),
                hint="begin again without it",
            )  # fmt: skip
        return position
