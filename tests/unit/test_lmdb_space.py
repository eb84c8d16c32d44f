"""The space in a file: it grows, fills the disk, is damaged, is shared by threads and processes, and outlives them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import lmdb
import pytest

from millpond.errors import Closed, Corrupt, Internal, NotFound, Unavailable
from millpond.stores.lmdb.environment import Environment
from millpond.stores.lmdb.probe import MAIN, read_through
from millpond.stores.lmdb.space import Limits, LmdbSpace
from tests.unit.lmdb_spaces import BIG, SMALL, environment_of, put, python, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.kernel.space import Transaction


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "space"


@pytest.fixture
def space(path: Path) -> Iterator[LmdbSpace]:
    space = LmdbSpace(path, durable=False, limits=SMALL)
    yield space
    space.close()


# --- growing


@pytest.mark.parametrize("swallow", [False, True])
def test_a_write_that_fills_the_map_is_run_again_from_its_start(space: LmdbSpace, swallow: bool) -> None:
    put(space, b"n", b"0")
    runs = []

    def change(transaction: Transaction) -> int:
        runs.append(transaction.get(b"n"))
        transaction.put(b"n", b"%d" % len(runs))
        try:
            transaction.put(b"big", BIG)
        except Exception:
            if not swallow:
                raise
        return len(runs)

    assert space.write(change) == len(runs) > 1
    assert set(runs) == {b"0"}
    assert rows(space) == {b"n": b"%d" % len(runs), b"big": BIG}


def test_the_map_grows_no_further_than_it_may(path: Path) -> None:
    space = LmdbSpace(path, limits=Limits(map_bytes=16384, map_bytes_max=65536))
    put(space, b"k")
    with pytest.raises(Unavailable) as caught:
        put(space, b"big", BIG)
    assert caught.value.kind == "space_full"
    put(space, b"small")
    assert rows(space) == {b"k": b"", b"small": b""}
    space.close()


def test_the_map_of_another_environment_is_not_ours_to_grow(space: LmdbSpace, tmp_path: Path) -> None:
    other = Environment.acquire(tmp_path / "other", limits=SMALL)

    def change(transaction: Transaction) -> None:
        transaction.put(b"k", b"")
        with other.handle.begin(write=True) as elsewhere:
            elsewhere.put(b"big", BIG)

    with pytest.raises(Internal):
        space.write(change)
    assert rows(space) == {}
    other.release()


# --- processes


@pytest.mark.usefixtures("process")
def test_a_reader_process_follows_a_map_that_grew(space: LmdbSpace, path: Path) -> None:
    put(space, b"k")
    child = python(
        "space = LmdbSpace(sys.argv[1], readonly=True, limits=Limits(map_bytes=16384))\n"
        "for _ in sys.stdin:\n"
        "    with space.read() as transaction:\n"
        "        print(len(transaction.get(b'big') or b''), flush=True)\n",
        path,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    for value in (b"", BIG, BIG * 5):
        put(space, b"big", value)
        child.stdin.write("\n")
        child.stdin.flush()
        assert int(child.stdout.readline()) == len(value)
    child.communicate()
    assert child.returncode == 0


@pytest.mark.usefixtures("process")
def test_two_processes_write_one_after_another(space: LmdbSpace, path: Path) -> None:
    count = (
        "def count(t): t.put(b'n', b'%d' % (int(t.get(b'n') or b'0') + 1))\n"
        "space = LmdbSpace(sys.argv[1], durable=False)\n"
        "for _ in range(200): space.write(count)\n"
    )
    children = [python(count, path) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert rows(space) == {b"n": b"400"}
    for child in children:
        child.communicate()


@pytest.mark.usefixtures("process")
def test_a_writer_killed_inside_its_write_leaves_nothing_and_holds_up_nobody(space: LmdbSpace, path: Path) -> None:
    put(space, b"k", b"old")
    child = python(
        "def die(t):\n    t.put(b'k', b'new')\n    os.kill(os.getpid(), 9)\nLmdbSpace(sys.argv[1]).write(die)\n", path
    )
    child.communicate()
    assert child.returncode == -9
    put(space, b"after")
    assert rows(space) == {b"k": b"old", b"after": b""}


@pytest.mark.usefixtures("process")
def test_readers_that_died_give_their_places_back(path: Path) -> None:
    space = LmdbSpace(path, limits=Limits(readers_max=2))
    put(space, b"k")
    child = python(
        "space = LmdbSpace(sys.argv[1], limits=Limits(readers_max=2))\n"
        "one, two = space.read(), space.read()\n"
        "one.__enter__(), two.__enter__()\n"
        "print(flush=True)\nsys.stdin.read()\n",
        path,
    )
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(Unavailable) as caught:
        rows(space)
    assert caught.value.kind == "readers_full"
    child.kill()
    child.communicate()
    assert rows(space) == {b"k": b""}
    space.close()


@pytest.mark.usefixtures("process")
def test_a_forked_child_must_open_its_own(space: LmdbSpace) -> None:
    child = os.fork()
    if not child:
        try:
            rows(space)
        except Closed as error:
            os._exit(7 if error.kind == "space_forked" else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# --- sharing, opening, closing


def test_one_process_shares_oneenvironment_of(space: LmdbSpace, path: Path) -> None:
    other = LmdbSpace(path.parent / "." / "space")
    assert environment_of(other) is environment_of(space)
    put(space, b"k")
    space.close()
    assert rows(other) == {b"k": b""}
    other.close()


def test_closing_waits_for_the_last_reader_to_end(path: Path) -> None:
    space = LmdbSpace(path)
    put(space, b"k")
    with space.read() as transaction:
        space.close()
        assert transaction.get(b"k") == b""
        again = LmdbSpace(path)
        put(again, b"k", b"new")
        again.close()
    space = LmdbSpace(path, readonly=True)
    assert rows(space) == {b"k": b"new"}
    space.close()


def test_a_folder_that_was_replaced_is_opened_anew(space: LmdbSpace, path: Path) -> None:
    put(space, b"k")
    shutil.rmtree(path)
    other = LmdbSpace(path)
    assert rows(other) == {}
    other.close()


def test_a_space_for_reading_only_refuses_to_write(path: Path) -> None:
    with pytest.raises(NotFound):
        LmdbSpace(path, readonly=True)
    assert not path.exists()
    LmdbSpace(path).close()
    space = LmdbSpace(path, readonly=True)
    with pytest.raises(Unavailable) as caught:
        put(space, b"k")
    assert caught.value.kind == "space_read_only"
    with pytest.raises(Unavailable):
        LmdbSpace(path)
    space.close()
    LmdbSpace(path).close()


@pytest.mark.usefixtures("process")
def test_address_space_is_reserved_as_far_as_the_process_may(path: Path) -> None:
    child = python(
        "import resource, json\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))\n"
        "space = LmdbSpace(sys.argv[1])\n"
        "space.write(lambda t: t.put(b'k', b'v'))\n",
        path,
    )
    child.communicate()
    assert child.returncode == 0


# --- disks


@pytest.mark.usefixtures("process")
def test_a_full_disk_is_an_error_and_loses_nothing(path: Path) -> None:
    child = python(
        "import resource\n"
        "from millpond.errors import Unavailable\n"
        "space = LmdbSpace(sys.argv[1])\n"
        "space.write(lambda t: t.put(b'k', b'old'))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))\n"
        "try: space.write(lambda t: (t.put(b'k', b'new'), t.put(b'big', bytes(100_000))))\n"
        "except Unavailable as error: print(error.kind)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "with space.read() as t: print(t.get(b'k'), t.get(b'big'))\n"
        "space.write(lambda t: t.put(b'k', b'new'))\n"
        "with space.read() as t: print(t.get(b'k'))\n",
        path,
    )
    out, _ = child.communicate()
    assert out.splitlines() == ["disk_full", "b'old' None", "b'new'"]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable) as caught:
        LmdbSpace(tmp_path / "file" / "space")
    assert caught.value.kind == "no_access"


# --- damage


def damaged(path: Path) -> Path:
    """A closed space of some depth, whose file is to be damaged."""
    space = LmdbSpace(path)
    space.write(lambda transaction: [transaction.put(b"%05d" % at, bytes(100)) for at in range(5000)])
    space.close()
    return path / "data.mdb"


@pytest.mark.parametrize("content", [b"x" * 100_000, b"short"])
def test_a_file_that_is_none_of_ours_is_corrupt(path: Path, content: bytes) -> None:
    file = damaged(path)
    file.write_bytes(content)
    with pytest.raises(Corrupt) as caught:
        LmdbSpace(path)
    assert caught.value.values["file"] == file


@pytest.mark.usefixtures("process")
def test_a_file_that_lost_its_end_is_corrupt(path: Path) -> None:
    file = damaged(path)
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(Corrupt) as caught:
        LmdbSpace(path)
    assert caught.value.kind == "space_truncated"
    assert caught.value.values["file"] == file


@pytest.mark.usefixtures("process")
def test_a_file_that_is_short_but_whole_is_opened(path: Path) -> None:
    space = LmdbSpace(path)

    def change(transaction: Transaction) -> None:
        transaction.put(b"k", b"v")
        # Pages taken and given back within a write are counted by the file, but never written.
        transaction.put(b"big", bytes(800_000))
        transaction.delete(b"big")

    for _ in range(4):  # the pages of the last round are free for the bookkeeping of the next
        put(space, b"k", b"")
    space.write(change)
    environment = environment_of(space).handle
    size = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    space.close()
    assert (path / "data.mdb").stat().st_size < size
    space = LmdbSpace(path)
    assert rows(space) == {b"k": b"v"}
    space.close()


@pytest.mark.usefixtures("process")
def test_a_page_of_zeros_is_found_by_reading_through(path: Path) -> None:
    file = damaged(path)
    assert read_through(path) == {MAIN: 5000}
    with file.open("r+b") as opened:
        opened.seek(8 * 4096)
        opened.write(bytes(40 * 4096))
    with pytest.raises(Corrupt) as caught:
        read_through(path)
    assert caught.value.values["file"] == file


@pytest.mark.usefixtures("process")
def test_named_tables_are_read_through(path: Path) -> None:
    with lmdb.open(str(path), max_dbs=2) as environment:
        one, two = environment.open_db(b"one"), environment.open_db(b"two", dupsort=True)
        with environment.begin(write=True) as transaction:
            transaction.put(b"a", b"1", db=one)
            for value in (b"1", b"2", b"3"):
                transaction.put(b"a", value, db=two)
    assert read_through(path) == {MAIN: 2, "one": 1, "two": 3}
