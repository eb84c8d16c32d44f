"""A process killed at any step of its loads into a bucket: nothing is lost, doubled or half visible."""

from __future__ import annotations

import os
import signal
import subprocess
from itertools import count
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres_server import PostgresServer
    from tests.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("process")

CHILD = """
import os, sys
import millpond
from millpond.testing import faults

armed = faults.arm()
with millpond.open(sys.argv[1], cache=sys.argv[2], space=os.environ["SPACE"]) as pond:
    for name in "mn":
        pond.create_map(name, kind="state", value="long", store="layers", exist_ok=True)
    for load in range(1, 4):
        for name in "mn":
            pond.map(name).load([{"key": key, "value": load} for key in ("a", "b", f"c{load}")])
        print(load, flush=True)
    pond.map("m").compact()
    pond.space.write_checkpoint()
    print([sorted(pond.map(name).lookup(["a", "b", "c1", "c2", "c3"]).to_pylist()) for name in "mn"])
"""
_NUMBERS = count(1)


def run_child(url: str, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_python("-c", CHILD, url, str(cache), **variables)


def check_whole(url: str, cache: Path, moment: str, acknowledged: int) -> None:
    with millpond.open(url, cache=cache) as pond:
        report = pond.verify(full=True)
        assert report.ok, (moment, report)
        for opened in pond.maps():
            first, second, *rest = opened.lookup(["a", "b", "c1", "c2", "c3"]).to_pylist()
            assert first == second, (moment, "half of a load is seen")
            assert rest == [number if number <= (first or 0) else None for number in (1, 2, 3)], (moment, rest)
            assert (first or 0) >= acknowledged, (moment, "acknowledged, and not there")
            loads = [entry for entry in pond.log.entries(0) if entry.kind == "load" and opened.name in entry.maps]
            assert len(loads) == (first or 0), (moment, "a load is in the log once")


def test_killed_at_any_step(tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    kill_everywhere(f"{s3_server.make_bucket(f'kills-{os.getpid()}-{next(_NUMBERS)}')}", tmp_path, count=2)


def test_killed_at_any_step_with_a_database(
    tmp_path: Path, s3_server: S3Server, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PGPASSWORD", postgres_server.password)
    bucket = s3_server.make_bucket(f"kills-{os.getpid()}-{next(_NUMBERS)}")
    names = kill_everywhere(bucket, tmp_path, count=1, space=postgres_server.url())
    assert {"head.claimed", "head.witness_checked", "head.witness_left"} <= names


def kill_everywhere(bucket: str, tmp_path: Path, *, count: int, space: str = "") -> set[str]:
    """Kill loads at some of their steps; the names of all."""
    words = {"SPACE": space}
    done = run_child(f"{bucket}/whole", tmp_path / "whole", **words, **{STEPS_LOG: str(tmp_path / "log")})
    expected = f"1\n2\n3\n{[sorted([3, 3, 1, 2, 3])] * 2}\n"
    assert (done.returncode, done.stdout) == (0, expected), (done.stdout, done.stderr)
    moments = occurrences(tmp_path / "log")
    names = {moment.partition(":")[0] for moment in moments}
    assert {"bucket.batch_built", "bucket.batch_put", "bucket.trimmed", "bucket.checkpoint_put"} <= names
    assert {"load.layers_placed"} <= names
    for number, moment in drawn(list(enumerate(moments)), count, name=f"buckets {bool(space)}"):
        url, here = f"{bucket}/{number}", tmp_path / str(number)
        killed = run_child(url, here, **words, **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        acknowledged = max([0, *map(int, killed.stdout.split()[:3])]) if "[" not in killed.stdout else 3
        if not moment.startswith("head.claimed"):
            check_whole(url, tmp_path / f"other-{number}", moment, acknowledged)  # as another machine sees it
        again = run_child(url, here, **words)
        assert again.returncode == 0, (moment, again.stderr)
        check_again(url, here, moment)
    return names


COLLECTING = """
import sys
import millpond
from millpond.maps.layered import secured
from millpond.maps.loads.bucket_location import StorageBucket
from millpond.testing import faults

armed = faults.arm()
secured.LEASE_SECONDS = 0.3
asked = StorageBucket.now_ms
StorageBucket.now_ms = lambda place: asked(place) + 172_800_000 * later
later = 0
with millpond.open(sys.argv[1], cache=sys.argv[2], max_staleness=0) as pond:
    made = pond.create_map("m", kind="state", value="long", exist_ok=True)
    if made.get("b") is None:
        for value in (1, 2):
            made.load([{"key": "a", "value": value}], again=True)
            made.delete("key = 'a'")
        made.load([{"key": "b", "value": 1}])
    pond.collect_garbage()
    later = 1
    pond.collect_garbage()
    made.load([{"key": "a", "value": 1}], again=True)
    later = 2
    print(pond.collect_garbage().busy, made.lookup(["a", "b"]).to_pylist())
"""


def test_a_collection_killed_at_any_step(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = s3_server.make_bucket(f"collections-{os.getpid()}-{next(_NUMBERS)}")

    def run(url: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with millpond.open(url, cache=tmp_path / "begun", maps_history="1s"):
            pass
        return run_python("-c", COLLECTING, url, str(tmp_path / "child"), **variables)

    done = run(f"{bucket}/whole", **{STEPS_LOG: str(tmp_path / "log")})
    assert (done.returncode, done.stdout) == (0, "[] [1, 1]\n"), (done.stdout, done.stderr)
    moments = [moment for moment in occurrences(tmp_path / "log") if moment.startswith("garbage.")]
    assert {moment.partition(":")[0] for moment in moments} >= {
        "garbage.marked", "garbage.leased", "garbage.deleted", "garbage.swept",
    }  # fmt: skip
    for number, moment in drawn(list(enumerate(moments)), 2, name="collections"):
        url = f"{bucket}/{number}"
        killed = run(url, **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        with millpond.open(url, cache=tmp_path / f"other-{number}") as pond:
            assert pond.verify(full=True).ok, moment
            assert pond.map("m").get("b") == 1, moment
        again = run(url)
        assert (again.returncode, again.stdout) == (0, "[] [1, 1]\n"), (moment, again.stdout, again.stderr)
        with millpond.open(url, cache=tmp_path / f"last-{number}") as pond:
            assert pond.verify(full=True).ok, moment


def check_again(url: str, cache: Path, moment: str) -> None:
    with millpond.open(url, cache=cache) as pond:
        assert pond.verify(full=True).ok, moment
        for name in "mn":
            assert pond.map(name).lookup(["a", "b", "c1", "c2", "c3"]).to_pylist() == [3, 3, 1, 2, 3], moment
