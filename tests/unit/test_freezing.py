"""Snapshots are made of the shard: what is lost or damaged of them is made again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import millpond
from millpond.stores.files import remove_tree


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


def test_keys_that_clash_by_the_thousand_are_frozen(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        codes = pond.create_map("codes", kind="state", value="long", scheme="hash", hash_bits=2)
        names = [f"key {number}" for number in range(5_000)]
        for load in (names[::2], names[1::2]):
            codes.load([{"key": name, "value": int(name[4:])} for name in load])
        assert codes.lookup([*names, "key 5000"]).to_pylist() == [*range(5_000), None]
        assert sum(batch.num_rows for batch in codes.scan()) == 5_000
