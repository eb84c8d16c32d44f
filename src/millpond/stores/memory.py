"""A space in memory: for tests, simulations, and whatever may be lost.

Invariants:
* A committed state is never changed: a writer works on its own copy, made at its first change, and swaps it in.
* `keys` is sorted and holds exactly the keys of `rows`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from millpond.errors import Closed
from millpond.kernel.space import ReadTransaction, Transaction, already_writing, check_row, transaction_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millpond.kernel.keys import KeyRange

__all__ = ("MemorySpace",)

T = TypeVar("T")


@dataclass(slots=True)
class _State:
    """The rows at one moment, and their keys in order."""

    rows: dict[bytes, bytes] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)

    def copy(self) -> _State:
        return _State(dict(self.rows), list(self.keys))


class _MemoryTransaction:
    """A transaction over a state; it copies the state before it changes it."""

    def __init__(self, state: _State) -> None:
        self.state = state
        self.changed = False
        self.over = False

    def get(self, key: bytes) -> bytes | None:
        return self._open_state().rows.get(key)

    def scan(self, keys: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._open_state()
        return self._scan_down(keys) if reverse else self._scan_up(keys)

    def put(self, key: bytes, value: bytes) -> None:
        check_row(key, value)
        state = self._changing_state()
        if key not in state.rows:
            insort(state.keys, key)
        state.rows[key] = bytes(value)

    def delete(self, key: bytes) -> bool:
        if key not in self._open_state().rows:
            return False
        state = self._changing_state()
        del state.rows[key]
        del state.keys[bisect_left(state.keys, key)]
        return True

    def _scan_up(self, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        # Every step searches anew from the last key, so rows put or deleted meanwhile are seen rightly.
        at = bisect_left(self._open_state().keys, keys.start)
        while at < len(self.state.keys) and keys.holds(key := self.state.keys[at]):
            yield key, self.state.rows[key]
            at = bisect_right(self._open_state().keys, key)

    def _scan_down(self, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
        state = self._open_state()
        at = len(state.keys) if keys.stop is None else bisect_left(state.keys, keys.stop)
        while at > 0 and keys.holds(key := self.state.keys[at - 1]):
            yield key, self.state.rows[key]
            at = bisect_left(self._open_state().keys, key)

    def _open_state(self) -> _State:
        if self.over:
            raise transaction_over()
        return self.state

    def _changing_state(self) -> _State:
        state = self._open_state()
        if not self.changed:
            self.state = state = state.copy()
            self.changed = True
        return state


class MemorySpace:
    """A `Space` that is gone with its process. A write costs a copy of the whole: keep it small."""

    def __init__(self) -> None:
        self._state = _State()
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._closed = False

    @contextmanager
    def read(self) -> Iterator[ReadTransaction]:
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
        assert len(self._state.keys) == len(self._state.rows)
        return result

    def close(self) -> None:
        self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed("the space is closed", kind="space_closed")
