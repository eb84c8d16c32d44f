"""Ponds in a bucket of a real server: maps, branches and SQL as in a folder; and what is refused, by name."""

from __future__ import annotations

import json
import os
import shutil
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.errors import Conflict, Denied, Invalid, MillpondError, NotFound, Unavailable, Uncertain
from millpond.maps.loads.bucket_location import StorageBucket, bucket_location
from millpond.maps.loads.pond_folder import POND_FORMAT, HeadNote, marker_of
from millpond.maps.log.ownership import OwnerLock
from millpond.stores import files
from millpond.stores.objects import ObjectStore, open_objects
from tests.harness.interleaving.stores import PassingClock
from tests.harness.lossy_objects import LossyObjects
from tests.rings.forked import run_python

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.pond import Pond
    from tests.s3_server import S3Server

pytestmark = [pytest.mark.usefixtures("process"), pytest.mark.sample(10, of="file")]

_NUMBERS = count(1)


@pytest.fixture
def url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"{s3_server.make_bucket(f'ponds-{os.getpid()}-{next(_NUMBERS)}')}/some/pond"


def opened(url: str, cache: Path, **settings: Any) -> Pond:
    pond = millpond.open(url, cache=cache, **{"max_staleness": 0, **settings})
    assert isinstance(pond, millpond.Pond)
    return pond


def test_maps_branches_and_sql_are_those_of_a_folder(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "one") as pond, opened(url, tmp_path / "other") as other:
        weather = pond.create_map("weather", kind="temporal_state", value="temp double")
        pond.create_map("nets", kind="ranged_state", value="long")
        weather.load([{"key": "JFK", "effective_time": "2024-01-01T00:00Z", "temp": 1.0}])
        pond.map("nets").load([{"key_start": 1, "key_end": 9, "value": 7}])
        there = other.map("weather")
        assert there.get("JFK", at="2024-02-01T00:00Z") == {"temp": 1.0}
        assert other.map("nets").get(5) == 7
        there.load([{"key": "JFK", "effective_time": "2024-02-01T00:00Z", "temp": 2.0}])
        assert weather.lookup(["JFK", "LGA"], at="2024-03-01T00:00Z").to_pylist() == [{"temp": 2.0}, None]
        assert sum(batch.num_rows for batch in weather.scan("temp > 1")) == 1
        assert pond.sql("select count(*) as n from weather").to_pylist() == [{"n": 2}]
        fix = other.branch("fix", source="main")
        fix.map("weather").load([{"key": "LGA", "effective_time": "2024-01-01T00:00Z", "temp": 5.0}])
        assert weather.get("LGA", at="2024-03-01T00:00Z") is None
        fix.merge()
        assert weather.get("LGA", at="2024-03-01T00:00Z") == {"temp": 5.0}
        assert pond.branch("fix").map("weather").get("LGA", at="2024-03-01T00:00Z") == {"temp": 5.0}
        assert repr(pond) == f"Pond('{url}')"


def test_maps_come_and_go_by_merges(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "one") as pond, opened(url, tmp_path / "other") as other:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
        fix = pond.branch("fix", source="main")
        fix.create_map("late", kind="state", value="long")
        fix.map("late").load([{"key": "z", "value": 5}])
        fix.catalogue.copy("m", "twin")
        fix.catalogue.rename("m", "n")
        fix.map("twin").load([{"key": "b", "value": 2}])
        held = other.map("m")
        fix.merge()
        assert [map_.name for map_ in other.maps()] == ["late", "n", "twin"]
        assert (other.map("late").get("z"), other.map("n").get("a"), other.map("n").get("b")) == (5, 1, None)
        assert other.map("twin").lookup(["a", "b"]).to_pylist() == [1, 2]
        with pytest.raises(NotFound):
            held.get("a")
        other.refs.restore("main~1", maps=["m"])
        other.map("m").load([{"key": "b", "value": 3}])
        assert pond.map("m").lookup(["a", "b"]).to_pylist() == [1, 3]
        assert not pond.verify(full=True).problems


def test_a_map_comes_to_main_by_a_merge_and_back_by_a_revert(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "one") as pond, opened(url, tmp_path / "other") as other:
        made = other.branch("made", source="main").create_map("made", kind="state", value="long")
        made.load([{"key": "a", "value": 1}])
        pond.branch("made").merge()
        assert (pond.map("made").get("a"), other.map("made").get("a")) == (1, 1)
        other.drop_map("made")
        pond.refs.revert("main")
        assert (pond.map("made").get("a"), other.map("made").get("a")) == (1, 1)
        assert not pond.verify().problems


def test_events_are_those_of_a_folder(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "one") as pond, opened(url, tmp_path / "other") as other:
        watch = other.events.watch("etl", "nightly")
        pond.events.append("etl", "nightly", [b"one", b"x" * 100_000])
        assert [len(event.payload) for event in islice(watch, 2)] == [3, 100_000]
        other.events.append("etl", "nightly", [b"two"], source="s", positions=[7])
        assert other.events.append("etl", "nightly", [b"two"], source="s", positions=[7]).repeated == 1
        assert [event.payload[:3] for event in pond.events.read("etl", "nightly")] == [b"one", b"xxx", b"two"]
        assert pond.sql("select count(*) as n from events where queue = 'etl'").to_pylist() == [{"n": 3}]
        watch.close()
        assert pond.verify(full=True).ok
        millpond.copy(url, tmp_path / "copied")
        with millpond.open(tmp_path / "copied") as copied:
            assert [event.payload[:3] for event in copied.events.read("etl", "nightly")] == [b"one", b"xxx", b"two"]
        assert pond.events.delete("etl", "nightly") == 3
        assert pond.collect_garbage().retained >= 1
        assert other.collect_garbage(dry_run=True, grace="1m").files == 0


def test_work_is_reported_as_events_where_that_is_wanted(url: str, tmp_path: Path) -> None:
    for name, wanted in (("quiet", None), ("told", True)):
        with opened(url, tmp_path / "one", events_reports=wanted) as pond:
            pond.create_map(name, kind="state", value="long").load([{"key": "a", "value": 1}])
    with opened(url, tmp_path / "other") as pond:
        assert list(pond.events.read("millpond", "load/quiet")) == []
        kinds = [event.kind for event in pond.events.read("millpond", "load/told")]
        assert (kinds[0], kinds[-1]) == ("submitted", "succeeded")
        millpond.copy(url, tmp_path / "copied")  # the pond's reports do not hinder


def test_what_lies_on_this_machine_may_be_lost(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "cache") as pond:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
        pond.catalogue.copy("m", "copied")
        pond.catalogue.rename("m", "n")
    shutil.rmtree(tmp_path / "cache")
    with opened(url, tmp_path / "cache") as pond:
        assert [pond.map(name).get("a") for name in ("copied", "n")] == [1, 1]
        report = pond.verify(full=True)
        assert report.ok, report
        pond.map("n").condense(before="2024-01-01T00:00Z")
        pond.map("n").compact()
        pond.drop_map("copied")
        assert pond.map("n").get("a") == 1


def test_the_folder_may_go_while_a_pond_is_open(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path / "cache") as pond:
        pond.create_map("m", kind="state", value="long")
        for value in range(3):
            shutil.rmtree(tmp_path / "cache")
            pond.map("m").load([{"key": "a", "value": value}])
            shutil.rmtree(tmp_path / "cache")
            assert pond.map("m").get("a") == value
        lock = OwnerLock(pond.folder, may_go=True)
        shutil.rmtree(tmp_path / "cache")
        assert not lock.served()
        shutil.rmtree(tmp_path / "cache")
        with lock.writing():
            assert OwnerLock(pond.folder).served() is False
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(FileNotFoundError):
            OwnerLock(pond.folder).served()


def test_a_folder_that_goes_while_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes = iter((True, False, True))

    def sync(location: Path) -> None:
        if next(goes, False):
            shutil.rmtree(tmp_path / "a")

    monkeypatch.setattr(files, "sync", sync)
    files.make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_verify_reads_the_bucket_and_not_the_copies(url: str, tmp_path: Path, s3_server: S3Server) -> None:
    with opened(url, tmp_path) as pond:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
        assert pond.map("m").get("a") == 1
        [file] = (s3_server.folder / url.removeprefix("s3://") / "snapshots").glob("*/ranges/*")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        objects = open_objects(url)
        objects.put(str(file).partition("some/pond/")[2], bytes(data))
        assert not pond.verify().ok


@pytest.mark.parametrize(
    "act",
    [
        lambda pond: pond.create_map("s", kind="state", store="shard"),
        lambda pond: pond.alter_map("m", store="shard"),
    ],
    ids=["shard", "alter"],
)
def test_parts_that_do_not_work_are_refused_by_name(
    url: str, tmp_path: Path, act: Callable[[Pond], object]
) -> None:  # fmt: skip
    with opened(url, tmp_path) as pond:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
        with pytest.raises(Invalid) as caught:
            act(pond)
        assert caught.value.kind == "bucket_unsupported"
        assert caught.value.hint
        assert pond.map("m").get("a") == 1


def test_a_prefix_that_holds_something_else_is_refused(url: str, tmp_path: Path) -> None:
    open_objects(url).put("report.csv", b"x")
    with pytest.raises(Invalid) as caught:
        opened(url, tmp_path)
    assert (caught.value.kind, caught.value.values["object"]) == ("pond_folder", "report.csv")
    with pytest.raises(Invalid) as missing:
        opened(f"{url}/empty", tmp_path, create=False)
    assert missing.value.kind == "pond_missing"
    with pytest.raises(Invalid) as none:
        opened("s3://", tmp_path)
    assert none.value.kind == "objects_config"
    with pytest.raises(NotFound):
        opened("s3://no-such-bucket-here/x", tmp_path)
    with pytest.raises(Invalid):
        millpond.open(Path(url))
    with pytest.raises(Invalid):
        opened(url, tmp_path, max_staleness=-1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"maps_part_retention": "7d"}, "setting=maps_part_retention (it is one of folders; a bucket takes cache"),
        ({"client_token": "x"}, "setting=client_token (it is one of nodes; a bucket takes cache"),
        ({"nothing": 1}, "setting=nothing (a bucket takes cache"),
        ({"maps_store": "shard"}, "part=shards"), ({"maps_store": 5}, "setting=maps.store"),
        ({"max_staleness": "x"}, "setting=max_staleness value=x"), ({"cache": 5}, "setting=cache value=5"),
        ({"cache": "/proc/x"}, "setting=cache value=/proc/x reason="), ({"cache": __file__}, "reason=Not a directory"),
        ({"cache_max": [1]}, "setting=cache_max"), ({"maps_memory_max": [1]}, "memory_max is too small"),
    ],
)  # fmt: skip
def test_a_setting_that_a_bucket_does_not_take_is_refused_by_name(
    url: str, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(Invalid) as refused:
        opened(url, **{"cache": tmp_path, **settings})
    assert words in str(refused.value)


def test_a_setting_of_another_place_is_refused_by_a_folder(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"setting=cache \(it is one of buckets; a folder takes events_reports"):
        millpond.open(tmp_path / "pond", cache="x")
    with pytest.raises(Invalid, match="no such setting") as refused:
        millpond.open("http://localhost:1", cache="x")
    assert refused.value.kind == "setting_unknown"


def test_a_bucket_takes_the_store_that_it_has(url: str, tmp_path: Path) -> None:
    with opened(url, tmp_path, maps_store="layers", maps_history="1d") as pond:
        assert pond.create_map("m", kind="state", value="long").definition.store == "layers"


def test_a_pond_may_have_a_bucket_of_its_own(url: str, tmp_path: Path) -> None:
    bucket = f"s3://{url.removeprefix('s3://').partition('/')[0]}/"
    with opened(bucket, tmp_path) as pond:
        made = pond.create_map("m", kind="state", value="long")
        made.load([{"key": "a", "value": 1}, {"key": "c", "value": 3}])
        assert made.snapshot(keys=("a", "b")).lookup(["a"]).to_pylist() == [1]
        assert pond.verify().ok
        assert made.snapshot(keys=("a", "b")).lookup(["a"]).to_pylist() == [1]
    with opened(bucket.rstrip("/"), tmp_path / "other", create=False) as pond:
        assert pond.map("m").get("c") == 3


class _Bucket:
    """The objects of a place, of which some are not as they should be."""

    def __init__(
        self, inner: ObjectStore, *, denied: str = "", unconditional: bool = False, error: MillpondError | None = None
    ) -> None:  # fmt: skip
        self._inner, self._denied, self._unconditional = inner, denied, unconditional
        self.where = inner.where
        self._error = error or Denied("the bucket refuses us", kind="objects_denied", where=self.where, hint="get it")

    def __getattr__(self, name: str) -> object:
        if name == self._denied:
            raise self._error
        return getattr(self._inner, name)

    def swap(self, name: str, data: bytes, expected: str | None) -> str:
        if self._denied == "swap":
            raise self._error
        try:
            return self._inner.swap(name, data, expected)
        except Conflict:
            if not self._unconditional:
                raise
            self._inner.put(name, data)
            return ""


def _location(tmp_path: Path, bucket: object) -> StorageBucket:
    location = StorageBucket("s3://bucket/pond", tmp_path, millpond.clock.SystemClock())
    object.__setattr__(location, "objects", bucket)
    return location


@pytest.mark.parametrize("denied", ["get", "swap", "list", "delete"])
def test_each_right_is_tried_before_a_pond_is_made(tmp_path: Path, url: str, denied: str) -> None:
    objects = open_objects(tmp_path / "objects")
    with pytest.raises(Denied):
        _location(tmp_path / "cache", _Bucket(objects, denied=denied)).check(create=True)
    assert not (tmp_path / "objects" / "pond.json").exists()


def test_a_bucket_without_conditional_writes_is_refused(tmp_path: Path, url: str) -> None:
    objects = open_objects(tmp_path / "objects")
    with pytest.raises(Invalid) as caught:
        _location(tmp_path / "cache", _Bucket(objects, unconditional=True)).check(create=True)
    assert caught.value.kind == "bucket_unfit"
    assert "Amazon S3" in str(caught.value.hint)
    assert not (tmp_path / "objects" / "pond.json").exists()
    _location(tmp_path / "cache", _Bucket(objects)).check(create=True)
    moved = _location(tmp_path / "cache", _Bucket(objects, unconditional=True))  # a pond that was copied there
    moved.check(create=True)
    with pytest.raises(Invalid) as late:
        moved.open_space().write(lambda tx: tx.put(b"key", b"value"))
    assert late.value.kind == "bucket_unfit" and not list(objects.list("space"))


def test_a_bucket_that_does_not_know_conditions_is_refused_with_the_names_of_those_that_do(
    tmp_path: Path, url: str
) -> None:  # fmt: skip
    unknown = Invalid("the server does not know this request", kind="objects_unsupported", hint="use another")
    bucket = _Bucket(open_objects(tmp_path / "objects"), denied="swap", error=unknown)
    with pytest.raises(Invalid, match="conditional writes") as caught:
        _location(tmp_path / "cache", bucket).check(create=True)
    assert caught.value.kind == "bucket_unfit" and "Amazon S3" in str(caught.value.hint)


@pytest.mark.parametrize("lost", [0, 3, 99])
def test_answers_that_are_lost_while_a_pond_is_made(tmp_path: Path, url: str, lost: int) -> None:
    for landed in (True, False):
        objects = LossyObjects()
        objects.outcomes = (landed,) * lost
        location = StorageBucket("s3://bucket/pond", tmp_path / "cache", PassingClock())
        object.__setattr__(location, "objects", objects)
        if lost == 99 and not landed:
            with pytest.raises(Unavailable, match="nothing was changed") as caught:
                location.check(create=True)
            assert not isinstance(caught.value, Uncertain)
        else:
            location.check(create=True)
            assert [info.name for info in objects.list()] == ["pond.json"]


@pytest.mark.parametrize("lost", [2, 99])
def test_an_answer_that_is_lost_before_the_first_write_is_not_one_of_the_write(
    tmp_path: Path, url: str, lost: int
) -> None:  # fmt: skip
    objects = LossyObjects()
    location = StorageBucket("s3://bucket/pond", tmp_path / "cache", PassingClock())
    object.__setattr__(location, "objects", objects)
    location.check(create=True)
    space, objects.outcomes = location.open_space(), (False,) * lost
    if lost == 2:
        space.write(lambda tx: tx.put(b"key", b"value"))
        assert len(list(objects.list("space"))) == 1
    else:
        with pytest.raises(Unavailable, match="nothing was changed") as caught:
            space.write(lambda tx: tx.put(b"key", b"value"))
        assert not isinstance(caught.value, Uncertain) and not list(objects.list("space"))


def test_a_bucket_that_is_tried_keeps_the_address_of_its_database(tmp_path: Path) -> None:
    objects, marker = open_objects(tmp_path / "objects"), marker_of(HeadNote("postgresql://db/rows#1", "1"))
    objects.put("pond.json", marker)
    location = _location(tmp_path / "cache", _Bucket(objects, unconditional=True))
    location.check(create=False)
    with pytest.raises(Invalid, match="conditional writes"):
        location._try_put()
    assert objects.get("pond.json").to_pybytes() == marker


def test_an_older_reader_refuses_a_newer_pond(tmp_path: Path, url: str) -> None:
    objects = open_objects(tmp_path / "objects")
    objects.put("pond.json", json.dumps({"format": 99}).encode())
    with pytest.raises(MillpondError) as caught:
        _location(tmp_path / "cache", objects).check(create=True)
    assert caught.value.kind == "pond_format"


@pytest.mark.parametrize("note", [{}, {"space": "postgresql://db/rows#1", "id": "1"}])
def test_a_bucket_of_the_format_before_has_the_present_one(tmp_path: Path, note: dict[str, str]) -> None:
    """The marker stays as it is, for those who only read: what changed since is in folders alone."""
    objects, marker = open_objects(tmp_path / "objects"), json.dumps({"format": 4, **note}).encode()
    objects.put("pond.json", marker)
    location = _location(tmp_path / "cache", objects)
    assert location.check(create=False) == POND_FORMAT
    assert location.note == (HeadNote(**note) if note else None)
    assert objects.get("pond.json").to_pybytes() == marker


def test_two_servers_have_caches_of_their_own(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = millpond.clock.SystemClock()
    here = bucket_location(url, clock, cache=str(tmp_path)).folder
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert bucket_location(url, clock, cache=str(tmp_path)).folder != here


def test_the_command_line_takes_a_bucket(url: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("key,value\na,1\nb,2\n")

    def run(*words: str) -> str:
        done = run_python("-m", "millpond", *words, XDG_CACHE_HOME=str(tmp_path), MILLPOND_POND=url)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    assert "made a pond" in run("init", url)
    assert "already" in run("init")
    run("create", "m", "--kind", "state", "--value", "long")
    run("load", "m", str(tmp_path / "rows.csv"))
    assert run("get", "m", "b").split() == ["2"]
    assert json.loads(run("query", "select sum(value) as s from m", "--json"))
    with opened(url, tmp_path / "python") as pond:
        pond.events.append("q", "j", [b"one", b"two"])
    run("events", "export", "--out", str(tmp_path / "events.parquet"))
    run("events", "import", str(tmp_path / "events.parquet"), "--queue", "r")
    assert run("events", "read", "r", "j", "--json").count("payload") == 2
    assert run("events", "list").count(" j ") == 2
    run("events", "compress", "--after", "0")
    run("events", "expire", "--after", "1d")
    assert json.loads(run("verify", "--json"))["problems"] == []
    for words in (
        ("serve", "--data", url),
        ("snapshots", "push", "m", "--to", "s3://x/y"),
    ):
        done = run_python("-m", "millpond", *words, XDG_CACHE_HOME=str(tmp_path), MILLPOND_POND=url)
        assert done.returncode != 0, words
        assert "bucket" in done.stderr, (words, done.stderr)
