"""Ponds copied between folders and buckets: whole, by maps, again, and after a kill at any step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.errors import AlreadyExists, Conflict, Corrupt, Invalid, NotFound
from millpond.events.keyspaces import COLLECTING
from millpond.kernel.lease import LeaseRow, LeaseWatch
from millpond.kernel.steps import listening
from millpond.maps.loads.bucket_location import StorageBucket
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.harness.copied_ponds import CHILD, fill, new_place, opened, said
from tests.harness.interleaving.stores import PassingClock
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

if TYPE_CHECKING:
    from pathlib import Path

    from tests.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("process")


@pytest.fixture
def url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    return new_place(s3_server, monkeypatch, tmp_path)


def test_a_pond_goes_into_a_bucket_and_back_and_again(url: str, tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        fill(pond)
        expected = said(pond)
    sent: list[int] = []
    first = millpond.copy(tmp_path / "one", url, advance=sent.append)
    assert (first.maps, sum(sent)) == (("nets", "weather"), first.bytes)
    with opened(url) as pond:
        assert said(pond) == expected
        assert pond.map("weather").rows.past.changes()
    assert millpond.copy(url, tmp_path / "back").maps == ("nets", "weather")
    with opened(tmp_path / "back") as pond:
        assert said(pond) == expected
        assert pond.verify(full=True).ok
    again = millpond.copy(tmp_path / "one", url)
    assert (again.files, again.bytes) == (0, 0)
    with opened(tmp_path / "one") as pond:
        pond.map("weather").load([{"key": "c", "effective_time": 1, "value": 5}])
        pond.drop_map("nets")
        expected_c = pond.map("weather").get("c", at=2)
    assert 0 < millpond.copy(tmp_path / "one", url).files < first.files
    with opened(url) as pond:
        assert (pond.map("weather").get("c", at=2), [map_.name for map_ in pond.maps()]) == (expected_c, ["weather"])


def test_a_target_that_is_in_use_is_not_written_over(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        pond.create_map("m", kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
    millpond.copy(tmp_path / "one", tmp_path / "two")
    with opened(tmp_path / "two") as pond:
        pond.map("m").load([{"key": "a", "value": 2}])
    with opened(tmp_path / "other") as pond:
        pond.create_map("m", kind="state", value="long", store="layers")
    for target, kind in (("two", "copy_target_changed"), ("other", "copy_target")):
        with pytest.raises(Conflict) as caught:
            millpond.copy(tmp_path / "one", tmp_path / target)
        assert caught.value.kind == kind
    with pytest.raises(Conflict, match="changed since it was copied"):
        millpond.copy(tmp_path / "one", tmp_path / "two", maps=["m"])
    with pytest.raises(AlreadyExists):
        millpond.copy(tmp_path / "one", tmp_path / "other", maps=["m"])
    with opened(tmp_path / "two") as pond:
        assert pond.map("m").get("a") == 2


def test_a_whole_pond_has_its_rules_of_alerts_and_a_target_with_another_is_not_written_over(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        rule = pond.create_map("sales", kind="aggregate", value="n long count", resolution="none").alerts.add("n > 1")
    for _ in range(2):
        millpond.copy(tmp_path / "one", tmp_path / "two")
    with opened(tmp_path / "two") as pond:
        assert pond.map("sales").alerts.list() == (rule,)
        pond.map("sales").alerts.add("n > 2")
    with pytest.raises(Conflict, match="changed since it was copied"):
        millpond.copy(tmp_path / "one", tmp_path / "two")


def test_events_go_again_and_a_target_with_others_is_not_written_over(url: str, tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        fill(pond)
    millpond.copy(tmp_path / "one", url)
    with opened(tmp_path / "one") as pond:
        pond.events.compress(0)
        again = pond.events.append("queue", "jobs", [b"more"], source="feed", positions=[101])
        expected = said(pond)
    with opened(url) as pond:
        pond.events.compress(0)  # as maintenance does, which changes nothing that a pond says
    millpond.copy(tmp_path / "one", url)
    with opened(url) as pond:
        assert said(pond) == expected
        assert pond.events.append("queue", "jobs", [b"more"], source="feed", positions=[101]).last_id == again.last_id
        assert pond.verify().ok
        pond.events.append("queue", "jobs", [b"its own"])
    with pytest.raises(Conflict, match="changed since it was copied"):
        millpond.copy(tmp_path / "one", url)


def test_what_a_copy_brought_is_no_garbage_before_it_is_named(url: str, tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        fill(pond)
        expected = said(pond)
    killed = run_python("-c", CHILD, str(tmp_path / "one"), url, **{KILL_AT: "copy.files_sent"})
    assert killed.returncode < 0, killed.stderr
    with opened(url) as pond:
        assert pond.collect_garbage(grace="1m").busy == ["copy"]
    millpond.copy(tmp_path / "one", url)
    with opened(url) as pond:
        assert said(pond) == expected
        assert pond.collect_garbage(grace="1m", dry_run=True).busy == []


def test_what_a_copy_that_was_given_up_left_goes_when_the_pond_is_used(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with opened(one) as pond:
        pond.create_map("m", kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
    killed = run_python("-c", CHILD, str(one), str(two), **{KILL_AT: "copy.files_sent"})
    assert killed.returncode < 0, killed.stderr
    opened(two).close()
    assert list(two.glob("snapshots/m.*/ranges/*")), "the copy may be gone on with"
    with opened(two) as pond:
        pond.create_map("own", kind="state", value="long", store="layers")
        assert pond.collect_garbage().busy == []
    opened(two).close()
    assert not list(two.glob("snapshots/m.*/ranges/*"))


@pytest.mark.parametrize("maps", [(), ("new",)], ids=["again", "by name"])
def test_who_opens_the_target_while_files_come_removes_none(tmp_path: Path, maps: tuple[str, ...]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with opened(one) as pond:
        pond.create_map("m", kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
    millpond.copy(one, two)
    with opened(one) as pond:
        pond.create_map("new", kind="state", value="long", store="layers").load([{"key": "a", "value": 2}])
    with listening(lambda name: opened(two).close() if name == "copy.files_sent" else None):
        millpond.copy(one, two, maps=maps)
    with opened(two) as pond:
        assert (pond.map("m").get("a"), pond.map("new").get("a")) == (1, 2)


def test_files_that_a_collection_took_while_others_came_are_sent_once_more(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    with opened(tmp_path / "one") as pond:
        weather = pond.create_map("weather", kind="state", value="long", store="layers")
        weather.load([{"key": "a", "value": 1}])
    millpond.copy(tmp_path / "one", url)
    with opened(tmp_path / "one") as pond:
        pond.map("weather").load([{"key": "b", "value": 2}])
    killed = run_python("-c", CHILD, str(tmp_path / "one"), url, **{KILL_AT: "ranges.fetched"})
    assert killed.returncode < 0, killed.stderr
    now_ms = StorageBucket.now_ms
    monkeypatch.setattr(StorageBucket, "now_ms", lambda location: now_ms(location) + 2 * 24 * 3_600_000)
    collected: list[int] = []

    def collect(name: str) -> None:
        if name == "ranges.fetched" and not collected:  # the range that was there is taken for one that stays
            with opened(url) as pond:
                collected.append(pond.collect_garbage().files)

    with listening(collect):
        millpond.copy(tmp_path / "one", url)
    assert collected[0] > 0
    with opened(url) as pond:
        assert pond.map("weather").get("b") == 2


def test_a_collection_that_came_between_sends_what_it_took_once_more(url: str, tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        fill(pond)
        expected = said(pond)

    steps: list[str] = []

    def collect(name: str) -> None:
        steps.append(name)
        if name != "copy.files_sent" or steps.count(name) > 1:
            return
        with opened(url) as pond:
            beside = pond.location.beside("events")
            assert beside is not None
            beside.objects.delete(*(named.name for named in beside.objects.list()))
            lease = LeaseRow(COLLECTING.packed, 30.0, LeaseWatch(pond.clock))
            held = pond.space.write(lambda tx: lease.take(tx, "another"))
            assert held is not None
            pond.space.write(lambda tx: lease.give_back(tx, held))

    with listening(collect):
        millpond.copy(tmp_path / "one", url)
    assert steps.count("copy.files_sent") == 2
    with opened(url) as pond:
        assert said(pond) == expected


def _copied_before(folder: Path) -> tuple[Path, Path]:
    """A pond with objects, and a copy of it that lacks the newest."""
    one, two, clock = folder / "one", folder / "two", PassingClock(1_700_000_000_000)
    with opened(one, clock) as pond:
        pond.repositories.create("files").branch("main").put("a", b"first")
    millpond.copy(one, two)
    with opened(one, clock) as pond:
        pond.repository("files").branch("main").put("b", b"second")
    return one, two


def test_no_collection_takes_objects_before_their_rows_come(tmp_path: Path) -> None:
    """They have the names, and so the ages, that they have in the source."""
    one, two = _copied_before(tmp_path)
    refused: list[str] = []

    def collect(name: str) -> None:
        if name == "copy.files_sent":
            with opened(two) as pond, pytest.raises(Conflict) as caught:
                pond.repository("files").collect()
            refused.append(caught.value.kind)

    with listening(collect):
        millpond.copy(one, two)
    assert refused == ["copy_running"]
    with opened(two) as pond:
        assert [pond.repository("files").branch("main").get(path) for path in "ab"] == [b"first", b"second"]
        pond.repository("files").collect()
        assert pond.repository("files").branch("main").get("b") == b"second"


def test_a_collection_that_marked_before_a_copy_deletes_nothing_after_it(tmp_path: Path) -> None:
    one, two = _copied_before(tmp_path)
    with (
        opened(two) as pond,
        listening(lambda name: millpond.copy(one, two) if name == "collect.marked" else None),
        pytest.raises(Conflict) as caught,
    ):
        pond.repository("files").collect()
    assert caught.value.kind == "copy_running"
    with opened(two) as pond:
        assert pond.repository("files").branch("main").get("b") == b"second"


def test_objects_that_go_after_the_first_look_are_sent_once_more(tmp_path: Path) -> None:
    """Those of a collection that looked for copies before this one began, and deletes behind it."""
    one, two = _copied_before(tmp_path)
    seen = [file for file in (two / "repositories").rglob("data/**/*") if file.is_file()]
    assert seen

    def delete(name: str) -> None:
        if name == "copy.object_sent":
            while seen:
                seen.pop().unlink()

    with listening(delete):
        assert millpond.copy(one, two).files >= 2
    with opened(two) as pond:
        assert [pond.repository("files").branch("main").get(path) for path in "ab"] == [b"first", b"second"]


def test_a_target_that_holds_only_events_is_not_written_over(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        fill(pond)
    with opened(tmp_path / "two") as pond:
        pond.events.append("queue", "jobs", [b"its own"])
    with pytest.raises(Conflict, match="there is another pond"):
        millpond.copy(tmp_path / "one", tmp_path / "two")
    with opened(tmp_path / "two") as pond:
        assert [event.payload for event in pond.events.read("queue", "jobs")] == [b"its own"]


def test_maps_by_name_go_into_a_pond_that_has_others(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        fill(pond)
        pond.create_map("sharded", kind="state", value="long", store="shard")
        rule = pond.create_map("sales", kind="aggregate", value="n long count", resolution="none").alerts.add("n > 1")
        past = [change.moment_ms for change in pond.map("weather").rows.past.changes()]
    with opened(tmp_path / "two") as pond:
        pond.create_map("own", kind="state", value="long", store="shard").load([{"key": "a", "value": 1}])
    for _ in range(2):
        report = millpond.copy(tmp_path / "one", tmp_path / "two", maps=["WEATHER", "sales"])
    assert (report.maps, report.files) == (("sales", "weather"), 0)
    with opened(tmp_path / "two") as pond:
        weather = pond.map("weather")
        assert (weather.get("a", at=10), weather.get("a", at=6), pond.map("own").get("a")) == (3, 1, 1)
        assert [change.moment_ms for change in weather.rows.past.changes()] == past
        assert pond.map("sales").alerts.list() == (rule,)
        weather.load([{"key": "z", "effective_time": 1, "value": 6}])
        assert (weather.get("z", at=2), pond.verify(full=True).ok) == (6, True)


def test_places_that_are_no_ponds_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no pond here"):
        millpond.copy(tmp_path / "none", tmp_path / "two")
    opened(tmp_path / "one").close()
    on_node = "http://node:1"
    for source, target in ((tmp_path / "one", on_node), (on_node, on_node), (tmp_path / "one", tmp_path / "one")):
        with pytest.raises(Invalid) as caught:
            millpond.copy(source, target)
        assert caught.value.kind == "copy_place"
    with pytest.raises(NotFound):
        millpond.copy(tmp_path / "one", tmp_path / "two", maps=["none"])


def test_a_damaged_file_of_the_source_is_named_and_nothing_is_entered(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        pond.create_map("m", kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
    [file] = (tmp_path / "one" / "snapshots").glob("*/ranges/*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(bytes(data))
    with pytest.raises(Corrupt, match=file.name):
        millpond.copy(tmp_path / "one", tmp_path / "two")
    with opened(tmp_path / "two") as pond:
        assert pond.maps() == []


def test_a_copy_that_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with opened(source) as pond:
        fill(pond)
        expected = said(pond)
    whole = run_python("-c", CHILD, str(source), str(tmp_path / "whole"), **{STEPS_LOG: str(tmp_path / "log")})
    assert whole.returncode == 0, whole.stderr
    moments = [moment for moment in occurrences(tmp_path / "log") if moment.startswith(("copy.", "ranges."))]
    assert {moment.partition(":")[0] for moment in moments} >= {
        "copy.snapshot_sent", "copy.object_sent", "copy.files_sent", "copy.rows_entered",
    }  # fmt: skip
    for number, moment in enumerate(drawn(moments, 3)):
        target = tmp_path / f"{number}"
        killed = run_python("-c", CHILD, str(source), str(target), **{KILL_AT: moment})
        assert killed.returncode < 0, (moment, killed.stdout, killed.stderr)
        with opened(target) as pond:
            assert len(pond.maps()) in (0, 2), moment
        sent = millpond.copy(source, target).files
        assert sent <= int(whole.stdout), moment
        with opened(target) as pond:
            assert said(pond) == expected, moment
    assert sent < int(whole.stdout)


def test_the_command(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        pond.create_map("m", kind="state", value="long", store="layers").load([{"key": "a", "value": 1}])
    done = run_python("-m", "millpond", "copy", str(tmp_path / "one"), str(tmp_path / "two"), "--json")
    assert (done.returncode, json.loads(done.stdout)["maps"]) == (0, ["m"]), done.stderr
    done = run_python("-m", "millpond", "copy", str(tmp_path / "one"), str(tmp_path / "three"), "--map", "m")
    assert (done.returncode, "1 map (m); 2 files sent" in done.stdout) == (0, True), (done.stdout, done.stderr)
    done = run_python("-m", "millpond", "copy", str(tmp_path / "one"), "m")
    assert (done.returncode, "./pond" in done.stderr) == (5, True), done.stderr
