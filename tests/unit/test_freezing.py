"""Snapshots are made of the shard: what is lost or damaged of them is made again."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import millpond
from millpond.maps.snapshots.freeze import freeze
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.memory_bound import MEMORY_LEAST
from millpond.nodes.fresh_snapshots import FreshSnapshots
from millpond.spark.locations import SparkFolder
from millpond.spark.planned_snapshot import snapshots_of
from millpond.stores.files import remove_tree
from millpond.stores.objects import open_objects
from tests.unit.versions_memory_child import MALLOC

ROOT = Path(__file__).parents[2]
CHILD = "tests.unit.freeze_memory_child"
LIMIT_BYTES = 96 << 20


def test_a_snapshot_removed_by_hand_is_frozen_again(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        codes = pond.create_map("codes", kind="state", value="long")
        codes.load([{"key": "a", "value": 1}])
        assert codes.lookup(["a"]).to_pylist() == [1]
    for folder in (tmp_path / "pond" / "snapshots").iterdir():
        remove_tree(folder)
    with millpond.open(tmp_path / "pond") as pond:
        assert pond.map("codes").lookup(["a", "b"]).to_pylist() == [1, None]


def test_a_damaged_older_snapshot_does_not_hold_up_the_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        codes = pond.create_map("codes", kind="state", value="long")
        codes.load([{"key": "a", "value": 1}])
        codes.freeze()
        (folder,) = (tmp_path / "pond" / "snapshots").iterdir()
        (index,) = (file for file in (folder / "indexes").rglob("*") if file.is_file())
        codes.load([{"key": "a", "value": 2}])
        codes.freeze()
        index.write_bytes(b"no index")
        codes.load([{"key": "a", "value": 3}])
        with caplog.at_level(logging.WARNING):
            codes.freeze()
        assert codes.lookup(["a"]).to_pylist() == [3]
        assert [record for record in caplog.records if index.name in record.getMessage()]


@pytest.mark.usefixtures("processor")
def test_keys_that_clash_by_the_thousand_are_frozen(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        codes = pond.create_map("codes", kind="state", value="long", scheme="hash", hash_bits=2)
        names = [f"key {number}" for number in range(5_000)]
        for load in (names[::2], names[1::2]):
            codes.load([{"key": name, "value": int(name[4:])} for name in load])
        assert codes.lookup([*names, "key 5000"]).to_pylist() == [*range(5_000), None]
        assert sum(batch.num_rows for batch in codes.scan()) == 5_000


def memories(*snapshots: Snapshot) -> set[int]:
    return {snapshot.finder.memory_max for snapshot in snapshots if snapshot.finder is not None}


def test_snapshots_take_the_memory_that_their_pond_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_MAPS_MEMORY_MAX", "64MiB")
    rows = [{"key": "a", "effective_time": 5_000_000_000_000, "value": 1}]
    with millpond.open(tmp_path / "pond", maps_memory_max="32MiB") as pond:
        fresh = FreshSnapshots(pond.clock, 1000)
        for store in ("shard", "layers"):
            target = pond.create_map(store, kind="temporal_state", value="long", store=store)
            target.load(rows)
            planned = snapshots_of(SparkFolder(str(pond.folder)), target).open(target.freeze().id)
            served = fresh.of(target).snapshot
            target.load([{**rows[0], "value": 2}])
            laid = fresh.of(target)  # of a shard, what was loaded lies over what was frozen
            bounded = target.snapshot(keys=("a", "b"))
            assert memories(planned, served, laid.snapshot, laid.base, target.snapshot(), bounded) == {32 << 20}, store
        past, at_ref = target.rows.past.snapshot(pond.clock.now_ms()), pond.at("main").map("layers").snapshot()
        assert memories(past, at_ref) == {32 << 20}
        assert memories(Snapshot.open(target.objects, target.freeze())) == {64 << 20}, "as the environment says"
        fresh.close()


@pytest.mark.full
@pytest.mark.usefixtures("process")
def test_a_map_larger_than_memory_is_frozen_under_a_limit(tmp_path: Path) -> None:
    """Without a bound it takes 300 MB more than the limit; with it, the same files come out."""
    numbers = np.random.default_rng(7).permutation(1_500_000)
    with millpond.open(tmp_path / "pond", events_reports=False) as pond:
        for name, count in (("small", 1_000), ("large", len(numbers))):
            keys = pc.binary_join_element_wise("a key of some length ", pa.array(numbers[:count]).cast(pa.string()), "")
            pond.create_map(name, kind="state", value="long").load(pa.table({"key": keys, "value": numbers[:count]}))
    command = [sys.executable, "-m", CHILD, str(tmp_path / "pond"), str(MEMORY_LEAST), str(LIMIT_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | MALLOC)
    assert done.returncode == 0, done.stderr
    with millpond.open(tmp_path / "pond") as pond:
        large = pond.map("large")
        with large.shard.view() as view:
            whole = freeze(open_objects("memory://"), large.definition, view.read_rows(), shard_version=1, created_ms=1)
        assert [layer.index for layer in whole.layers] == json.loads(done.stdout)
        assert large.lookup(["a key of some length 77"]).to_pylist() == [77]


@pytest.mark.parametrize("size", ["3MiB", 1024])
def test_too_little_memory_is_refused(tmp_path: Path, size: str | int) -> None:
    with pytest.raises(millpond.Invalid, match="memory_max"):
        millpond.open(tmp_path / "pond", maps_memory_max=size)


@pytest.mark.full
@pytest.mark.usefixtures("process")
def test_a_map_larger_than_memory_is_loaded_under_a_limit(tmp_path: Path) -> None:
    """Its rows alone are more than the limit; they are sealed in parts, merged in one pass, and frozen."""
    count = 3_000_000
    command = [
        sys.executable,
        "-m",
        "tests.unit.load_memory_child",
        str(tmp_path / "pond"),
        str(count),
        str(LIMIT_BYTES),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | MALLOC)
    assert done.returncode == 0, done.stderr
    with millpond.open(tmp_path / "pond") as pond:
        large = pond.map("large")
        assert large.info()["rows"] == count
        assert large.lookup([f"a key of some length {n:08d}" for n in (0, 77, count)]).to_pylist() == [0, 77, None]
