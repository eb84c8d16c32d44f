"""A space in memory is a dict with its keys in order; readers keep their moment, and a write costs what it changes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millpond.kernel.keys import KeyRange
from millpond.stores import memory
from millpond.stores.memory import MemorySpace

if TYPE_CHECKING:
    from millpond.kernel.space import ReadTransaction, Transaction

pytestmark = pytest.mark.usefixtures("processor")

KEYS = st.integers(0, 60).map(lambda number: b"%02d" % number)
ROWS_PER_BLOCK = 8


class SpaceInMemory(RuleBasedStateMachine):
    """Blocks so small that they are split and joined all the time."""

    @initialize()
    def begin(self) -> None:
        self.held = ExitStack()
        patched = self.held.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(memory, "BLOCK_ROWS_MAX", ROWS_PER_BLOCK)
        self.space = MemorySpace()
        self.rows: dict[bytes, bytes] = {}
        self.readers: list[tuple[ReadTransaction, dict[bytes, bytes]]] = []

    @rule(
        changes=st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=2))), max_size=30), fails=st.booleans()
    )
    def write(self, changes: list[tuple[bytes, bytes | None]], fails: bool) -> None:
        rows = dict(self.rows)

        def change(tx: Transaction) -> None:
            for key, value in changes:
                if value is None:
                    assert tx.delete(key) == (rows.pop(key, None) is not None)
                else:
                    tx.put(key, value)
                    rows[key] = value
                assert tx.get(key) == value
            assert list(tx.scan(KeyRange(b"", None))) == sorted(rows.items())
            if fails:
                raise ZeroDivisionError

        if fails:
            with pytest.raises(ZeroDivisionError):
                self.space.write(change)
        else:
            self.space.write(change)
            self.rows = rows

    @rule(reverse=st.booleans(), data=st.data())
    def write_while_scanning(self, reverse: bool, data: st.DataObject) -> None:
        rows = dict(self.rows)
        edits = data.draw(st.dictionaries(KEYS, st.tuples(KEYS, st.booleans()), max_size=20))

        def change(tx: Transaction) -> list[bytes]:
            seen = []
            for key, value in tx.scan(KeyRange(b"", None), reverse=reverse):
                assert rows[key] == value
                seen.append(key)
                if key in edits:
                    other, there = edits[key]
                    if there:
                        tx.put(other, b"new")
                        rows[other] = b"new"
                    else:
                        tx.delete(other)
                        rows.pop(other, None)
            return seen

        seen = self.space.write(change)
        assert seen == sorted(set(seen), reverse=reverse)
        assert {key for key in self.rows if key in rows and key not in {other for other, _ in edits.values()}} <= set(
            seen
        )
        self.rows = rows

    @rule()
    def begin_reading(self) -> None:
        self.readers.append((self.held.enter_context(self.space.read()), dict(self.rows)))

    @rule(start=KEYS, stop=st.one_of(st.none(), KEYS), reverse=st.booleans())
    def scan(self, start: bytes, stop: bytes | None, reverse: bool) -> None:
        keys = KeyRange(start, stop)
        expected = sorted(((key, value) for key, value in self.rows.items() if keys.holds(key)), reverse=reverse)
        with self.space.read() as tx:
            assert list(tx.scan(keys, reverse=reverse)) == expected

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "rows"):
            return
        self.space._rows.check()
        for tx, rows in self.readers:
            assert list(tx.scan(KeyRange(b"", None))) == sorted(rows.items())
        with self.space.read() as tx:
            assert dict(tx.scan(KeyRange(b"", None), reverse=True)) == self.rows

    def teardown(self) -> None:
        if hasattr(self, "held"):
            self.held.close()


TestSpaceInMemory = SpaceInMemory.TestCase


def test_a_write_copies_what_it_changes() -> None:
    space = MemorySpace()

    def fill(tx: Transaction) -> None:
        for number in range(20_000):
            tx.put(b"%05d" % number, b"")

    space.write(fill)
    before: list[Any] = space._rows.blocks
    space.write(lambda tx: tx.put(b"10000", b"changed"))
    after = space._rows.blocks
    assert len(before) == len(after) > 50
    assert sum(one is not other for one, other in zip(before, after, strict=True)) == 1
