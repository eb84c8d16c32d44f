"""Reading a map as a stream: `session.readStream.format("millpond")`, the rows of its loads in the order of the log.

An offset is a position of the pond's log; a micro-batch holds the rows of the loads after one position, up to another
that the map has merged. Rows come as they were loaded, also those that changed nothing, from the parts that the pond
keeps (`maps.part_retention`): of a folder directly, of nodes fetched by the task that reads them.

* Of a map that was dropped and made anew, what was loaded into the old one is not reported.
* Maintenance (condense, retain) is no reported change: it takes rows away that a later row or an age made needless.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from millpond.clock import Clock
from millpond.errors import Corrupt, NotFound
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.store_limits import aggregate_unsupported
from millpond.spark.change_log import Change, ChangesSettings, FollowedMap, changed_rows
from millpond.spark.locations import Location
from millpond.spark.micro_batches import MicroBatches, Offset
from millpond.spark.short_errors import short_errors
from millpond.spark.views import TableView

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("ChangesReader",)


@short_errors
class ChangesReader(MicroBatches[int, FollowedMap, Change, Change]):
    """Reads the loads of one map on `main`."""

    field = "position"

    def __init__(
        self, location: Location, definition: MapDefinition, show: TableView, settings: ChangesSettings,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """Refuse aggregates.

        Raises: `Invalid`, kind `aggregate_unsupported`.
        """
        if definition.kind is Kind.AGGREGATE:
            raise aggregate_unsupported(definition.name, "changes")
        super().__init__(location, definition, settings, clock)
        self.show = show

    def _open(self) -> FollowedMap:
        return FollowedMap(self.location, self.definition, self.clock)

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The start of a new query."""
        start = self.settings.start
        if start == "earliest":
            return self._offset(self._map.earliest())
        return self._offset(self._map.newest() if start == "latest" else int(start))

    def _not_before(self, after: int, head: int) -> int:
        return max(after, head)

    def _changes(self, after: int, end: int) -> list[Change]:
        """The changes after a position, up to another.

        Raises: `NotFound` when the log does not reach back so far.
        """
        if end <= after:
            return []
        try:
            return self._map.changes(after, end)
        except NotFound as error:
            if error.kind != "log_trimmed":
                raise
            if self.settings.fail_on_trimmed:
                raise self._trimmed(after + 1) from error
            return self._map.changes(max(after, self._map.log.first() - 1), end)

    def _planned(self, change: Change) -> Sequence[Change] | None:
        retained = self._map.log.retained(change)
        if retained is None and self.settings.fail_on_trimmed and change.part in self._map.log.quarantined():
            raise Corrupt(
                "a part that comes next could not be merged", kind="part_quarantined", map=self.definition.name,
                part=change.part, position=change.position,
                hint="have it merged again: millpond parts retry; or go on without its rows: failOnTrimmed=false",
            )  # fmt: skip
        return None if retained is None else [retained]

    def _read(self, piece: Change) -> Iterator[pa.RecordBatch]:
        for rows in changed_rows(self.location, self.definition, piece):
            yield from self.show(rows)

    def _trimmed(self, position: int) -> NotFound:
        return NotFound(
            "changes that come next are kept no more", kind="changes_trimmed", map=self.definition.name,
            position=position,
            hint="parts are kept for `maps.part_retention` after they were merged: set it longer, then read the map as "
            "a whole and begin with a new checkpointLocation; or go on with what is left: failOnTrimmed=false",
        )  # fmt: skip
