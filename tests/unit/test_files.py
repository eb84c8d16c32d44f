"""Files that are replaced whole and folders that go away, also between threads, and past what dead processes left."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from millpond.clock import ManualClock, SystemClock
from millpond.nodes.jobs.orphans import AGE_MS_MIN, remove_orphans
from millpond.pond import open_pond
from millpond.stores import files
from millpond.stores.files import remove_tree, sweep_leftovers, unfinished_file, write_file_atomically

if TYPE_CHECKING:
    from pathlib import Path

THREADS = 8
ROUNDS = 60


@pytest.mark.usefixtures("processor")
def test_threads_that_write_one_file_leave_one_of_theirs_whole(tmp_path: Path) -> None:
    target = tmp_path / "file"
    start = Barrier(THREADS)
    # Of different lengths: a file of two writers has the end of the longer one.
    contents = [bytes([65 + number]) * (1 + 50_000 * number) for number in range(THREADS)]

    def write(content: bytes) -> list[bytes]:
        found = []
        for _ in range(ROUNDS):
            start.wait(60)
            write_file_atomically(target, content)
            found.append(target.read_bytes())
        return found

    with ThreadPoolExecutor(THREADS) as threads:
        seen = [found for written in threads.map(write, contents) for found in written]
    assert set(seen) <= set(contents)
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("processor")
def test_threads_that_remove_folders_of_one_name_all_get_through(tmp_path: Path) -> None:
    start = Barrier(THREADS)
    folder = tmp_path / "folder"

    def remove(number: int) -> None:
        for turn in range(ROUNDS):
            start.wait(60)
            made = tmp_path / f"made-{number}"
            (made / "deep").mkdir(parents=True)
            (made / "deep" / "file").write_bytes(b"%d" % turn)
            try:
                made.rename(folder)
            except OSError:  # another thread's is there
                remove_tree(made)
            remove_tree(folder)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(remove, range(THREADS)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("leftover_is_a_file", [False, True])
def test_a_leftover_of_another_process_keeps_nobody_from_removing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leftover_is_a_file: bool
) -> None:
    monkeypatch.setattr(files, "_NUMBERS", count())
    leftover = tmp_path / f".folder.{os.getpid()}-0.gone"
    if leftover_is_a_file:
        leftover.write_bytes(b"")
    else:
        (leftover / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    remove_tree(tmp_path / "folder")
    assert [left.name for left in tmp_path.iterdir()] == [leftover.name]


def test_a_leftover_of_another_process_keeps_nobody_from_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_NUMBERS", count())
    leftover = tmp_path / f".file.{os.getpid()}-0.unfinished"
    leftover.write_bytes(b"half")
    write_file_atomically(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert leftover.read_bytes() == b"half"
    sweep_leftovers(tmp_path)
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


def test_what_a_living_writer_holds_is_not_swept(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with unfinished_file(tmp_path / "folder", ".file.") as unfinished:
        (tmp_path / "folder" / ".file.1-2.unfinished").write_bytes(b"dead")
        sweep_leftovers(tmp_path, "*")
        assert [str(left) for left in (tmp_path / "folder").iterdir()] == [unfinished.name]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_file_atomically(target, b"old")
    with pytest.raises(TypeError):
        write_file_atomically(target, "no bytes")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


def test_a_map_that_only_branches_and_tags_have_is_no_orphan(tmp_path: Path) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock(1)) as pond:
        for name in ("there", "dropped"):
            pond.create_map(name, kind="state", value="long", store="layers").load({"key": ["a"], "value": [1]})
        pond.repository("pond").create_tag("before", "main")
        pond.branch("fix", source="main").create_map("new", kind="state").load({"key": ["a"], "value": [2]})
        pond.drop_map("dropped")
    with open_pond(tmp_path / "pond", clock=ManualClock(1)) as pond:
        assert remove_orphans(pond, SystemClock().now_ms() + 2 * AGE_MS_MIN) == []
        assert pond.at("before").map("dropped").get("a") == 1
        assert pond.branch("fix").map("new").get("a") == 2


@pytest.mark.parametrize("by_opening", [True, False], ids=["at the next open", "by the maintenance of a node"])
def test_leftovers_in_a_pond_are_swept(tmp_path: Path, by_opening: bool) -> None:
    with open_pond(tmp_path / "pond", clock=ManualClock(1)) as pond:
        pond.create_map("m", kind="state").load({"key": ["a"], "value": [1]})
        [shard] = (pond.folder / "shards").iterdir()
        folders = [pond.folder, pond.folder / "parts", shard]
        for folder in folders:
            (folder / ".x.1-1.gone" / "deep").mkdir(parents=True)
            (folder / ".x.1-1.unfinished").write_bytes(b"half")
        if not by_opening:
            remove_orphans(pond, pond.clock.now_ms())
    if by_opening:
        open_pond(tmp_path / "pond", clock=ManualClock(1)).close()
    assert [left for folder in folders for left in folder.glob(".*")] == []
