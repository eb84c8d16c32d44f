"""Files that are written ahead: zeros behind their end, and nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.stores.lmdb.file_ahead import AHEAD_BYTES_MAX, AHEAD_BYTES_MIN, FileAhead
from millpond.stores.lmdb.probe import read_through
from millpond.stores.lmdb.space import LmdbSpace
from tests.unit.lmdb_spaces import environment_of

sizes = st.integers(0, 3_000_000)


@pytest.mark.usefixtures("processor")
@given(size=sizes, used=st.lists(sizes, min_size=1, max_size=5))
def test_what_a_file_has_stays_and_what_it_gets_is_zeros(size: int, used: list[int]) -> None:
    content = b"x" * size
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.mdb"
        file.write_bytes(content)
        ahead = FileAhead(file)
        for count in used:
            ahead.write_ahead(count)
            assert file.stat().st_size >= min(count + AHEAD_BYTES_MIN // 2, max(used))
        found = file.read_bytes()
    assert found[:size] == content
    assert not any(found[size:])
    assert len(found) <= max(size, max(used) + AHEAD_BYTES_MAX)


def test_a_file_that_is_gone_or_replaced_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "data.mdb"
    file.write_bytes(b"x")
    ahead = FileAhead(file)
    (tmp_path / "another").write_bytes(b"another")
    (tmp_path / "another").replace(file)
    ahead.write_ahead(AHEAD_BYTES_MAX)
    assert file.read_bytes() == b"another"
    file.unlink()
    ahead.write_ahead(3 * AHEAD_BYTES_MAX)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("process")
def test_a_durable_space_is_longer_than_its_pages_and_as_good(tmp_path: Path) -> None:
    for durable in (True, False):
        folder = tmp_path / str(durable)
        space = LmdbSpace(folder, durable=durable)
        for number in range(40):
            space.write(lambda tx, number=number: tx.put(b"%d" % number, bytes(2000)))
            info = environment_of(space).handle.info()
            assert ((folder / "data.mdb").stat().st_size > (info["last_pgno"] + 1) * 4096) == durable
        space.close()
        assert read_through(folder) == {"": 40}
