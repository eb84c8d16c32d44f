"""Objects: whole or not there, in a folder, in memory and in a bucket; and what a killed writer leaves."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from millpond.errors import Invalid, NotFound, Unavailable
from millpond.stores.files import unfinished_file
from millpond.stores.objects import FolderObjects, Named, Objects, open_objects

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=["folder", "memory", "bucket"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "folder":
        return open_objects(tmp_path / "objects")
    if request.param == "memory":
        return open_objects("memory://")
    return cast(Objects, request.getfixturevalue("bucket"))


def text(buffer: pa.Buffer) -> bytes:
    return buffer.to_pybytes()


def test_what_is_put_is_got(objects: Objects) -> None:
    objects.put("a/b.txt", b"one")
    assert text(objects.get("a/b.txt")) == b"one"
    objects.put("a/b.txt", memoryview(b"another"))
    assert text(objects.get("a/b.txt")) == b"another"
    assert objects.size("a/b.txt") == 7
    objects.put("a/b.txt", pa.py_buffer(b"\xff\x80\x00"))
    assert text(objects.get("a/b.txt")) == b"\xff\x80\x00"
    assert objects.exists("a/b.txt")
    assert not objects.exists("a/c.txt")


def test_an_empty_object_is_an_object(objects: Objects) -> None:
    objects.put("empty", b"")
    assert text(objects.get("empty")) == b""
    assert objects.get_range("empty", 0, 10) == b""
    assert objects.exists("empty")


def test_a_range_of_an_object_ends_where_it_ends(objects: Objects) -> None:
    objects.put("a", b"0123456789")
    assert objects.get_range("a", 2, 5) == b"234"
    assert objects.get_range("a", 8, 50) == b"89"
    assert objects.get_range("a", 10, 50) == b""


def test_a_missing_object_is_named(objects: Objects) -> None:
    with pytest.raises(NotFound, match=r"object=x/missing"):
        objects.get("x/missing")
    with pytest.raises(NotFound, match="x/missing"):
        objects.size("x/missing")
    with pytest.raises(NotFound, match="x/missing"):
        objects.get_range("x/missing", 0, 1)
    with pytest.raises(NotFound, match="x/missing"):
        objects.rename("x/missing", "x/other")
    objects.delete("x/missing")


def test_objects_are_listed_below_a_folder(objects: Objects) -> None:
    for name in ("a/1", "a/2", "b/c/3", "4"):
        objects.put(name, name.encode())
    assert sorted(found.name for found in objects.list()) == ["4", "a/1", "a/2", "b/c/3"]
    assert sorted(objects.list("b"), key=lambda found: found.name) == [Named("b/c/3", 5)]
    assert list(objects.list("nothing")) == []
    objects.delete("a/1")
    assert [found.name for found in objects.list("a")] == ["a/2"]


def test_an_object_is_renamed_whole(objects: Objects) -> None:
    objects.put("ranges/a", b"bad")
    objects.rename("ranges/a", "quarantine/a")
    assert not objects.exists("ranges/a")
    assert text(objects.get("quarantine/a")) == b"bad"


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a/.b", "a b", "ä", "a\n", "C:\\x"]
)
def test_no_name_leaves_its_place(objects: Objects, name: str) -> None:
    acts: list[Callable[[], object]] = [
        lambda: objects.put(name, b""),
        lambda: objects.get(name),
        lambda: objects.delete(name),
        lambda: objects.rename("a", name),
        lambda: objects.local_path(name),
    ]
    objects.put("a", b"")
    for act in acts:
        with pytest.raises(Invalid) as caught:
            act()
        assert caught.value.kind == "object_name"


def test_objects_travel_to_another_process(objects: Objects) -> None:
    objects.put("a", b"1")
    again = pickle.loads(pickle.dumps(objects))
    assert type(again) is type(objects)
    if not again.where.startswith("memory:"):  # what memory holds stays in its process
        assert text(again.get("a")) == b"1"


def test_what_cannot_be_opened_is_said() -> None:
    with pytest.raises(Invalid, match="objects cannot be opened"):
        open_objects("nowhere://x")
    with pytest.raises(Invalid, match="takes no configuration"):
        open_objects("folder", region="x")
    with pytest.raises(Invalid, match="objects cannot be opened"):
        open_objects("s3://bucket", no_such_setting="x")


def test_a_bucket_that_does_not_answer_is_unavailable() -> None:
    away = open_objects(
        "s3://bucket/x", endpoint="http://127.0.0.1:9", access_key_id="a", secret_access_key="b", allow_http=True,
        retry_config={"max_retries": 0},
    )  # fmt: skip
    with pytest.raises(Unavailable) as caught:
        away.get("a")
    assert caught.value.kind == "objects_unavailable"


def test_a_bucket_refuses_nobody_it_knows(bucket: Objects) -> None:
    assert bucket.local_path("a") is None
    bucket.put("big", bytes(12 << 20))
    assert bucket.size("big") == 12 << 20


# -- folders ------------------------------------------------------------------------------------------


def test_a_folder_maps_its_files(tmp_path: Path) -> None:
    folder = open_objects(tmp_path)
    folder.put("a/b", b"x" * 10)
    path = folder.local_path("a/b")
    assert path == tmp_path / "a/b"
    held = folder.get("a/b")
    folder.put("a/b", b"y" * 10)  # another file takes the name; the mapped one stays whole
    assert text(held) == b"x" * 10
    folder.delete("a/b")
    assert text(held) == b"x" * 10


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    folder = open_objects(tmp_path)
    folder.put("a", b"old")
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(Unavailable) as caught:
            folder.put("a", bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert caught.value.kind == "disk_full"
    assert text(folder.get("a")) == b"old"
    assert list((tmp_path / ".partial").iterdir()) == []


def test_a_put_makes_bytes_and_names_durable_in_that_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes before the name that shows them, and every new folder before what lies in it."""
    told: list[tuple[str, str]] = []

    def path_of(handle: int) -> str:
        return str(Path(f"/proc/self/fd/{handle}").readlink().relative_to(tmp_path))

    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (told.append(("sync", path_of(handle))), fsync(handle))[1])
    monkeypatch.setattr(
        os, "replace", lambda a, b: (told.append(("name", os.path.relpath(b, tmp_path))), replace(a, b))
    )
    open_objects(tmp_path).put("x/y/a", b"1")
    acts = [act for act in told if not act[1].startswith(".partial/")]
    partial = [at for at, act in enumerate(told) if act[1].startswith(".partial/")]
    assert partial
    assert partial[0] < told.index(("name", "x/y/a"))
    assert acts[-2:] == [("name", "x/y/a"), ("sync", "x/y")]
    assert [act for act in acts[:-2] if act[1] != ".partial"] == [("sync", "."), ("sync", "x")]


KILLED = """
import os, signal, sys
from millpond.stores.objects import open_objects
objects = open_objects(sys.argv[1])
at, seen = int(sys.argv[2]), 0

def count(event, arguments):
    # every way to the disk that `put` takes: open, fsync is none of them, so it is counted by hand
    global seen
    if event in ("open", "os.rename", "os.mkdir") and objects_at(arguments):
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGKILL)

def objects_at(arguments):
    paths = [os.fsdecode(path) for path in arguments if isinstance(path, (str, bytes, os.PathLike))]
    return any(path.startswith(sys.argv[1]) for path in paths)

fsync = os.fsync
def counted_fsync(handle):
    count("os.rename", (sys.argv[1],))
    fsync(handle)
    count("os.rename", (sys.argv[1],))
os.fsync = counted_fsync
sys.addaudithook(count)
objects.put("a/b", bytes(range(256)) * 4096)
os.write(1, b"put returned")
"""


def test_a_writer_killed_anywhere_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    old, new = b"old", bytes(range(256)) * 4096
    outcomes: list[bytes] = []
    for at in range(1, 60):
        folder = FolderObjects(tmp_path / str(at))
        folder.put("a/b", old)
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(folder.root), str(at)], capture_output=True, check=False
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        outcomes.append(text(folder.get("a/b")))
        assert [found.name for found in folder.list()] == ["a/b"]
        assert (done.stdout == b"put returned") <= (outcomes[-1] == new)
        folder.sweep_partial()
        assert list((folder.root / ".partial").iterdir()) == []
        if done.returncode == 0:
            break
    else:
        pytest.fail("the writer never came to its end")
    assert outcomes[0] == old
    assert outcomes == sorted(outcomes, key=[old, new].index)
    assert len(outcomes) > 5


def test_sweeping_leaves_what_a_living_writer_holds(tmp_path: Path) -> None:
    folder = FolderObjects(tmp_path)
    (tmp_path / ".partial").mkdir()
    with unfinished_file(tmp_path / ".partial") as partial:
        (tmp_path / ".partial" / "dead").write_bytes(b"left")
        assert folder.sweep_partial() == 1
        assert [str(left) for left in (tmp_path / ".partial").iterdir()] == [partial.name]


def test_a_writer_whose_file_was_swept_before_it_was_locked_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FolderObjects(tmp_path)
    flock, swept = fcntl.flock, []

    def sweep_first(file: object, how: int) -> None:
        if not swept:
            swept.append(1)
            assert folder.sweep_partial() == 1
        flock(file, how)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    folder.put("a", b"1")
    assert swept
    assert text(folder.get("a")) == b"1"
    assert list((tmp_path / ".partial").iterdir()) == []


def test_files_may_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    folder = FolderObjects(tmp_path)
    before = os.umask(0o027)
    try:
        folder.put("a", b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_threads_put_at_once_while_another_sweeps(tmp_path: Path) -> None:
    folder = FolderObjects(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        puts = [threads.submit(folder.put, f"a/{n % 10}", b"%d" % (n % 10) * 1000) for n in range(200)]
        while not all(put.done() for put in puts):
            folder.sweep_partial()
        for put in puts:
            put.result()
    assert sorted(found.name for found in folder.list()) == [f"a/{n}" for n in range(10)]
    assert all(text(folder.get(f"a/{n}")) == b"%d" % n * 1000 for n in range(10))


def test_a_folder_that_fails_is_unavailable(tmp_path: Path) -> None:
    folder = FolderObjects(tmp_path)
    folder.put("a/b", b"1")
    with pytest.raises((Unavailable, NotFound), match="object=a "):
        folder.get("a")
