"""Staging compaction as a job: executors fold stretches of keys, the driver joins what they made and switches.

    seal │ freeze │ executors: fold a stretch each │ join │ switch, unless a commit won

Invariants:
* The index is the one that the compactor of one process writes, id for id, and the switch is the same.
* Executors write ranges alone, which no row names before the switch. A job that fails or is overtaken changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from millpond.ranges import join_parts
from millpond.spark.locations import PondLike, location_of
from millpond.spark.objects.opening import open_repository
from millpond.spark.private_api import need_classic
from millpond.versions.compaction import Compacted, compact
from millpond.versions.repository_context import COMPRESSION, RepositoryContext
from millpond.versions.staging.commit_ranges import drop_scratch, freeze
from millpond.versions.staging.layers import EVERY_KEY
from millpond.versions.staging.reads import View

__all__ = ("compact_branch", "folding")

TASK_ROWS = 1 << 20
"""About as many entries and changes as one task folds."""


def compact_branch(
    session: SparkSession, repository: str, branch: str, *, pond: PondLike | None = None, task_rows: int = TASK_ROWS
) -> Compacted:
    """Fold what is staged on a branch into a compacted index, as `Branch.staging.compact` does, on the executors.

    `task_rows`: about as many rows as one task folds.

    Raises: `NotFound`; `Invalid` for a pond on nodes; `Unavailable`.
    """

    need_classic(session, "compaction by Spark", "use branch.staging.compact(), or a classic session")
    with open_repository(pond, location_of(pond, session), repository) as opened_repository:
        return compact(opened_repository.context, branch, fold=folding(session, task_rows))


def folding(session: SparkSession, task_rows: int) -> Callable[[RepositoryContext, View], str]:
    """The fold of a compaction on the executors of a session: it makes the index of a state."""

    def fold(context: RepositoryContext, view: View) -> str:
        frozen = freeze(context, context.space.read, view)
        try:
            stretches = frozen.stretches(EVERY_KEY, task_rows)
            parts = session.sparkContext.parallelize(stretches, len(stretches)).map(frozen.fold).collect()
            return join_parts(context.ranges, frozen.base_index(), parts, compression=COMPRESSION).id
        finally:
            drop_scratch(context, frozen.scratch)

    return fold
