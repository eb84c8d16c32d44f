"""The kernel's log against a list: appended, trimmed, read in pages, copied to another log, forked."""

from __future__ import annotations

import json
from typing import TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millpond.errors import Conflict, Corrupt, NotFound
from millpond.kernel.keys import EVERYTHING, Prefix
from millpond.kernel.log import Head, Log, Record
from millpond.kernel.verify import Report
from millpond.stores.memory import MemorySpace

pytestmark = pytest.mark.usefixtures("processor")

NAMES = ("a", "ab")
Row: TypeAlias = "tuple[bytes, int]"
ENTRIES = st.binary(max_size=3)


def log_of(name: str) -> Log[bytes]:
    return Log(Prefix("log")[name], bytes, bytes)


class Logs(RuleBasedStateMachine):
    """Two logs in one space are two lists of entries with times, of which the first may be gone."""

    def __init__(self) -> None:
        super().__init__()
        self.space = MemorySpace()
        self.logs = {name: log_of(name) for name in NAMES}
        self.rows: dict[str, list[Row]] = {name: [] for name in NAMES}
        self.gone = dict.fromkeys(NAMES, 0)

    def records(self, name: str) -> list[Record[bytes]]:
        """All records that a log still has."""
        with self.space.read() as tx:
            return list(self.logs[name].records(tx))

    @rule(name=st.sampled_from(NAMES), entry=ENTRIES, now=st.integers(0, 9))
    def append(self, name: str, entry: bytes, now: int) -> None:
        record = self.space.write(lambda tx: self.logs[name].append(tx, entry, now))
        rows = self.rows[name]
        rows.append((entry, max(now, rows[-1][1] if rows else 0)))
        assert (record.position, record.entry, record.stamp_ms) == (len(rows), *rows[-1])

    @rule(name=st.sampled_from(NAMES), before=st.integers(0, 12))
    def trim(self, name: str, before: int) -> None:
        left = min(max(before - 1, self.gone[name]), len(self.rows[name]))
        gone = self.space.write(lambda tx: self.logs[name].trim(tx, before))
        assert gone == left - self.gone[name]
        self.gone[name] = left

    @rule(name=st.sampled_from(NAMES), after=st.integers(0, 12), limit=st.integers(0, 4))
    def read(self, name: str, after: int, limit: int) -> None:
        with self.space.read() as tx:
            if after < self.gone[name]:
                with pytest.raises(NotFound) as caught:
                    self.logs[name].read(tx, after, limit)
                assert caught.value.kind == "log_trimmed"
                assert caught.value.values["first"] == self.gone[name] + 1
                return
            found = self.logs[name].read(tx, after, limit)
        assert [(record.entry, record.stamp_ms) for record in found] == self.rows[name][after : after + limit]
        assert [record.position for record in found] == list(range(after + 1, after + 1 + len(found)))

    @rule(source=st.sampled_from(NAMES), position=st.integers(1, 12))
    def copy(self, source: str, position: int) -> None:
        """An entry of one log is taken by the other exactly when it goes on where that one ends."""
        target = "ab" if source == "a" else "a"
        ours, theirs = self.rows[target], self.rows[source]
        found = {record.position: record for record in self.records(source)}
        if position not in found:
            return

        def accept() -> bool:
            return self.space.write(lambda tx: self.logs[target].accept(tx, found[position]))

        if position > len(ours) + 1:
            with pytest.raises(Conflict) as caught:
                accept()
            assert caught.value.kind == "log_gap"
        elif position <= self.gone[target]:
            assert not accept(), "nobody knows any more what was there"
        elif ours[:position] != theirs[: min(position, len(ours))]:
            with pytest.raises(Conflict) as caught:
                accept()
            assert caught.value.kind == "log_forked"
        else:
            assert accept() is (position == len(ours) + 1)
            self.rows[target] = ours + theirs[len(ours) : position]

    @rule(name=st.sampled_from(NAMES), data=st.data())
    def change_a_row(self, name: str, data: st.DataObject) -> None:
        """Whatever byte of an entry changes, the check finds it, unless no entry before it is left to tell."""
        records = self.records(name)[1 if self.gone[name] else 0 :]
        if not records:
            return
        record = data.draw(st.sampled_from(records))
        key = self.logs[name].prefix.pack(record.position)
        with self.space.read() as tx:
            row = tx.get(key)
        assert row is not None
        at = data.draw(st.integers(0, len(row) - 1))
        changed = row[:at] + bytes([row[at] ^ 1]) + row[at + 1 :]
        self.space.write(lambda tx: tx.put(key, changed))
        assert not self.report(name).ok
        self.space.write(lambda tx: tx.put(key, row))

    def report(self, name: str) -> Report:
        with self.space.read() as tx:
            return sum(self.logs[name].check(tx, "stop"), start=Report())

    @invariant()
    def agrees(self) -> None:
        for name, log in self.logs.items():
            rows, gone = self.rows[name], self.gone[name]
            with self.space.read() as tx:
                assert log.first(tx) == gone + 1
                head = log.head(tx)
                assert (head.position, head.stamp_ms) == (len(rows), rows[-1][1] if rows else 0)
                records = [log.at(tx, position) for position in range(1, len(rows) + 1)]
                assert records[:gone] == [None] * gone
                assert [record and (record.entry, record.stamp_ms) for record in records[gone:]] == rows[gone:]
                assert log.at(tx, len(rows) + 1) is None
            assert self.report(name).ok

    @invariant()
    def equal_logs_have_equal_chains(self) -> None:
        with self.space.read() as tx:
            chains = [self.logs[name].head(tx).chain for name in NAMES]
        assert (chains[0] == chains[1]) is (self.rows["a"] == self.rows["ab"])


TestLogs = Logs.TestCase


@pytest.mark.parametrize(
    "row",
    [b"", b"5", b"{}x", b'{"position": 0, "chain": "00", "stamp_ms": 1}', b'{"position": 1}',
     json.dumps({"position": True, "chain": "0" * 32, "stamp_ms": 1}).encode(),
     json.dumps({"position": 1, "chain": "0" * 31, "stamp_ms": 1}).encode(),
     json.dumps({"position": 1, "chain": 5, "stamp_ms": 1}).encode()],
)  # fmt: skip
def test_a_head_that_no_log_writes_is_corrupt(row: bytes) -> None:
    space, log = MemorySpace(), log_of("a")
    space.write(lambda tx: tx.put(log.prefix.pack("head"), row))
    with pytest.raises(Corrupt) as caught, space.read() as tx:
        log.head(tx)
    assert caught.value.kind == "log_damaged"


def test_rows_that_no_log_writes_are_corrupt() -> None:
    space, log = MemorySpace(), log_of("a")
    space.write(lambda tx: tx.put(log.prefix.pack(1), b"short"))
    with pytest.raises(Corrupt), space.read() as tx:
        log.at(tx, 1)
    space.write(lambda tx: tx.put(log.prefix.pack(1, 2), b"x" * 24))
    with pytest.raises(Corrupt), space.read() as tx:
        log.read(tx, 0, 9)


def test_a_log_is_appended_in_the_write_of_its_effect() -> None:
    space, log = MemorySpace(), log_of("a")

    def fail(tx: object) -> None:
        log.append(tx, b"entry", 5)  # type: ignore[arg-type]
        raise ValueError

    with pytest.raises(ValueError):
        space.write(fail)
    with space.read() as tx:
        assert log.head(tx) == Head()
        assert list(tx.keys(EVERYTHING)) == []
