"""The initialization log: the time a store was made, and the time since which it has the grouped layout.

Invariants:
* It is written once, by the first processor that opens the store; of a store with the log of the legacy layout, the
  time of writing is the time of the upgrade.
* A store that was born with the grouped layout, or whose legacy rows have all moved, reads no legacy row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millpond.json_forms import JsonForm
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.workflows.keyspaces import INITIALIZED

__all__ = ("LEGACY_LOG", "Initialization", "end_migration", "initialization", "initialize")

LEGACY_LOG = b"8/server_initialized"
"""The key of the log of the legacy layout: a store that has it may hold legacy rows."""


@dataclass(frozen=True, slots=True)
class Initialization:
    """The times of a store, in milliseconds; `upgraded_ms` is None for one that was born with the grouped layout."""

    born_ms: int
    upgraded_ms: int | None = None
    migrated: bool = False

    @property
    def legacy(self) -> bool:
        """True while there may be legacy rows."""
        return self.upgraded_ms is not None and not self.migrated


_FORM = JsonForm(Initialization)


def initialization(tx: ReadTransaction) -> Initialization | None:
    """The log of a store; None when no processor has opened it yet.

    Raises:
        Corrupt: the row is damaged.
    """
    row = tx.get(INITIALIZED.pack())
    return None if row is None else _FORM.stored(row, "the initialization log is damaged", kind="run_row_damaged")


def initialize(tx: Transaction, now_ms: int) -> Initialization:
    """The log of a store, written if it is not there."""
    earlier = initialization(tx)
    if earlier is None:
        upgraded = None if tx.get(LEGACY_LOG) is None else now_ms
        earlier = Initialization(now_ms, upgraded)
        tx.put(INITIALIZED.pack(), _FORM.encode(earlier))
    return earlier


def end_migration(tx: Transaction) -> None:
    """Note that no legacy row of a run is left."""
    earlier = initialization(tx)
    assert earlier is not None, "a store is initialized before it migrates"
    tx.put(INITIALIZED.pack(), _FORM.encode(replace(earlier, migrated=True)))
