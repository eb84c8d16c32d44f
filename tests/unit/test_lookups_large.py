"""Lookups large enough to be ordered, cut into blocks and spread over many files, held against plain Python."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import millpond
from millpond.maps.model.columns import INSTANT, canonical_schema
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.snapshots.freeze import freeze
from millpond.maps.snapshots.groups_of_rows import range_order_keys
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.stores.objects import open_objects

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.maps.snapshots.freeze import SnapshotManifest
    from millpond.stores.objects import Objects

KEYS = 12_000
QUERIES = 30_000
HOUR = 3_600_000
VALUE = "n long, word string, flag boolean"


def a_map(kind: Kind, value: str | None, bits: int = 64) -> MapDefinition:
    value_type = None if value is None else parse_value_type(value)
    return MapDefinition(name="m", kind=kind, incarnation="0" * 16, value=value_type, hash_bits=bits)


def names(numbers: np.ndarray) -> pa.Array:
    return pa.array([f"key {n}" * (1 + n % 3) for n in numbers.tolist()])


def values(numbers: np.ndarray) -> pa.StructArray:
    """A struct for each number, whose second field and whole are null now and then."""
    words = pa.array([f"word {n}" for n in numbers.tolist()], mask=numbers % 5 == 0)
    columns = [pa.array(numbers), words, pa.array(numbers % 2 == 0)]
    value_type = parse_value_type(VALUE)
    assert value_type is not None
    mask = pa.array(numbers % 7 == 0)
    return pa.StructArray.from_arrays(columns, names=["n", "word", "flag"], mask=mask)


def batch_of(definition: MapDefinition, *columns: pa.Array) -> pa.RecordBatch:
    schema = canonical_schema(definition)
    cast = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def snapshot_of(objects: Objects, definition: MapDefinition, layers: list[tuple[pa.RecordBatch, pa.Array]]) -> Snapshot:
    manifest: SnapshotManifest | None = None
    for version, (rows, touched) in enumerate(layers, 1):
        manifest = freeze(
            objects, definition, [rows], base=manifest, touched=touched if manifest else None,
            shard_version=version, created_ms=version,
        )  # fmt: skip
    assert manifest is not None
    return Snapshot.open(objects, manifest)


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("kind", [Kind.STATE, Kind.TEMPORAL_STATE])
def test_many_keys(kind: Kind, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    definition = a_map(kind, VALUE)
    model: dict[str, list[tuple[int, object]]] = {}
    layers = []
    for size in (KEYS, 900, 60):
        chosen = rng.choice(KEYS, size, replace=False)
        present = chosen[chosen % 11 != 0] if size < KEYS else chosen  # the others are gone from this layer on
        repeated = np.repeat(present, 1 if kind is Kind.STATE else 4)
        times = rng.permutation(1_000_000)[: len(repeated)]
        value_column = values(times)
        columns = (
            [names(repeated), value_column] if kind is Kind.STATE else [names(repeated), pa.array(times), value_column]
        )
        layers.append((batch_of(definition, *columns), names(chosen).cast(pa.binary())))
        for key in names(chosen).to_pylist():
            model[key] = []
        for key, time, value in zip(columns[0].to_pylist(), times.tolist(), value_column.to_pylist(), strict=True):
            model[key].append((time, value))
    with snapshot_of(open_objects(tmp_path), definition, layers) as snapshot:
        assert len(snapshot.manifest.layers) == 3
        query = names(rng.integers(0, KEYS * 2, QUERIES))
        query = pa.array([None if n % 13 == 0 else key for n, key in enumerate(query.to_pylist())])
        instants = rng.integers(-10, 1_000_000, QUERIES)
        expected = [
            _as_of(model.get(key), at, kind) for key, at in zip(query.to_pylist(), instants.tolist(), strict=True)
        ]
        for column in (query, query.cast(pa.large_string()), query.dictionary_encode()):
            assert snapshot.lookup(column, at=pa.array(instants)).to_pylist() == expected
        found = snapshot.find(query, at=instants)
        assert snapshot.take(found, "word").to_pylist() == [value and value["word"] for value in expected]
        assert found.there().sum() == found.hits
        middle = [_as_of(model.get(key), 500_000, kind) for key in query.to_pylist()]
        assert snapshot.lookup(query, at=500_000).to_pylist() == middle


def _as_of(rows: list[tuple[int, object]] | None, at: int, kind: Kind) -> object:
    if not rows:
        return None
    if kind is Kind.STATE:
        return rows[0][1]
    return max(((time, value) for time, value in rows if time <= at), key=lambda row: row[0], default=(0, None))[1]


@pytest.mark.usefixtures("processor")
def test_many_keys_that_clash(tmp_path: Path) -> None:
    definition = a_map(Kind.STATE, "long", bits=11)
    numbers = np.arange(KEYS)
    rows = batch_of(definition, names(numbers), pa.array(numbers))
    with snapshot_of(open_objects(tmp_path), definition, [(rows, names(numbers))]) as snapshot:
        assert snapshot.lookup(names(numbers)).to_pylist() == numbers.tolist()
        assert snapshot.find(names(numbers + KEYS)).hits == 0


@pytest.mark.usefixtures("processor")
def test_keys_of_every_length_are_compared_to_the_last_byte(tmp_path: Path) -> None:
    definition, text = a_map(Kind.STATE, "string", bits=2), "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGH"
    stored = [text[:length] for length in range(1, len(text))] + [text * 7]  # too long for the kernel that hashes
    near = [key[:place] + "!" + key[place + 1 :] for key in stored for place in {0, len(key) // 2, len(key) - 1}]
    rows = batch_of(definition, pa.array(stored), pa.array(stored))
    with snapshot_of(open_objects(tmp_path), definition, [(rows, None)]) as snapshot:
        assert snapshot.lookup(pa.array(stored + near)).to_pylist() == stored + [None] * len(near)
        assert [snapshot.value(key.encode()) for key in stored + near] == stored + [None] * len(near)


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("bits", [64, 2])
def test_keys_that_are_asked_again_and_again_find_their_buckets(tmp_path: Path, bits: int) -> None:
    """Many questions about few keys, which are looked for once; with few bits keys of one hash stand between them."""
    random = np.random.default_rng(10)
    with millpond.open(tmp_path / "pond") as pond:
        sales = pond.create_map("sales", kind="aggregate", value="n long sum", resolution="hour", hash_bits=bits)
        counted = Counter[tuple[str, int]]()
        for count in (2_000, 30):
            keys = [*names(random.integers(0, 40, count)).to_pylist(), ""]
            hours = random.integers(0, 50, count + 1).tolist()
            counted.update(zip(keys, hours, strict=True))
            sales.load({"key": keys, "time": [HOUR * hour for hour in hours], "n": [1] * len(keys)}, time_unit="ms")
        query = [*names(random.integers(0, 50, 3_000)).to_pylist(), "", ""]
        since = random.integers(-1, 50, len(query))
        expected = [counted[key, hour] or None for key, hour in zip(query, since.tolist(), strict=True)]
        with sales.snapshot() as snapshot:
            assert len(snapshot.manifest.layers) == 2
            for keys, answers in ((query, expected), ([*query, None], [*expected, None])):
                at = pa.array(HOUR * np.resize(since, len(keys)) + 7, INSTANT)
                for column in (pa.array(keys), pa.array(keys).dictionary_encode()):
                    assert snapshot.lookup(column, at).field("n").to_pylist() == answers
            between = (pa.array(HOUR * since, INSTANT), pa.array(HOUR * (since + 9), INSTANT))
            some = [
                sum(counted[key, hour + more] for more in range(9)) or None
                for key, hour in zip(query, since.tolist(), strict=True)
            ]
            assert snapshot.lookup(query, between=between).field("n").to_pylist() == some


def test_many_sessions(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    definition = a_map(Kind.SESSION, None)
    keys = rng.integers(0, 5_000, 20_000)
    starts = rng.integers(0, 10_000, 20_000)
    ends = starts + rng.integers(0, 3_000, 20_000)
    rows = batch_of(definition, names(keys), pa.array(starts), pa.array(ends))
    rows = pa.Table.from_batches([rows]).group_by(rows.schema.names).aggregate([]).combine_chunks().to_batches()[0]
    sessions: dict[int, list[tuple[int, int]]] = {}
    for key, start, end in zip(keys.tolist(), starts.tolist(), ends.tolist(), strict=True):
        sessions.setdefault(key, []).append((start, end))
    with snapshot_of(open_objects(tmp_path), definition, [(rows.cast(canonical_schema(definition)), None)]) as snapshot:
        query, instants = rng.integers(0, 6_000, QUERIES), rng.integers(-10, 14_000, QUERIES)
        expected = []
        for key, at in zip(query.tolist(), instants.tolist(), strict=True):
            held = [(-start, end) for start, end in sessions.get(key, []) if start <= at <= end]
            expected.append((-min(held)[0], min(held)[1]) if held else None)
        answers = snapshot.lookup(names(query), at=instants)
        bounds = zip(*(answers.field(name).cast(pa.int64()).to_pylist() for name in ("start", "end")), strict=True)
        there = answers.is_valid().to_pylist()
        assert [pair if known else None for pair, known in zip(bounds, there, strict=True)] == expected


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", [Kind.RANGED_STATE, Kind.TEMPORAL_RANGED_STATE])
def test_many_ranges(kind: Kind, nested: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    definition = a_map(kind, "long")
    count, span = 9_000, 50_000
    starts = rng.choice(span, count, replace=False)
    ends = starts + (rng.integers(0, 2_000, count) if nested else rng.integers(0, 3, count))
    times = rng.integers(0, 1_000, count)
    numbers = np.arange(count)
    columns = [starts, ends, numbers] if kind is Kind.RANGED_STATE else [starts, ends, times, numbers]
    rows = batch_of(definition, *(pa.array(column) for column in columns))
    gone = slice(0, 40)
    layers = [(rows, None), (rows.slice(0, 0), range_order_keys(starts[gone], ends[gone]))]
    with snapshot_of(open_objects(tmp_path), definition, layers) as snapshot:
        query, instants = rng.integers(-10, span + 3_000, 4_000), rng.integers(-10, 1_100, 4_000)
        expected = []
        for number, at in zip(query, instants, strict=True):
            held = (starts <= number) & (number <= ends) & (numbers >= 40)
            if kind is Kind.TEMPORAL_RANGED_STATE:
                held &= times <= at
            chosen = numbers[held]
            best = np.lexsort((-starts[chosen], ends[chosen] - starts[chosen]))
            expected.append(int(chosen[best[0]]) if len(chosen) else None)
        assert snapshot.lookup(query, at=instants).to_pylist() == expected


def test_a_long_history_is_searched_by_halving(tmp_path: Path) -> None:
    definition = a_map(Kind.TEMPORAL_STATE, "string")
    times = sorted((np.random.default_rng(8).choice(10**9, 50_000, replace=False) - 5 * 10**8).tolist())
    words = [f"at {time}" for time in times]
    rows = batch_of(definition, pa.array(["one"] * len(times)), pa.array(times), pa.array(words))
    with snapshot_of(open_objects(tmp_path), definition, [(rows, None)]) as snapshot:
        query = np.random.default_rng(9).integers(-6 * 10**8, 6 * 10**8, 5_000)
        places = [bisect_right(times, at) for at in query.tolist()]
        answers = snapshot.lookup(pa.array(["one"] * len(query)), at=pa.array(query).cast(INSTANT))
        assert answers.to_pylist() == [words[place - 1] if place else None for place in places]


@pytest.mark.usefixtures("processor")
def test_histories_of_every_length_lie_side_by_side(tmp_path: Path) -> None:
    definition, numbers = a_map(Kind.TEMPORAL_STATE, "long"), np.arange(120)
    owners = np.repeat(numbers, numbers)  # the key 0 has no row, the last 119
    times = np.concatenate([np.arange(number) * 10 for number in numbers])
    rows = batch_of(definition, names(owners), pa.array(times), pa.array(times))
    keys = np.repeat(numbers, 121)
    at = np.tile(np.arange(121) * 10 - 5, len(numbers))
    with snapshot_of(open_objects(tmp_path), definition, [(rows, None)]) as snapshot:
        answers = snapshot.lookup(names(keys), at=pa.array(at).cast(INSTANT)).to_pylist()
    last = np.minimum(at // 10, keys - 1)
    assert answers == [int(row) * 10 if row >= 0 else None for row in last]
