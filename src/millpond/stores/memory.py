"""A space in memory: for tests, simulations, and whatever may be lost.

Rows lie in blocks of some hundred, in order. A write is an `Overlay` over them; its commit makes new blocks where it
changed some, and a new list of all blocks. So it costs what it changes and a little for the size of the whole, and a
reader keeps the list that was there when it began.

Invariants:
* What is committed is never changed: neither a block nor a list of blocks.
* Keys ascend within a block and from block to block; no block is empty; `firsts` holds the first key of each.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeVar

from millpond.errors import Closed
from millpond.kernel.keys import KeyRange
from millpond.kernel.overlay import Overlay
from millpond.kernel.space import ReadTransaction, Transaction, already_writing

__all__ = ("BLOCK_ROWS_MAX", "Block", "MemorySpace", "Rows")

BLOCK_ROWS_MAX = 256
"""Larger: a write copies more rows; smaller: it copies a longer list of blocks."""
_FEW = 32
"""So many rows are put into a copy of a block one by one; of more the block is sorted anew."""

T = TypeVar("T")


class Block(NamedTuple):
    """Neighbouring rows in order."""

    keys: list[bytes]
    values: list[bytes]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows at one moment: a `ReadTransaction` that never ends."""

    firsts: list[bytes] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[tuple[bytes, bytes]]) -> Rows:
        """Rows that are in the order of their keys."""
        there = dict(rows)
        blocks = list(_blocks_of(Block(list(there), list(there.values()))))
        return cls([block.keys[0] for block in blocks], blocks)

    def get(self, key: bytes) -> bytes | None:
        if not self.blocks:
            return None
        block = self.blocks[self._block_of(key)]
        at = bisect_left(block.keys, key)
        return block.values[at] if at < len(block.keys) and block.keys[at] == key else None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        first = self._block_of(keys.start)
        last = len(self.blocks) if keys.stop is None else self._block_of(keys.stop) + 1
        for block in self.blocks[first:last][:: -1 if reverse else 1]:
            start = bisect_left(block.keys, keys.start)
            stop = len(block.keys) if keys.stop is None else bisect_left(block.keys, keys.stop)
            rows = zip(block.keys[start:stop], block.values[start:stop], strict=True)
            yield from reversed(list(rows)) if reverse else rows

    def keys(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[bytes]:
        return (key for key, _ in self.scan(keys, reverse=reverse))

    def changed(self, changes: Iterable[tuple[bytes, bytes | None]]) -> Rows:
        """The rows after changes, in the order of their keys; the blocks that hold none of them are shared."""
        rows = Rows(self.firsts.copy(), self.blocks.copy())
        by_block: dict[int, dict[bytes, bytes | None]] = {}
        for key, value in changes:
            by_block.setdefault(self._block_of(key), {})[key] = value
        # From the last to the first, so that the numbers of those to come stay what they are.
        for number, changed in reversed(by_block.items()):
            rows._change_block(number, changed)
        return rows

    def check(self) -> None:
        """Assert the invariants."""
        assert [block.keys[0] for block in self.blocks] == self.firsts
        keys = [key for block in self.blocks for key in block.keys]
        assert all(first < other for first, other in pairwise(keys))
        assert all(len(block.keys) == len(block.values) <= BLOCK_ROWS_MAX for block in self.blocks)

    def _block_of(self, key: bytes) -> int:
        """The block in which a key lies, or would."""
        return max(0, bisect_right(self.firsts, key) - 1)

    def _change_block(self, number: int, changed: dict[bytes, bytes | None]) -> None:
        replaced = self.blocks[number : number + 1]
        left = _changed(replaced[0] if replaced else Block([], []), changed)
        following = self.blocks[number + 1 : number + 2]
        # A block that has become small joins the next, so that deleting leaves no long list of blocks.
        if 0 < len(left.keys) <= BLOCK_ROWS_MAX // 8 and following and len(following[0].keys) <= BLOCK_ROWS_MAX // 4:
            left = Block(left.keys + following[0].keys, left.values + following[0].values)
            replaced += following
        new = list(_blocks_of(left))
        self.blocks[number : number + len(replaced)] = new
        self.firsts[number : number + len(replaced)] = [block.keys[0] for block in new]


def _changed(block: Block, changed: dict[bytes, bytes | None]) -> Block:
    """The rows of a block after changes."""
    if len(changed) > _FEW:
        there = dict(zip(*block, strict=True)) | changed
        pairs = [(key, value) for key in sorted(there) if (value := there[key]) is not None]
        return Block([key for key, _ in pairs], [value for _, value in pairs])
    keys, values = block.keys.copy(), block.values.copy()
    for key, value in changed.items():
        at = bisect_left(keys, key)
        stop = at + 1 if at < len(keys) and keys[at] == key else at
        keys[at:stop], values[at:stop] = ([], []) if value is None else ([key], [value])
    return Block(keys, values)


def _blocks_of(rows: Block) -> Iterator[Block]:
    """Blocks of rows that are in order: one, or several that are half full, with room to grow."""
    keys, values = rows
    size = BLOCK_ROWS_MAX if len(keys) <= BLOCK_ROWS_MAX else BLOCK_ROWS_MAX // 2
    for start in range(0, len(keys), size):
        yield Block(keys[start : start + size], values[start : start + size])


class MemorySpace:
    """A `Space` that is gone with its process."""

    def __init__(self) -> None:
        self._rows = Rows()
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._closed = False

    @contextmanager
    def read(self, *, wait: bool = True) -> Iterator[ReadTransaction]:
        self._refuse_closed()
        transaction = Overlay(self._rows)
        try:
            yield transaction
        finally:
            transaction.end()

    def write(self, change: Callable[[Transaction], T]) -> T:
        if self._writer == threading.get_ident():
            raise already_writing()
        with self._writing:
            self._refuse_closed()
            self._writer = threading.get_ident()
            transaction = Overlay(self._rows)
            try:
                result = change(transaction)
                self._rows = self._rows.changed(transaction.changes())
            finally:
                transaction.end()
                self._writer = None
        return result

    def close(self) -> None:
        self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed("the space is closed", kind="space_closed")
