"""The gate of an environment: who waits while its map is to move, who must not, and for how long."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import lmdb
import pytest

from millpond.errors import Unavailable
from millpond.kernel.space import WouldBlock
from millpond.retry import Backoff
from millpond.stores.lmdb import environment as lmdb_environment
from millpond.stores.lmdb.environment import Environment, open_environment
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


def hold_a_reader(space: LmdbSpace, held: threading.Event, release: threading.Event) -> None:
    with space.read():
        held.set()
        assert release.wait(60)


def test_growing_waits_for_the_readers_of_other_threads(space: LmdbSpace) -> None:
    put(space, b"k")
    writer = threading.Thread(target=put, args=(space, b"big", BIG))
    with space.read() as reader:
        writer.start()
        while not environment_of(space)._growers:
            assert writer.is_alive()
        # A reader inside a reader is let in: to keep it out would make both wait for ever.
        with space.read() as nested:
            assert nested.get(b"big") is None
        assert reader.get(b"k") == b""
    writer.join()
    assert rows(space)[b"big"] == BIG


def test_a_reader_that_may_not_wait_is_let_go_while_the_map_is_to_move(space: LmdbSpace) -> None:
    put(space, b"k")
    writer = threading.Thread(target=put, args=(space, b"big", BIG))
    held, release = threading.Event(), threading.Event()
    reader = threading.Thread(target=hold_a_reader, args=(space, held, release))
    reader.start()
    assert held.wait(60)
    writer.start()
    while not environment_of(space)._growers:
        assert writer.is_alive()
    with pytest.raises(WouldBlock), space.read(wait=False):
        pass
    assert writer.is_alive()
    release.set()
    reader.join()
    writer.join()
    with space.read(wait=False) as after:
        assert after.get(b"big") == BIG


@pytest.mark.usefixtures("process")
def test_a_reader_that_may_not_wait_does_not_follow_a_map_that_grew(space: LmdbSpace, path: Path) -> None:
    put(space, b"k")
    grow = "space = LmdbSpace(sys.argv[1])\nspace.write(lambda tx: tx.put(b'big', bytes(100_000)))"
    with python(grow, path) as other:
        assert other.wait(60) == 0
    with pytest.raises(WouldBlock), space.read(wait=False):
        pass
    assert rows(space)[b"big"] == BIG
    with space.read(wait=False) as reader:
        assert reader.get(b"big") == BIG


def test_the_gate_keeps_nobody_for_longer_than_its_limit(path: Path) -> None:
    space = LmdbSpace(path, durable=False, limits=Limits(map_bytes=16384, gate_seconds_max=0.0))
    put(space, b"k")
    held, release = threading.Event(), threading.Event()
    reader = threading.Thread(target=hold_a_reader, args=(space, held, release))
    reader.start()
    assert held.wait(60)
    writer = threading.Thread(target=put, args=(space, b"big", BIG))
    writer.start()
    while not environment_of(space)._growers:
        assert writer.is_alive()
    with pytest.raises(Unavailable) as caught, space.read():
        pass
    assert caught.value.kind == "space_in_use"
    assert not isinstance(caught.value, WouldBlock)
    release.set()
    reader.join()
    writer.join()
    assert rows(space)[b"big"] == BIG
    space.close()


@pytest.mark.parametrize("first", ["the reader waits for its turn", "the map waits for the reader"])
def test_a_reader_that_waits_to_write_does_not_stop_the_writer_that_waits_for_it(space: LmdbSpace, first: str) -> None:
    put(space, b"k")
    inside, go_on, failed = threading.Event(), threading.Event(), []

    def grow(transaction: Transaction) -> None:
        inside.set()
        assert go_on.wait(60)
        transaction.put(b"big", BIG)

    def read_then_write() -> None:
        with space.read() as reader:
            assert reader.get(b"k") == b""
            reading.set()
            assert may_write.wait(60)
            try:
                put(space, b"mine")
            except Unavailable as error:
                failed.append(error)

    reading, may_write = threading.Event(), threading.Event()
    reader = threading.Thread(target=read_then_write)
    reader.start()
    assert reading.wait(60)
    writer = threading.Thread(target=lambda: space.write(grow))
    writer.start()
    assert inside.wait(60)
    environment = environment_of(space)
    if first == "the reader waits for its turn":
        may_write.set()
        while not environment._writers._requests:  # type: ignore[attr-defined]
            assert reader.is_alive()
        go_on.set()
    else:
        go_on.set()
        while not environment._growers:
            assert writer.is_alive()
        may_write.set()
    reader.join(30)
    writer.join(30)
    assert not reader.is_alive()
    assert not writer.is_alive(), "each waits for the other"
    assert [error.kind for error in failed] == ["space_in_use"]
    assert rows(space) == {b"k": b"", b"big": BIG}
    put(space, b"mine")


def test_a_slow_disk_delays_nobody_who_opens_another_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, slow, go_on = lmdb_environment.refuse_truncated, threading.Event(), threading.Event()

    def slow_disk(folder: Path, size: int) -> None:
        if folder == path:
            slow.set()
            assert go_on.wait(60)
        probe(folder, size)

    monkeypatch.setattr(lmdb_environment, "refuse_truncated", slow_disk)
    opened: list[LmdbSpace] = []
    openers = [threading.Thread(target=lambda: opened.append(LmdbSpace(path, limits=SMALL))) for _ in range(2)]
    for opener in openers:
        opener.start()
    assert slow.wait(60)
    other = LmdbSpace(tmp_path / "other", limits=SMALL)
    put(other, b"k")
    other.close()
    assert opened == []
    go_on.set()
    for opener in openers:
        opener.join()
    assert environment_of(opened[0]) is environment_of(opened[1]), "they opened it once"
    for space in opened:
        space.close()


def test_threads_that_open_and_close_a_file_share_one_environment(path: Path) -> None:
    def use(number: int) -> None:
        for turn in range(50):
            space = LmdbSpace(path, durable=False, limits=SMALL)
            put(space, b"%d" % number, b"%d" % turn)
            with space.read() as reader:
                assert reader.get(b"%d" % number) == b"%d" % turn
            space.close()

    failed: list[BaseException] = []

    def using(number: int) -> None:
        try:
            use(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=using, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    space = LmdbSpace(path)
    assert rows(space) == {b"%d" % number: b"49" for number in range(4)}
    space.close()


def test_a_thread_that_reads_cannot_move_the_map_under_its_reads(space: LmdbSpace) -> None:
    put(space, b"k")
    with space.read(), pytest.raises(Unavailable) as caught:
        put(space, b"big", BIG)
    assert caught.value.kind == "space_in_use"
    assert rows(space) == {b"k": b""}


@pytest.mark.usefixtures("processor")
def test_a_new_file_may_have_the_inode_of_one_that_is_being_closed(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def come_and_go(name: str) -> None:
        try:
            for number in range(100):
                environment = Environment.acquire(tmp_path / f"{name}-{number}", durable=False)
                (environment.path / "data.mdb").unlink()  # its inode is free when it is closed
                environment.release()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_a_file_with_the_inode_of_one_that_is_being_closed_is_opened_when_it_is_through(tmp_path: Path) -> None:
    """Whoever closes it: here nobody that the opener knows of, and only after it was refused."""
    (tmp_path / "new").mkdir()
    old = lmdb.open(str(tmp_path / "old"), lock=False)
    (tmp_path / "new" / "data.mdb").hardlink_to(tmp_path / "old" / "data.mdb")
    refused = threading.Event()

    def opened() -> lmdb.Environment:
        try:
            return lmdb.open(str(tmp_path / "new"), readonly=True, lock=False)
        except lmdb.Error:
            refused.set()
            raise

    ending = threading.Thread(target=lambda: (refused.wait(60), old.close()))
    ending.start()
    open_environment(opened).close()
    assert refused.is_set()
    ending.join()


def test_a_file_that_stays_open_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.stores.lmdb.environment._UNTIL_CLOSED", Backoff(0.001, 0.001, attempts_max=3))
    with lmdb.open(str(tmp_path), lock=False), pytest.raises(lmdb.Error, match="already open"):
        open_environment(lambda: lmdb.open(str(tmp_path), readonly=True, lock=False))
