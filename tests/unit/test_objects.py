"""Objects: what folders and buckets promise besides the contract, and what a killed writer leaves."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.copies.files import side_by_side
from millpond.errors import Denied, Invalid, MillpondError, NotFound, Unavailable, Uncertain
from millpond.stores.files import unfinished_file
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import (
    FolderObjects,
    MemoryObjects,
    ObjectInfo,
    ObjectStore,
    open_objects,
    presign,
    sweep_partial,
)
from millpond.versions.repositories import Repositories
from tests.harness.interleaving.stores import PassingClock
from tests.harness.lossy_objects import LossyObjects
from tests.s3_server import S3Server


def text(buffer: pa.Buffer) -> bytes:
    return buffer.to_pybytes()


def test_what_cannot_be_opened_is_said() -> None:
    with pytest.raises(Invalid, match=r"objects cannot be opened.*nowhere://x.*s3://bucket/prefix"):
        open_objects("nowhere://x")
    with pytest.raises(Invalid, match="takes no configuration"):
        open_objects("folder", region="x")
    with pytest.raises(Invalid, match=r"objects cannot be opened.*no_such_setting"):
        open_objects("s3://bucket", no_such_setting="x")
    with pytest.raises(Invalid, match=r"without encryption.*endpoint=http://127.0.0.1:9 .*AWS_ALLOW_HTTP"):
        open_objects("s3://bucket", endpoint="http://127.0.0.1:9")


@pytest.mark.parametrize("outcomes", [(True,), (False,), (False, True), (True, False)], ids=str)
def test_a_mark_of_a_repository_whose_answer_was_lost_is_its_own(outcomes: tuple[bool, ...]) -> None:
    objects = LossyObjects()
    repositories = Repositories(MemorySpace(), PassingClock(), lambda _: objects)
    objects.outcomes = outcomes
    repositories.create("files", "local://files")
    objects.outcomes = outcomes
    with pytest.raises(Invalid) as caught:  # another's stays another's
        Repositories(MemorySpace(), PassingClock(ids=100), lambda _: objects).create("files", "local://files")
    assert caught.value.kind == "namespace_used"


# -- buckets ------------------------------------------------------------------------------------------


ACTS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda objects: objects.get("a"),
    "get_range": lambda objects: objects.get_range("a", 0, 1),
    "size": lambda objects: objects.size("a"),
    "put": lambda objects: objects.put("a", b"1"),
    "put_stream": lambda objects: objects.put_stream("a", [bytes(9 << 20)]),
    "swap": lambda objects: objects.swap("a", b"1", None),
    "delete": lambda objects: objects.delete("a", "b"),
    "rename": lambda objects: objects.rename("a", "b"),
    "list": lambda objects: list(objects.list()),
    "level": lambda objects: objects.level(),
}


def failure(act: str, objects: ObjectStore) -> MillpondError:
    with pytest.raises(MillpondError) as caught:
        ACTS[act](objects)
    return caught.value


@pytest.mark.sample(4)
@pytest.mark.parametrize("act", ACTS)
def test_a_bucket_that_does_not_answer_is_unavailable(s3_server: S3Server, act: str) -> None:
    config = s3_server.config() | {"endpoint": "http://127.0.0.1:9", "retry_config": {"max_retries": 0}}
    error = failure(act, open_objects("s3://bucket/x", **config))
    assert isinstance(error, Unavailable)
    assert error.kind == ("objects_uncertain" if isinstance(error, Uncertain) else "objects_unavailable")
    assert isinstance(error, Uncertain) == (act == "swap")
    assert error.values["bucket"] == "bucket"


@pytest.mark.sample(4)
@pytest.mark.parametrize("act", ACTS)
def test_wrong_credentials_name_the_bucket_and_the_variables(
    s3_server: S3Server, bucket: ObjectStore, act: str
) -> None:
    bucket.put("a", b"1")
    error = failure(act, open_objects(bucket.where, **(s3_server.config() | {"secret_access_key": "wrong"})))
    assert isinstance(error, Denied)
    assert error.kind == "objects_denied"
    assert str(error.values["bucket"]) in bucket.where
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in str(error.hint)


def test_no_credentials_are_an_error_of_access(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address where a machine of Amazon would learn its role is a closed port here."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    config = {name: value for name, value in s3_server.config().items() if "access_key" not in name}
    config |= {"metadata_endpoint": "http://127.0.0.1:9", "retry_config": {"max_retries": 0}}
    error = failure("get", open_objects("s3://bucket", **config))
    assert isinstance(error, Denied)
    assert "there are no credentials" in str(error)


@pytest.mark.sample(4)
@pytest.mark.parametrize("act", sorted(ACTS.keys() - {"size", "delete"}))
def test_a_missing_bucket_is_named(s3_server: S3Server, act: str) -> None:
    error = failure(act, open_objects("s3://no-such-bucket/x", **s3_server.config()))
    assert isinstance(error, NotFound)
    assert (error.kind, error.values["bucket"]) == ("bucket_not_found", "no-such-bucket")


def test_a_presigned_url_is_read_without_credentials(bucket: ObjectStore, tmp_path: Path) -> None:
    bucket.put("a", b"open")
    with urllib.request.urlopen(presign(bucket, "a", 60)) as answer:
        assert answer.read() == b"open"
    for place in (MemoryObjects(), FolderObjects(tmp_path)):
        with pytest.raises(Invalid, match="gives no URLs") as caught:
            presign(place, "a")
        assert caught.value.kind == "objects_unsupported"


STREAMED = """
import os, resource, sys
from millpond.stores.objects import open_objects
objects = open_objects(sys.argv[1])
objects.put_stream("warm", [bytes(9 << 20)])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
objects.put_stream("large", (bytes(1 << 20) for _ in range(int(sys.argv[2]))))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_large_stream_takes_bounded_memory(s3_server: S3Server, bucket: ObjectStore) -> None:
    environment = {**os.environ, **s3_server.environment}
    done = subprocess.run(
        [sys.executable, "-c", STREAMED, bucket.where, "200"], capture_output=True, check=True, text=True,
        env=environment,
    )  # fmt: skip
    assert bucket.size("large") == 200 << 20
    assert int(done.stdout) < 100
    bucket.delete("large", "warm")


KILLED_STREAM = """
import os, signal, sys
from millpond.stores.objects import open_objects
def chunks():
    for number in range(40):
        if number == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        yield b"new" * (1 << 19)
open_objects(sys.argv[1]).put_stream("a", chunks())
"""


@pytest.mark.parametrize("place", ["bucket", "folder"])
def test_a_stream_killed_in_the_middle_leaves_the_old(
    place: str, s3_server: S3Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    objects: ObjectStore = request.getfixturevalue("bucket") if place == "bucket" else FolderObjects(tmp_path / "o")
    objects.put("a", b"old")
    done = subprocess.run(
        [sys.executable, "-c", KILLED_STREAM, objects.where], check=False, env={**os.environ, **s3_server.environment}
    )
    assert done.returncode == -signal.SIGKILL
    assert [(found.name, found.size) for found in objects.list()] == [("a", 3)]
    assert text(objects.get("a")) == b"old"


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
    calls: list[tuple[str, str]] = []

    def path_of(handle: int) -> str:
        return str(Path(f"/proc/self/fd/{handle}").readlink().relative_to(tmp_path))

    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append(("sync", path_of(handle))), fsync(handle))[1])
    monkeypatch.setattr(
        os, "replace", lambda a, b: (calls.append(("name", os.path.relpath(b, tmp_path))), replace(a, b))
    )
    open_objects(tmp_path).put("x/y/a", b"1")
    acts = [act for act in calls if not act[1].startswith(".partial/")]
    partial = [at for at, act in enumerate(calls) if act[1].startswith(".partial/")]
    assert partial
    assert partial[0] < calls.index(("name", "x/y/a"))
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


@pytest.mark.usefixtures("process")
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
        sweep_partial(folder)
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
        assert sweep_partial(folder) == 1
        assert [str(left) for left in (tmp_path / ".partial").iterdir()] == [partial.name]


def test_a_writer_whose_file_was_swept_before_it_was_locked_takes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FolderObjects(tmp_path)
    flock, swept = fcntl.flock, []

    def sweep_first(file: object, how: int) -> None:
        if not swept:
            swept.append(1)
            assert sweep_partial(folder) == 1
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


@pytest.mark.usefixtures("processor")
def test_threads_put_at_once_while_another_sweeps(tmp_path: Path) -> None:
    folder = FolderObjects(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        puts = [threads.submit(folder.put, f"a/{n % 10}", b"%d" % (n % 10) * 1000) for n in range(200)]
        while not all(put.done() for put in puts):
            sweep_partial(folder)
        for put in puts:
            put.result()
    assert sorted(found.name for found in folder.list()) == [f"a/{n}" for n in range(10)]
    assert all(text(folder.get(f"a/{n}")) == b"%d" % n * 1000 for n in range(10))


def test_a_folder_is_no_object(tmp_path: Path) -> None:
    folder = FolderObjects(tmp_path)
    folder.put("a/b", b"1")
    with pytest.raises(NotFound, match="object=a "):
        folder.get("a")


SWAPPERS = """
import sys
from millpond.errors import Conflict
from millpond.stores.objects import FolderObjects
objects, mine = FolderObjects(sys.argv[1]), 0
while mine < 25:
    held = objects.get_tagged("count")
    try:
        objects.swap("count", b"%d" % (int(held.data.to_pybytes()) + 1), held.tag)
        mine += 1
    except Conflict:
        pass
"""


@pytest.mark.usefixtures("process")
def test_processes_that_swap_lose_nothing(tmp_path: Path) -> None:
    folder = FolderObjects(tmp_path)
    folder.swap("count", b"0", None)
    writers = [subprocess.Popen([sys.executable, "-c", SWAPPERS, str(tmp_path)]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert text(folder.get("count")) == b"75"
    assert [found.name for found in folder.list()] == ["count"]


def test_a_name_is_an_object_or_a_folder(tmp_path: Path) -> None:
    folder = FolderObjects(tmp_path)
    folder.put("a/b", b"1")
    with pytest.raises(Invalid, match="choose another name"):
        folder.put("a", b"2")
    with pytest.raises(Invalid, match="choose another name"):
        folder.put("a/b/c", b"2")
    with pytest.raises(NotFound):
        folder.get("a/b/c")
    folder.delete("a")
    assert text(folder.get("a/b")) == b"1"


@given(st.dictionaries(st.text("ab/c", min_size=1), st.integers(0, 2)),
       st.dictionaries(st.text("ab/c", min_size=1), st.integers(0, 2)))  # fmt: skip
def test_two_listings_are_compared_without_being_held(there: dict[str, int], here: dict[str, int]) -> None:
    wanted = ""

    def listed_there() -> Iterator[ObjectInfo]:
        nonlocal wanted
        for wanted in sorted(there):
            yield ObjectInfo(wanted, there[wanted])

    def listed_here() -> Iterator[ObjectInfo]:
        for name in sorted(here):
            yield ObjectInfo(name, here[name])
            assert name < wanted, "it was gone beyond"

    for named, is_held in side_by_side(listed_there(), listed_here()):
        assert is_held == (here.get(named.name) == named.size)
