"""The keys of a map that differ between two refs, as a table of SQL.

    select key, old, new from map_diff('weather', 'main', 'fix') where change = 'changed'
    select count(*) from map_diff('weather', 'fix')

Rows and columns are those of `Refs.diff`; they are read some keys at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millpond.tables.rows import scanned

if TYPE_CHECKING:
    from millpond.refs.diffs import Differences

__all__ = ("DifferenceTable", "difference_tables")


class DifferenceTable:
    """The differences of a map between two refs."""

    def __init__(self, name: str, differences: Differences) -> None:
        self.name, self.schema = name, differences.schema
        self._batches = differences.batches

    def scan(self, where: pc.Expression | None, columns: Sequence[str] | None) -> pa.RecordBatchReader:
        """The rows that satisfy a condition, in no promised order."""
        return scanned(self.schema, self._batches(), where, columns)


def difference_tables(
    read: Callable[..., Differences],
) -> Callable[[str, str, Sequence[str], bool], DifferenceTable]:
    """The tables of differences of a pond, by their name in the query, the map, one ref or two, and if it counts from
    where both parted; as `refs.diffs.differences` reads them.

    Raises: likewise.
    """

    def table(name: str, map: str, sides: Sequence[str], three_dots: bool) -> DifferenceTable:
        return DifferenceTable(name, read(*sides, map=map, three_dots=three_dots))

    return table
