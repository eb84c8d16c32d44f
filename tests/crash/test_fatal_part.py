"""A part that ends the process while it is merged: tried twice, then quarantined; the others are merged."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.maps.loads.attempts import MergeAttempts
from tests.harness.rows import canonical_of
from tests.rings.forked import run_python

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Pond

LOADS = ("before", "fatal", "after")


def queue(pond: Pond, load: str) -> None:
    """Enter a load of two parts and merge nothing."""
    parts = []
    for piece in ("one", "two"):
        writer = pond.part_writer("m")
        writer.write(canonical_of(pond.map("m").definition, [((f"{load}-{piece}",), load)]))
        parts += writer.finish()
    pond.commit_load(parts, load_id=load, wait=False)


def answers(pond: Pond) -> dict[str, object]:
    return {load: pond.map("m").get(f"{load}-two") for load in LOADS}


def merge_in_child(folder: Path, *step: str) -> int:
    return run_python("-m", "tests.crash.fatal_child", str(folder), "fatal", *step).returncode


def test_a_part_that_ends_the_process_twice_is_quarantined(tmp_path: Path) -> None:
    folder = tmp_path / "pond"
    with millpond.open(folder, clock=ManualClock(now=1), maps_part_retention="7d") as pond:
        made = pond.create_map("m", kind="state", value="string")
        pond.create_map("other", kind="state", value="string").load({"key": ["k"], "value": ["v"]})
        made.load({"key": ["first"], "value": ["v"]})
        for load in LOADS:
            queue(pond, load)
    # The first time all three loads are merged together; from then on one at a time, to see which of them it is.
    assert merge_in_child(folder) == -signal.SIGKILL
    assert merge_in_child(folder) == -signal.SIGKILL
    assert merge_in_child(folder) == 0
    with millpond.open(folder, clock=ManualClock(now=9)) as pond:
        assert answers(pond) == {"before": "before", "fatal": None, "after": "after"}
        quarantined = pond.parts.quarantined()
        assert [part.queued.load for part in quarantined if part.queued] == ["fatal", "fatal"]
        assert {part.reason for part in quarantined} == {"the process ended 2 times while the part was merged"}
        assert MergeAttempts(pond.map("m").shard.folder).counts() == {}
        # Who mended what was wrong takes them again.
        assert [part.state for part in pond.parts.retry()] == ["retained", "retained"]
        assert answers(pond)["fatal"] == "fatal"


@pytest.mark.parametrize("rows_before", [True, False])
def test_a_part_whose_rows_are_in_the_map_is_not_quarantined(tmp_path: Path, rows_before: bool) -> None:
    """The process ended twice at its merge, but the second time the shard had its rows."""
    folder = tmp_path / "pond"
    with millpond.open(folder, clock=ManualClock(now=1)) as pond:
        pond.create_map("m", kind="state", value="string")
        pond.create_map("other", kind="state", value="string").load({"key": ["k"], "value": ["v"]})
        if rows_before:
            pond.map("m").load({"key": ["first"], "value": ["v"]})
        queue(pond, "fatal")
    assert merge_in_child(folder, "shard.changed_uncommitted") == -signal.SIGKILL
    assert merge_in_child(folder, "shard.changed") == -signal.SIGKILL
    with millpond.open(folder, clock=ManualClock(now=9)) as pond:
        assert pond.map("m").get("fatal-two") == "fatal"
        assert not pond.parts.quarantined()
        assert not pond.parts.queued_maps()
        assert MergeAttempts(pond.map("m").shard.folder).counts() == {}


def test_a_merge_that_returns_leaves_no_attempt(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1)) as pond:
        made = pond.create_map("m", kind="state", value="string")
        made.load({"key": ["k"], "value": ["v"]})
        made.load({"key": ["k"], "value": ["w"]})
        assert not list(made.shard.folder.glob("attempts*"))


def test_a_part_that_was_merged_is_not_suspected_when_it_is_queued_again(tmp_path: Path) -> None:
    """A process may end after a merge and before its attempt is taken back."""
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=1)) as pond:
        made = pond.create_map("m", kind="state", value="string")
        made.load({"key": ["k"], "value": ["v"]})
        part = str(pond.log.entries(0)[-1].body["parts"][0]["id"])
        attempts = MergeAttempts(made.shard.folder)
        for _ in range(2):
            attempts.begin([part])
        made.load({"key": ["k"], "value": ["w"]})
        assert attempts.counts() == {}
        attempts.begin([part, "b" * 32])
        assert attempts.leave(["b" * 32])
        assert attempts.counts() == {"b" * 32: 1}
        assert not attempts.leave([])


def test_an_unreadable_count_of_attempts_counts_as_none(tmp_path: Path) -> None:
    part, other = "a" * 32, "b" * 32
    attempts = MergeAttempts(tmp_path)
    attempts.begin([part, other])
    attempts.begin([part])
    assert attempts.counts() == {part: 2, other: 1}
    attempts.ended([part])
    assert attempts.counts() == {other: 1}
    (tmp_path / "attempts").write_bytes(b"\xff" * 7 + other.encode() + b" 1")
    assert attempts.counts() == {}
    attempts.ended([other])
    assert not (tmp_path / "attempts").exists()
