"""A fold by several processes: each folds a stretch of the keys, and one joins what they made.

    stretch │ … ranges, the last of them open │      each begins with a range of its own
    stretch │ … ranges, the last of them open │
    join    ranges adopted where one ends by the rule just before them; else rows are cut anew until it does

Invariants:
* The index that is joined is the one that `fold` makes of the whole, id for id.
* To join reads about a range for each stretch: where ranges end depends on keys, so two cuts of the same keys
  soon meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.ranges.fold import Cleared, Unchanged, walk_changes
from millpond.ranges.key_columns import key_column, lower_bound
from millpond.ranges.reader import open_range
from millpond.ranges.spans import NO_SPANS, Spans
from millpond.ranges.writer import RangeWriter

if TYPE_CHECKING:
    from millpond.kernel.keys import KeyRange
    from millpond.ranges.index import Index, RangeEntry
    from millpond.stores.objects import Objects

__all__ = ("FoldedPart", "fold_part", "join_parts")


@dataclass(frozen=True, slots=True)
class FoldedPart:
    """The ranges of one stretch; `ended`: the last of them ended by the rule, not for want of rows."""

    entries: tuple[RangeEntry, ...]
    ended: bool


def fold_part(
    objects: Objects, base: Index, changes: Iterable[pa.RecordBatch], spans: Spans = NO_SPANS, *, within: KeyRange,
    same: Sequence[str], compression: str | None = None,
) -> FoldedPart:  # fmt: skip
    """Write what changes, which lie in a stretch of keys, make of the index there.

    Raises: as `fold`.
    """
    schema = base.schema.append(pa.field("deleted", pa.bool_(), nullable=False))
    stop = within.stop
    with RangeWriter(objects, base.schema, base.boundaries, compression=compression) as writer:
        for step in walk_changes(objects, base, changes, spans, schema=schema, within=within):
            # Its rows go, and nobody reads them.
            if isinstance(step, Cleared):
                continue
            if not isinstance(step, Unchanged):
                writer.append(_below(step.compare(same).outcome(), stop))
                continue
            inside = stop is None or step.entry.last < stop
            # the last range of an index may have ended for want of rows, and this stretch need not be the last
            whole = step.entry is not base.entries[-1] or (stop is None and step.last)
            if writer.at_boundary and inside and whole:
                writer.adopt(step.entry)
            else:
                writer.append(_below(step.rows(), stop))
        ended = writer.at_boundary
        return FoldedPart(tuple(writer.end()), ended)


def _below(rows: pa.RecordBatch, stop: bytes | None) -> pa.RecordBatch:
    return rows if stop is None else rows.slice(0, lower_bound(key_column(rows.column("key")), stop))


def join_parts(objects: Objects, base: Index, parts: Sequence[FoldedPart], *, compression: str | None = None) -> Index:
    """The index of the stretches, which ascend and are all that there is; of the schema and boundaries of `base`.

    Raises: `NotFound`, `Corrupt` for ranges; `Unavailable`.
    """
    # All ranges but the last of a stretch ended by the rule.
    entries = [(entry, part.ended or entry is not part.entries[-1]) for part in parts for entry in part.entries]
    with RangeWriter(objects, base.schema, base.boundaries, compression=compression) as writer:
        for position, (entry, ended) in enumerate(entries, 1):
            # The last range of all may end for want of rows: it does in a fold in one piece, too.
            if writer.at_boundary and (ended or position == len(entries)):
                writer.adopt(entry)
            else:
                writer.append(open_range(objects, entry))
        return writer.finish()
