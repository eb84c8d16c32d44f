"""A query of a caller, worked on in a confined process, which asks this node for what it reads (`query_work.py`).

Invariants:
* a query gets the rows of the tables that its caller may read, whatever its process asks for;
* none of its conditions is evaluated here: only plain bounds of columns come from there.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.arrow_sizes import declared_sizes
from millpond.arrays.arrow_streams import stream_of
from millpond.errors import Unavailable
from millpond.kernel.patience import check_patience
from millpond.maps.model.columns import askable_schema
from millpond.nodes.lookup_service import lookup_bytes, read_arrow_stream
from millpond.server.confined import Confines, EndedEarly, OutOfTime, confined
from millpond.server.console.query_work import Bound, Define, Differ, Lookup, Next, Open, Question, answer_query
from millpond.sizes import size_in_words

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from millpond.maps.map import Map
    from millpond.maps.snapshots.snapshot import Snapshot
    from millpond.maps.sql import Differing, QueryableTable

__all__ = ("MEMORY_BYTES", "SECONDS_MAX", "Tables", "answer_of", "condition_of")

MEMORY_BYTES: Final = 384 << 20
SECONDS_MAX: Final = 20
_ROWS_TOGETHER, _BYTES_TOGETHER = 1_000, 1 << 20
"""The rows, or the bytes, beyond which a batch is sent without others."""
_QUESTIONS: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)


class Tables:
    """The tables that one query may read, maps, `others` and of differences, in the thread of its request."""

    def __init__(
        self, maps: Sequence[Map], others: Sequence[QueryableTable], differing: Differing | None = None
    ) -> None:
        self._differing = differing
        self.maps = {pond_map.name: pond_map for pond_map in maps}
        self.others = {table.name: table for table in others}
        self._scans: dict[int, Iterator[pa.RecordBatch]] = {}
        self._snapshots: dict[str, Snapshot] = {}

    def answer(self, question: bytes) -> Buffer:
        """The answer to a question of the query's process.

        Raises: as the methods of maps and tables.
        """
        match _QUESTIONS.decode(question):
            case Define(map=name):
                return pickle.dumps(self.maps[name].definition)
            case Open() as begun:
                self._scans[begun.scan] = iter(self._opened(begun))
                return self._next(begun.scan)
            case Next(scan=scan):
                return self._next(scan)
            case Differ() as asked:
                assert self._differing is not None, "a query of a caller has it"
                table = self._differing(asked.name, asked.map, asked.sides, asked.three_dots)
                self.others[asked.name] = table
                return stream_of(pa.RecordBatch.from_pylist([], table.schema))
            case lookup:
                return stream_of(pa.RecordBatch.from_arrays([self._values(lookup)], ["values"]))

    def _next(self, scan: int) -> Buffer:
        """The next rows of a scan; small batches come together, for each question costs two turns of the processor."""
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in self._scans[scan]:
            check_patience()
            batches.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _ROWS_TOGETHER or size >= _BYTES_TOGETHER:
                break
        return stream_of(pa.concat_batches(batches)) if batches else b""

    def _opened(self, begun: Open) -> pa.RecordBatchReader:
        if begun.other:
            table = self.others[begun.table]
            return table.scan(condition_of(begun.bounds, table.schema), begun.columns)
        pond_map = self.maps[begun.table]
        condition = condition_of(begun.bounds, askable_schema(pond_map.definition))
        return pond_map.scan(condition, begun.columns, resolution=begun.resolution)

    def _values(self, lookup: Lookup) -> pa.Array:
        lookup_bytes(len(lookup.columns), declared_sizes(lookup.columns), MEMORY_BYTES)
        table = read_arrow_stream(lookup.columns)
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        keys, at, pond_map = columns["keys"], columns.get("at", lookup.at), self.maps[lookup.map]
        if "known_at" in columns:
            return pond_map.lookup(keys, at, known_at=columns["known_at"], window=lookup.window)
        if lookup.map not in self._snapshots:  # one for all of a query
            self._snapshots[lookup.map] = pond_map.snapshot()
        return self._snapshots[lookup.map].lookup(keys, at, window=lookup.window)


def condition_of(bounds: Mapping[str, Bound], schema: pa.Schema) -> pc.Expression | None:
    """Bounds of columns as a condition; None where there are none."""
    parts = [part for name, bound in bounds.items() for part in _parts(pc.field(name), bound, schema.field(name).type)]
    return reduce(and_, parts) if parts else None


def _parts(column: pc.Expression, bound: Bound, kind: pa.DataType) -> list[pc.Expression]:
    timed = pa.types.is_timestamp(kind)
    kind = pa.timestamp("ms", kind.tz) if timed else kind
    if bound.points is not None and not timed:
        return [column.isin(pa.array(bound.points, kind))]
    lower, upper = (None if end is None else pc.scalar(pa.scalar(end, kind)) for end in (bound.lower, bound.upper))
    return [*([] if lower is None else [column >= lower]), *([] if upper is None else [column <= upper])]


def answer_of(tables: Tables, text: str, *, now_ms: int, form: str, rows_max: int) -> bytes:
    """The rows of a query in a form of `answer_query`, of which the arguments are.

    Raises: as `answer_query`; `Unavailable`, kinds `sql_memory` and `question_slow`.
    """
    others = {name: table.schema for name, table in tables.others.items()}
    try:
        return confined(
            Confines(MEMORY_BYTES, SECONDS_MAX), tables.answer, answer_query, text, list(tables.maps), others,
            now_ms=now_ms, form=form, rows_max=rows_max,
        )  # fmt: skip
    except EndedEarly as error:
        raise _out_of_memory(error.how) from error
    except OutOfTime as error:
        raise Unavailable(
            "the query takes longer than one may", kind="question_slow", seconds_max=SECONDS_MAX,
            hint="ask for less: bound keys or times",
        ) from error  # fmt: skip
    except Unavailable as error:
        if error.kind != "sql_memory":
            raise
        raise _out_of_memory(error.values["reason"]) from error


def _out_of_memory(reason: object) -> Unavailable:
    return Unavailable(
        "the query needs more memory than there is", kind="sql_memory", memory_max=size_in_words(MEMORY_BYTES),
        reason=reason, hint="ask for fewer rows or columns at once",
    )  # fmt: skip
