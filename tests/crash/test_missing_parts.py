"""Parts without their data: others are merged, and no row is lost."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.testing.faults import flip_byte
from tests.harness.part_pieces import quarantined_in
from tests.harness.rows import canonical_of
from tests.rings.forked import run_python

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Pond

RETRIER = """
import sys
from pathlib import Path
import millpond
from millpond.clock import ManualClock
from millpond.testing.faults import arm

with arm(kill_at=sys.argv[2]), millpond.open(Path(sys.argv[1]), clock=ManualClock(now=5)) as pond:
    pond.parts.retry()
    pond.merge()
"""


def queue(pond: Pond, load: str) -> str:
    """Enter a load of one part and merge nothing; the part's id."""
    writer = pond.part_writer("m")
    writer.write(canonical_of(pond.map("m").definition, [((load,), load), (("last",), load)]))
    parts = writer.finish()
    pond.commit_load(parts, load_id=load, wait=False)
    return parts[0].manifest.id


def quarantine_first(pond: Pond, intact: Path) -> str:
    """Enter a load whose part is damaged while it waits, and merge: its id, and a whole copy of it."""
    part = queue(pond, "first")
    place = pond.parts.file(part)
    assert place is not None
    shutil.copyfile(place, intact)
    flip_byte(place, 6000)
    pond.merge()
    assert [gone.part for gone in pond.parts.quarantined()] == [part]
    return part


def killed(folder: Path, step: str) -> None:
    assert run_python("-c", RETRIER, str(folder), step).returncode == -signal.SIGKILL, step


def answers(pond: Pond, *keys: str) -> list[object]:
    return [pond.map("m").get(key) for key in keys]


@pytest.mark.parametrize("retention", ["0s", "7d"])
@pytest.mark.parametrize("rows_before", [True, False])
@pytest.mark.parametrize("missing", ["one", "two", "three"])
def test_a_part_without_its_data_blocks_no_other(
    tmp_path: Path, retention: str, rows_before: bool, missing: str
) -> None:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1), maps_part_retention=retention) as pond:
        made = pond.create_map("m", kind="state", value="string")
        if rows_before:
            made.load({"key": ["before"], "value": ["v"]})
        parts = {load: queue(pond, load) for load in ("one", "two", "three")}
        place = pond.parts.file(parts[missing])
        assert place is not None
        place.unlink()
        pond.merge()
        assert [gone.part for gone in pond.parts.quarantined()] == [parts[missing]]
        assert answers(pond, *parts) == [None if load == missing else load for load in parts]
        assert not pond.parts.queued_maps()


@pytest.mark.parametrize("step", ["merge.part_taken", "shard.switched", "shard.changed", "merge.dequeued:2"])
def test_a_part_that_comes_again_as_the_first_is_killed(tmp_path: Path, step: str) -> None:
    folder, intact = tmp_path / "pond", tmp_path / "intact"
    with millpond.open(folder, clock=ManualClock(now=1)) as pond:
        pond.create_map("m", kind="state", value="string")
        first = quarantine_first(pond, intact)
        shutil.copyfile(intact, quarantined_in(pond.folder))
    killed(folder, step)
    with millpond.open(folder, clock=ManualClock(now=9)) as pond:
        pond.merge()
        assert answers(pond, "first", "last") == ["first", "first"]
        assert [gone.part for gone in pond.parts.quarantined()] == [], first
        assert not pond.parts.queued_maps()
        assert pond.verify().ok
