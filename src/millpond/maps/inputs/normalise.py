"""Input batches become canonical rows; rows that cannot be stored are reported one by one, with their reasons.

Everything works on whole columns. A column that cannot be what it is mapped to (naive timestamps, a struct as
a key) is the caller's mistake and raises; a value that cannot is its row's fault and the row is rejected.

Invariants:
* Every input row is either among the canonical rows, in its place, or among the rejected, once.
* Canonical rows satisfy `columns.canonical_schema`: no address is null, `key_start <= key_end`,
  `start <= end`, keys are UTF-8 of at most `KEY_BYTES_MAX` bytes, instants lie in the years 1 to 9999.

The measures of events as the values of rows, one field for each rule; events that cannot be combined are faults.

An event that does not say of how many it tells counts once.

| fault | of |
|---|---|
| a bucket that begins before the year 1 | every event |
| a count below zero | `count` |
| NaN | every rule |
| an infinite number | `sum` |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import Invalid
from millpond.maps.inputs.faults import Faults, Mask, no_rows, rejected_rows
from millpond.maps.inputs.keys import to_keys, to_numbers
from millpond.maps.inputs.mapping import ColumnMapping, Columns, find_columns, struct_fields
from millpond.maps.inputs.nesting import check_type
from millpond.maps.inputs.scalars import (
    Convert,
    Converted,
    by_type,
    is_text,
    mask_of,
    present,
    to_instants,
    to_long,
    to_scalar,
    unsuited,
)
from millpond.maps.inputs.tags import to_tags
from millpond.maps.inputs.undeclared import encode_any, encode_named
from millpond.maps.inputs.zones import NAME_THE_ZONE, TimeForm, instants_in
from millpond.maps.model.aggregate_fields import measure_name
from millpond.maps.model.aggregation import Rule
from millpond.maps.model.columns import MOMENT, RAW_DIGEST, canonical_schema, value_arrow
from millpond.maps.model.definition import Kind, MapDefinition, ScalarType
from millpond.maps.model.sketches import event_sketches
from millpond.times.buckets import bucket_starts
from millpond.times.durations import DURATION_MS_MAX, NUMBER_AND_UNIT, UNITS_MS, parse_duration
from millpond.times.instants import INSTANT_MIN, instant_text

__all__ = ("ColumnMapping", "Normalised", "normalise", "to_durations")

_EVENTS = {Rule.DISTINCT: ScalarType.STRING, Rule.QUANTILES: ScalarType.DOUBLE}
"""The types of what events bring for sketches."""


@dataclass(frozen=True, slots=True)
class Normalised:
    """Canonical rows, and the rows that are none: `faults.REJECTED`, with their index in the input batch."""

    rows: pa.RecordBatch
    rejected: pa.RecordBatch


def normalise(
    batch: pa.RecordBatch, definition: MapDefinition, columns: ColumnMapping | None = None,
    times: TimeForm | None = None,
) -> Normalised:  # fmt: skip
    """The rows of `batch` as canonical rows of `definition`; `times`: the form of its times.

    Raises: `Invalid` when a column is missing, or as a whole cannot hold what it is mapped to.
    """
    if definition.query is not None:
        return _of_raw_rows(batch, definition, columns, times)
    for field in batch.schema:
        check_type(field.name, field.type)
    columns_of = find_columns(batch.schema.names, definition, columns)
    extra = "refuse" if columns is None else columns.extra
    work = _Work(batch, definition, columns_of, times or TimeForm(), extra)
    arrays = work.addresses()
    if definition.aggregation is not None:
        arrays["value"] = _measured(definition, columns_of, batch, arrays["time"], work.scalar, work.faults)
    elif definition.kind.valued:
        arrays["value"] = work.value()
    return work.finish(arrays)


def _of_raw_rows(
    batch: pa.RecordBatch, definition: MapDefinition, columns: ColumnMapping | None, times: TimeForm | None
) -> Normalised:  # fmt: skip
    """Raw rows as the canonical rows of a table by query; rejects are raw rows.

    Two loads of raw rows that differ are two, though their events may be equal.
    """
    from millpond.maps.inputs.raw_rows import events_of  # other maps do without DuckDB

    events = events_of(batch, definition, columns)
    arrays = normalise(events.batch, replace(definition, query=None), None, times)
    reasons = dict(zip(events.rows[arrays.rejected.column("row").to_numpy()].tolist(),
                       arrays.rejected.column("reason").to_pylist(), strict=True))  # fmt: skip
    events.faults.reasons.update(reasons)
    rows = arrays.rows.replace_schema_metadata({RAW_DIGEST: str(events.digest)})
    return Normalised(rows, rejected_rows(batch, events.faults))


class _Work:
    """One batch on its way: its columns, and the faults found so far."""

    __slots__ = ("batch", "columns", "definition", "extra", "faults", "instants", "moments")

    def __init__(
        self, batch: pa.RecordBatch, definition: MapDefinition, columns: Columns, times: TimeForm, extra: str
    ) -> None:  # fmt: skip
        self.batch, self.extra = batch, extra
        self.definition = definition
        self.columns = columns
        self.instants, self.moments = instants_in(times, "ms"), instants_in(times, "us")
        self.faults = Faults(batch.num_rows)

    def addresses(self) -> dict[str, pa.Array[Any]]:
        """The columns of `Kind.address`, in any order."""
        kind, columns = self.definition.kind, self.columns
        arrays: dict[str, pa.Array[Any]] = {}
        if self.definition.tagged:
            arrays["key"] = self._tags()
        elif kind.keyed:
            arrays["key"] = self.required(columns.key, to_keys)
        elif columns.key is not None:
            arrays["key_start"] = arrays["key_end"] = self.required(columns.key, to_numbers)
        else:
            arrays |= self.span(("key_start", columns.key_start), ("key_end", columns.key_end))
        if kind.temporal:
            arrays["effective_time"] = self.required(columns.time, self.instants)
        if kind is Kind.AGGREGATE:
            arrays["time"] = self.required(columns.time, self.instants)
        if not kind.valued:
            arrays |= self.session()
        return arrays

    def _tags(self) -> pa.Array[Any]:
        """The sets of tags: of one column, of two that must say the same, or of a column for each tag."""
        columns, batch = self.columns, self.batch
        if columns.tags:
            names, sources = zip(*columns.tags, strict=True)
            sets = pa.StructArray.from_arrays([batch.column(source) for source in sources], names)
            return self.noted(", ".join(sources), sets, lambda: to_tags(sets))
        if columns.tags_beside is None:
            return self.required(columns.key, to_tags)
        key, tags = (self.converted(str(name), to_tags) for name in (columns.key, columns.tags_beside))
        differ = mask_of(pc.not_equal(key, tags).fill_null(False))
        self.faults.add(differ, lambda _: f"{columns.key} and {columns.tags_beside} are different tags")
        either = pc.coalesce(key, tags)
        self.faults.add(~present(either), lambda _: f"{columns.key} is missing")
        return either

    def span(self, start: tuple[str, str | None], end: tuple[str, str | None]) -> dict[str, pa.Array[Any]]:
        """Two whole numbers, the first not after the second."""
        arrays = {start[0]: self.required(start[1], to_numbers), end[0]: self.required(end[1], to_numbers)}
        self.check_order("range", arrays[start[0]], arrays[end[0]], int)
        return arrays

    def check_order(
        self, what: str, starts: pa.Array[Any], ends: pa.Array[Any], shown: Callable[[int], object]
    ) -> None:
        """Mark the rows whose end lies before their start."""
        wrong = pc.less(ends, starts).fill_null(False).to_numpy(zero_copy_only=False)

        def problem(row: int) -> str:
            start, end = (shown(side[row].as_py()) for side in (starts, ends))
            return f"{what} starts at {start} and ends before that, at {end}"

        self.faults.add(wrong, problem)

    def session(self) -> dict[str, pa.Array[Any]]:
        """Start and end; the end may follow from a timeout, or be the start where no column says it."""
        columns = self.columns
        starts = self.required(columns.start, self.instants)
        ends = starts
        if columns.timeout is not None:
            lasting = self.converted(columns.timeout, to_durations)
            ends = pc.add(starts, lasting.fill_null(0))
            late = to_instants(ends, unit="ms")
            for mask, problem in late.faults:
                self.faults.add_values(mask, ends, "end", problem)
        if columns.end is not None:
            end_column = self.converted(columns.end, self.instants)
            lasts = no_rows(len(starts)) if columns.timeout is None else present(self.batch.column(columns.timeout))
            self.faults.add(~present(end_column) & ~lasts, lambda _: f"{columns.end} is missing")
            ends = pc.coalesce(end_column, ends)
            self.check_order("session", starts, end_column, instant_text)
        return {"start": starts, "end": ends}

    def required(self, name: str | None, convert: Convert) -> pa.Array[Any]:
        """A column of the address: a null is a fault."""
        assert name is not None, "find_columns answers for every column of an address"
        values = self.converted(name, convert)
        # A value that became null through a fault is reported by that fault: it came first.
        self.faults.add(~present(values), lambda _: f"{name} is missing")
        return values

    def converted(self, name: str, convert: Convert) -> pa.Array[Any]:
        """A column through `convert`, its faults noted."""
        column = self.batch.column(name)
        return self.noted(name, column, lambda: by_type(column, convert))

    def noted(self, name: str, column: pa.Array[Any], make: Callable[[], Converted]) -> pa.Array[Any]:
        """The result of `make`; its faults and its error carry the column's name."""
        try:
            converted = make()
        except Invalid as error:
            values = {"column": name} | error.values
            hint = NAME_THE_ZONE if error.kind == "time_naive" else error.hint
            raise Invalid(error.message, kind=error.kind, hint=hint, **values) from error
        for mask, problem in converted.faults:
            self.faults.add_values(mask, column, name, problem)
        return converted.values

    def value(self) -> pa.Array[Any]:
        value, columns = self.definition.value, self.columns
        if value is None:
            return self.undeclared()
        if value.scalar is not None:
            return self.scalar(str(columns.value), self.batch.column(columns.value), value.scalar)
        if columns.value is not None:
            return self.struct(self.batch.column(columns.value), columns.value)
        types = dict(value.fields)
        arrays = [self.scalar(column, self.batch.column(column), types[field]) for field, column in columns.fields]
        return pa.StructArray.from_arrays(arrays, fields=list(value_arrow(value)))

    def scalar(self, name: str, column: pa.Array[Any], scalar: ScalarType) -> pa.Array[Any]:
        if scalar is ScalarType.TIMESTAMP:
            return self.noted(name, column, lambda: by_type(column, self.moments)).cast(MOMENT)
        return self.noted(name, column, lambda: to_scalar(column, scalar))

    def struct(self, column: pa.Array[Any], name: str) -> pa.Array[Any]:
        """A struct column as the declared struct: fields by name, as columns are found by theirs."""
        value = self.definition.value
        assert value is not None
        arrow = value_arrow(value)
        if pa.types.is_null(column.type):
            return column.cast(arrow)
        if not pa.types.is_struct(column.type):
            raise Invalid(
                "value column is no struct", kind="column_type", column=name, type=column.type,
                hint=f"give a struct or a column for each of: {', '.join(field for field, _ in value.fields)}",
            )  # fmt: skip
        names = [field.name for field in column.type]
        children = dict(zip(names, column.flatten(), strict=True))
        sources, types = struct_fields(names, self.definition, name, self.extra), dict(value.fields)
        arrays = [self.scalar(f"{name}.{inner}", children[inner], types[field]) for field, inner in sources]
        absent = pa.array(~present(column)) if column.null_count else None
        return pa.StructArray.from_arrays(arrays, fields=list(arrow), mask=absent)

    def undeclared(self) -> pa.Array[Any]:
        """A value of any scalar type, as bytes that tell their own."""
        columns = self.columns
        assert columns.value is not None
        column = self.batch.column(columns.value)
        if columns.value_type is None:
            return self.noted(columns.value, column, lambda: encode_any(column))
        names = self.batch.column(columns.value_type)
        return self.noted(columns.value, column, lambda: encode_named(names, column))

    def finish(self, made: dict[str, pa.Array[Any]]) -> Normalised:
        """The rows without fault, and the others."""
        schema = canonical_schema(self.definition)
        arrays = [made[name] for name in schema.names]
        if self.faults.reasons:
            keep = pa.array(~self.faults.bad)
            arrays = [array.filter(keep) for array in arrays]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return Normalised(rows, rejected_rows(self.batch, self.faults))


def _measured(
    definition: MapDefinition, columns: Columns, batch: pa.RecordBatch, times: pa.Array[Any],
    read: Callable[[str, pa.Array[Any], ScalarType], pa.Array[Any]], faults: Faults,
) -> pa.Array[Any]:  # fmt: skip
    """The values of events at these times; `read` makes a column of the input one of a type."""
    value, aggregation = definition.value, definition.aggregation
    assert value is not None and aggregation is not None, "an aggregate has both"
    starts = bucket_starts(times.fill_null(0).to_numpy(), aggregation.resolution, aggregation.time_zone)
    faults.add(
        starts < INSTANT_MIN,
        lambda row: f"time {instant_text(times[row].as_py())} is in a bucket that begins before the year 1",
    )
    sources = dict(columns.fields)
    arrays: list[pa.Array[Any]] = []
    for (name, scalar), rule in zip(value.fields, aggregation.rules, strict=True):
        if rule is Rule.INSTANT:
            dated = pc.if_else(arrays[-1].is_valid(), times, None)
            arrays.append(pc.multiply(dated, 1000).cast(MOMENT))
            continue
        source = sources.get(measure_name(name, rule))
        if source is None:
            arrays.append(pa.array(np.ones(batch.num_rows, np.int64)))
            continue
        column = batch.column(source)
        values = _checked(source, column, read(source, column, _EVENTS.get(rule, scalar)), rule, faults)
        if rule.sketched:
            values = event_sketches(rule, values)
        arrays.append(values.fill_null(1) if rule is Rule.COUNT else values)
    return pa.StructArray.from_arrays(arrays, fields=list(value_arrow(value)))


def _checked(name: str, column: pa.Array[Any], values: pa.Array[Any], rule: Rule, faults: Faults) -> pa.Array[Any]:
    """The values of a column, those that cannot be combined noted."""
    if rule is Rule.COUNT:
        faults.add_values(_mask(pc.less(values, 0)), column, name, "is a count below zero")
    if not pa.types.is_floating(values.type):
        return values
    faults.add_values(_mask(pc.is_nan(values)), column, name, "is no number, and cannot be combined")
    if rule is Rule.SUM:
        faults.add_values(_mask(pc.is_inf(values)), column, name, "is infinite, and cannot be added")
    return pc.add(values, 0.0)  # -0.0 becomes 0.0: which of the two is less would depend on the order of loads


def _mask(flags: pa.Array[Any]) -> np.ndarray:
    mask: np.ndarray = flags.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


_NUMBERS_MS = np.array(list(UNITS_MS.values()), np.int64)


def to_durations(array: pa.Array[Any]) -> Converted:
    """A column of durations as int64 milliseconds: text as `times/durations.py` says.

    Raises: `Invalid` when the column is neither text, durations nor whole numbers.
    """
    kind = array.type
    if pa.types.is_null(kind):
        return Converted(array.cast(pa.int64()))
    if pa.types.is_duration(kind):
        return _bounded(array, array.cast(pa.duration("ms"), safe=False).cast(pa.int64()))
    if is_text(kind):
        return _of_text(array)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers = to_long(array)
        bounded = _bounded(array, numbers.values)
        return Converted(bounded.values, (*numbers.faults, *bounded.faults))
    raise unsuited(array, "durations")


def _bounded(values: pa.Array[Any], millis: pa.Array[Any]) -> Converted:
    raw = millis.fill_null(0).to_numpy(zero_copy_only=False)
    bad = present(millis) & ((raw < 0) | (raw > DURATION_MS_MAX))
    return Converted(
        pa.array(raw, mask=bad | ~present(millis)), ((bad, "is negative or endless"),) if bad.any() else ()
    )


def _of_text(array: pa.Array[Any]) -> Converted:
    text = pc.ascii_lower(array.cast(pa.large_string()))
    parts = pc.extract_regex(text, pattern=NUMBER_AND_UNIT)
    simple = present(parts)
    millis, good = _of_parts(parts, simple)
    there = present(array)
    others = there & ~simple
    if others.any():
        millis[others], good[others] = _one_by_one(text.filter(pa.array(others)))
    bad = there & ~good
    problem = "is not a duration such as 15m"
    return Converted(pa.array(millis, mask=~there | bad), ((bad, problem),) if bad.any() else ())


def _of_parts(parts: pa.Array[Any], simple: Mask) -> tuple[npt.NDArray[np.int64], Mask]:
    """Milliseconds of whole numbers with a unit, and which of them are within bounds."""
    units = pc.index_in(pc.struct_field(parts, "unit"), pa.array(list(UNITS_MS), pa.large_string()))
    factors = _NUMBERS_MS[units.fill_null(0).to_numpy(zero_copy_only=False)]
    counts = pc.if_else(pa.array(simple), pc.struct_field(parts, "count"), "0").cast(pa.int64()).to_numpy()
    fits = counts <= DURATION_MS_MAX // factors
    return np.where(fits, counts * factors, 0), simple & fits


def _one_by_one(text: pa.Array[Any]) -> tuple[npt.NDArray[np.int64], Mask]:
    """Milliseconds of every other form, each text once: columns of durations repeat few."""
    encoded = text.dictionary_encode()
    durations = [_parsed(text) for text in encoded.dictionary.to_pylist()]
    millis = pa.array(durations, pa.int64()).take(encoded.indices)
    return millis.fill_null(0).to_numpy(zero_copy_only=False), mask_of(millis.is_valid())


def _parsed(text: str) -> int | None:
    try:
        return parse_duration(text)
    except Invalid:
        return None
