"""The processor: commands in their order, each with all that follows from it in one durable write."""

from __future__ import annotations

from millpond.extras import need

need("littlehorse")

from millpond.workflows.processor.backlog import Backlog, backlog_of
from millpond.workflows.processor.partition import Applied, Partition
from millpond.workflows.processor.processor import Measures, Processor, read_rows
from millpond.workflows.processor.rows import ReadRows

__all__ = ("Applied", "Backlog", "Measures", "Partition", "Processor", "ReadRows", "backlog_of", "read_rows")
