"""Long changes of a store in short writes: deleting a large run, moving all legacy rows.

Each slice is one write. A process that is killed between two leaves a store that reads right, and the work is begun
anew: what is done already is not met again.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from millpond.kernel.keys import KeyRange
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step
from millpond.workflows.store.addresses import RunPath
from millpond.workflows.store.initialization import end_migration, initialization
from millpond.workflows.store.legacy import legacy_address
from millpond.workflows.store.run_store import RunStore

__all__ = ("SLICE_ROWS_MAX", "delete_run", "move_slice")

SLICE_ROWS_MAX = 1_000
"""The rows that one write deletes or moves: larger, and other commands wait longer."""


def delete_run(space: Space, store: RunStore, run: RunPath, *, rows_max: int = SLICE_ROWS_MAX) -> None:
    """Delete a run; a small one in one write."""

    def delete(tx: Transaction) -> bool:
        return store.delete_slice(tx, run, rows_max)

    while not space.write(delete):
        step("workflows.deleted_slice")


def move_slice(
    tx: Transaction, store_of: Callable[[str], RunStore], prefix: bytes, rows_max: int = SLICE_ROWS_MAX
) -> tuple[bytes | None, int]:
    """Move some legacy rows, from a place on: the place of those behind them, None at the end; and how many moved.

    Raises:
        Corrupt: a row is damaged.
    """
    log = initialization(tx)
    if log is None or not log.legacy:
        return None, 0
    # The rows of other kinds, such as tags, are looked at and passed: they count, so that a write stays short.
    seen = list(islice(tx.keys(KeyRange(prefix, None)), rows_max))
    addresses = [legacy for key in seen if (legacy := legacy_address(key)) is not None]
    for tenant, address in addresses:
        store_of(tenant).take(tx, address)
    if len(seen) < rows_max:
        end_migration(tx)
        return None, len(addresses)
    return seen[-1] + b"\0", len(addresses)
