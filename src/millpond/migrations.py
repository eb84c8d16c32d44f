"""Migrations: the rows of a pond of an earlier format become those of the present one, when it is first opened.

    pond.json says 3 ─▶ step 3 ─▶ rows of format 4 ─▶ pond.json says 4

| from | step |
|---|---|
| 3 | rows of timers of workflows say when they were set |

Invariants:
* a step may be run again, and on rows that have the next format already: a crash in it is repaired by the next opening;
* the number is written when all rows have its format, and a version that does not know it refuses the pond;
* a pond that a node serves is migrated by that node alone, and one that is being loaded into by nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from millpond.kernel.scans import put_rows
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.loads.pond_folder import POND_FORMAT, write_marker
from millpond.workflows.keyspaces import TIMER_TIME

__all__ = ("migrate", "migrate_rows")

_ROWS_PER_WRITE = 10_000


def migrate(folder: Path, space: Space, stored: int) -> None:
    """Bring a pond of an earlier format to the present one."""
    migrate_rows(space, stored)
    step("pond.rows_migrated")
    write_marker(folder)


def migrate_rows(space: Space, stored: int) -> None:
    """Bring the rows of an earlier format to the present one."""
    for number in range(stored, POND_FORMAT):
        _STEPS[number](space)


def _date_timers(space: Space) -> None:
    """Let rows of timers say when they were set: nobody knows it of these, so no clock was ahead then."""

    def date(tx: Transaction) -> bool:
        short = ((key, row + bytes(8)) for key, row in tx.scan(TIMER_TIME.range()) if len(row) == 8)
        rows = list(islice(short, _ROWS_PER_WRITE))
        put_rows(tx, rows)
        return len(rows) == _ROWS_PER_WRITE

    while space.write(date):
        step("pond.slice_migrated")


_STEPS: Final[dict[int, Callable[[Space], None]]] = {3: _date_timers}
"""The step from each earlier format to the next one."""
