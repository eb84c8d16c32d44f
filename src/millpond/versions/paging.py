"""Pages of anything that comes in the order of paths, with prefixes, delimiters and places to go on from.

With a delimiter, the paths that share what lies between the prefix and the next delimiter become one *common prefix*,
and what lies behind is skipped by a seek, not read.

Invariants:
* Pages joined are the whole: each goes on behind `next_offset` of the one before.
* `after` is exclusive and need not exist; it may lie before or behind the prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Generic, TypeAlias, TypeVar

from millpond.argument_types import need_type
from millpond.error_values import html_rows
from millpond.errors import Invalid
from millpond.kernel.keys import KeyRange, starting
from millpond.kernel.page import behind, pages
from millpond.ranges.key_columns import KeyColumn, lower_bound
from millpond.sizes import human_count

__all__ = ("AMOUNT_MAX", "Block", "CommonPrefix", "Listing", "Page", "page", "pages_of", "results_of")

AMOUNT_MAX = 10_000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommonPrefix:
    """The paths of a listing that share a prefix up to a delimiter."""

    path: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a listing, in order. `next_offset` is the `after` of the next page, empty at the end."""

    results: tuple[T | CommonPrefix, ...]
    has_more: bool
    next_offset: str = ""

    @property
    def items(self) -> list[T]:
        """The results that are no common prefixes."""
        return [result for result in self.results if not isinstance(result, CommonPrefix)]

    def _repr_html_(self) -> str:
        count = human_count(len(self.results), "result")
        return html_rows(f"{count}{', and there are more' if self.has_more else ''}", self.results)


@dataclass(frozen=True, slots=True)
class Block(Generic[T]):
    """Items by the places of their keys, which ascend; `decode` makes those of some rows."""

    keys: KeyColumn
    decode: Callable[[Sequence[int]], list[T]]


Blocks: TypeAlias = "Callable[[KeyRange], Iterator[Block[T]]]"


@dataclass(frozen=True, slots=True)
class Listing:
    """The part of a listing that is wanted; `reverse` runs from the last path to the first."""

    prefix: str = ""
    delimiter: str = ""
    after: str = ""
    amount: int = 100
    reverse: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("amount", Integral), ("prefix", str), ("delimiter", str), ("after", str)):
            need_type(name, getattr(self, name), kind)
        if not 0 < self.amount <= AMOUNT_MAX:
            raise Invalid("not an amount of items", kind="amount", amount=self.amount, hint=f"1 to {AMOUNT_MAX:,}")
        for text in (self.prefix, self.delimiter, self.after):
            starting(text)  # one that is no Unicode is refused

    def keys(self) -> KeyRange:
        """The keys that it can show."""
        within = starting(self.prefix)
        if not self.after:
            return within
        after = self.after.encode()
        if self.delimiter and not self.reverse and self.common(after) == after:
            stop = starting(after).stop
            assert stop is not None
            return KeyRange(max(within.start, stop), within.stop)
        return behind(within, after, reverse=self.reverse)

    def common(self, key: bytes) -> bytes | None:
        """The common prefix that a key belongs to."""
        if not self.delimiter:
            return None
        prefix, delimiter = self.prefix.encode(), self.delimiter.encode()
        at = key.find(delimiter, len(prefix)) if key.startswith(prefix) else -1
        return None if at < 0 else key[: at + len(delimiter)]


def page(blocks: Callable[[KeyRange], Iterator[Block[T]]], listing: Listing) -> Page[T]:
    """One page of what `blocks` brings for a range of keys; with `reverse` it brings the last block first."""
    collected: _Collected[T] = _Collected(listing)
    keys: KeyRange | None = listing.keys()
    while keys is not None and (keys.stop is None or keys.start < keys.stop):
        keys = collected.take(blocks(keys), keys)
    return collected.page()


@dataclass(slots=True)
class _Collected(Generic[T]):
    """The items of a page so far: one more than fit, to learn that there are more."""

    listing: Listing
    items: list[T | CommonPrefix] = field(default_factory=list)
    last: bytes = b""
    more: bool = False

    def take(self, blocks: Iterator[Block[T]], keys: KeyRange) -> KeyRange | None:
        """Take what is wanted; the keys to go on with by a seek, None at the end."""
        for block in blocks:
            rest = self._take_block(block, keys)
            if self.more:
                return None
            if rest is not None:
                return rest
        return None

    def _take_block(self, block: Block[T], keys: KeyRange) -> KeyRange | None:
        reverse = self.listing.reverse
        if not self.listing.delimiter:
            self._take_rows(block)
            return None
        rows: list[int] = []
        at = len(block.keys) - 1 if reverse else 0
        while 0 <= at < len(block.keys):
            if len(self.items) + len(rows) == self.listing.amount:
                self.more = True
                break
            key = block.keys[at]
            common = self.listing.common(key)
            self.last = key if common is None else common
            if common is None:
                rows.append(at)
                at += -1 if reverse else 1
                continue
            self._decode(block, rows)
            rows = []
            self.items.append(CommonPrefix(common.decode(errors="replace")))
            skipped = starting(common)
            if reverse:
                at = lower_bound(block.keys, skipped.start) - 1
                if at < 0:
                    return KeyRange(keys.start, skipped.start)
            else:
                assert skipped.stop is not None
                at = lower_bound(block.keys, skipped.stop)
                if at == len(block.keys):
                    return KeyRange(skipped.stop, keys.stop)
        self._decode(block, rows)
        return None

    def _take_rows(self, block: Block[T]) -> None:
        """Without a delimiter every key is an item: those that fit are taken at once."""
        count = len(block.keys)
        room = self.listing.amount - len(self.items)
        self.more = count > room
        taken = min(count, room)
        rows = range(count - 1, count - 1 - taken, -1) if self.listing.reverse else range(taken)
        if taken:
            self.last = block.keys[rows[-1]]
            self._decode(block, rows)

    def _decode(self, block: Block[T], rows: Sequence[int]) -> None:
        if rows:
            self.items += block.decode(rows)

    def page(self) -> Page[T]:
        return Page(tuple(self.items), self.more, self.last.decode(errors="replace") if self.more else "")


def pages_of(page: Callable[[str], Page[T]]) -> Iterator[Page[T]]:
    """The pages of a listing; `page` brings the one behind a path."""
    return pages(page, "", lambda page_: page_.next_offset if page_.has_more else None)


def results_of(page: Callable[[str], Page[T]]) -> Iterator[T]:
    """All results of a listing, but for common prefixes; `page` as that of `pages_of`."""
    return (item for page_ in pages_of(page) for item in page_.items)
