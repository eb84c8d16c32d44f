"""Rows with large values: as many are merged at once as memory may hold, not a number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millpond
from millpond.maps.layered import differences
from millpond.maps.loads import merge_queue
from millpond.maps.loads.load import seal_data
from millpond.maps.loads.merge import Arrived, MergeReport, merge_loads
from millpond.maps.loads.pond_folder import writer_folder
from millpond.maps.shard.shard import Shard
from millpond.refs.diffs import map_differences

VALUE_BYTES = 1 << 20


def load_waiting(pond: millpond.Pond, first: int, count: int) -> None:
    """Enter one load of some parts of large values, and leave it to wait."""
    folder, parts = writer_folder(pond.folder, pond.clock), []
    for number in range(first, first + count):
        rows = pa.table({"key": [f"k{number}"], "value": pa.array([bytes([number]) * VALUE_BYTES], pa.binary())})
        parts += seal_data(pond.map("m").definition, rows, folder / str(number))[0]
    pond.commit_load(parts, wait=False)


def test_loads_of_large_values_are_folded_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[int] = []

    def counted(shard: Shard, loads: Sequence[Arrived], **settings: Any) -> MergeReport:
        merged.append(len(loads))
        return merge_loads(shard, loads, **settings)

    monkeypatch.setattr(merge_queue, "merge_loads", counted)
    monkeypatch.setattr(merge_queue, "FOLD_BYTES", 2 * VALUE_BYTES)
    with millpond.open(tmp_path) as pond:
        made = pond.create_map("m", kind="state", value="binary")
        for number in range(7):
            load_waiting(pond, number, 1)
        pond.merge()
        assert merged == [2, 2, 2, 1]
        assert [made.get(f"k{number}")[:1] for number in range(7)] == [bytes([number]) for number in range(7)]


@pytest.mark.usefixtures("processor")
def test_large_rows_are_compared_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"{number:05d}" for number in range(60_000)]
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("m", kind="state", value="long", store="layers").load([{"key": "00001", "value": 1}])
        with pond.branch("large", source="main") as branch:
            branch.map("m").load({"key": keys, "value": range(len(keys))})
        states = pond.refs.states
        before, after = (states.maps(states.commit(ref).id) for ref in ("main", "large"))

        def steps() -> list[int]:
            return [len(step.difference) for step in map_differences(before, after, states.layers_for)]

        assert sum(steps()) == len(keys) - 1
        monkeypatch.setattr(differences, "BYTES_AT_ONCE", 1)
        assert sum(steps()) == len(keys) - 1 and len(steps()) > 1
