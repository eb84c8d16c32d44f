"""Migrations: a pond of an earlier format becomes one of the present format, when it is first opened.

    pond.json says 3 ─▶ steps for rows ─▶ steps for files ─▶ pond.json says 5

| from | step |
|---|---|
| 3 | rows of timers of workflows say when they were set |
| 4 | a part in a folder becomes one file, see `maps/parts/former.py` |

Invariants:
* a step may be run again, and on what has the next format already: a crash in it is repaired by the next opening;
* the number is written when all has its format, and a version that does not know it refuses the pond;
* a pond that a node serves is migrated by that node alone, and one that is being loaded into by nobody.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from millpond.kernel.scans import put_rows
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.loads.pond_folder import write_marker
from millpond.workflows.keyspaces import TIMER_TIME

__all__ = ("migrate", "migrate_rows")

_ROWS_PER_WRITE = 10_000


def migrate(folder: Path, space: Space, stored: int) -> None:
    """Bring a pond of an earlier format to the present one."""
    from millpond.maps.parts.former import join_pieces

    migrate_rows(space, stored)
    step("pond.rows_migrated")
    join_pieces(folder)
    write_marker(folder)


def migrate_rows(space: Space, stored: int) -> None:
    """Bring the rows of an earlier format to the present one."""
    if stored < 4:
        _date_timers(space)


def _date_timers(space: Space) -> None:
    """Let rows of timers say when they were set: nobody knows it of these, so no clock was ahead then."""

    def date(tx: Transaction) -> bool:
        short = ((key, row + bytes(8)) for key, row in tx.scan(TIMER_TIME.range()) if len(row) == 8)
        rows = list(islice(short, _ROWS_PER_WRITE))
        put_rows(tx, rows)
        return len(rows) == _ROWS_PER_WRITE

    while space.write(date):
        step("pond.slice_migrated")
