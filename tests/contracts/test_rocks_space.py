"""RocksDB's driver keeps the contract of spaces, and what is its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from millpond.errors import Closed, Corrupt, Unavailable, Uncertain
from millpond.kernel.keys import EVERYTHING
from millpond.testing.contracts.spaces import SpaceContract

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.kernel.space import Space, Transaction

pytest.importorskip("rocksdict")

from millpond.stores.rocksdb.space import CHUNK_ROWS_MAX, RocksSpace


class TestRocksSpace(SpaceContract):
    @pytest.fixture
    def space(self, tmp_path: Path) -> Iterator[Space]:
        space = RocksSpace(tmp_path / "space", durable=False)
        yield space
        space.close()

    def look_behind(self, space: Space, key: bytes) -> bytes | None:
        assert isinstance(space, RocksSpace)
        return space._db.get(key)

    def put_behind(self, space: Space, key: bytes, value: bytes) -> None:
        assert isinstance(space, RocksSpace)
        space._db.put(key, value)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_of_many_rows_keep_their_places(tmp_path: Path, reverse: bool) -> None:
    space = RocksSpace(tmp_path / "space", durable=False)
    keys = [b"%06d" % number for number in range(3 * CHUNK_ROWS_MAX)]

    def fill(tx: Transaction) -> None:
        for key in keys:
            tx.put(key, key * 100)

    space.write(fill)
    with space.read() as tx:
        for (one, value), (other, _) in zip(tx.scan(EVERYTHING, reverse=reverse), tx.scan(EVERYTHING), strict=True):
            assert value == one * 100
            assert tx.get(other) == other * 100  # moves the one iterator that all share
        assert list(tx.keys(EVERYTHING, reverse=reverse)) == sorted(keys, reverse=reverse)
    space.close()


@pytest.mark.usefixtures("process")
def test_a_folder_belongs_to_one_space(tmp_path: Path) -> None:
    space = RocksSpace(tmp_path / "space")
    with pytest.raises(Unavailable) as caught:
        RocksSpace(tmp_path / "space")
    assert caught.value.kind == "space_open"
    code = "import sys\nfrom millpond.stores.rocksdb.space import RocksSpace\nRocksSpace(sys.argv[1])"
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path / "space")], capture_output=True, text=True)
    assert "space is open already" in child.stderr
    space.close()
    RocksSpace(tmp_path / "space").close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable) as caught:
        RocksSpace(tmp_path / "file" / "space")
    assert caught.value.kind == "no_access"


def test_a_damaged_folder_is_corrupt(tmp_path: Path) -> None:
    space = RocksSpace(tmp_path / "space")
    space.write(lambda tx: tx.put(b"k", b"v"))
    space.close()
    (tmp_path / "space" / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(Corrupt):
        RocksSpace(tmp_path / "space")


@pytest.mark.usefixtures("process")
def test_a_disk_that_does_not_take_a_write_leaves_it_uncertain_and_the_space_closed(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\n"
        "from millpond.errors import Closed, Uncertain\n"
        "from millpond.stores.rocksdb.space import RocksSpace\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "space = RocksSpace(sys.argv[1])\n"
        "space.write(lambda t: t.put(b'k', b'old'))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))\n"
        "try: space.write(lambda t: (t.put(b'k', b'new'), t.put(b'big', bytes(100_000))))\n"
        "except Uncertain as error: print(error.kind)\n"
        "try: space.write(lambda t: t.put(b'k', b'new'))\n"
        "except Closed as error: print(error.kind)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "space = RocksSpace(sys.argv[1])\n"
        "with space.read() as t: print((t.get(b'k') == b'new') == (t.get(b'big') is not None))\n"
        "space.write(lambda t: t.put(b'k', b'last'))\n"
        "with space.read() as t: print(t.get(b'k'))\n"
    )
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path / "space")], capture_output=True, text=True)
    assert child.stdout.splitlines() == ["commit_lost", "space_failed", "True", "b'last'"], child.stderr


def test_a_closed_space_gives_no_moments(tmp_path: Path) -> None:
    space = RocksSpace(tmp_path / "space")
    space.close()
    with pytest.raises(Closed), space.read():
        pass
    assert issubclass(Uncertain, Unavailable)
