"""Topics of output: what changed in a tenant, as records of the client's messages in two topics of Kafka.

    writes of a command ─▶ records ─▶ OUTPUT, in the same write ─▶ relay ─▶ topics ─▶ OUTPUT deleted

| module | holds |
|---|---|
| `records` | the records of what a command writes: a pure function |
| `rows` | what waits to be in the topics |

The relay is a part of the server: it knows Kafka and workflows, which do not know each other.

Invariant: a record is in its topic once, for those who read what was committed. A row of OUTPUT is written with the
rows of its command, and deleted after its record is committed, in one transaction with its place.
"""

from millpond.extras import need

need("littlehorse")

from millpond.workflows.outputs.records import EXECUTION, METADATA, Output, opened_topics, outputs_of
from millpond.workflows.outputs.rows import (
    OutputPosition,
    WaitingOutput,
    delete_outputs,
    note_outputs,
    output_sizes,
    outputs_after,
)

__all__ = (
    "EXECUTION", "METADATA", "Output", "OutputPosition", "WaitingOutput", "delete_outputs", "note_outputs",
    "opened_topics", "output_sizes", "outputs_after", "outputs_of",
)  # fmt: skip
