"""A space against a sorted dict, step by step: `TestMine = space_machine(DRIVER).TestCase` in a module of tests.

Each write checks inside its function that the transaction is the dict with its own changes made. Threads that write at
once take a ticket in their transactions; the space must be what the dict becomes when the changes are made in the order
of the tickets. Readers keep their moment while the space goes on; a location is closed and opened again; another
process sees the same rows.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import tempfile
import threading
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import ClassVar, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.kernel.keys import EVERYTHING, KeyRange
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.testing.contracts.space_driver import SpaceDriver

__all__ = ("SpaceMachine", "space_machine")

READERS_MAX = 3
TICKET = b"ticket"

_LONG = b"long/" * 110
KEYS = st.sampled_from(
    [b"%d" % number for number in range(10)] + [b"a", b"a\x00", b"a\xff", _LONG] + [_LONG + b"%d" % n for n in range(6)]
)
RANGES = st.builds(KeyRange, KEYS | st.just(b""), st.one_of(st.none(), KEYS))

Put: TypeAlias = tuple[bytes, bytes | None]
Drop: TypeAlias = tuple[KeyRange, int | None]
Edit: TypeAlias = Put | Drop
"""A key with its new value, or None to delete it; or a range of which to delete so many."""
Rows: TypeAlias = dict[bytes, bytes]

EDITS: st.SearchStrategy[list[Edit]] = st.lists(
    st.one_of(
        st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=4))),
        st.tuples(RANGES, st.one_of(st.none(), st.integers(0, 3))),
    ),
    max_size=8,
)


class SpaceMachine(RuleBasedStateMachine):
    """One space and the dict that it must be."""

    driver: ClassVar[SpaceDriver]

    @initialize()
    def begin(self) -> None:
        self.scratch = tempfile.TemporaryDirectory()
        self.location = self.driver.locate(Path(self.scratch.name))
        self.space = self.driver.open(self.location)
        self.rows: Rows = {}
        self.readers: list[tuple[ExitStack, ReadTransaction, Rows]] = []

    @rule(edits=EDITS, fails=st.booleans())
    def write(self, edits: list[Edit], fails: bool) -> None:
        rows: Rows = {}

        def change(tx: Transaction) -> None:
            nonlocal rows
            rows = dict(self.rows)  # a change may be run again
            _make(tx, rows, edits)
            if fails:
                raise ZeroDivisionError

        try:
            self.space.write(change)
        except ZeroDivisionError:
            return
        self.rows = rows

    @rule(several=st.lists(EDITS, min_size=2, max_size=4))
    def write_at_once(self, several: list[list[Edit]]) -> None:
        tickets: dict[int, int] = {}

        def work(number: int) -> None:
            def change(tx: Transaction) -> int:
                ticket = int(tx.get(TICKET) or b"0") + 1
                for edit in several[number]:
                    _apply(tx, edit)
                tx.put(TICKET, b"%d" % ticket)
                return ticket

            tickets[number] = self.space.write(change)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(several))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(tickets.values())) == len(several), "two writes did not see each other"
        for number in sorted(tickets, key=tickets.__getitem__):
            for edit in several[number]:
                _apply_to_rows(self.rows, edit)
            self.rows[TICKET] = b"%d" % tickets[number]

    @rule(keys=RANGES, reverse=st.booleans(), several=st.lists(KEYS, max_size=5))
    def read(self, keys: KeyRange, reverse: bool, several: list[bytes]) -> None:
        with self.space.read() as tx:
            _compare(tx, self.rows, keys, reverse=reverse)
            assert tx.get_many(several) == [self.rows.get(key) for key in several]

    @precondition(lambda self: len(self.readers) < READERS_MAX)
    @rule()
    def begin_reading(self) -> None:
        stack = ExitStack()
        self.readers.append((stack, stack.enter_context(self.space.read()), dict(self.rows)))

    @precondition(lambda self: self.readers)
    @rule()
    def end_reading(self) -> None:
        stack, tx, rows = self.readers.pop(0)
        _compare(tx, rows)
        stack.close()

    @precondition(lambda self: self.driver.lasting)
    @rule()
    def open_again(self) -> None:
        while self.readers:
            self.end_reading()
        self.space.close()
        self.space = self.driver.open(self.location)

    @precondition(lambda self: self.driver.lasting and self.driver.shared)
    @rule()
    def look_from_another_process(self) -> None:
        child = _dumper(self.driver.opener, json.dumps(self.driver.options))
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{self.location}\n")
        child.stdin.flush()
        rows = {bytes.fromhex(key): bytes.fromhex(value) for key, value in json.loads(child.stdout.readline()).items()}
        assert rows == self.rows

    @invariant()
    def readers_keep_their_moment(self) -> None:
        for _, tx, rows in getattr(self, "readers", ()):
            assert dict(tx.scan(EVERYTHING)) == rows

    def teardown(self) -> None:
        if hasattr(self, "space"):
            for stack, _, _ in self.readers:
                stack.close()
            with self.space.read() as tx:
                _compare(tx, self.rows)
            self.space.close()
            self.scratch.cleanup()


def space_machine(driver: SpaceDriver) -> type[SpaceMachine]:
    """The machine of a driver; its `TestCase` is for pytest to collect."""
    return type("SpaceMachineOfDriver", (SpaceMachine,), {"driver": driver})


def _make(tx: Transaction, rows: Rows, edits: list[Edit]) -> None:
    for edit in edits:
        assert _apply(tx, edit) == _apply_to_rows(rows, edit)
        _compare(tx, rows, reverse=len(rows) % 2 == 0)


def _apply(tx: Transaction, edit: Edit) -> object:
    where, what = edit
    if isinstance(where, KeyRange):
        assert not isinstance(what, bytes)
        return tx.delete_range(where, what)
    if what is None:
        return tx.delete(where)
    assert isinstance(what, bytes)
    tx.put(where, what)
    return None


def _apply_to_rows(rows: Rows, edit: Edit) -> object:
    where, what = edit
    if isinstance(where, KeyRange):
        gone = sorted(key for key in rows if where.holds(key))[: what if isinstance(what, int) else None]
        for key in gone:
            del rows[key]
        return len(gone)
    if what is None:
        return rows.pop(where, None) is not None
    assert isinstance(what, bytes)
    rows[where] = what
    return None


def _compare(tx: ReadTransaction, rows: Rows, keys: KeyRange = EVERYTHING, *, reverse: bool = False) -> None:
    expected = sorted(((key, value) for key, value in rows.items() if keys.holds(key)), reverse=reverse)
    assert list(tx.scan(keys, reverse=reverse)) == expected
    assert list(tx.keys(keys, reverse=reverse)) == [key for key, _ in expected]


@cache
def _dumper(opener: str, options: str) -> subprocess.Popen[str]:
    """The process that looks at locations: one for all examples; it ends with the end of its standard input."""
    child = SpaceDriver(opener, json.loads(options)).start_child("", "dump")
    atexit.register(_end, child)
    return child


def _end(child: subprocess.Popen[str]) -> None:
    child.communicate()
