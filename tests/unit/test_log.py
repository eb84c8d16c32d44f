"""The log of a pond, what is entered into it once, and who may enter it."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from millpond.clock import ManualClock
from millpond.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from millpond.kernel.steps import listening
from millpond.maps.loads import retention
from millpond.maps.log.log import Entry
from millpond.pond import open_pond
from millpond.testing.faults import flip_byte
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Pond
    from millpond.maps.parts.part import PartFile

DAY = 86_400_000


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with open_pond(tmp_path / "pond", clock=ManualClock(now=DAY), maps_part_retention="7d") as opened:
        opened.create_map("m", kind="state", value="long")
        yield opened


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Pond]:
    with open_pond(tmp_path / "replica", clock=ManualClock(now=9 * DAY, ids=900), maps_part_retention="7d") as opened:
        yield opened


def part_of(pond: Pond, values: dict[str, int], name: str = "m") -> list[PartFile]:
    writer = pond.part_writer(name)
    writer.write(canonical_of(pond.map(name).definition, [((key,), value) for key, value in values.items()]))
    return writer.finish()


def bring(pond: Pond, values: dict[str, int], name: str = "m") -> int:
    return pond.commit_load(part_of(pond, values, name)).position


def follow(replica: Pond, pond: Pond) -> None:
    for entry in pond.log.entries(replica.log.position()[0]):
        replica.log.enter(entry, copies(replica, pond, entry))


def copies(replica: Pond, pond: Pond, entry: Entry) -> dict[str, Path]:
    found = {}
    for part in entry.body.get("parts", ()):
        source = pond.parts.file(part["id"])
        assert source is not None
        found[part["id"]] = replica.folder / f"{part['id']}.upload"
        shutil.copyfile(source, found[part["id"]])
    return found


def answers(pond: Pond, *keys: str) -> list[object]:
    return [pond.map("m").get(key) for key in keys]


# -- entries ------------------------------------------------------------------------------------------


def test_every_change_of_content_is_an_entry(pond: Pond) -> None:
    bring(pond, {"a": 1})
    pond.alter_map("m", overwrite=False)
    pond.create_map("m", kind="state", value="long", exist_ok=True)  # there already: nothing changes
    pond.alter_map("m", overwrite=False)  # neither here
    pond.create_map("t", kind="temporal_state")
    pond.map("t").condense(before=5)
    pond.map("t").retain(before=5)
    pond.map("m").condense(before=5)  # a map without a time has nothing to condense
    pond.drop_map("t")
    entries = pond.log.entries(0)
    assert [entry.kind for entry in entries] == ["create", "load", "alter", "create", "condense", "retain", "drop"]
    assert [entry.position for entry in entries] == list(range(1, 8))
    assert pond.log.position() == (7, entries[-1].chain)
    assert [Entry.from_dict(entry.to_dict()) for entry in entries] == entries
    assert pond.log.entries(2, limit=2) == entries[2:4]
    assert pond.log.entries(7) == []


def test_a_new_pond_has_an_id_and_an_empty_log(replica: Pond) -> None:
    assert replica.log.position() == (0, "")
    assert replica.log.entries(0) == []
    assert len(replica.log.pond_id) == 16


def test_a_replica_comes_to_the_same_end_and_knows_what_it_has(pond: Pond, replica: Pond) -> None:
    replica.log.join(pond.log.pond_id)
    bring(pond, {"a": 1})
    bring(pond, {"a": 2, "b": 2})
    follow(replica, pond)
    replica.merge()
    assert replica.log.position() == pond.log.position()
    assert answers(replica, "a", "b") == [2, 2]
    assert replica.log.applied("m") == 3
    for entry in pond.log.entries(0):
        replica.log.enter(entry, {})
    assert replica.log.position() == pond.log.position()
    assert replica.log.pond_id == pond.log.pond_id
    with pytest.raises(Conflict) as caught:
        replica.log.join("another")
    assert caught.value.kind == "pond_other"


def test_a_gap_and_a_fork_are_errors(pond: Pond, replica: Pond) -> None:
    bring(pond, {"a": 1})
    first, second = pond.log.entries(0)
    with pytest.raises(Conflict) as caught:
        replica.log.enter(second, copies(replica, pond, second))
    assert caught.value.kind == "log_gap"
    assert (replica.folder / f"{second.body['parts'][0]['id']}.upload").exists(), "what is not entered is not taken"
    with pytest.raises(Conflict) as caught:
        replica.log.enter(replace(first, stamp_ms=first.stamp_ms + 1), {})
    assert caught.value.kind == "log_forked"
    assert replica.log.position() == (0, "")
    replica.create_map("other", kind="state")
    with pytest.raises(Conflict) as caught:
        replica.log.enter(first, {})
    assert caught.value.kind == "log_forked"
    with pytest.raises(Conflict) as caught:
        replica.log.enter(second, {second.body["parts"][0]["id"]: replica.folder})
    assert caught.value.kind == "log_forked"


def test_an_entry_whose_part_is_missing_or_another_is_refused(pond: Pond, replica: Pond) -> None:
    bring(pond, {"a": 1})
    bring(pond, {"a": 2})
    first, second, third = pond.log.entries(0)
    replica.log.enter(first, {})
    with pytest.raises(Invalid) as caught:
        replica.log.enter(second, {})
    assert caught.value.kind == "part_missing"
    [other] = copies(replica, pond, third).values()
    with pytest.raises(Invalid) as caught:
        replica.log.enter(second, {second.body["parts"][0]["id"]: other})
    assert caught.value.kind == "part_other"
    assert replica.log.position()[0] == 1
    replica.log.enter(second, copies(replica, pond, second))
    assert replica.log.position()[0] == 2


def test_times_never_fall(pond: Pond) -> None:
    pond.clock.now = 5  # type: ignore[attr-defined]
    bring(pond, {"a": 1})
    assert [entry.stamp_ms for entry in pond.log.entries(0)] == [DAY, DAY]


def test_who_waits_for_a_position_is_woken(pond: Pond) -> None:
    assert pond.log.wait_position(1, timeout=0)
    assert not pond.log.wait_position(2, timeout=0)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(pond.log.wait_position, 2, 60)
        bring(pond, {"a": 1})
        assert pending.result(timeout=60)


# -- entered once -------------------------------------------------------------------------------------


def test_a_load_id_is_entered_once(pond: Pond) -> None:
    first = pond.commit_load(part_of(pond, {"a": 1}), load_id="job-1", rejected=3)
    again = pond.commit_load(part_of(pond, {"a": 2}), load_id="job-1")
    assert replace(again, seconds=0) == replace(first, seconds=0)
    assert first.position == 2
    assert (again.rows, again.rejected, again.maps) == (1, 3, {"m": 1})
    assert answers(pond, "a") == [1]
    with pytest.raises(Invalid) as caught:
        pond.commit_load(part_of(pond, {"a": 2}), load_id="../up")
    assert caught.value.kind == "load_id"


def test_an_epoch_of_a_stream_is_entered_once(pond: Pond) -> None:
    first = pond.commit_load(part_of(pond, {"a": 1}), stream=("query", 4))
    assert pond.commit_load(part_of(pond, {"a": 2}), stream=("query", 4)).load == first.load
    assert pond.commit_load(part_of(pond, {"a": 2}), stream=("query", 3)).load == first.load
    assert answers(pond, "a") == [1]
    other = pond.commit_load(part_of(pond, {"a": 1}), stream=("another", 1))
    assert (other.position, other.parts, other.duplicate_parts) == (3, 0, 1), "the epoch is entered, the part is known"
    assert pond.commit_load(part_of(pond, {"a": 3}), stream=("query", 5)).position == 4
    assert answers(pond, "a") == [3]


def test_a_load_of_known_parts_enters_nothing(pond: Pond) -> None:
    bring(pond, {"a": 1})
    bring(pond, {"a": 2})
    result = pond.commit_load(part_of(pond, {"a": 1}))
    assert (result.position, result.parts, result.duplicate_parts, result.rows) == (3, 0, 1, 1)
    assert pond.log.position()[0] == 3
    assert answers(pond, "a") == [2]


def test_a_replica_remembers_what_was_entered(pond: Pond, replica: Pond) -> None:
    pond.commit_load(part_of(pond, {"a": 1}), load_id="job-1")
    pond.commit_load(part_of(pond, {"a": 2}), stream=("query", 4))
    follow(replica, pond)
    replica.merge()
    assert replica.commit_load(part_of(replica, {"a": 3}), load_id="job-1").position == 2
    assert replica.commit_load(part_of(replica, {"a": 3}), stream=("query", 4)).position == 3
    assert answers(replica, "a") == [2]


def test_settings_hold_for_what_is_entered_after_them(pond: Pond) -> None:
    pond.commit_load(part_of(pond, {"a": 1}), wait=False)
    pond.alter_map("m", overwrite=False)
    pond.commit_load(part_of(pond, {"a": 2, "b": 2}), wait=False)
    pond.alter_map("m", overwrite=True)
    assert pond.log.applied("m") == 1
    assert answers(pond, "a") == [None]
    pond.merge()
    assert answers(pond, "a", "b") == [1, 2]
    assert pond.log.applied("m") == 5 == pond.map("m").info()["position"]


# -- parts --------------------------------------------------------------------------------------------


def test_parts_are_listed_and_found_through_their_lives(pond: Pond) -> None:
    [part] = part_of(pond, {"a": 1})
    pond.commit_load([part], wait=False, source="here")
    [status] = pond.parts.list()
    assert (status.state, status.map, status.part, status.position) == ("queued", "m", part.manifest.id, 2)
    assert (status.rows, status.source, status.since_ms) == (1, "here", DAY)
    assert pond.parts.file(status.part) == pond.folder / "parts" / status.part
    pond.merge()
    [status] = pond.parts.list(state="retained")
    assert pond.parts.file(status.part) == pond.folder / "parts" / status.part
    assert pond.parts.expire(DAY) == 0
    assert pond.parts.expire(DAY + 1) == 1
    assert pond.parts.file(status.part) is None
    assert pond.parts.list() == []
    with pytest.raises(NotFound) as caught:
        pond.log.entries(0)
    assert caught.value.values["first"] == 3
    assert pond.commit_load(part_of(pond, {"a": 1})).duplicate_parts == 1, "what was absorbed is known for ever"


def test_the_log_is_not_trimmed_below_what_is_not_applied(pond: Pond) -> None:
    bring(pond, {"a": 1})
    pond.commit_load(part_of(pond, {"a": 2}), wait=False)
    bring_order = pond.log.order_maintenance("m", "retain", 0)
    pond.parts.expire(2 * DAY)
    assert [entry.position for entry in pond.log.entries(2)] == [3, bring_order.position]


def test_nothing_is_retained_unless_requested(tmp_path: Path) -> None:
    with open_pond(tmp_path / "pond") as pond:
        pond.create_map("m", kind="state", value="long")
        bring(pond, {"a": 1})
        assert pond.parts.list() == []
        assert list((pond.folder / "parts").iterdir()) == []
    with open_pond(tmp_path / "pond", maps_part_retention="1d") as pond:
        bring(pond, {"a": 2})
        assert [part.state for part in pond.parts.list()] == ["retained"]
    with open_pond(tmp_path / "pond") as pond:
        bring(pond, {"a": 3})
        assert len(pond.parts.list()) == 2, "how long parts are kept is written down"
    with open_pond(tmp_path / "pond", maps_part_retention=0) as pond:
        bring(pond, {"a": 4})
        assert len(pond.parts.list()) == 2


def test_who_keeps_parts_lets_go_of_old_ones_while_loading(pond: Pond) -> None:
    for value in range(3):
        bring(pond, {"a": value})
        pond.clock.advance(5 * DAY)  # type: ignore[attr-defined]
    assert [part.number for part in pond.parts.list()] == [2, 3]


def test_a_pond_that_keeps_no_parts_keeps_a_bounded_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LOG_ENTRIES_MAX", 3)
    monkeypatch.setattr(retention, "TRIM_EVERY", 5)
    with open_pond(tmp_path / "pond", clock=ManualClock()) as pond:
        pond.create_map("m", kind="state", value="long")
        for value in range(9):
            pond.commit_load(part_of(pond, {"a": value}), load_id=f"load-{value}")
        with pytest.raises(NotFound) as caught:
            pond.log.entries(0)
        assert caught.value.values["first"] == 7
        assert [entry.position for entry in pond.log.entries(6)] == [7, 8, 9, 10]


@pytest.mark.usefixtures("process")
def test_parts_of_a_dropped_map_are_retained_for_followers(pond: Pond, replica: Pond) -> None:
    bring(pond, {"a": 1})
    pond.commit_load(part_of(pond, {"a": 2}), wait=False)
    pond.drop_map("m")
    assert [part.state for part in pond.parts.list()] == ["retained", "retained"]
    pond.create_map("m", kind="state", value="long")
    bring(pond, {"a": 3})
    follow(replica, pond)
    replica.merge()
    assert answers(replica, "a") == [3]
    assert replica.verify().ok
    assert pond.verify().ok


# -- parts quarantined ----------------------------------------------------------------------------------


def quarantine(pond: Pond, values: dict[str, int]) -> str:
    """Enter a load whose part is damaged while it waits; the part's id."""
    [part] = part_of(pond, values)
    pond.commit_load([part], wait=False)
    place = pond.parts.file(part.manifest.id)
    assert place is not None
    shutil.copyfile(place, pond.folder / f"{part.manifest.id}.intact")
    flip_byte(place, 5000)
    pond.merge()
    assert [listed.state for listed in pond.parts.list() if listed.part == part.manifest.id] == ["quarantined"]
    return part.manifest.id


def intact(pond: Pond, part: str) -> Path:
    return pond.folder / f"{part}.intact"


def test_a_blocked_caller_learns_of_a_quarantined_part(pond: Pond) -> None:
    bring(pond, {"a": 1})
    part = quarantine(pond, {"a": 2})
    with pytest.raises(Corrupt) as caught:
        pond.log.wait_applied(3)
    assert caught.value.kind == "part_quarantined"
    assert part == caught.value.values["part"]
    pond.log.wait_applied(2)
    assert pond.log.applied("m") == 3


def test_an_intact_copy_of_a_part_that_is_in_quarantine_twice_counts(pond: Pond) -> None:
    part = quarantine(pond, {"a": 2})
    [again] = part_of(pond, {"a": 2})
    assert again.manifest.id == part
    pond.commit_load([again], wait=False)
    place = pond.parts.file(part)
    assert place is not None
    flip_byte(place, 5000)
    pond.merge()
    pond.parts.replace(part, intact(pond, part))
    assert answers(pond, "a") == [2]


@pytest.mark.usefixtures("process")
def test_an_intact_copy_ends_in_its_place(pond: Pond) -> None:
    bring(pond, {"a": 1, "b": 1})
    part = quarantine(pond, {"a": 2, "b": 2, "c": 2})
    bring(pond, {"b": 3})
    assert answers(pond, "a", "b", "c") == [1, 3, None]
    [still] = pond.parts.retry()
    assert still.state == "quarantined", "what is damaged stays quarantined"
    [status] = pond.parts.replace(part, intact(pond, part))
    assert status.state == "retained"
    assert answers(pond, "a", "b", "c") == [2, 3, 2]
    assert pond.verify().ok
    pond.log.wait_applied(3)
    with pytest.raises(NotFound) as caught:
        pond.parts.retry([part])
    assert caught.value.kind == "part_not_found"


def test_another_part_is_no_copy(pond: Pond) -> None:
    part = quarantine(pond, {"a": 2})
    other = quarantine(pond, {"a": 3})
    with pytest.raises(Invalid) as caught:
        pond.parts.replace(part, intact(pond, other))
    assert caught.value.kind == "part_other"
    flip_byte(intact(pond, part), 5000)
    with pytest.raises(Corrupt):
        pond.parts.replace(part, intact(pond, part))


def test_a_part_that_cannot_be_put_in_its_place_is_refused_with_the_way_out(pond: Pond) -> None:
    pond.create_map("t", kind="temporal_state", value="long")
    for harm in ("first stays", "not kept", "condensed"):
        part = quarantine(pond, {"a": len(harm)})
        if harm == "first stays":
            pond.alter_map("m", overwrite=False)
            bring(pond, {harm: 3})
            pond.alter_map("m", overwrite=True)
        elif harm == "not kept":
            bring(pond, {harm: 4})
            pond.parts.expire(2 * DAY)
        else:
            continue
        with pytest.raises(Conflict) as caught:
            pond.parts.replace(part, intact(pond, part))
        assert caught.value.kind == "part_order"
        [status] = [listed for listed in pond.parts.retry() if listed.part == part]
        assert status.state == "quarantined"
        assert "place" in status.reason
        bring(pond, {"a": len(harm)})  # the way out: the same rows once more
        assert answers(pond, "a") == [len(harm)]
        [status] = [listed for listed in pond.parts.retry() if listed.part == part]
        assert status.state == "retained", "what was loaded again is not quarantined any more"


def test_a_part_with_nothing_after_it_is_always_taken_again(tmp_path: Path) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock()) as pond:
        pond.create_map("m", kind="state", value="long", overwrite=False)
        part = quarantine(pond, {"a": 2})
        assert pond.parts.replace(part, intact(pond, part)) == [], "merged, and not kept"
        assert answers(pond, "a") == [2]
        part = quarantine(pond, {"b": 2})
        bring(pond, {"c": 3})
        with pytest.raises(Conflict, match="no longer kept"):
            pond.parts.replace(part, intact(pond, part))


# -- a node serves it ---------------------------------------------------------------------------------


def test_a_served_pond_is_changed_by_its_node_alone(pond: Pond) -> None:
    bring(pond, {"a": 1})
    pond.close()
    with open_pond(pond.folder, serve=True) as served, open_pond(pond.folder) as other:
        assert answers(other, "a") == [1]
        assert other.map("m").lookup(["a"]).to_pylist() == [1]
        writes = (
            lambda: bring(other, {"a": 2}), lambda: other.create_map("n", kind="state"), lambda: other.drop_map("m"),
            lambda: other.alter_map("m", overwrite=False), lambda: other.map("m").retain(before=5), other.merge,
            lambda: other.parts.expire(0), other.parts.retry,
        )  # fmt: skip
        for write in writes:
            with pytest.raises(Conflict) as caught:
                write()
            assert caught.value.kind == "pond_served"
        with pytest.raises(Conflict) as caught:
            open_pond(pond.folder, serve=True)
        assert caught.value.kind == "pond_served"
        served.commit_load(part_of(served, {"a": 3}), wait=False)
        assert answers(served, "a") == [1]
        with pytest.raises(Unavailable) as slow:
            served.log.wait_applied(3, timeout=0)
        assert slow.value.kind == "merge_slow"
    with open_pond(pond.folder) as opened:
        assert bring(opened, {"a": 4}) == 4
        assert answers(opened, "a") == [4]


def test_a_node_does_not_start_while_somebody_loads(pond: Pond) -> None:
    with pond.loading.writing(), pytest.raises(Conflict) as caught:
        open_pond(pond.folder, serve=True)
    assert caught.value.kind == "pond_served"


@pytest.mark.parametrize("scheme", ["auto", "lookup"])
def test_who_asks_while_the_first_load_is_merged_finds_nothing_yet(tmp_path: Path, scheme: str) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock(now=1)) as pond, ThreadPoolExecutor(1) as pool:
        pond.create_map("m", kind="state", value="long", scheme=scheme)
        found: list[object] = []

        def ask(step: str) -> None:
            if step == "shard.changed_uncommitted":
                found.append(pool.submit(lambda: (pond.map("m").info()["rows"], answers(pond, "a"))).result(timeout=60))

        with listening(ask):
            bring(pond, {"a": 1})
            bring(pond, {"a": 2, "b": 2})
        assert found == [(0, [None]), (1, [1])]
        assert answers(pond, "a", "b") == [2, 2]
