"""Heads, against a model: processes that read, build for a while, and swap, of which only one may have been in time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from operator import attrgetter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from millpond.errors import Conflict, Corrupt, Internal
from millpond.json_forms import JsonForm
from millpond.kernel.head import Heads
from millpond.stores.memory import MemorySpace


@dataclass(frozen=True, slots=True)
class Row:
    """The value that counts, and the number of its changes."""

    revision: int
    value: int


def damaged(name: str, reason: object) -> Corrupt:
    return Corrupt("the head cannot be read", kind="register_damaged", head=name, reason=reason)


def never_falls(found: Row | None, row: Row) -> str | None:
    return "it fell" if found is not None and row.value < found.value else None


FORM = JsonForm(Row)
HEADS: Heads[Row] = Heads(FORM.decode, FORM.encode, attrgetter("revision"), damaged, (never_falls,))
KEY = b"head"


class Changes(RuleBasedStateMachine):
    """The model is the list of all values that counted, in their order."""

    seen = Bundle("seen")

    @initialize(target=seen)
    def begin(self) -> int:
        self.space, self.history = MemorySpace(), list[Row]()
        return 0

    @property
    def current(self) -> Row | None:
        return self.history[-1] if self.history else None

    @rule(target=seen)
    def read(self) -> int:
        """A process reads the token, and begins to build."""
        with self.space.read() as tx:
            found = HEADS.read(tx, KEY)
        assert found == self.current
        return 0 if found is None else found.revision

    @rule(token=seen, value=st.integers(0, 5), ahead=st.integers(1, 3))
    def swap(self, token: int, value: int, ahead: int) -> None:
        row, current = Row(token + ahead, value), self.current
        in_time = token == (0 if current is None else current.revision)
        rule_holds = current is None or value >= current.value
        try:
            self.space.write(lambda tx: HEADS.swap(tx, KEY, row, expected=token))
        except Conflict:
            assert not in_time
        except Internal:
            assert in_time
            assert not rule_holds
        else:
            assert in_time
            assert rule_holds
            self.history.append(row)

    @rule(value=st.integers(0, 5), revision=st.integers(0, 20))
    def put(self, value: int, revision: int) -> None:
        row, current = Row(revision, value), self.current
        later = revision > (0 if current is None else current.revision)
        allowed = row == current or (later and (current is None or value >= current.value))
        try:
            self.space.write(lambda tx: HEADS.put(tx, KEY, row, HEADS.read(tx, KEY)))
        except Internal:
            assert not allowed
        else:
            assert allowed
            if row != current:
                self.history.append(row)

    @invariant()
    def tokens_grow(self) -> None:
        tokens = [row.revision for row in self.history]
        assert tokens == sorted(set(tokens))


TestChanges = Changes.TestCase


@pytest.mark.parametrize("row", [b"", b"{}", b"5", b'{"revision": 0, "value": 5}', b'{"revision": 1, "value": "x"}'])
def test_a_row_that_is_no_head_is_corrupt(row: bytes) -> None:
    space = MemorySpace()
    space.write(lambda tx: tx.put(KEY, row))
    with pytest.raises(Corrupt), space.read() as tx:
        HEADS.read(tx, KEY)


@pytest.mark.usefixtures("process")
def test_damage_is_found_without_assertions() -> None:
    """Python's `-O` takes assertions out; what the disk says is checked all the same."""
    code = """
import sys
from millpond.errors import Corrupt
from millpond.json_forms import JsonForm
from millpond.kernel.keys import Prefix
from millpond.kernel.head import Heads
from millpond.kernel.series import Series
from millpond.stores.memory import MemorySpace

assert False, "assertions are on"
rows = [b'{"revision": 0, "value": 5}', b'{"revision": -1, "value": 5}', b'{"revision": -7, "value": 5}']
segments = [b'{"id": "", "entries": 1, "about": {}}', b'{"id": "a", "entries": -1, "about": {}}',
            b'{"id": 5, "entries": 1, "about": {}}', b'{"id": "a", "entries": 1, "about": []}']
space, found = MemorySpace(), 0
form, register = JsonForm(dict), Prefix("r").pack()
heads = Heads(form.decode, form.encode, lambda row: row["revision"], lambda name, reason: Corrupt("no head"))
series = Series(Prefix("q"), Prefix("a"), JsonForm(dict))
for key, row in [*((register, row) for row in rows), *((Prefix("q").pack(7), row) for row in segments)]:
    space.write(lambda tx: tx.put(key, row))
    try:
        with space.read() as tx:
            heads.read(tx, register) if key == register else list(series.listed(tx))
    except Corrupt:
        found += 1
    space.write(lambda tx: tx.delete(key))
space.write(lambda tx: tx.put(Prefix("q").pack("seven"), segments[0]))
try:
    with space.read() as tx:
        list(series.listed(tx))
except Corrupt:
    found += 1
sys.exit(found)
"""
    assert subprocess.run([sys.executable, "-O", "-c", code], check=False).returncode == 8
