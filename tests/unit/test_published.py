"""Published snapshots: what another machine opens, what travels, and what stands when several publish."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import millpond
from millpond.client.snapshots.published import fetch_published
from millpond.clock import SystemClock
from millpond.errors import Conflict, Corrupt, Denied, Invalid, NotFound, Unavailable
from millpond.maps.map import Map
from millpond.maps.snapshots.published import HEAD, PublishedLocation, copy_snapshot, publish, read_head
from millpond.pond import Pond
from millpond.settings import load_settings
from millpond.stores.objects import ObjectStore, open_objects
from millpond.testing.faults import KILL_AT, flip_byte, occurrences
from tests.rings.sampling import drawn
from tests.s3_server import S3Server
from tests.unit.range_entries import synced_places

ROOT = Path(__file__).parents[2]
ROWS = 3000


@pytest.fixture
def weather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Map:
    monkeypatch.chdir(tmp_path)
    return made(millpond.open(tmp_path / "pond"))


def made(pond: Pond) -> Map:
    pond_map = pond.create_map("weather", kind="state", value="long")
    load(pond_map, range(ROWS), 0)
    return pond_map


def load(pond_map: Map, numbers: range, value: int) -> None:
    pond_map.load([{"key": f"k{number:05d}", "value": value + number} for number in numbers])


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> PublishedLocation:
    if request.param == "folder":
        return PublishedLocation(str(tmp_path / "shared"))
    bucket: ObjectStore = request.getfixturevalue("bucket")
    server: S3Server = request.getfixturevalue("s3_server")
    for name, value in server.environment.items():
        request.getfixturevalue("monkeypatch").setenv(name, value)
    return PublishedLocation(bucket.where, server.config())


def published(pond_map: Map, place: PublishedLocation, **options: Any) -> Any:
    return publish(pond_map.objects, place.of(pond_map.name), pond_map.freeze(), now_ms=1, **options)


def opened(place: PublishedLocation, cache: str = "cache") -> Any:
    return millpond.open_snapshot("weather", place.where, client_cache=cache)


@pytest.mark.usefixtures("process")
def test_what_was_published_is_opened_elsewhere(weather: Map, place: PublishedLocation) -> None:
    with pytest.raises(NotFound, match="millpond snapshots push") as caught:
        opened(place)
    assert caught.value.kind == "published_not_found"
    head, sent = published(weather, place)
    assert head == place.heads()[0]
    assert (sent.ranges_reused, sent.ranges > 0) == (0, True)
    keys = [f"k{number:05d}" for number in range(0, ROWS + 10, 7)]
    with opened(place) as snapshot:
        assert snapshot.lookup(keys).equals(weather.lookup(keys))


@pytest.mark.usefixtures("processor")
def test_only_what_is_missing_travels_either_way(weather: Map, place: PublishedLocation) -> None:
    settings = load_settings(objects_place=place.where, client_cache="cache", maps_memory_max="32MiB")
    first = published(weather, place)[1]
    with fetch_published("WEATHER", settings, SystemClock())[0] as opened_first:
        assert opened_first.finder is not None and opened_first.finder.memory_max == 32 << 20
    load(weather, range(5), 1000)
    again = published(weather, place)[1]
    assert again.bytes * 5 < first.bytes
    snapshot, fetched = fetch_published("weather", settings, SystemClock())
    assert (fetched.ranges, fetched.bytes) == (again.ranges, again.bytes)
    with snapshot:
        assert snapshot.lookup(["k00001", "k00009"]).to_pylist() == [1001, 9]
    assert published(weather, place)[1].bytes == 0


def test_what_was_sent_before_is_made_durable_before_it_counts(weather: Map, tmp_path: Path) -> None:
    """By one who died between giving it its name and making that durable."""
    manifest, place = weather.freeze(), open_objects(tmp_path / "shared")
    copy_snapshot(weather.objects, place, manifest)
    with synced_places() as synced:
        assert copy_snapshot(weather.objects, place, manifest).bytes == 0
    assert synced == ["ranges", "indexes", "manifests"]


def test_maps_of_ranges_bring_their_intervals(weather: Map, place: PublishedLocation, tmp_path: Path) -> None:
    with millpond.open(tmp_path / "other") as pond:
        owners = pond.create_map("owners", kind="ranged_state", value="string")
        owners.load([{"key_start": 1, "key_end": 9, "value": "a"}])
        publish(owners.objects, place.of("owners"), owners.freeze(), now_ms=1)
    with millpond.open_snapshot("owners", place.where, client_cache="cache") as snapshot:
        assert snapshot.lookup([5, 10]).to_pylist() == ["a", None]


def test_the_head_goes_forward(weather: Map, tmp_path: Path) -> None:
    place = PublishedLocation(str(tmp_path / "shared"))
    older = weather.freeze()
    shutil.copytree(weather.objects.where, tmp_path / "older")
    load(weather, range(5), 1000)
    newer = published(weather, place)[0]
    late = open_objects(tmp_path / "older")
    assert publish(late, place.of("weather"), older, now_ms=2)[0] == newer
    assert publish(late, place.of("weather"), older, now_ms=2, replace=True)[0].manifest == older.id
    with millpond.open(tmp_path / "second") as pond:
        other = made(pond)
        with pytest.raises(Conflict, match="another map of this name") as caught:
            published(other, place)
        assert caught.value.kind == "published_other"
        assert published(other, place, replace=True)[0].incarnation == other.definition.incarnation


@pytest.mark.usefixtures("processor")
def test_of_several_who_publish_the_latest_stands(weather: Map, tmp_path: Path) -> None:
    place, copies = PublishedLocation(str(tmp_path / "shared")), []
    for number in range(5):
        load(weather, range(number + 1), 1000 * number)
        copies.append((weather.freeze(), tmp_path / f"copy{number}"))
        shutil.copytree(weather.objects.where, copies[-1][1])
    with ThreadPoolExecutor(len(copies)) as threads:
        list(threads.map(lambda copy: publish(open_objects(copy[1]), place.of("weather"), copy[0], now_ms=1), copies))
    held = read_head(place.of("weather"))
    assert held is not None
    assert held[0].manifest == copies[-1][0].id


def test_a_damaged_object_is_named(
    weather: Map, s3_server: S3Server, bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = PublishedLocation(bucket.where, s3_server.config())
    published(weather, place)
    folder = s3_server.folder / bucket.where.removeprefix("s3://") / "weather"
    hurt = max((folder / "ranges").iterdir())
    settings = load_settings(
        objects_place=bucket.where,
        client_cache="cache",
    )
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    flip_byte(hurt, hurt.stat().st_size // 2)
    with pytest.raises(Corrupt, match=rf"{hurt.name}.*remove the object, if it is there, and push the map again"):
        fetch_published("weather", settings, SystemClock())
    hurt.unlink()
    with pytest.raises(NotFound, match=rf"{hurt.name}.*push the map again"):
        fetch_published("weather", settings, SystemClock())
    published(weather, place)
    fetch_published("weather", settings, SystemClock())[0].close()
    (folder / HEAD).write_bytes(b"{}")
    with pytest.raises(Corrupt, match="head of published snapshots") as caught:
        place.heads()
    assert caught.value.kind == "published_damaged"


def test_a_place_that_is_away_leaves_the_copy(
    weather: Map, bucket: ObjectStore, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    place = PublishedLocation(bucket.where, s3_server.config())
    published(weather, place)
    opened(place).close()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING), opened(place) as snapshot:
        assert snapshot.lookup(["k00007"]).to_pylist() == [7]
    assert "fetched last is shown" in caplog.text
    with pytest.raises(Unavailable, match="does not answer"):
        opened(place, "another cache")
    monkeypatch.delenv("http_proxy")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Denied, match="AWS_SECRET_ACCESS_KEY"):
        opened(place)


# -- killed -------------------------------------------------------------------------------------------


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.harness.served", "snapshots", *words]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.mark.usefixtures("process")
def test_a_push_or_pull_killed_at_any_step_leaves_the_old_or_the_new(weather: Map, tmp_path: Path) -> None:
    place = PublishedLocation(str(tmp_path / "shared"))
    old = published(weather, place)[0].manifest
    opened(place).close()
    shutil.copytree(tmp_path / "shared", tmp_path / "before")
    load(weather, range(5), 1000)
    new = weather.freeze().id
    push = ("push", "weather", "--to", place.where, "--pond", str(tmp_path / "pond"))
    assert run(*push, MILLPOND_STEPS_LOG=str(tmp_path / "log")).returncode == 0
    moments = [moment for moment in occurrences(tmp_path / "log") if moment.startswith(("ranges.", "publish."))]
    assert {"publish.files_copied:1", "publish.manifest_written:1", "publish.head_swapped:1"} <= set(moments)
    chosen = [moment for moment in moments if moment.startswith("publish.")] + moments[:1]
    for moment in drawn(chosen, 1, name="push"):
        shutil.rmtree(tmp_path / "shared")
        shutil.copytree(tmp_path / "before", tmp_path / "shared")
        assert run(*push, **{KILL_AT: moment}).returncode == -signal.SIGKILL
        with opened(place, f"cache {moment}") as snapshot:
            assert snapshot.manifest.id == (new if moment == "publish.head_swapped:1" else old)
        assert run(*push).returncode == 0
        pull = ("pull", "weather", "--from", place.where)
        cache = {"MILLPOND_CLIENT_CACHE": str(tmp_path / f"cache {moment}")}
        if moment != "publish.head_swapped:1":
            assert run(*pull, **cache, **{KILL_AT: moment}).returncode == -signal.SIGKILL
        with opened(place, str(tmp_path / f"cache {moment}")) as snapshot:
            assert snapshot.manifest.id == new


# -- settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("place", "s3:/bucket", "s3://bucket/prefix"),
        ("place", "s3://B", "s3://bucket/prefix"),
        ("place", "gs://bucket/x", "s3://bucket/prefix"),
    ],
)
def test_a_bad_setting_is_named_with_its_value_and_the_way_out(
    name: str, value: str, way_out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("millpond.toml").write_text(f'[objects]\n{name} = "{value}"\n')
    with pytest.raises(Invalid) as caught:
        load_settings()
    assert caught.value.values["setting"] == f"objects.{name}"
    assert caught.value.values["value"] == value
    assert way_out in str(caught.value)


@pytest.mark.parametrize(
    "name", ["aws_secret_access_key", "objects_access_key_id", "objects.access_key", "secret_key", "AWS_SESSION_TOKEN"]
)
def test_credentials_in_a_file_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("millpond.toml").write_text(f'{name} = "hidden-value"\n')
    with pytest.raises(Invalid, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment") as caught:
        load_settings()
    assert "hidden-value" not in str(caught.value)


def test_no_place_is_said() -> None:
    with pytest.raises(Invalid, match="MILLPOND_OBJECTS_PLACE") as caught:
        millpond.open_snapshot("weather")
    assert caught.value.kind == "objects_unset"
