"""Rows are deleted without a look at them."""

from __future__ import annotations

from millpond.kernel.keys import EVERYTHING
from millpond.kernel.overlay import Overlay
from millpond.kernel.scans import delete_rows
from millpond.kernel.space import Transaction
from millpond.stores.memory import MemorySpace


def test_keys_that_are_there_or_not_are_gone_afterwards() -> None:
    space = MemorySpace()

    def change(tx: Transaction) -> None:
        for key in (b"a", b"b"):
            tx.put(key, b"")
        delete_rows(tx, [b"a", b"c"])

    space.write(change)
    space.write(lambda tx: delete_rows(tx, [b"b", b"d"]))
    with space.read() as tx:
        assert list(tx.scan(EVERYTHING)) == []


def test_an_overlay_reads_nothing_for_it() -> None:
    class Unreadable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

    overlay = Overlay(Unreadable())  # type: ignore[arg-type]
    delete_rows(overlay, [b"a"])
    assert list(overlay.changes()) == [(b"a", None)]
