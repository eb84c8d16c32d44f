"""A space in memory: for tests, simulations, and whatever may be lost.

Rows lie in blocks of some hundred, in order. A write copies the blocks that it changes, and the list of all blocks, so
it costs what it changes and a little for the size of the whole; a reader keeps the lists that were there when it began.

Invariants:
* A committed state is never changed: a writer works on a list of its own, and on copies of blocks.
* Keys ascend within a block and from block to block; no block is empty; `firsts` holds the first key of each.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from millpond.errors import Closed
from millpond.kernel.space import ReadTransaction, Transaction, already_writing, check_row, transaction_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from millpond.kernel.keys import KeyRange

__all__ = ("BLOCK_ROWS_MAX", "MemorySpace")

BLOCK_ROWS_MAX = 256
"""Larger: a write copies more rows; smaller: it copies a longer list of blocks."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Block:
    """Neighbouring rows in order."""

    keys: list[bytes]
    values: list[bytes]

    def copy(self) -> _Block:
        return _Block(self.keys.copy(), self.values.copy())


@dataclass(slots=True, eq=False)
class _State:
    """The rows at one moment."""

    firsts: list[bytes] = field(default_factory=list)
    blocks: list[_Block] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Mapping[bytes, bytes]) -> _State:
        state, keys = cls(), sorted(rows)
        for start in range(0, len(keys), BLOCK_ROWS_MAX):
            some = keys[start : start + BLOCK_ROWS_MAX]
            state.insert(len(state.blocks), _Block(some, [rows[key] for key in some]))
        return state

    def copy(self) -> _State:
        return _State(self.firsts.copy(), self.blocks.copy())

    def block_of(self, key: bytes) -> int:
        """The block in which a key lies, or would."""
        return max(0, bisect_right(self.firsts, key) - 1)

    def insert(self, number: int, block: _Block) -> None:
        self.firsts.insert(number, block.keys[0])
        self.blocks.insert(number, block)

    def get(self, key: bytes) -> bytes | None:
        if not self.blocks:
            return None
        block = self.blocks[self.block_of(key)]
        at = bisect_left(block.keys, key)
        return block.values[at] if at < len(block.keys) and block.keys[at] == key else None

    def ascending(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows from `start` on."""
        number = self.block_of(start)
        at = bisect_left(self.blocks[number].keys, start) if self.blocks else 0
        for block in self.blocks[number:]:
            yield from zip(block.keys[at:], block.values[at:], strict=True)
            at = 0

    def descending(self, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The rows before `stop`, or all, from the last to the first."""
        number = len(self.blocks) - 1 if stop is None else self.block_of(stop)
        for block in self.blocks[number::-1] if self.blocks else ():
            end = len(block.keys) if stop is None else bisect_left(block.keys, stop)
            yield from zip(block.keys[:end][::-1], block.values[:end][::-1], strict=True)

    def check(self) -> None:
        """Assert the invariants."""
        assert [block.keys[0] for block in self.blocks] == self.firsts
        keys = [key for block in self.blocks for key in block.keys]
        assert all(one < other for one, other in pairwise(keys))
        assert all(len(block.keys) == len(block.values) <= BLOCK_ROWS_MAX for block in self.blocks)


class _MemoryTransaction:
    """A transaction over a state; it copies what it changes before it does."""

    def __init__(self, state: _State) -> None:
        self.state = state
        self.over = False
        self._changes = 0
        self._own: set[_Block] = set()

    def get(self, key: bytes) -> bytes | None:
        return self._open_state().get(key)

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._open_state()
        return self._scan(keys, reverse)

    def put(self, key: bytes, value: bytes) -> None:
        check_row(key, value)
        state = self._changing_state()
        if not state.blocks:
            self._own.add(first := _Block([key], [bytes(value)]))
            state.insert(0, first)
            return
        number = state.block_of(key)
        block = self._own_block(number)
        at = bisect_left(block.keys, key)
        if at < len(block.keys) and block.keys[at] == key:
            block.values[at] = bytes(value)
            return
        block.keys.insert(at, key)
        block.values.insert(at, bytes(value))
        state.firsts[number] = block.keys[0]
        if len(block.keys) > BLOCK_ROWS_MAX:
            self._split(number)

    def delete(self, key: bytes) -> bool:
        if self._open_state().get(key) is None:
            return False
        state = self._changing_state()
        number = state.block_of(key)
        block = self._own_block(number)
        at = bisect_left(block.keys, key)
        del block.keys[at], block.values[at]
        if block.keys:
            state.firsts[number] = block.keys[0]
            self._join(number)
        else:
            del state.blocks[number], state.firsts[number]
        return True

    def _own_block(self, number: int) -> _Block:
        block = self.state.blocks[number]
        if block not in self._own:
            block = self.state.blocks[number] = block.copy()
            self._own.add(block)
        return block

    def _split(self, number: int) -> None:
        block, half = self.state.blocks[number], BLOCK_ROWS_MAX // 2
        self._own.add(upper := _Block(block.keys[half:], block.values[half:]))
        del block.keys[half:], block.values[half:]
        self.state.insert(number + 1, upper)

    def _join(self, number: int) -> None:
        """Put a block that has become small together with the next, so that deleting leaves no long list of blocks."""
        blocks = self.state.blocks
        if number + 1 == len(blocks) or len(blocks[number].keys) > BLOCK_ROWS_MAX // 8:
            return
        block, following = blocks[number], blocks[number + 1]
        if len(block.keys) + len(following.keys) <= BLOCK_ROWS_MAX // 2:
            block.keys += following.keys
            block.values += following.values
            del blocks[number + 1], self.state.firsts[number + 1]

    def _scan(self, keys: KeyRange, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        start, stop = keys.start, keys.stop
        while True:
            state, changes = self._open_state(), self._changes
            for key, value in state.descending(stop) if reverse else state.ascending(start):
                if not keys.holds(key):
                    return
                yield key, value
                self._open_state()
                if changes != self._changes:
                    # Rows were put or deleted meanwhile: it goes on from this key in what there is now.
                    start, stop = key + b"\x00", key
                    break
            else:
                return

    def _open_state(self) -> _State:
        if self.over:
            raise transaction_over()
        return self.state

    def _changing_state(self) -> _State:
        state = self._open_state()
        if not self._changes:
            self.state = state = state.copy()
        self._changes += 1
        return state


class MemorySpace:
    """A `Space` that is gone with its process."""

    def __init__(self) -> None:
        self._state = _State()
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._closed = False

    @contextmanager
    def read(self, *, wait: bool = True) -> Iterator[ReadTransaction]:
        self._refuse_closed()
        transaction = _MemoryTransaction(self._state)
        try:
            yield transaction
        finally:
            transaction.over = True

    def write(self, change: Callable[[Transaction], T]) -> T:
        if self._writer == threading.get_ident():
            raise already_writing()
        with self._writing:
            self._refuse_closed()
            self._writer = threading.get_ident()
            transaction = _MemoryTransaction(self._state)
            try:
                result = change(transaction)
                self._state = transaction.state
            finally:
                transaction.over = True
                self._writer = None
        return result

    def close(self) -> None:
        self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed("the space is closed", kind="space_closed")
