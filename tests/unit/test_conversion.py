"""Maps that go over to their other store: the rows stay, loads and open readers too, and a kill leaves one of both."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Conflict, Invalid
from millpond.kernel.steps import listening
from millpond.maps.loads.conversion import convert
from millpond.maps.model.definition import Store
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond
    from tests.harness.models import Row

KINDS: dict[str, dict[str, Any]] = {
    "state": {"kind": "state"},
    "first": {"kind": "state", "value": "long", "overwrite": False},
    "interned": {"kind": "state", "scheme": "lookup"},
    "weather": {"kind": "temporal_state", "value": "long"},
    "nets": {"kind": "ranged_state", "value": "long"},
    "blocks": {"kind": "temporal_ranged_state", "value": "long"},
    "seen": {"kind": "session"},
}
STORES = ("layers", "shard")
DAY = 86_400_000


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1_700_000_000_000)) as opened:
        yield opened


def instants(*ms: int) -> pa.Array:
    return pa.array(ms, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))


def table_of(pond_map: Map, number: int) -> pa.Table:
    columns: dict[str, Any] = {}
    if pond_map.kind.keyed:
        columns["key"] = [f"k{number}", f"k{number + 1}"]
    else:
        columns |= {"key_start": [number, 10 * number], "key_end": [number + 20, 10 * number + 5]}
    if "start" in pond_map.kind.address:
        columns |= {"start": instants(number, number + 1), "end": instants(number + 5, number + 9)}
    elif pond_map.kind.timed:
        columns["effective_time"] = instants(number, 2 * number)
    if pond_map.kind.valued:
        columns["value"] = [number, number + 100]
    return pa.table(columns)


def model_rows(pond_map: Map, table: pa.Table) -> list[Row]:
    """The rows of a table, as the model takes them."""
    times = [pa.types.is_timestamp(table.column(name).type) for name in pond_map.kind.address]
    columns = [
        table.column(name).cast("int64").to_pylist() if timed else table.column(name).to_pylist()
        for name, timed in zip(pond_map.kind.address, times, strict=True)
    ]
    values = table.column("value").to_pylist() if pond_map.kind.valued else [None] * table.num_rows
    return list(zip(zip(*columns, strict=True), values, strict=True))


def rows_of(pond_map: Map) -> list[dict[str, Any]]:
    return sorted((row for batch in pond_map.scan() for row in batch.to_pylist()), key=repr)


@pytest.mark.usefixtures("process")
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", KINDS)
def test_a_map_goes_over_and_back(pond: Pond, name: str) -> None:
    both = [pond.create_map(f"{name}{number}", **KINDS[name]) for number in (0, 1)]
    for turn, store in enumerate((*STORES, *STORES)):
        for pond_map in both:
            for number in (3 * turn, 3 * turn + 1, 2):
                pond_map.load(table_of(pond_map, number), again=True)
        before = rows_of(both[0])
        assert pond.alter_map(both[0].name, store=store) is both[0]
        assert str(pond.map(both[0].name).definition.store) == store
        assert rows_of(both[0]) == before == rows_of(both[1])
    assert pond.verify(full=True).ok


@pytest.mark.parametrize("store", STORES)
def test_an_open_snapshot_keeps_its_answers(pond: Pond, store: str) -> None:
    made = pond.create_map("m", kind="state", value="long", store="layers" if store == "shard" else "shard")
    made.load([{"key": "a", "value": 1}])
    held = made.snapshot()
    pond.alter_map("m", store=store)
    made.load([{"key": "a", "value": 2}])
    assert held.lookup(["a"]).to_pylist() == [1]
    assert made.lookup(["a"]).to_pylist() == [2]


def test_branches_and_tags_keep_their_rows_of_a_map_that_went_into_a_shard(pond: Pond) -> None:
    assert isinstance(pond.clock, ManualClock)
    made = pond.create_map("m", kind="state", value="long", store="layers")
    made.load([{"key": "a", "value": 1}, {"key": "b", "value": 1}])
    pond.repository("pond").create_tag("first", "main")
    pond.branch("fix", source="main").map("m").load([{"key": "b", "value": 2}])
    pond.alter_map("m", store="shard")
    for value in (3, 4):
        pond.map("m").load([{"key": "c", "value": value}])
        pond.map("m").freeze()
        pond.clock.advance(DAY)
    report = pond.map("m").delete("key = 'a'", now=True)
    assert not report.purged
    assert sorted(line.partition("; ")[2][:5] for line in report.left) == ["a tag", "branc"]
    assert pond.at("first").map("m").lookup(["a", "b"]).to_pylist() == [1, 1]
    assert pond.branch("fix").map("m").lookup(["a", "b"]).to_pylist() == [1, 2]
    pond.alter_map("m", store="layers")
    pond.branch("fix").merge()
    assert pond.map("m").lookup(["a", "b", "c"]).to_pylist() == [None, 2, 4]


def test_nothing_is_done_where_the_map_is_there_already(pond: Pond) -> None:
    made, position = pond.create_map("m", kind="state"), pond.log.position()
    assert pond.alter_map("m", store="shard") is made
    assert pond.log.position() == position
    with pytest.raises(Invalid, match="store"):
        pond.alter_map("m", store="tree")


def test_an_empty_map_goes_over(pond: Pond) -> None:
    made = pond.create_map("m", kind="state", value="long")
    for store in (*STORES, *STORES):
        pond.alter_map("m", store=store)
        assert rows_of(made) == []
    made.load([{"key": "a", "value": 1}])
    assert made.get("a") == 1


def test_settings_are_altered_in_the_same_call(pond: Pond) -> None:
    pond.create_map("m", kind="temporal_state", retain="1d", retain_by="update_time")
    pond.alter_map("m", store="layers", retain_by="effective_time")
    pond.alter_map("m", store="shard", retain_by="update_time")
    assert pond.map("m").definition.retain_by == "update_time"


@pytest.mark.usefixtures("process")
@pytest.mark.sample(3)
@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_update_times_go_over_and_back(pond: Pond, name: str, overwrite: bool) -> None:
    settings = KINDS[name] | {"retain": "1y", "retain_by": "update_time", "overwrite": overwrite}
    made = pond.create_map("m", **settings, store="shard")
    model = MapModel(made.kind, overwrite=overwrite)

    def load(number: int) -> None:
        table = table_of(made, number)
        assert isinstance(pond.clock, ManualClock)
        pond.clock.advance(DAY)
        pond.map("m").load(table, again=True)
        model.put(model_rows(made, table), now=pond.clock.now_ms())

    for turn, store in enumerate((*STORES, *STORES)):
        for number in (3 * turn, 3 * turn + 1, 2):
            load(number)

        def more(moment: str, number: int = 3 * turn + 2) -> None:
            if moment in ("convert.frozen", "convert.written"):
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(load, number).result()

        with listening(more):
            pond.alter_map("m", store=store)
    for before in sorted({*model.updated.values()}):
        for moment in (before, before + 1):
            removed = model.retain(moment, by="update_time")
            assert pond.map("m").retain(before=moment).rows_removed == removed
    assert not model.rows
    assert pond.verify(full=True).ok


def test_a_load_is_known_when_it_is_sent_again(pond: Pond) -> None:
    made = pond.create_map("m", kind="state", value="long")
    writer = pond.part_writer("m")
    writer.write(canonical_of(made.definition, [(("a",), 1)]))
    parts = writer.finish()
    first = pond.commit_load(parts, load_id="first")
    for store in STORES:
        pond.alter_map("m", store=store)
        assert pond.commit_load(parts, load_id="first").position == first.position
    assert made.info()["rows"] == 1


def test_the_handle_of_another_process_says_so(pond: Pond) -> None:
    pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
    with millpond.open(pond.folder) as other:
        for store in STORES:
            there = other.map("m")
            assert there.get("a") == 1
            pond.alter_map("m", store=store)
            with pytest.raises(Conflict) as refused:
                there.get("a")
            assert refused.value.kind == "map_converted"
            assert other.map("m").get("a") == 1


@pytest.mark.parametrize("store", STORES)
def test_loads_that_come_meanwhile_are_in_it(pond: Pond, store: str) -> None:
    made = pond.create_map("m", kind="state", value="long", store="layers" if store == "shard" else "shard")
    made.load([{"key": "a", "value": 1}, {"key": "b", "value": 1}])
    loads = iter([{"key": "b", "value": 2}, {"key": "c", "value": 3}])

    def load(moment: str) -> None:
        if moment in ("convert.frozen", "convert.written"):
            with ThreadPoolExecutor(1) as pool:
                for row in loads:
                    pool.submit(made.load, [row]).result()

    with listening(load):
        convert(pond.loading, made, Store(store))
    assert {row["key"]: row["value"] for row in rows_of(pond.map("m"))} == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("altered_by", ["this pond", "another process"])
def test_a_handle_has_the_settings_of_now(pond: Pond, tmp_path: Path, store: str, altered_by: str) -> None:
    weather = pond.create_map("weather", kind="temporal_state", value="long", store=store)
    weather.load({"key": ["a"] * 3, "effective_time": instants(1, 2, 3), "value": [5, 5, 6]})
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1_700_000_000_000)) as other:
        who = pond if altered_by == "this pond" else other
        who.alter_map("weather", maintenance_suspended=True, condense="1d")
        assert weather.condense().suspended and weather.condense(before=10).suspended
        assert (weather.info()["rows"], weather.info()["condense_ms"]) == (3, DAY)
        who.alter_map("weather", maintenance_suspended=False, retain="1d")
        assert weather.condense().rows_removed == 1
        assert weather.retain().rows_removed == 2


def test_a_handle_of_an_aggregate_rolls_up_once_the_map_does(pond: Pond) -> None:
    sales = pond.create_map("sales", kind="aggregate", value="orders long count", resolution="1 hour")
    sales.load({"key": ["a", "a"], "time": instants(1, DAY // 2)})
    pond.alter_map("sales", retain="1d", roll_up="1 day")
    assert sales.retain().rows_after == 1
    assert sales.get("a", at=1) == {"orders": 2}
