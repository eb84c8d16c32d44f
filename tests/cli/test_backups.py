"""`millpond backup` and `millpond restore`: a pond goes to a place and comes back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millpond.testing.faults import flip_byte
from tests.cli.conftest import Shell
from tests.s3_server import S3Server


@pytest.mark.usefixtures("process")
def test_a_pond_is_backed_up_and_restored(weather: Shell) -> None:
    assert weather("backup", "list", "place", "--json").out == "[]\n"
    first = weather("backup", "create", "place", "--json").object
    assert (first["maps"], first["base"]) == (1, first["backup"])
    assert "0 files stored" in weather("backup", "create", "place").out
    assert first["backup"] in weather("backup", "list", "place").out
    assert weather("backup", "verify", "place", "--json").object["problems"] == []
    restored = weather("restore", "place", "copy", "--backup", first["backup"], "--json").object
    assert restored["rows"] == first["rows"]
    question = ("get", "weather", "JFK", "--at", "2013-02-08T18:30Z")
    assert weather(*question, "--pond", "copy").out == weather(*question).out
    assert "; the folder of a pond: ./copy" in weather("copy", "copy", "other", code=3).err
    assert "removed 1 backup" in weather("backup", "prune", "place", "--keep", "1").out


def test_a_folder_of_backups_is_its_owners_alone(weather: Shell) -> None:
    """It holds the keys that sign URLs, whatever the umask. A folder that is there keeps its mode."""
    before = os.umask(0o022)
    try:
        weather("backup", "create", "new/place")
        Path("shared").mkdir(0o750)
        weather("backup", "create", "shared")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(Path(place).stat().st_mode) for place in ("new", "new/place", "shared")] == [
        0o755, 0o700, 0o750,
    ]  # fmt: skip


@pytest.mark.usefixtures("process")
def test_a_backup_and_its_restore_count_the_same_maps(millpond: Shell) -> None:
    Path("a.csv").write_text("key,value\na,1\n")
    millpond("init")
    for name, store in (("loaded", "layers"), ("emptied", "layers"), ("new", "layers"), ("shard", "shard")):
        millpond("create", name, "--kind", "state", "--value", "long", "--store", store)
        if name != "new":
            millpond("load", name, "a.csv")
    millpond("delete", "emptied", "--where", "key = 'a'", "--yes")
    millpond("branch", "create", "pond/fix")
    millpond("create", "late", "--kind", "state", "--value", "long", "--branch", "fix")
    millpond("merge", "pond/fix", "main")
    created = millpond("backup", "create", "place", "--json").object
    restored = millpond("restore", "place", "copy", "--json").object
    assert created["maps"] == restored["maps"] == 2, "those that have rows"


@pytest.mark.usefixtures("process")
def test_what_a_backup_leaves_out_is_said(weather: Shell) -> None:
    assert "not in the backup" not in weather("backup", "create", "place").out
    weather("repo", "create", "flights")
    assert "1 map, repositories at position" in weather("backup", "create", "place").out
    weather("repo", "create", "far", "elsewhere")
    left_out = "objects of repositories in other places"
    assert f"not in the backup: {left_out}" in weather("backup", "create", "place").out
    created = weather("backup", "create", "place", "--json").object
    assert (created["holds"], created["left_out"]) == (["repositories"], [left_out])
    restored = weather("restore", "place", "copy").out
    assert "repositories, as of position" in restored and f"not in the backup: {left_out}" in restored


def test_a_bucket_is_a_place(weather: Shell, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    place = s3_server.make_bucket("backup-bucket") + "/some/prefix"
    created = weather("backup", "create", place, "--json").object
    assert weather("restore", place, "copy", "--json").object["rows"] == created["rows"]


def test_mistakes_are_sentences(weather: Shell) -> None:
    assert "there are no backups (place=" in weather("restore", "place", "copy", code=3).err
    assert "s3://bucket/prefix" in weather("backup", "create", "gs://x/y", code=5).err
    weather("backup", "create", "place")
    assert "there is no such backup" in weather("restore", "place", "copy", "--backup", "nope", code=3).err
    assert "holds something" in weather("restore", "place", "pond", code=5).err
    assert "at least one" in weather("backup", "prune", "place", "--keep", "0", code=5).err
    assert "does not reach" in weather("restore", "place", "copy", "--position", "99", code=5).err
    shard = max(Path("place/files").iterdir(), key=lambda file: file.stat().st_size)
    flip_byte(shard, shard.stat().st_size // 2)
    assert shard.name in weather("backup", "verify", "place", code=9).err
    assert "not what was stored" in weather("restore", "place", "copy", code=9).err
    assert not Path("copy").exists()
