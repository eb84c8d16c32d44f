"""Reading a map on a branch as a stream: what each commit changed, by key, in the order of the commits.

An offset is a commit; a micro-batch holds the differences of the commits after one, up to another. What is staged comes
with its commit.

* Where the branch does not come from the commit of the last offset, because it was reset, or made anew, the next
  micro-batch is the difference between that state and the head by then, as one change. Both states are there, and a
  copy that the rows keep up to date stays right.
* A commit that is kept no more is an error, unless `failOnTrimmed` is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from millpond.clock import Clock
from millpond.errors import NotFound
from millpond.maps.model.definition import MapDefinition
from millpond.spark.branch_log import NOTHING, BranchChange, FollowedBranch, StatesDifference
from millpond.spark.change_log import ChangesSettings
from millpond.spark.locations import Location
from millpond.spark.micro_batches import PARTITION_ROWS, Changes, MicroBatches, Offset
from millpond.spark.short_errors import short_errors
from millpond.spark.views import ChangesView

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("BranchChangesReader",)

CHANGES_MAX = 1_000
"""The commits that a micro-batch may have: each is planned with the manifests of two states."""

_LATEST = "latest"
"""In an offset: it is where a query begins that is about what comes later."""


@short_errors
class BranchChangesReader(MicroBatches[str, FollowedBranch, BranchChange, StatesDifference]):
    """Reads the changes of one map on a branch."""

    field, changes_max = "commit", CHANGES_MAX

    def __init__(
        self, location: Location, definition: MapDefinition, show: ChangesView, settings: ChangesSettings,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        super().__init__(location, definition, settings, clock)
        self.show = show

    def _open(self) -> FollowedBranch:
        return FollowedBranch(self.location, self.definition, self.clock)

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The start of a new query."""
        start = self.settings.start
        if start == "earliest":
            return self._offset(NOTHING)
        if start == "latest":
            return self._offset(self._map.newest()) | {_LATEST: True}
        return self._offset(self._map.commit(str(start)))

    def partitions(self, start: Offset, end: Offset) -> Sequence[Changes[StatesDifference]]:
        """One for each piece of a change, or for several small ones.

        Raises: `NotFound` when a commit is kept no more; `Conflict` when the map has other columns.
        """
        if start.get(_LATEST) and not self._map.comes_from(self._position(end), self._position(start)):
            return []  # planned before, from a head that was earlier
        return super().partitions(start, end)

    def _changes(self, after: str, end: str) -> Iterator[BranchChange]:
        try:
            yield from self._map.changes(after, end)
        except NotFound as error:
            if error.kind not in ("commit_not_found", "ref_not_found"):
                raise
            raise self._trimmed(after) from error

    def _rows(self, change: BranchChange) -> int:
        return sum(piece.rows for piece in self._planned(change) or ()) if change.rows is None else change.rows

    def _planned(self, change: BranchChange) -> list[StatesDifference] | None:
        try:
            planned = self._map.planned(change)
        except NotFound:
            return None
        return [piece for difference in planned for piece in difference.pieces(PARTITION_ROWS)]

    def _read(self, piece: StatesDifference) -> Iterator[pa.RecordBatch]:
        for difference in piece.differences():
            yield from self.show(difference, piece.position)

    def _trimmed(self, commit: str) -> NotFound:
        return NotFound(
            "changes that come next are kept no more", kind="changes_trimmed", map=self.definition.name,
            branch=self.location.branch, commit=commit,
            hint="commits stay readable for 30 days after another took their place: read the branch as a whole and "
            "begin with a new checkpointLocation; or go on with what is left: failOnTrimmed=false",
        )  # fmt: skip
