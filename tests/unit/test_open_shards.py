"""Shards are closed and opened again, so that a process uses more maps than it may open files."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from millpond.clock import ManualClock
from millpond.maps.shard.open_shards import FILES_PER_SHARD, OPEN_SHARDS, SHARDS_MAX, OpenShards, shards_max
from millpond.pond import open_pond
from tests.harness.scratch import scratch_folder


def use_maps(maps: int, files: int) -> dict[str, float]:
    with scratch_folder() as folder:
        command = [sys.executable, "-m", "tests.unit.many_maps_child", str(folder / "pond"), str(maps), str(files)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    took: dict[str, float] = json.loads(done.stdout)
    return took


@pytest.mark.usefixtures("process")
def test_more_maps_than_files() -> None:
    use_maps(maps=120, files=160)


@pytest.mark.full
def test_five_thousand_maps_under_a_thousand_files() -> None:
    print(use_maps(maps=5_000, files=1_024))


class Fake:
    """A shard that says when it was closed."""

    def __init__(self, opened: OpenShards, *, busy: bool = False) -> None:
        self.opened, self.recent, self.busy, self.open = opened, True, busy, True

    def let_go(self) -> bool:
        self.open = self.busy
        if not self.busy:
            self.opened.closed(self)
        return not self.busy


def test_those_that_were_not_used_lately_are_closed_first_and_busy_ones_stay() -> None:
    opened = OpenShards()
    shards = [Fake(opened, busy=number == 1) for number in range(6)]
    for shard in shards:
        opened.opening(shard)
    for shard in shards[:3]:
        shard.recent = False
    opened.close_some(4)
    assert [shard.open for shard in shards] == [False, True, False, True, True, True]


def test_the_limit_follows_the_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, wanted in ((64, 8), (1024, 96), (1 << 20, SHARDS_MAX), (resource.RLIM_INFINITY, SHARDS_MAX)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert shards_max() == wanted


def test_a_shard_takes_so_many_files(tmp_path: Path) -> None:
    def files() -> int:
        """The open files of the pond; other tests of the process may leave some behind that go meanwhile."""
        held = 0
        for number in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                held += number.readlink().is_relative_to(tmp_path)
        return held

    with open_pond(tmp_path / "pond", clock=ManualClock(now=1)) as pond:
        target = pond.create_map("m", kind="state", value="string")
        target.load({"key": ["k"], "value": ["v"]})
        target.shard.close()
        before = files()
        assert target.get("k") == "v"
        assert files() - before == FILES_PER_SHARD
        OPEN_SHARDS.close_some(0)
        OPEN_SHARDS.close_some(0)
        assert files() == before
        assert target.get("k") == "v"
