"""The jobs of a node: their effect on maps, and the conditions under which they do nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from millpond.errors import NotFound, Unavailable
from millpond.maps.loads.load import seal_data
from millpond.maps.map import Map
from millpond.maps.shard.free_space import free_space
from millpond.nodes.jobs.jobs import node_jobs
from millpond.nodes.jobs.maintenance import MaintenanceOrders
from millpond.nodes.replication.log_agreement import Finding
from millpond.testing.passing_time import while_time_passes
from tests.nodes.job_context import DAY, HOUR, MINUTE, NOW, Compared, JobContext, Pulling


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobContext]:
    monkeypatch.chdir(tmp_path)
    tended = JobContext(tmp_path / "pond")
    yield tended
    tended.close()


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def owner(node: JobContext, times: Sequence[int], name: str = "owner", **settings: Any) -> Map:
    """A map in which one key has the same value at each of these times."""
    made = node.pond.create_map(name, kind="temporal_state", value="string", exist_ok=True, **settings)
    made.load([{"key": "car", "effective_time": moment(time), "value": "ann"} for time in times])
    return made


# -- maintenance, ordered ------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["shard", "layers"])
def test_maintenance_is_ordered_with_its_watermark_and_says_what_it_did(node: JobContext, store: str) -> None:
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY, NOW - HOUR], condense="1d", store=store)
    owner(node, [NOW], name="plain")
    outcome = node.run("condense")
    assert outcome.summary == "condensed 1 of 2 maps, 1 row fewer"
    assert outcome.numbers == {"maps": 1, "ordered": 1, "rows_removed": 1}
    entry = node.pond.log.entries(node.position() - 1)[0]
    step = DAY // 100
    assert (entry.kind, entry.maps, entry.body["before"]) == ("condense", ("owner",), (NOW - DAY) // step * step)
    assert node.pond.map("owner").info()["rows"] == 2


def test_nothing_is_ordered_while_nothing_can_have_changed(node: JobContext) -> None:
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY, NOW - HOUR], condense="1d", retain="100d")
    node.run("condense")
    node.run("retain")
    position = node.position()
    for _ in range(60):
        assert node.run("condense").summary == node.run("retain").summary == "nothing to do in 1 map"
        node.advance(20 * MINUTE)
    assert node.position() == position, "20 hours: the last row is not a day old yet"
    node.advance(4 * HOUR)
    assert node.run("condense").summary == "condensed 1 of 1 map, 1 row fewer"
    position = node.position()
    node.advance(30 * DAY)
    assert node.run("condense").summary == "nothing to do in 1 map", "no row is left that could come of age"
    assert node.run("retain").summary == "nothing to do in 1 map"
    node.advance(70 * DAY)
    assert node.run("retain").summary == "retained 1 of 1 map, 1 row fewer"


@pytest.mark.parametrize("store", ["shard", "layers"])
def test_a_clock_that_jumps_ahead_deletes_no_row_before_it_has_stood_for_a_day(node: JobContext, store: str) -> None:
    retained = owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], condense="10d", retain="30d", store=store)
    for jump in (0, 400 * DAY, -400 * DAY, -400 * DAY, 400 * DAY):
        node.clock.now += jump
        for act in ("condense", "retain"):
            assert node.run(act).numbers.get("rows_removed", 0) == 0
    node.clock.now += 400 * DAY
    assert "kept what is old: the clock is 9600.0 hours ahead" in node.run("retain").summary
    assert retained.info()["rows"] == 2
    node.advance(DAY)
    assert node.run("retain").numbers["rows_removed"] == 2, "so long it stood: it is right"


def test_a_load_asks_for_maintenance_again_but_not_before_the_next_step(node: JobContext) -> None:
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], condense="1d")
    node.run("condense")
    owner(node, [NOW - 4 * DAY + number for number in range(5)])
    position = node.position()
    assert node.run("condense").summary == "nothing to do in 1 map"
    node.advance(DAY // 100)
    assert node.run("condense").summary == "condensed 1 of 1 map, 5 rows fewer"
    assert node.position() == position + 1


def test_steps_are_no_shorter_than_the_interval_and_no_longer_than_a_day(node: JobContext) -> None:
    owner(node, [NOW - 2 * HOUR, NOW - HOUR], name="short", condense="1h")
    owner(node, [NOW - 11 * 365 * DAY, NOW], name="long", retain="10y")
    node.run("condense")
    node.run("retain")
    for number in range(1, 5):
        owner(node, [NOW - 2 * HOUR + number], name="short")
        owner(node, [NOW + number], name="long")
        node.advance(5 * MINUTE)
        node.run("condense")
        node.run("retain")
    orders = [(entry.kind, entry.maps[0]) for entry in node.pond.log.entries(0) if entry.kind in ("condense", "retain")]
    assert orders == [("condense", "short"), ("retain", "long"), ("condense", "short"), ("condense", "short")]
    node.advance(DAY)
    assert node.run("retain").numbers["ordered"] == 1


def test_rows_that_age_by_their_update_come_of_age_with_their_load(node: JobContext) -> None:
    owner(node, [NOW - 3 * DAY], retain="10d", retain_by="update_time")
    assert node.run("retain").summary == "retained 1 of 1 map, 0 rows fewer"
    position = node.position()
    node.advance(10 * DAY - 2 * HOUR)
    node.run("retain")
    assert node.pond.map("owner").info()["rows"] == 1
    node.advance(5 * HOUR)
    assert node.run("retain").summary == "retained 1 of 1 map, 1 row fewer"
    assert node.position() <= position + 2
    position = node.position()
    node.advance(10 * DAY)
    assert node.run("retain").summary == "nothing to do in 1 map"
    assert node.position() == position


def test_repeats_that_were_loaded_late_are_condensed_when_their_load_is_old(node: JobContext) -> None:
    owner(node, [NOW - 30 * DAY, NOW - 20 * DAY], condense="10d", condense_by="update_time")
    assert node.run("condense").summary == "condensed 1 of 1 map, 0 rows fewer"
    node.advance(10 * DAY - 2 * HOUR)
    assert node.run("condense").numbers["rows_removed"] == 0
    node.advance(5 * HOUR)
    assert node.run("condense").summary == "condensed 1 of 1 map, 1 row fewer"
    node.advance(10 * DAY)
    assert node.run("condense").summary == "nothing to do in 1 map"


def test_maps_that_do_not_ask_are_suspended_or_have_no_times_are_left_alone(node: JobContext) -> None:
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], name="silent")
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], name="paused", condense="1d")
    node.pond.alter_map("paused", maintenance_suspended=True)
    node.pond.create_map("empty", kind="session", condense="1d")
    node.pond.create_map("flat", kind="state", condense="1d").load([{"key": "k", "value": "v"}])
    position = node.position()
    assert node.run("condense").summary == "nothing to do in 4 maps"
    assert node.position() == position
    node.pond.alter_map("paused", maintenance_suspended=False)
    assert node.run("condense").summary == "condensed 1 of 4 maps, 1 row fewer"


def test_sessions_come_of_age_by_their_start(node: JobContext) -> None:
    sessions = node.pond.create_map("use", kind="session", condense="1d")
    sessions.load(
        [{"key": "ann", "start": moment(NOW + at * HOUR), "end": moment(NOW + (at + 2) * HOUR)} for at in (-30, -29, 5)]
    )
    assert node.run("condense").summary == "condensed 1 of 1 map, 1 row fewer"
    node.advance(28 * HOUR)
    assert node.run("condense").summary == "nothing to do in 1 map"
    node.advance(2 * HOUR)
    assert node.run("condense").numbers["ordered"] == 1


def test_a_replica_leaves_maintenance_to_the_log(node: JobContext) -> None:
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], condense="1d")
    node.leading = False
    position = node.position()
    assert node.run("condense").summary == "follows the log of http://n1:7433"
    assert node.position() == position


def test_what_was_ordered_is_known_from_the_log_also_after_a_restart(node: JobContext) -> None:
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], condense="1d")
    node.run("condense")
    node.jobs = {job.name: job for job in node_jobs(node)}
    assert node.run("condense").summary == "nothing to do in 1 map"


def test_what_the_log_has_forgotten_counts_as_never_ordered(node: JobContext) -> None:
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], condense="1d")
    node.advance(8 * DAY)
    assert node.run("cleanup").numbers["parts"] == 1
    with pytest.raises(NotFound):
        node.pond.log.entries(0)
    assert node.run("condense").summary == "condensed 1 of 1 map, 1 row fewer"
    assert node.run("condense").summary == "nothing to do in 1 map"
    node.jobs = {job.name: job for job in node_jobs(node)}
    assert node.run("condense").summary == "nothing to do in 1 map"


def test_a_node_that_became_a_copy_of_another_reads_its_log_anew(node: JobContext) -> None:
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], condense="1d")
    orders = MaintenanceOrders(node.pond, 10 * MINUTE)
    assert orders.due(node.pond.map("owner"), "condense", NOW) is not None
    orders._read, orders._chain = node.position() + 5, "another past"
    orders._pasts["owner"].ordered["condense"] = (5, NOW)
    assert orders.due(node.pond.map("owner"), "condense", NOW) is not None


def test_a_map_dropped_and_made_again_has_no_past(node: JobContext) -> None:
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], condense="1d")
    node.run("condense")
    node.pond.drop_map("owner")
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], condense="1d")
    assert node.run("condense").summary == "condensed 1 of 1 map, 1 row fewer"


def test_one_bad_map_does_not_keep_the_others_from_maintenance(node: JobContext) -> None:
    bad = owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], name="bad", condense="1d", retain="1d")
    owner(node, [NOW - 3 * DAY, NOW - 2 * DAY], name="good", condense="1d", retain="1d")
    bad.freeze()
    node.pond.open_maps.forget()
    (bad.shard.folder / "current").write_text("astray\n")
    for name in ("compact", "snapshot"):
        outcome = node.run(name)
        (fault,) = outcome.faults
        assert fault.startswith("map bad: the map's pointer names no generation."), fault
        assert outcome.summary == "nothing to do in 2 maps"


# -- the shards and their files -----------------------------------------------------------------------


def test_a_shard_of_which_much_is_free_is_compacted(node: JobContext) -> None:
    wide = node.pond.create_map("wide", kind="temporal_state", value="string")
    wide.load(
        [
            {"key": f"key {number % 500}", "effective_time": moment(NOW - number * MINUTE), "value": "v" * 100}
            for number in range(20_000)
        ]
    )
    assert node.run("compact").summary == "nothing to do in 1 map"
    wide.retain(before=moment(NOW - 2_000 * MINUTE))
    before = free_space(wide.shard)
    assert before.share > 0.2
    node.pond.alter_map("wide", maintenance_suspended=True)
    assert node.run("compact").numbers["maps"] == 0
    node.pond.alter_map("wide", maintenance_suspended=False)
    outcome = node.run("compact")
    assert outcome.numbers["maps"] == 1
    assert outcome.numbers["bytes"] > before.free_bytes / 2
    assert "MiB given back" in outcome.summary
    wide = node.pond.map("wide")
    assert free_space(wide.shard).share < 0.1
    assert wide.info()["rows"] == 2_001
    assert node.run("compact").numbers["maps"] == 0


def test_snapshots_follow_maps_that_somebody_reads(node: JobContext) -> None:
    read = owner(node, [NOW - DAY], name="read")
    owner(node, [NOW - DAY], name="unread")
    first = read.freeze().id
    owner(node, [NOW - HOUR], name="read")
    assert node.run("snapshot").summary == "nothing to do in 2 maps", "it is younger than min_time_to_keep_snapshots"
    node.advance(11 * MINUTE)
    assert node.run("snapshot").summary == "froze 1 of 2 maps"
    assert node.run("snapshot").summary == "nothing to do in 2 maps"
    assert node.pond.map("read").info()["snapshot"] != first
    assert node.pond.map("read").info()["snapshot_current"]
    assert node.pond.map("unread").info()["snapshot"] is None


def test_a_clock_set_back_does_not_keep_a_snapshot_old(node: JobContext) -> None:
    read = owner(node, [NOW - DAY])
    node.advance(DAY)
    read.freeze()
    owner(node, [NOW - HOUR])
    node.clock.now -= DAY
    assert node.run("snapshot").summary == "froze 1 of 1 map"


def wait_settled(node: JobContext) -> None:
    """Wait until the merger has told of all that it did."""

    def settled() -> bool:
        return not any(row["working"] for row in node.merger.status())

    assert node.merger.loads.changed.wait_for(settled, node.clock.monotonic() + 60, bool)


def test_merging_reports_what_was_queued(node: JobContext) -> None:
    assert node.run("merge").summary == "nothing waited"
    node.merger.stop()
    made = node.pond.create_map("owner", kind="temporal_state", value="string")
    rows = [{"key": "car", "effective_time": moment(NOW), "value": "ann"}]
    parts, _ = seal_data(made.definition, rows, node.pond.folder / "writer" / "by-hand")
    node.pond.commit_load(parts, wait=False)
    assert made.get("car", at=moment(NOW)) is None
    node.merger.start()
    done = node.run("merge").summary
    if done == "nothing waited":  # the merger was quicker, and had not told of it yet
        wait_settled(node)
        done = node.run("merge").summary
    assert done in ("merged 1 part, 1 row", "nothing waited; last: 1 row of owner")
    assert made.get("car", at=moment(NOW)) == "ann"


def test_a_merge_is_told_once_the_merger_knows_of_it(node: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    tell, may_tell = node.merger._tell, threading.Event()

    def tell_late(*args: Any) -> None:
        assert may_tell.wait(60)
        tell(*args)

    monkeypatch.setattr(node.merger, "_tell", tell_late)
    made = node.pond.create_map("owner", kind="temporal_state", value="string")
    rows = [{"key": "car", "effective_time": moment(NOW), "value": "ann"}]
    parts, _ = seal_data(made.definition, rows, node.pond.folder / "writer" / "by-hand")
    position = node.pond.commit_load(parts, wait=False).position
    node.pond.log.wait_applied(position, timeout=60)
    assert node.run("merge").summary == "nothing waited"
    may_tell.set()
    wait_settled(node)
    assert node.run("merge").summary == "nothing waited; last: 1 row of owner"


def test_paused_merging_runs_only_on_demand(node: JobContext) -> None:
    made = node.pond.create_map("owner", kind="temporal_state", value="string")
    rows = [{"key": "car", "effective_time": moment(NOW), "value": "ann"}]
    hold = node.jobs["merge"].pause
    assert hold is not None
    hold(True)
    parts, _ = seal_data(made.definition, rows, node.pond.folder / "writer" / "by-hand")
    position = node.pond.commit_load(parts, wait=False).position
    with pytest.raises(Unavailable):  # longer than the merger takes to look on its own
        while_time_passes(node.clock, lambda: node.pond.log.wait_applied(position, timeout=60))
    assert made.get("car", at=moment(NOW)) is None
    assert node.run("merge").summary == "merged 1 part, 1 row"
    assert made.get("car", at=moment(NOW)) == "ann"
    parts, _ = seal_data(made.definition, [rows[0] | {"value": "bob"}], node.pond.folder / "writer" / "by-hand")
    position = node.pond.commit_load(parts, wait=False).position
    hold(False)
    node.pond.log.wait_applied(position, timeout=60)
    assert made.get("car", at=moment(NOW)) == "bob"


# -- what is left behind ------------------------------------------------------------------------------


def aged(place: Path, hours: float) -> Path:
    """A folder that is so old."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "file").write_text("x")
    os.utime(place, (NOW / 1000 - hours * 3600,) * 2)
    return place


def test_old_folders_that_belong_to_nothing_are_removed(node: JobContext) -> None:
    known = owner(node, [NOW - DAY])
    known.freeze()
    folder = node.pond.folder
    left = [
        aged(folder / "shards" / "young.0000", 0.9), aged(folder / "snapshots" / "later.0000", -5),
        aged(folder / "quarantine" / "000000000009-owner", 500), aged(folder / "writer" / "host-1-2", 500),
    ]  # fmt: skip
    for place in (*(folder / "shards").iterdir(), *(folder / "snapshots").iterdir(), *(folder / "parts").iterdir()):
        if "young" not in place.name and "later" not in place.name:
            os.utime(place, (NOW / 1000 - 1_000_000,) * 2)
            left.append(place)
    gone = [aged(folder / parent / "lost.0001", 1.1) for parent in ("shards", "snapshots", "parts")]
    outcome = node.run("orphans")
    assert outcome.summary == "removed shards/lost.0001, snapshots/lost.0001, parts/lost.0001"
    assert not any(place.exists() for place in gone)
    assert all(place.exists() for place in left)
    assert len([place for place in left if place.parent.name == "parts"]) == 1
    assert node.run("orphans").summary == "nothing to do"


def test_a_catalogue_without_maps_makes_nothing_an_orphan(node: JobContext) -> None:
    place = aged(node.pond.folder / "shards" / "weather.0001", 500)
    assert node.run("orphans").summary == "nothing to do"
    assert place.exists()


def test_cleanup_removes_what_is_too_old_and_closes_what_is_idle(node: JobContext) -> None:
    owner(node, [NOW - DAY])
    owner(node, [NOW])
    node.receiver.count, node.copies.count = 2, 1
    outcome = node.run("cleanup")
    assert outcome.summary == "2 uploads expired, 1 copy removed"
    node.advance(8 * DAY)
    outcome = node.run("cleanup")
    assert outcome.summary == "2 kept parts expired, 1 idle map closed"
    assert node.pond.parts.list() == []
    assert node.pond.map("owner").info()["rows"] == 2, "it opens again on use"


def test_a_clock_that_jumps_ahead_removes_no_upload_part_or_folder_before_it_has_stood_for_a_day(
    node: JobContext,
) -> None:
    owner(node, [NOW - DAY])
    young = aged(node.pond.folder / "shards" / "young.0001", 0.5)
    for job in ("cleanup", "orphans"):
        assert node.run(job).summary == "nothing to do"
    node.receiver.count = 2
    node.clock.now += 400 * DAY
    for job in ("cleanup", "orphans"):
        assert "kept what is old: the clock is 9600.0 hours ahead" in node.run(job).summary
    assert len(node.pond.parts.list()) == 1 and young.exists()
    node.advance(DAY)
    assert node.run("cleanup").summary == "2 uploads expired, 1 kept part expired, 1 idle map closed"
    assert node.run("orphans").summary == "removed shards/young.0001"


def test_replication_reports_the_position_of_the_node(node: JobContext) -> None:
    assert node.run("replicate").summary == "alone at position 7"
    node.follower = Pulling(state="following", behind=3)
    assert node.run("replicate").summary == "leading at position 10"
    node.leading = False
    assert node.run("replicate").summary == "following at position 10"
    node.follower = Pulling(state="broken", behind=3, error="the node cannot be reached")
    outcome = node.run("replicate")
    assert outcome.summary == "broken at position 7, 3 behind"
    assert outcome.faults == ("behind: the node cannot be reached",)


def test_paused_replication_runs_on_demand(node: JobContext) -> None:
    node.follower = Pulling(role="replica", state="held", behind=3)
    [job] = [job for job in node_jobs(node) if job.name == "replicate"]
    assert job.pause is not None
    job.pause(True)
    assert node.follower.pause.held
    assert node.run("replicate").summary == "held at position 7, 3 behind"
    assert node.follower.requests == 1


def test_comparing_is_for_replicas(node: JobContext) -> None:
    assert node.run("compare").summary == "alone"
    node.follower = Pulling(role="primary", state="following")
    assert node.run("compare").summary == "primary: the replicas compare themselves with it"
    node.follower = Pulling(role="replica", state="following")
    assert node.run("compare").summary == "equal to the primary; nothing changed since"


def test_comparing_reports_what_differs(node: JobContext) -> None:
    node.follower = Pulling(role="replica", state="following")
    states = {"a": "agrees", "b": "differs", "c": "behind"}
    theirs = [Finding(map=name, node=node.primary, state="agrees") for name in states]
    node.comparing = Compared(
        *theirs, *(Finding(map=name, node=node.url, state=state) for name, state in states.items())
    )
    outcome = node.run("compare")
    assert outcome.summary == "1 of 3 maps equal to the primary's, 1 not there yet"
    assert outcome.numbers == {"maps": 3, "equal": 1, "behind": 1, "differing": 1}
    assert outcome.faults == ("map b is not as the primary has it",)


def test_verifying_ends_with_its_node(node: JobContext) -> None:
    owner(node, [NOW])
    stopped = threading.Event()
    before = node.run("verify").numbers["checked"]
    stopped.set()
    assert node.jobs["verify"].work(stopped).numbers["checked"] < before


def test_verifying_reports_every_problem(node: JobContext) -> None:
    known = owner(node, [NOW - DAY])
    good = node.run("verify")
    assert (good.numbers["problems"], good.faults) == (0, ())
    (known.shard.folder / "current").write_text("astray\n")
    node.pond.open_maps.forget()
    bad = node.run("verify")
    assert bad.numbers["problems"] == len(bad.faults) > 0
    assert "owner" in bad.faults[0]
