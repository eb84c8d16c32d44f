"""`millpond snapshots`: maps pushed to a place, listed there, and pulled from it."""

from __future__ import annotations

from pathlib import Path

import pytest

import millpond
from tests.cli.conftest import Shell
from tests.s3_server import S3Server


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_CLIENT_CACHE", str(tmp_path / "cache"))


def test_a_map_goes_through_a_bucket(weather: Shell, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    place = s3_server.make_bucket("cli-bucket") + "/some/prefix"
    Path("millpond.toml").write_text(f'objects.place = "{place}"\n')
    assert weather("snapshots", "list", "--json").out == "[]\n"
    sent = weather("snapshots", "push", "--all", "--json").object
    assert (sent["map"], sent["ranges"], sent["ranges_reused"]) == ("weather", 1, 0)
    assert weather("snapshots", "push", "weather", "--json").object["ranges"] == 0
    assert weather("snapshots", "list", "--json").object["snapshot"] == sent["snapshot"]
    assert sent["snapshot"][:8] in weather("snapshots", "list").out
    assert "ranges fetched" in weather("snapshots", "pull", "weather").out
    again = weather("snapshots", "pull", "--all", "--json").object
    assert (again["snapshot"], again["ranges"], again["bytes"], again["ranges_reused"]) == (sent["snapshot"], 0, 0, 1)
    with millpond.open_snapshot("weather") as snapshot:
        found = snapshot.lookup(["JFK"], at="2013-02-08T18:30Z").to_pylist()
    assert found == [{"temp": 32.0, "wind_speed": 24.2}]


def test_mistakes_are_sentences(weather: Shell, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "MILLPOND_OBJECTS_PLACE" in weather("snapshots", "push", "weather", code=5).err
    assert "s3://bucket/prefix" in weather("snapshots", "list", "--from", "gs://x/y", code=5).err
    assert "name one map" in weather("snapshots", "push", "--to", "shared", code=2).err
    assert "millpond snapshots push" in weather("snapshots", "pull", "weather", "--from", "shared", code=3).err
    for name, value in (s3_server.environment | {"AWS_SECRET_ACCESS_KEY": "wrong"}).items():
        monkeypatch.setenv(name, value)
    refused = weather("snapshots", "list", "--from", s3_server.make_bucket("closed-bucket"), code=11).err
    assert "bucket=closed-bucket" in refused
    assert "AWS_SECRET_ACCESS_KEY" in refused
    weather("snapshots", "push", "weather", "--to", "shared")
    with millpond.open("other") as pond:
        pond.create_map("weather", kind="state")
    other = ("snapshots", "push", "weather", "--to", "shared", "--pond", "other")
    assert "--replace" in weather(*other, code=6).err
    weather(*other, "--replace")
