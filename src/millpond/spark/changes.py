"""Reading a map as a stream: `session.readStream.format("millpond")`, the rows of its loads in the order of the log.

An offset is a position of the pond's log; a micro-batch holds the rows of the loads after one position, up to another
that the map has merged. Rows come as they were loaded, also those that changed nothing, from the parts that the pond
keeps (`maps.part_retention`): of a folder directly, of nodes fetched by the task that reads them.

* A checkpoint belongs to one pond, by the pond's id; and of a map that was dropped and made anew, what was loaded into
  the old one is not reported.
* What is asked for and gone is an error that says so, unless `failOnTrimmed` is false: then reading goes on with what
  is left.
* Maintenance (condense, retain) is no reported change: it takes rows away that a later row or an age made needless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from millpond.clock import Clock, SystemClock
from millpond.errors import Conflict, Corrupt, MillpondError, NotFound
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.store_limits import aggregate_unsupported
from millpond.spark.change_log import Change, ChangesSettings, FollowedMap, changed_rows
from millpond.spark.places import Place
from millpond.spark.short_errors import short_errors

__all__ = ("ChangedParts", "ChangesReader")

PARTITION_ROWS = 1_000_000
"""Small parts are read together by one task, up to about so many rows."""

QUIET_SECONDS = 600.0
"""A map that nothing is loaded into lets its checkpoint follow the log at least so often: the log forgets its past."""

Offset: TypeAlias = "dict[str, Any]"
Show: TypeAlias = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]


class ChangedParts(InputPartition):
    """The input of one task: parts, in the order of the log."""

    def __init__(self, changes: tuple[Change, ...]) -> None:
        super().__init__(changes)
        self.changes = changes


@short_errors
class ChangesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of one map. On the driver it keeps the pond open; on executors it opens parts only."""

    def __init__(
        self, place: Place, definition: MapDefinition, show: Show, settings: ChangesSettings, clock: Clock | None = None
    ) -> None:
        """Refuse aggregates.

        Raises: `Invalid`, kind `aggregate_unsupported`.
        """
        if definition.kind is Kind.AGGREGATE:
            raise aggregate_unsupported(definition.name, "changes")
        self.place, self.definition, self.show, self.settings = place, definition, show, settings
        self.clock = clock or SystemClock()
        self._opened: FollowedMap | None = None
        self._target: int | None = None
        self._seen = 0
        self._reported_at = self.clock.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    @property
    def _map(self) -> FollowedMap:
        if self._opened is None:
            self._opened = FollowedMap(self.place, self.definition, self.clock)
        return self._opened

    # -- offsets, on the driver -----------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The start of a new query."""
        start = self.settings.start
        if start == "earliest":
            return self._offset(self._map.earliest())
        return self._offset(self._map.log.applied() if start == "latest" else int(start))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As many rows as the option says, or all."""
        return ReadAllAvailable() if self.settings.rows_max is None else ReadMaxRows(self.settings.rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on there is nothing new."""
        self._target = self._map.log.applied()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """The last position that a micro-batch from `start` may reach: whole loads, at least one if there is any."""
        after = self._position(start)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end, rows = after, 0
        for change in self._changes(max(after, self._seen), self._head()):
            if end > after and change.position > end and rows_max is not None and rows + change.rows > rows_max:
                return self._tell(end)
            end, rows = change.position, rows + change.rows
        if end > after:
            return self._tell(end)
        if self._seen > after and self.clock.monotonic() - self._reported_at >= QUIET_SECONDS:
            return self._tell(self._seen)
        return self._offset(after)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The latest position of the map."""
        return self._offset(self._map.log.applied())

    def _head(self) -> int:
        head = self._map.log.applied()
        return head if self._target is None else min(head, self._target)

    def _tell(self, end: int) -> Offset:
        self._reported_at = self.clock.monotonic()
        return self._offset(end)

    def _offset(self, position: int) -> Offset:
        return {"pond": self._map.log.pond_id, "position": position}

    def _position(self, offset: Offset) -> int:
        if offset["pond"] != self._map.log.pond_id:
            raise Conflict(
                "the checkpoint is of another pond", kind="checkpoint_pond", map=self.definition.name,
                found=offset["pond"], wanted=self._map.log.pond_id, hint="begin with a new checkpointLocation",
            )  # fmt: skip
        return int(offset["position"])

    def _changes(self, after: int, end: int) -> list[Change]:
        """The changes after a position, up to another.

        Raises: `NotFound` when the log does not reach back so far.
        """
        if end <= after:
            return []
        try:
            changes = self._map.changes(after, end)
        except NotFound as error:
            if error.kind != "log_trimmed":
                raise
            if self.settings.fail_on_trimmed:
                raise self._trimmed(after + 1) from error
            changes = self._map.changes(max(after, self._map.log.first() - 1), end)
        if not changes:
            self._seen = end
        return changes

    # -- reading --------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[ChangedParts]:
        """One for each part, or for several small ones.

        Raises: `NotFound` when parts are kept no more; `Corrupt` when one was quarantined.
        """
        changes = self._changes(self._position(start), self._position(end))
        retained = [change for change in (self._map.log.retained(change) for change in changes) if change is not None]
        if len(retained) < len(changes) and self.settings.fail_on_trimmed:
            there = {change.part for change in retained}
            raise self._missing(next(change for change in changes if change.part not in there))
        return [ChangedParts(tuple(group)) for group in _grouped(retained)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, on an executor.

        Raises: `NotFound` when a part expired meanwhile.
        """
        assert isinstance(partition, ChangedParts)
        for change in partition.changes:
            try:
                for rows in changed_rows(self.place, self.definition, change):
                    yield from self.show(rows)
            except NotFound as error:
                if self.settings.fail_on_trimmed:
                    raise self._trimmed(change.position) from error

    def stop(self) -> None:
        """Let go of the pond."""
        if self._opened is not None:
            self._opened.log.close()
            self._opened = None

    def _missing(self, change: Change) -> MillpondError:
        if change.part not in self._map.log.quarantined():
            return self._trimmed(change.position)
        return Corrupt(
            "a part that comes next could not be merged", kind="part_quarantined", map=self.definition.name,
            part=change.part, position=change.position,
            hint="have it merged again: millpond parts retry; or go on without its rows: failOnTrimmed=false",
        )  # fmt: skip

    def _trimmed(self, position: int) -> NotFound:
        return NotFound(
            "changes that come next are kept no more", kind="changes_trimmed", map=self.definition.name,
            position=position,
            hint="parts are kept for `maps.part_retention` after they were merged: set it longer, then read the map as "
            "a whole and begin with a new checkpointLocation; or go on with what is left: failOnTrimmed=false",
        )  # fmt: skip


def _grouped(changes: Sequence[Change]) -> list[list[Change]]:
    groups: list[list[Change]] = []
    rows = 0
    for change in changes:
        if not groups or rows + change.rows > PARTITION_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(change)
        rows += change.rows
    return groups
