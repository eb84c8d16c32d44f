"""Maintenance beside reads and loads: bounded changes, suspended maps, disk given back, readers that go on."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.kernel.steps import listening
from millpond.maps.maintenance.maintenance import compact, condense, retain
from millpond.maps.model.definition import Kind, MapDefinition, Scheme, parse_value_type
from millpond.maps.shard.shard import Shard
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.harness.models import Row

SCHEMES = [Scheme.AUTO, Scheme.HASH, Scheme.LOOKUP]
CLOCK = ManualClock()


def put(shard: Shard, plain_rows: list[Row]) -> None:
    rows = canonical_of(shard.definition, sorted(plain_rows))  # type: ignore[type-var]
    longest = (
        max((int(row[-1]) - int(row[-2]) for row, _ in plain_rows), default=0) if "end" in rows.schema.names else 0
    )
    shard.change(lambda tx: shard.put_rows(tx, rows, 0, overwrite=True), None, longest=longest)


def definition(kind: Kind = Kind.TEMPORAL_STATE, scheme: Scheme = Scheme.AUTO) -> MapDefinition:
    value = None if kind is Kind.SESSION else parse_value_type("string")
    return MapDefinition(name="m", kind=kind, incarnation="0", scheme=scheme, value=value)


@pytest.fixture(params=SCHEMES)
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shard]:
    """100 keys with 20 rows each, of which every second repeats the one before."""
    opened = Shard(tmp_path / "shard", definition(scheme=request.param))
    put(opened, [((f"key{key:02d}", time), f"v{time // 2}") for key in range(100) for time in range(20)])
    yield opened
    opened.close()


def answers(shard: Shard) -> list[object]:
    return [shard.get(b"key%02d" % key, time) for key in (0, 50, 99) for time in range(-1, 21)]


def test_changes_are_bounded(shard: Shard) -> None:
    known = answers(shard)
    deleted: list[int] = []
    rows = shard.stats().rows

    def listener(step: str) -> None:
        nonlocal rows
        if step == "condense.batch_committed":
            left = shard.stats().rows
            deleted.append(rows - left)
            rows = left
            assert answers(shard) == known

    with listening(listener):
        report = condense(shard, shard.definition, 1_000, clock=CLOCK, rows_per_change=100)
    assert sum(deleted) == report.rows_removed == 1_000
    assert report.changes == len(deleted) >= 20
    assert max(deleted) <= 50
    assert answers(shard) == known


def test_one_key_with_many_rows_is_condensed_in_bounded_changes(tmp_path: Path) -> None:
    states = Shard(tmp_path / "states", definition())
    put(states, [(("k", time), "same") for time in range(1_000)])
    assert condense(states, states.definition, 900, clock=CLOCK, rows_per_change=64).changes > 10
    assert [instant for batch in states.read_rows() for instant in batch.column("effective_time").to_pylist()] == [
        0, *range(900, 1_000)
    ]  # fmt: skip
    sessions = Shard(tmp_path / "sessions", definition(Kind.SESSION))
    nested: list[Row] = [(("k", 0, 5_000), None), *((("k", 10 * n, 10 * n + 10), None) for n in range(1, 900))]
    put(sessions, nested)
    assert condense(sessions, sessions.definition, 10_000, clock=CLOCK, rows_per_change=64).changes > 10
    assert [batch.to_pylist() for batch in sessions.read_rows()] == [[{"key": b"k", "start": 0, "end": 9_000}]]
    assert sessions.get(b"k", 8_999) == (0, 9_000)
    states.close()
    sessions.close()


def test_a_session_that_holds_others_keeps_its_end(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "shard", definition(Kind.SESSION))
    put(shard, [(("k", 0, 1_000), None), (("k", 10, 20), None), (("k", 1_001, 1_100), None)])
    condense(shard, shard.definition, 5_000, clock=CLOCK)
    assert shard.get(b"k", 500) == (0, 1_000)
    assert shard.get(b"k", 1_000) == (0, 1_000)
    assert shard.get(b"k", 1_001) == (1_001, 1_100)
    shard.close()


def test_suspended_maintenance_changes_nothing(shard: Shard) -> None:
    suspended = replace(shard.definition, maintenance_suspended=True)
    version = shard.version
    for act in (condense, retain):
        report = act(shard, suspended, 1_000, clock=CLOCK)
        assert (report.suspended, report.changes, report.rows_removed, report.rows_after) == (True, 0, 0, 2_000)
    assert shard.version == version


def test_maps_without_times_have_nothing_to_condense(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "shard", definition(Kind.STATE))
    assert condense(shard, shard.definition, 1, clock=CLOCK).rows_before == 0
    put(shard, [(("a",), "x"), (("b",), "x")])
    report = condense(shard, shard.definition, 1, clock=CLOCK)
    assert (report.rows_after, report.suspended) == (2, False)
    shard.close()


def test_compacting_an_empty_map_does_nothing(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "shard", definition())
    assert compact(shard, clock=CLOCK).changes == 0
    shard.close()


@pytest.mark.usefixtures("processor")
def test_compacting_gives_disk_back(shard: Shard) -> None:
    put(shard, [((f"more{key:05d}", time), "v" * 50) for key in range(500) for time in range(40)])
    retain(shard, shard.definition, 20, clock=CLOCK)
    held = answers(shard)
    before = shard.stats()
    report = compact(shard, clock=CLOCK)
    assert report.bytes_before == before.bytes
    assert report.bytes_after < 0.6 * report.bytes_before
    assert (answers(shard), shard.stats().rows) == (held, before.rows)
    assert [path.name for path in shard.folder.iterdir() if path.is_dir() and path.name != "touched"] == ["000002"]
    assert compact(shard, clock=CLOCK).bytes_after == report.bytes_after


def test_readers_go_on_while_the_file_is_replaced(shard: Shard) -> None:
    known = answers(shard)
    rows = shard.read_rows(batch_rows=100)
    first = next(rows)
    other = Shard(shard.folder, shard.definition)
    assert answers(other) == known
    condense(shard, shard.definition, 1_000, clock=CLOCK)
    compact(shard, clock=CLOCK)
    put(shard, [(("key00", 30), "new")])
    assert first.num_rows + sum(batch.num_rows for batch in rows) == 2_000, "the reader began before"
    assert shard.stats().rows == other.stats().rows == 1_001
    assert other.get(b"key00", 30) == b"\x07new"
    assert answers(other) == known
    other.close()


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("act", ["condense", "compact"])
def test_threads_query_while_maintenance_runs(shard: Shard, act: str) -> None:
    known = answers(shard)
    failed: list[BaseException] = []
    running, queried = threading.Event(), threading.Event()
    running.set()

    def reader(ask: Callable[[], bool]) -> None:
        try:
            while running.is_set():
                assert ask()
                queried.set()
        except BaseException as error:
            failed.append(error)
            queried.set()

    asks: list[Callable[[], bool]] = [
        lambda: answers(shard) == known,
        lambda: sum(batch.num_rows for batch in shard.read_rows([b"key50", b"key51"])) in (40, 30, 20),
        lambda: 1_000 <= sum(batch.num_rows for batch in shard.read_rows(batch_rows=64)) <= 2_000,
    ]
    threads = [threading.Thread(target=reader, args=(ask,)) for ask in asks]
    for thread in threads:
        thread.start()
    queried.wait(60)
    for _ in range(8):
        if act == "condense":
            condense(shard, shard.definition, 1_000, clock=CLOCK, rows_per_change=100)
        else:
            compact(shard, clock=CLOCK)
    running.clear()
    for thread in threads:
        thread.join(60)
    assert not failed, failed
    assert answers(shard) == known


def test_a_load_may_come_between_two_changes(shard: Shard) -> None:
    model = MapModel(Kind.TEMPORAL_STATE)
    model.put([((f"key{key:02d}", time), f"v{time // 2}") for key in range(100) for time in range(20)])
    late: list[Row] = [((f"key{key:02d}", 5), "late") for key in range(0, 100, 7)] + [(("key999", 1), "x")]
    came = []

    def listener(step: str) -> None:
        if step == "condense.batch_committed" and not came:
            came.append(step)
            put(shard, late)

    with listening(listener):
        condense(shard, shard.definition, 1_000, clock=CLOCK, rows_per_change=400)
    condense(shard, shard.definition, 1_000, clock=CLOCK)
    addresses = {
        (row["key"].decode(), row["effective_time"]) for batch in shard.read_rows() for row in batch.to_pylist()
    }
    assert {address for address, _ in late} <= addresses
    for key in range(100):
        expected = [f"v{time // 2}" for time in range(20)]
        if key % 7 == 0:
            expected[5] = "late"
        # A row that was condensed before the late one came cannot speak against it any more.
        found = [shard.get(b"key%02d" % key, time) for time in range(20)]
        assert found == [b"\x07" + value.encode() for value in expected]


@pytest.mark.sample(6)
@pytest.mark.parametrize("kind", [Kind.SESSION, Kind.TEMPORAL_STATE])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rows_per_change", [2, 3, 4])
def test_a_group_is_cut_in_the_order_it_is_read(
    tmp_path: Path, kind: Kind, scheme: Scheme, rows_per_change: int
) -> None:
    """Interned keys lie in the order of their ids: a key that came later may sort before one that came first."""
    opened = Shard(tmp_path / "shard", definition(kind, scheme))
    for key, count in (("z", 1), ("a", 5), ("", 6)):
        spans = [(time, time + 1) if kind is Kind.SESSION else (time,) for time in range(-3, count - 3)]
        put(opened, [((key, *span), None if kind is Kind.SESSION else "v") for span in spans])
    condense(opened, opened.definition, 1_000, clock=CLOCK, rows_per_change=rows_per_change)
    assert opened.stats().rows == 3
    opened.close()


def drawn_rows(kind: Kind, seed: int) -> list[Row]:
    """Rows of few keys on both sides of 1970, with runs of values of which some are too long for table `hashed`."""
    random = np.random.default_rng(seed)
    keys = [f"{'long ' * 30 if number % 2 else ''}key{number}" for number in range(12)]
    values = ["a", "b", "x" * 600, "y" * 600]
    rows: dict[tuple[str | int, ...], object] = {}
    for number in random.integers(0, len(keys), 700).tolist():
        time = int(random.integers(-40, 40))
        if kind is Kind.SESSION:
            rows[keys[number], time, time + int(random.integers(0, 4))] = None
        elif kind is Kind.TEMPORAL_STATE:
            rows[keys[number], time] = values[int(random.integers(0, 4)) if time % 3 else number % 4]
        else:
            rows[number - 20, number + int(random.integers(0, 2)), time] = values[number % 4 if time % 3 else 0]
    return list(rows.items())


@pytest.mark.sample(12)
@pytest.mark.parametrize("kind", [Kind.TEMPORAL_STATE, Kind.TEMPORAL_RANGED_STATE, Kind.SESSION])
@pytest.mark.parametrize(
    ("scheme", "hash_bytes", "hash_bits"),
    [(Scheme.AUTO, 8, 64), (Scheme.AUTO, 8, 2), (Scheme.DIRECT, 8, 64), (Scheme.HASH, 8, 64), (Scheme.HASH, 8, 3),
     (Scheme.HASH, 4, 64), (Scheme.HASH, 4, 2), (Scheme.LOOKUP, 8, 64), (Scheme.LOOKUP, 8, 2)],
)  # fmt: skip
@pytest.mark.parametrize("rows_per_change", [60, 100_000])
def test_every_kind_and_scheme_condenses_and_retains_as_the_model(
    tmp_path: Path, kind: Kind, scheme: Scheme, hash_bytes: int, hash_bits: int, rows_per_change: int
) -> None:
    shape = replace(definition(kind, scheme), hash_bytes=hash_bytes, hash_bits=hash_bits)
    opened, model = Shard(tmp_path / "shard", shape), MapModel(kind)
    model.put(drawn_rows(kind, rows_per_change))
    put(opened, model.scan())
    report = condense(opened, shape, 25, clock=CLOCK, rows_per_change=rows_per_change)
    assert report.rows_removed == model.condense(25) > 20
    check = [tuple(row.values()) for row in canonical_of(shape, model.scan()).to_pylist()]
    assert sorted(tuple(row.values()) for batch in opened.read_rows() for row in batch.to_pylist()) == sorted(check)
    assert condense(opened, shape, 25, clock=CLOCK, rows_per_change=rows_per_change).changes == 0
    report = retain(opened, shape, -5, clock=CLOCK, rows_per_change=rows_per_change)
    assert report.rows_removed == model.retain(-5) > 20
    check = [tuple(row.values()) for row in canonical_of(shape, model.scan()).to_pylist()]
    assert sorted(tuple(row.values()) for batch in opened.read_rows() for row in batch.to_pylist()) == sorted(check)
    if kind is Kind.TEMPORAL_RANGED_STATE:
        with opened.view() as view:
            assert view.tx is not None
            ranges = {address[:2] for address in model.rows}
            assert view.tx.stat(view.store.dbs["widths"])["entries"] == len(ranges)
    opened.close()


def test_what_a_change_touches_is_every_group_it_changes(tmp_path: Path) -> None:
    for scheme in Scheme:
        opened = Shard(tmp_path / scheme, definition(scheme=scheme))
        put(opened, [((f"key{key}" * 30, time), "v") for key in range(50) for time in range(1 + key % 2)])
        version = opened.version
        condense(opened, opened.definition, 1_000, clock=CLOCK, rows_per_change=16)
        with opened.view() as view:
            touched = view.touched_since(version)
        assert touched is not None
        assert sorted(touched.to_pylist()) == sorted(b"key%d" % key * 30 for key in range(1, 50, 2))
        opened.close()


@pytest.mark.parametrize("store", ["layers", "shard"])
def test_a_purge_is_not_kept_by_what_its_own_process_asked_before(tmp_path: Path, store: str) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        names = pond.create_map("m", kind="state", value="string", store=store)
        names.load({"key": ["a", "b"], "value": ["x", "y"]})
        assert names.lookup(["a"]).to_pylist() == ["x"]
        report = names.delete("key = 'a'", now=True)
        assert (report.purged, report.left) == (True, ())
        assert names.lookup(["a", "b"]).to_pylist() == [None, "y"]
        with names.snapshot():
            (left,) = names.delete("key = 'b'", now=True).left
        assert "somebody has it open" in left
