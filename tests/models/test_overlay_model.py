"""An overlay answers as a dict to which its changes were made, and leaves what lies under it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millpond.errors import Closed
from millpond.kernel.keys import EVERYTHING, KeyRange
from millpond.kernel.overlay import Overlay
from millpond.stores.memory import MemorySpace

if TYPE_CHECKING:
    from millpond.kernel.space import Transaction

pytestmark = pytest.mark.usefixtures("processor")

KEYS = st.integers(0, 25).map(lambda number: b"%02d" % number)
VALUES = st.binary(max_size=2)
RANGES = st.builds(KeyRange, KEYS | st.just(b""), st.one_of(st.none(), KEYS))


class OverlayMachine(RuleBasedStateMachine):
    """One overlay over rows that stay as they are, and the dict that it must be."""

    @initialize(rows=st.dictionaries(KEYS, VALUES), nested=st.booleans())
    def begin(self, rows: dict[bytes, bytes], nested: bool) -> None:
        space = MemorySpace()

        def fill(tx: Transaction) -> None:
            for key, value in rows.items():
                tx.put(key, value)

        space.write(fill)
        self.reading = space.read()
        self.base = self.reading.__enter__()
        self.under = dict(rows)
        self.rows = dict(rows)
        if nested:  # an overlay is a read transaction too
            self.base = Overlay(self.base)
        self.overlay = Overlay(self.base)

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.overlay.put(key, value)
        self.rows[key] = value

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        assert self.overlay.delete(key) == (self.rows.pop(key, None) is not None)

    @rule(keys=RANGES, limit=st.one_of(st.none(), st.integers(0, 5)))
    def delete_range(self, keys: KeyRange, limit: int | None) -> None:
        gone = sorted(key for key in self.rows if keys.holds(key))[:limit]
        assert self.overlay.delete_range(keys, limit) == len(gone)
        for key in gone:
            del self.rows[key]

    @rule(keys=RANGES, reverse=st.booleans())
    def scan(self, keys: KeyRange, reverse: bool) -> None:
        expected = sorted(((key, value) for key, value in self.rows.items() if keys.holds(key)), reverse=reverse)
        assert list(self.overlay.scan(keys, reverse=reverse)) == expected
        assert list(self.overlay.keys(keys, reverse=reverse)) == [key for key, _ in expected]

    @rule(keys=st.lists(KEYS, max_size=6))
    def get_many(self, keys: list[bytes]) -> None:
        assert self.overlay.get_many(keys) == [self.rows.get(key) for key in keys]

    @rule(edits=st.dictionaries(KEYS, st.tuples(KEYS, st.one_of(st.none(), VALUES)), max_size=8), reverse=st.booleans())
    def change_while_scanning(self, edits: dict[bytes, tuple[bytes, bytes | None]], reverse: bool) -> None:
        """An overlay keeps more than a space promises: a scan meets what is put ahead of it."""
        seen: list[bytes] = []

        def ahead() -> list[bytes]:
            return sorted((key for key in self.rows if not seen or _behind(seen[-1], key, reverse)), reverse=reverse)

        for key, value in self.overlay.scan(EVERYTHING, reverse=reverse):
            assert key == ahead()[0]
            assert self.rows[key] == value
            seen.append(key)
            if key in edits:
                other, new = edits[key]
                if new is None:
                    self.delete(other)
                else:
                    self.put(other, new)
        assert ahead() == []

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "rows"):
            return
        assert dict(self.overlay.scan(EVERYTHING)) == self.rows
        assert dict(self.base.scan(EVERYTHING)) == self.under
        made = dict(self.under)
        changes = list(self.overlay.changes())
        assert changes == sorted(changes)
        for key, value in changes:
            made.pop(key, None)
            if value is not None:
                made[key] = value
        assert made == self.rows, "the changes, stored over the base, make the same"

    def teardown(self) -> None:
        if not hasattr(self, "overlay"):
            return
        begun = self.overlay.scan(EVERYTHING)
        met = next(begun, None)
        self.overlay.end()
        if met is not None:
            with pytest.raises(Closed):
                next(begun)
        with pytest.raises(Closed):
            self.overlay.get(b"00")
        with pytest.raises(Closed):
            self.overlay.put(b"00", b"")
        self.reading.__exit__(None, None, None)


def _behind(last: bytes, key: bytes, reverse: bool) -> bool:
    return key < last if reverse else key > last


TestOverlay = OverlayMachine.TestCase
