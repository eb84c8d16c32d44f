"""Answering questions in a Python worker of Spark: whole Arrow columns against an open snapshot.

A snapshot is opened once per worker process, memory-mapped, and shared by all tasks that run there; what the machine
holds of its files in memory is shared by all processes. Which snapshot is asked was decided when the query was
planned: every task, and every task that is tried again, gives the same answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import DataType

from millpond.clock import SystemClock
from millpond.errors import Invalid
from millpond.maps.inputs.key_columns import OnInvalid
from millpond.maps.model.definition import MapDefinition
from millpond.maps.snapshots.partition_filter import HashShare
from millpond.maps.snapshots.snapshot import Snapshot, answer_type
from millpond.spark.locations import Location, OpenPond
from millpond.spark.planned_past import PlannedPast
from millpond.spark.planned_snapshot import PlannedSnapshots
from millpond.spark.refresh import Chosen, parse_choices

__all__ = (
    "Question",
    "ask_all",
    "by_column",
    "in_batches",
    "open_share",
    "open_snapshot",
    "question_to",
)

SNAPSHOTS_OPEN = 32
"""Snapshots a worker keeps open; each holds address space and a lease, not memory."""
SHARES_OPEN = 4
"""Shares of snapshots a worker keeps open: a task needs one of each map, the next task others."""

Columns: TypeAlias = "pa.Array | tuple[pa.Array, ...]"


@dataclass(frozen=True, slots=True)
class Question:
    """A lookup made for every row: a map, as it was when the query was planned.

    `now_ms` answers for rows without a time of their own, where the map has times. `key` and `time` name the columns,
    for errors; `on_invalid` as in `Snapshot.lookup`; `size` is that of the snapshot's files, in bytes. `past`: of the
    map, where each row asks as known at a moment of its own. `window`: before the bucket of its time, as in `Lookup`.
    """

    shelf: PlannedSnapshots
    snapshot: str
    definition: MapDefinition
    now_ms: int | None
    on_invalid: OnInvalid = "error"
    key: str | None = None
    time: str | None = None
    size: int = 0
    past: PlannedPast | None = None
    window: str | None = None

    @property
    def arrow(self) -> pa.DataType:
        """The answer's type, as Spark holds it."""
        return to_arrow_type(self.spark, timezone="UTC")

    @property
    def spark(self) -> DataType:
        """The answer's type in Spark."""
        return from_arrow_type(answer_type(self.definition))

    def at(self, chosen: Chosen) -> Question:
        """The same question to a snapshot that was chosen later."""
        past = None if self.past is None else self.past.until(chosen.past, chosen.now_ms)
        shelf = self.shelf.at_entry(chosen.entry)
        return replace(self, shelf=shelf, snapshot=chosen.manifest, now_ms=chosen.now_ms, past=past)

    def ask(
        self, keys: pa.Array, at: pa.Array | None, share: HashShare | None = None, known_at: pa.Array | None = None
    ) -> pa.Array:  # fmt: skip
        """The answer for each row, whose keys have hashes of one `share`; or as it was known at the row's moment.

        Raises: `Invalid` for keys or times that are not such.
        """
        instant = at if self.definition.kind.timed and at is not None else self.now_ms
        try:
            if known_at is not None:
                assert self.past is not None, "it was read when the query was planned"
                answers = self.past.lookup(keys, instant, known_at, self.on_invalid, share, self.window)
            else:
                answers = self._opened(share).lookup(keys, instant, on_invalid=self.on_invalid, window=self.window)
        except Invalid as error:
            raise self._placed(error) from error
        return answers if answers.type == self.arrow else answers.cast(self.arrow)

    def ask_shares(
        self, keys: pa.Array, at: pa.Array | None, known_at: pa.Array | None, shares: npt.NDArray[np.int32], count: int
    ) -> pa.Array:  # fmt: skip
        """As `ask`, for rows whose keys have hashes of those of `count` shares."""
        numbers = np.unique(shares).tolist()
        if len(numbers) == 1:
            return self.ask(keys, at, HashShare(numbers[0], count), known_at)
        rows = [np.flatnonzero(shares == number) for number in numbers]
        answers = [
            self.ask(
                keys.take(some), None if at is None else at.take(some), HashShare(number, count),
                None if known_at is None else known_at.take(some),
            )
            for number, some in zip(numbers, map(pa.array, rows), strict=True)
        ]  # fmt: skip
        back = np.argsort(np.concatenate(rows)) if rows else np.zeros(0, np.int64)
        return pa.concat_arrays(answers).take(pa.array(back)) if answers else pa.nulls(0, self.arrow)

    def _opened(self, share: HashShare | None) -> Snapshot:
        if share is None:
            return open_snapshot(self.shelf, self.snapshot)
        return open_share(self.shelf, self.snapshot, share)

    def _placed(self, error: Invalid) -> Invalid:
        """The error with the column it is about; the row's place in a batch says nothing."""
        column = self.time if error.kind.startswith("time_") else self.key
        values = {name: value for name, value in error.values.items() if name != "row"}
        if error.kind not in ("key_number", "time_unknown") or column is None:
            return error
        hint = f"{error.hint}; or on_invalid='miss' answers such rows with null"
        subject = {"map": self.definition.name, "column": column}
        return Invalid(error.message, kind=error.kind, hint=hint, **(subject | values))


@lru_cache(maxsize=SNAPSHOTS_OPEN)
def open_snapshot(shelf: PlannedSnapshots, id_: str) -> Snapshot:
    """The snapshot of that id, opened by this process once."""
    return shelf.open(id_)


@lru_cache(maxsize=SHARES_OPEN)
def open_share(shelf: PlannedSnapshots, id_: str, share: HashShare) -> Snapshot:
    """A share of the snapshot of that id; the files of those that are not used any more are let go."""
    return shelf.open(id_, share)


def question_to(pond: OpenPond, location: Location, name: str) -> Question:
    """The question to a map as it is now; it is frozen first if it moved on."""
    shelf, manifest = location.pin(pond, name)
    now = SystemClock().now_ms() if manifest.definition.kind.timed else None
    return Question(shelf, manifest.id, manifest.definition, now, size=manifest.size)


def ask_all(
    questions: Sequence[tuple[str, Question, int, int | None, int | None]], *, alone: bool, shares: int | None = None,
    chosen: bool = False,
) -> Callable[[Iterator[Columns]], Iterator[pa.Array]]:  # fmt: skip
    """A pass over batches of columns that answers several questions: name, question, places of key, time and moment.

    `alone`: there is one question, and its answers come bare; otherwise they come as a struct. `shares`: the last
    column says in which of so many shares the key of each row is. `chosen`: the one before it says which snapshots of
    their maps the questions are to, see `refresh.py`.
    """

    def answer(batches: Iterator[Columns]) -> Iterator[pa.Array]:
        for batch in batches:
            columns: Any = (batch,) if isinstance(batch, pa.Array) else batch
            numbers = None if shares is None else columns[-1].to_numpy()
            queries = [question for _, question, *_ in questions]
            if chosen and len(columns[0]):
                choices = parse_choices(columns[-1 if shares is None else -2][0].as_py())
                queries = [question.at(choice) for question, choice in zip(queries, choices, strict=True)]
            answers = []
            for question, (_, _, key, *times) in zip(queries, questions, strict=True):
                at, known_at = (None if position is None else columns[position] for position in times)
                if numbers is None or shares is None:
                    answers.append(question.ask(columns[key], at, known_at=known_at))
                else:
                    answers.append(question.ask_shares(columns[key], at, known_at, numbers, shares))
            yield answers[0] if alone else pa.StructArray.from_arrays(answers, [name for name, *_ in questions])

    answer.__name__ = "enrich"  # what a plan calls it
    return answer


_arrow_udf: Any = arrow_udf  # typed for a few shapes of functions, none of which say "any number of columns"


def in_batches(answer: Callable[[Iterator[Columns]], Iterator[pa.Array]], result_type: DataType) -> Any:
    """A Spark function that goes through batches of columns, once for each partition."""
    return _function(answer, result_type, ArrowUDFType.SCALAR_ITER)


def by_column(answer: Callable[..., pa.Array], result_type: DataType) -> Any:
    """A Spark function that is called for each batch; several in one projection share a pass through Python."""
    return _function(answer, result_type, ArrowUDFType.SCALAR)


def _function(answer: Any, result_type: DataType, shape: int) -> Any:
    with warnings.catch_warnings():
        # PySpark would rather guess the shape from type hints, which cannot say "any number of columns"; and it has
        # a word to say about the version of pandas, which this does not use.
        warnings.simplefilter("ignore")
        return _arrow_udf(answer, result_type, shape)
