"""Maps whose rows lie in layers: what a load leaves on the disk, loads at the same time, what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid, NotFound
from millpond.kernel.steps import listening
from millpond.maps.layered.maintenance import LAYERS_AFTER_LOAD, LAYERS_LATER, collect_files, fold_due
from millpond.maps.model.store_limits import STORES
from millpond.maps.snapshots.layers import BYTES_AFTER_LOAD_MIN
from millpond.maps.snapshots.manifest import list_manifests
from millpond.pond import open_pond
from millpond.ranges import files
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from millpond import Map, Pond

HOUR = 3_600_000


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1_700_000_000_000)) as opened:
        yield opened


@pytest.fixture
def layered(pond: Pond) -> Map:
    return pond.create_map("m", kind="state", value="long", store="layers")


def numbered(first: int, last: int, value: int) -> list[dict[str, object]]:
    return [{"key": f"k{number}", "value": value} for number in range(first, last)]


def files_of(layered: Map) -> set[str]:
    return {named.name for folder in ("ranges", "indexes", "manifests") for named in layered.objects.list(folder)}


def test_what_was_loaded_answers_at_once(pond: Pond, layered: Map) -> None:
    assert layered.get("k1") is None
    assert layered.load(numbered(0, 3, 1)).rows == 3
    assert layered.load(numbered(2, 4, 2)).maps == {"m": 2}
    assert layered.get("k1") == 1
    assert layered.lookup(["k2", "k3", "k4"]).to_pylist() == [2, 2, None]
    assert sorted(layered.scan("value = 2").read_all()["key"].to_pylist()) == ["k2", "k3"]
    assert pond.sql("select sum(value) as total from m").to_pylist() == [{"total": 6}]
    info = layered.info()
    assert (info["store"], info["rows"], info["version"], info["snapshot_current"]) == ("layers", 4, 2, True)


def test_the_store_is_kept_and_shown(pond: Pond, layered: Map) -> None:
    again = pond.create_map("m", kind="state", value="long", store="layers", exist_ok=True)
    assert again.definition == layered.definition
    with pytest.raises(millpond.AlreadyExists):
        pond.create_map("m", kind="state", value="long", exist_ok=True)
    with pytest.raises(Invalid, match="store is not known") as refused:
        pond.create_map("n", kind="state", store="glass")
    assert refused.value.kind == "store_unknown"
    assert "store" not in pond.create_map("n", kind="state").definition.to_dict()


def test_a_load_is_entered_once(pond: Pond, layered: Map) -> None:
    rows = numbered(0, 3, 1)
    layered.load(rows)
    layered.load(numbered(0, 1, 2))
    assert layered.load(rows).duplicate_parts == 1
    assert layered.get("k0") == 2
    assert layered.load(rows, again=True).duplicate_parts == 0
    assert layered.get("k0") == 1


def test_parts_of_tasks_become_one_layer(pond: Pond, layered: Map) -> None:
    other = pond.create_map("other", kind="state", value="long")
    for turn in range(2):
        parts = []
        for name, value in (("m", 1), ("m", 2), ("other", 3)):
            writer = pond.part_writer(name)
            writer.write(canonical_of(pond.map(name).definition, [(("k",), value), ((f"k{value}",), value)]))
            parts += writer.finish()
        result = pond.commit_load(parts, load_id="tasks")
        assert result.maps == {"m": 4, "other": 2}, turn
    assert (layered.get("k"), other.get("k"), layered.info()["version"]) == (2, 3, 1)
    assert not list((pond.folder / "parts").iterdir())


def test_loads_at_the_same_time_are_all_there(pond: Pond, layered: Map) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda load: layered.load(numbered(load, load + 2, load)), range(12)))
    assert layered.info()["rows"] == 13
    assert layered.info()["version"] == 12


def test_rejected_rows_fail_the_load(layered: Map) -> None:
    rows = [{"key": "a", "value": 1}, {"key": None, "value": 2}]
    with pytest.raises(Invalid):
        layered.load(rows)
    assert layered.info()["rows"] == 0
    assert layered.load(rows, max_rejects=1).rejected == 1
    assert layered.get("a") == 1


def test_folding_and_collecting_leave_what_counts(pond: Pond, layered: Map) -> None:
    for load in range(5):
        layered.load(numbered(load, load + 2, load))
    held = layered.snapshot()
    assert isinstance(pond.clock, ManualClock)
    pond.clock.advance(31 * 24 * HOUR)
    layered.compact()
    assert held.lookup(["k4"]).to_pylist() == [4]
    held.close()
    layered.close()
    layered.compact()
    (manifest,) = list_manifests(layered.objects)
    assert len(manifest.layers) == 1
    assert len(files_of(layered)) == 3
    assert layered.info()["rows"] == 6


def test_a_load_that_was_given_up_leaves_nothing(pond: Pond, layered: Map) -> None:
    layered.load(numbered(0, 2, 0))
    before = files_of(layered)

    def stop(step: str) -> None:
        if step == "load.layers_placed":
            assert layered.layers is not None
            assert collect_files(layered.layers) is None, "somebody writes"
            raise InterruptedError

    with listening(stop), pytest.raises(InterruptedError):
        layered.load(numbered(0, 2, 1))
    assert files_of(layered) > before
    assert isinstance(pond.clock, ManualClock)
    pond.clock.advance(HOUR)
    layered.compact()
    assert files_of(layered) == before
    assert layered.get("k0") == 0


def test_a_load_during_a_fold_stays_on_top(layered: Map) -> None:
    layered.load(numbered(0, 400, 0))
    layered.load(numbered(1, 2, 5))
    loaded: list[bool] = []

    def load(step: str) -> None:
        if step == "fold.written" and not loaded:
            loaded.append(True)
            with ThreadPoolExecutor(1) as thread:
                thread.submit(layered.load, numbered(2, 3, 7)).result()

    with listening(load):
        assert layered.layers is not None
        fold_due(layered.layers, everything=True)
    assert loaded
    assert layered.lookup(["k0", "k1", "k2"]).to_pylist() == [0, 5, 7]


LARGE_ROWS, LARGE_BYTES = 20, 1 << 16
"""A layer that no small load may fold."""


def bytes_of(layered: Map) -> dict[str, int]:
    return {named.name: named.size for named in layered.objects.list("ranges")}


@pytest.mark.parametrize("branch", [False, True], ids=["main", "branch"])
def test_a_small_load_folds_no_more_than_follows_what_it_brings(pond: Pond, branch: bool) -> None:
    main = pond.create_map("m", kind="state", value="binary", store="layers")
    generator = np.random.default_rng(7)
    for number in range(LAYERS_AFTER_LOAD):
        main.load([
            {"key": f"{number}/{row}", "value": generator.bytes(LARGE_BYTES)} for row in range(LARGE_ROWS)
        ])  # fmt: skip
    large = bytes_of(main)
    assert sum(large.values()) > LAYERS_AFTER_LOAD * BYTES_AFTER_LOAD_MIN
    target = pond.branch("fix", source="main").map("m") if branch else main
    most = LAYERS_LATER if branch else LAYERS_AFTER_LOAD
    for number in range(most):
        shared, before = main.freeze().layers, bytes_of(main)
        target.load([{"key": "0/0", "value": b"%d" % number}])
        brought = sum(size for name, size in bytes_of(main).items() if name not in before)
        assert brought < BYTES_AFTER_LOAD_MIN // 16
        layers = target.freeze().layers
        assert len(layers) <= most + 1
        assert not branch or layers[-len(shared) :] == shared, "differences and merges skip them"
        assert target.get("0/0") == b"%d" % number


def test_a_difference_checks_the_files_that_both_share_once(
    pond: Pond, layered: Map, monkeypatch: pytest.MonkeyPatch
) -> None:
    layered.load(numbered(0, 400, 0))
    shared, checked = set(bytes_of(layered).values()), list[int]()
    pond.branch("fix", source="main").map("m").load(numbered(1, 3, 5))
    checksum = files._checksum

    def counted(data: pa.Buffer, zeroed: Sequence[int]) -> str:
        checked.append(data.size)
        return checksum(data, zeroed)

    monkeypatch.setattr(files, "_checksum", counted)
    for again in (False, True):
        checked.clear()
        assert pond.refs.diff("main", "fix", map="m")["new"].to_pylist() == [5, 5]
        assert shared.isdisjoint(checked) == again
    pond.branch("fix").merge()
    assert layered.lookup(["k0", "k1"]).to_pylist() == [0, 5]


def test_what_layers_do_not_do_is_refused(layered: Map) -> None:
    with pytest.raises(Invalid) as error:
        layered.shard  # noqa: B018 - a property that is refused
    assert (error.value.kind, error.value.values["operation"]) == ("store_unsupported", "shard")


BY_UPDATE: list[dict[str, Any]] = [
    {"kind": "state", "retain": "1d"}, {"kind": "temporal_state", "retain_by": "update_time"}
]  # fmt: skip
AUTO = {False: "layers", True: "shard"}
"""The store of a pond in a folder, and of one that a node serves."""


@pytest.mark.parametrize("serve", [False, True])
@pytest.mark.parametrize("preferred", STORES)
def test_a_map_that_names_no_store_is_made_as_the_pond_prefers(tmp_path: Path, preferred: str, serve: bool) -> None:
    with open_pond(tmp_path / "pond", serve=serve, maps_store=preferred) as pond:
        expected = preferred if preferred != "auto" else AUTO[serve]
        made = pond.create_map("m", kind="temporal_state")
        assert made.definition.store == expected
        assert pond.create_map("m", kind="temporal_state", exist_ok=True).definition == made.definition
        for number, settings in enumerate(BY_UPDATE):
            assert pond.create_map(f"u{number}", **settings).definition.store == expected
        for store in ("layers", "shard"):
            assert pond.create_map(store, kind="state", store=store).definition.store == store


def test_the_environment_says_where_maps_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_MAPS_STORE", "layers")
    with millpond.open(tmp_path / "pond") as pond:
        assert pond.create_map("m", kind="state").definition.store == "layers"
    monkeypatch.setenv("MILLPOND_MAPS_STORE", "heap")
    with pytest.raises(Invalid, match="no such store"):
        millpond.open(tmp_path / "pond")


def test_a_dropped_map_takes_its_files_along(pond: Pond, layered: Map) -> None:
    layered.load(numbered(0, 2, 0))
    pond.drop_map("m")
    assert not list((pond.folder / "snapshots").glob("m.*"))
    with pytest.raises(NotFound):
        layered.load(numbered(0, 2, 1))
