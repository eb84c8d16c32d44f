"""Parts of aggregates in shards that could not be added: what counts of them, and when."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond
from millpond.errors import Corrupt
from millpond.maps.parts import part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Pond


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond") as opened:
        yield opened


@pytest.mark.usefixtures("process")
def test_of_copies_in_quarantine_one_that_is_whole_counts(pond: Pond) -> None:
    sums = pond.create_map("sums", kind="aggregate", value="total long sum", resolution="none", store="shard")
    largest = 2**63 - 1
    sums.load([{"key": "a", "time": 1, "total": largest}])
    for _ in range(2):  # nothing counted, so the same events may come again
        with pytest.raises(Corrupt, match="quarantine"):
            sums.load([{"key": "a", "time": 1, "total": 1}])
    for when in ("total < 9000000000000000000", "total >= 9223372036854775798"):  # what comes late is judged as well
        sums.alerts.add(when)
    sums.load([{"key": "a", "time": 1, "total": -10}])
    first, _ = sorted(file for file in (pond.folder / "quarantine").iterdir() if file.suffix != ".json")
    first.write_bytes(b"damaged")
    pond.parts.retry()
    assert sums.get("a", at=1) == {"total": largest - 9}
    (alert,) = pond.events.read("millpond", "alerts/sums")
    assert (alert.headers["rule"], json.loads(alert.payload)["after"]) == ("alert_2", {"total": largest - 9})
    assert not pond.parts.list(state="quarantined")


def test_a_load_that_counts_in_part_says_so(pond: Pond, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "PART_ROWS_MAX", 1)
    sums = pond.create_map("sums", kind="aggregate", value="total long sum", resolution="none", store="shard")
    sums.load([{"key": "a", "time": 1, "total": 2**63 - 1}])
    both = pa.Table.from_pylist([{"key": key, "time": 1, "total": 1} for key in "ab"])
    with pytest.raises(Corrupt, match="millpond parts retry"):
        sums.load(both.to_reader(1))
    assert sums.get("b", at=1) == {"total": 1}
    assert sums.load(both.to_reader(1)).parts == 0
    sums.load([{"key": "a", "time": 1, "total": -1}])
    pond.parts.retry()
    assert [sums.get(key, at=1)["total"] for key in "ab"] == [2**63 - 1, 1]
