"""A stream whose micro-batches are whole changes: after one position, up to another; of `main` or of a branch.

* A checkpoint belongs to one pond, by the pond's id, and to `main` or to a branch.
* What is asked for and gone is an error that says so, unless `failOnTrimmed` is false: then reading goes on with what
  is left.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from millpond.clock import Clock, SystemClock
from millpond.errors import Conflict, NotFound
from millpond.maps.model.definition import MapDefinition
from millpond.spark.change_log import ChangesSettings
from millpond.spark.locations import Location
from millpond.spark.short_errors import short_errors

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("Changes", "MicroBatches", "Offset", "Rows")

PARTITION_ROWS = 1_000_000
"""Small changes are read together by one task, up to about so many rows."""

QUIET_SECONDS = 600.0
"""A map that nothing changes lets its checkpoint follow at least so often: the past is forgotten."""

Offset: TypeAlias = "dict[str, Any]"
P = TypeVar("P", int, str)
"""A position: of the log, or a commit."""


class Rows(Protocol):
    """Rows of a change that one task reads: about how many they are, and the position of the change."""

    @property
    def position(self) -> Any: ...
    @property
    def rows(self) -> Any: ...


class _Followed(Protocol):
    """A map of an open pond, which changes."""

    pond_id: str

    def newest(self) -> Any:
        """The last position of the map."""

    def close(self) -> None:
        """Let go of the pond."""


F = TypeVar("F", bound=_Followed)
C = TypeVar("C", bound=Rows)
R = TypeVar("R", bound=Rows)


class Changes(InputPartition, Generic[R]):
    """The input of one task: rows of changes, in their order."""

    def __init__(self, changes: tuple[R, ...]) -> None:
        super().__init__(changes)
        self.changes = changes


@short_errors
class MicroBatches(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[P, F, C, R]):
    """Reads the changes of one map. On the driver it keeps the pond open; on executors it opens files only."""

    field: ClassVar[str]
    """The name of positions in offsets."""
    changes_max: ClassVar[float] = math.inf
    """The changes that one micro-batch may have."""

    def __init__(
        self, location: Location, definition: MapDefinition, settings: ChangesSettings, clock: Clock | None = None
    ) -> None:
        self.location, self.definition, self.settings = location, definition, settings
        self.clock = clock or SystemClock()
        self._opened: F | None = None
        self._target: P | None = None
        self._unchanged: dict[P, P] = {}
        self._reported_at = self.clock.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    @property
    def _map(self) -> F:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    @abstractmethod
    def _open(self) -> F: ...

    @abstractmethod
    def _changes(self, after: P, end: P) -> Iterable[C]:
        """The changes after a position, up to another.

        Raises: `NotFound` when they are gone.
        """

    def _rows(self, change: C) -> int:
        """About how many rows a change has."""
        return int(change.rows)

    @abstractmethod
    def _planned(self, change: C) -> Sequence[R] | None:
        """The rows of a change, in pieces; None when they are gone."""

    @abstractmethod
    def _read(self, piece: R) -> Iterator[pa.RecordBatch]:
        """Rows of a change, on an executor.

        Raises: `NotFound` when they are gone.
        """

    @abstractmethod
    def _trimmed(self, position: P) -> NotFound:
        """The error for a change that is gone."""

    # -- offsets, on the driver -----------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """As many rows as the option says, or all."""
        return ReadAllAvailable() if self.settings.rows_max is None else ReadMaxRows(self.settings.rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on there is nothing new."""
        self._target = self._map.newest()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """The last position that a micro-batch from `start` may reach: whole changes, at least one if there is any."""
        after = self._position(start)
        head = self._not_before(after, self._map.newest() if self._target is None else self._target)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end, rows = after, 0
        for number, change in enumerate(self._changes(self._unchanged.get(after, after), head)):
            if rows_max is not None:
                rows += self._rows(change)
            full = number >= self.changes_max or (rows_max is not None and rows > rows_max)
            if full and change.position != end != after:
                return self._tell(end)
            end = change.position
        if end != after:
            return self._tell(end)
        self._unchanged = {after: head}
        if head != after and self.clock.monotonic() - self._reported_at >= QUIET_SECONDS:
            return self._tell(head)
        return self._offset(after)

    def reportLatestOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """The latest position of the map."""
        return self._offset(self._map.newest())

    def _not_before(self, _after: P, head: P) -> P:
        """The position to read up to: a head, or what was read, where that is later."""
        return head

    def _tell(self, end: P) -> Offset:
        self._reported_at = self.clock.monotonic()
        return self._offset(end)

    def _offset(self, position: P) -> Offset:
        return {"pond": self._map.pond_id, self.field: position}

    def _position(self, offset: Offset) -> P:
        if offset["pond"] != self._map.pond_id:
            raise Conflict(
                "the checkpoint is of another pond", kind="checkpoint_pond", map=self.definition.name,
                found=offset["pond"], wanted=self._map.pond_id, hint="begin with a new checkpointLocation",
            )  # fmt: skip
        if self.field not in offset:
            raise Conflict(
                "the checkpoint is of a stream of main, and this is of a branch, or the reverse", kind="checkpoint_ref",
                map=self.definition.name, wanted=self.field, hint="begin with a new checkpointLocation",
            )  # fmt: skip
        position: P = offset[self.field]
        return position

    # -- reading --------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[Changes[R]]:
        """One for each piece of a change, or for several small ones.

        Raises: `NotFound` when changes are kept no more; `Corrupt` when one was quarantined.
        """
        pieces: list[R] = []
        for change in self._changes(self._position(start), self._position(end)):
            planned = self._planned(change)
            if planned is None and self.settings.fail_on_trimmed:
                raise self._trimmed(change.position)
            pieces += planned or ()
        return [Changes(tuple(group)) for group in _grouped(pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, on an executor.

        Raises: `NotFound` when they expired meanwhile.
        """
        assert isinstance(partition, Changes)
        for piece in partition.changes:
            try:
                yield from self._read(piece)
            except NotFound as error:
                if self.settings.fail_on_trimmed:
                    raise self._trimmed(piece.position) from error

    def stop(self) -> None:
        """Let go of the pond."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _grouped(pieces: Sequence[R]) -> list[list[R]]:
    groups: list[list[R]] = []
    rows = 0
    for piece in pieces:
        if not groups or rows + piece.rows > PARTITION_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(piece)
        rows += piece.rows
    return groups
