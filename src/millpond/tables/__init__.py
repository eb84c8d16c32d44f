"""Tables of SQL beside maps: the events of a pond, its repositories with refs and commits, its runs.

| table | rows |
|---|---|
| `events` | the events of all streams (`events.py`) |
| `repositories`, `refs`, `commits` | repositories; their branches and tags; commits back from refs (`versions.py`) |
| `runs` | runs of workflows (`runs.py`) |
| `map_diff('weather', 'main', 'fix')` | the keys of a map that differ between refs (`differences.py`) |

Each yields the rows that satisfy a condition, batch by batch, and reads what the condition leaves.
"""

from typing import Any

from millpond.tables.differences import DifferenceTable, difference_tables
from millpond.tables.events import EventTable
from millpond.tables.rows import RowTable
from millpond.tables.runs import RunReading, run_table, runs_in
from millpond.tables.versions import version_tables

__all__ = (
    "DifferenceTable", "EventTable", "RowTable", "RunReading", "difference_tables", "run_table",
    "runs_in", "tables_beside", "version_tables",
)  # fmt: skip


def tables_beside(pond: Any) -> list[Any]:
    """The tables of a pond, in a folder or on nodes, beside its maps."""
    return [EventTable(lambda: pond.events), *version_tables(lambda: pond.repositories), run_table(pond.runs.reading)]
