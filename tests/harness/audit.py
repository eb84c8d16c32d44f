"""Holding readers against the model: ask both, and say where they differ.

Each function takes the model (`models.MapModel`) and a reader, and asserts that both tell the same. Tests after every
change call these; so may anybody who doubts a map whose history is known.
"""

from __future__ import annotations

import reprlib
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from millpond.arrays.longs import pack_long
from millpond.maps.model.definition import Kind, Store
from millpond.maps.model.values import python_value
from tests.harness.models import bits_of
from tests.harness.rows import canonical_of, presented, presented_rows, shown_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millpond.maps.map import Map
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.protocols import MapLike, PondLike
    from millpond.maps.shard.shard import Shard
    from millpond.maps.snapshots.snapshot import Snapshot
    from tests.harness.models import Address, MapModel, Row
    from tests.harness.strategies import Question

__all__ = (
    "ask_shard",
    "audit_answers",
    "audit_map",
    "audit_shard",
    "audit_snapshot",
    "audit_sql",
    "brief",
    "canonical_bits",
    "shown_answer",
    "spans_of",
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def brief(difference: object) -> str:
    """A difference in a few lines: keys may be 10 KB long."""
    short = reprlib.Repr()
    short.maxtuple = short.maxlist = 24
    short.maxstring, short.maxother = 60, 200
    return short.repr(difference)


def ask_shard(shard: Shard, question: Question) -> object:
    """The shard's answer in the form of the model's."""
    key, at = question
    found = shard.get(key.encode() if isinstance(key, str) else key, at)
    return python_value(found, shard.definition.value) if isinstance(found, bytes) else found


def canonical_bits(batches: Iterable[pa.RecordBatch], definition: MapDefinition) -> list[object]:
    """Canonical rows sorted by address, comparable by `==`."""
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    address = len(definition.kind.address)
    return [bits_of(row) for row in sorted(rows, key=lambda row: row[:address])]


def spans_of(model: MapModel) -> list[Address]:
    """The distinct ranges of a ranged model, sorted."""
    return [] if model.kind.keyed else sorted({address[:2] for address in model.rows})


def audit_shard(shard: Shard, model: MapModel, questions: Sequence[Question]) -> None:
    """Every question, every row, the count, and the rows of half of the keys (or ranges) alone."""
    definition = shard.definition
    for question in questions:
        answer = ask_shard(shard, question)
        assert bits_of(answer) == bits_of(model.answer(*question)), brief((question, answer, model.answer(*question)))
    assert _read(shard, batch_rows=3) == _bits(definition, model.scan())
    assert shard.stats().rows == len(model.rows)
    _audit_some_keys(shard, model)
    _audit_bounds(shard, model)


def _read(shard: Shard, keys: list[bytes] | None = None, **bounds: int) -> list[object]:
    return canonical_bits(shard.read_rows(keys, **bounds), shard.definition)


def _bits(definition: MapDefinition, rows: Sequence[Row]) -> list[object]:
    return canonical_bits([canonical_of(definition, rows)], definition)


def _audit_some_keys(shard: Shard, model: MapModel) -> None:
    if model.kind.keyed:
        chosen = sorted({address[0] for address in model.rows})[::2]
        wanted = [str(key).encode() for key in chosen]
        rows = [row for row in model.scan() if row[0][0] in chosen]
    else:
        spans = spans_of(model)[::2]
        wanted = [b"".join(pack_long(int(number), plain=False) for number in span) for span in spans]
        rows = [row for row in model.scan() if row[0][:2] in spans]
    assert _read(shard, wanted) == _bits(shard.definition, rows)


def _audit_bounds(shard: Shard, model: MapModel) -> None:
    """Ranged maps between two starts: exactly the rows that start there."""
    starts = sorted({int(address[0]) for address in model.rows}) if not model.kind.keyed else []
    for lower, upper in pairwise(starts):
        rows = [row for row in model.scan() if lower <= int(row[0][0]) <= upper]
        assert _read(shard, lower=lower, upper=upper) == _bits(shard.definition, rows), (lower, upper)


# -- an open map: what a user sees ----------------------------------------------------------------------


def audit_map(target: Map, model: MapModel, questions: Sequence[Question]) -> None:
    """Every reader of the map: `get`, `lookup` from the snapshot, `scan`, and the shard beneath."""
    if target.definition.store is Store.SHARD:
        audit_shard(target.shard, model, questions)
    snapshot = target.snapshot()
    assert snapshot.manifest.shard_version == target.rows.version
    assert target.rows.stats().rows == len(model.rows)
    audit_snapshot(snapshot, target.definition, model, questions)
    audit_answers(target, model, questions)


def audit_answers(target: MapLike, model: MapModel, questions: Sequence[Question]) -> None:
    """Compare a map's answers with the model's, wherever it lies: each key by itself, all at once, and every row."""
    definition = target.definition
    for question in questions:
        answer = target.get(question[0], at=question[1])
        assert bits_of(answer) == bits_of(shown_answer(model, question)), brief((question, answer))
    expected = [_looked_up(definition, model, question) for question in questions]
    keys = pa.array([key for key, _ in questions], pa.string() if definition.kind.keyed else pa.int64())
    times = pa.array([at for _, at in questions], pa.int64()) if definition.kind.timed else None
    assert bits_of(target.lookup(keys, times).to_pylist()) == bits_of(expected), brief(questions)
    assert presented_rows(definition, target.scan().read_all()) == presented(definition, model.scan())


def audit_sql(pond: PondLike, target: MapLike, model: MapModel, questions: Sequence[Question]) -> None:
    """The map as a table, and as `get_state`."""
    definition = target.definition
    answer = pond.sql(f"select * from {definition.name}")
    assert presented_rows(definition, answer) == presented(definition, model.scan())
    rows_sql = ", ".join(_sql_row(definition, number, question) for number, question in enumerate(questions))
    at = ", t" if definition.kind.timed else ""
    call = f"get_state('{definition.name}', k{at})"
    answers = pond.sql(f"select {call} as answer from (values {rows_sql}) asked(n, k, t) order by n")
    expected = [_looked_up(definition, model, question) for question in questions]
    assert bits_of(answers.column("answer").to_pylist()) == bits_of(expected), brief(questions)


def _sql_row(definition: MapDefinition, number: int, question: Question) -> str:
    key, at = question
    key_sql = f"decode(unhex('{str(key).encode().hex()}'))" if definition.kind.keyed else f"({key})::bigint"
    return f"({number}, {key_sql}, make_timestamptz(({at * 1000})::bigint))"


def shown_answer(model: MapModel, question: Question) -> object:
    """The model's answer as `get` puts it: a session as a dict of instants."""
    answer = model.answer(*question)
    if isinstance(answer, tuple):
        return {name: EPOCH + timedelta(milliseconds=ms) for name, ms in zip(("start", "end"), answer, strict=True)}
    return answer


def audit_snapshot(
    snapshot: Snapshot, definition: MapDefinition, model: MapModel, questions: Sequence[Question]
) -> None:
    """Bulk lookups of all questions at once: as one array and as chunks of a dictionary-encoded one."""
    expected = [_looked_up(definition, model, question) for question in questions]
    keys = pa.array([key for key, _ in questions], pa.string() if definition.kind.keyed else pa.int64())
    times = pa.array([at for _, at in questions], pa.int64()) if definition.kind.timed else None
    answers = snapshot.lookup(keys, times)
    assert len(answers) == len(keys)
    assert bits_of(answers.to_pylist()) == bits_of(expected), brief((questions, answers))
    there = snapshot.find(keys, times).there().tolist()
    assert there == [model.holds(*question) for question in questions], brief(questions)
    chunks = pa.chunked_array([keys[:1].dictionary_encode(), keys[1:].dictionary_encode()])
    assert bits_of(snapshot.lookup(chunks, times).to_pylist()) == bits_of(expected), brief(questions)


def _looked_up(definition: MapDefinition, model: MapModel, question: Question) -> object:
    """The answer as `lookup` puts it: an undeclared map's values as text."""
    answer = shown_answer(model, question)
    if definition.kind is Kind.SESSION or definition.value is not None or not model.holds(*question):
        return answer
    return shown_value(definition, answer)[1]
