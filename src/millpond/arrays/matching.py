"""The rows of a batch that an expression takes, found by the thread that asks.

`RecordBatch.filter` hands a batch to the threads of Arrow's pool. One of them may be the last to hold its buffers, and
lets go of them when Python ends already: that aborts the process. For one batch they are no faster either.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ("matching",)


def matching(batch: pa.RecordBatch, condition: pc.Expression) -> pa.RecordBatch:
    """The rows that satisfy a condition, in their order.

    Raises: those of Arrow, for a condition that does not go with the columns.
    """
    from pyarrow.acero import Declaration, FilterNodeOptions, TableSourceNodeOptions

    source = Declaration("table_source", TableSourceNodeOptions(pa.Table.from_batches([batch])))
    plan = Declaration("filter", FilterNodeOptions(condition), inputs=[source])
    pieces = plan.to_table(use_threads=False).combine_chunks().to_batches()
    return pieces[0] if pieces else batch.slice(0, 0)
