"""A file written piece by piece is an LMDB file with the rows of all pieces, wherever they are cut."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.arrays.byte_columns import Bytes
from millpond.stores.lmdb.bulk_read import Piece, read_pieces
from millpond.stores.lmdb.bulk_write import LEAF_VALUES_BYTES_MAX
from millpond.stores.lmdb.page_check import check_file
from millpond.stores.lmdb.probe import MAIN, read_through
from millpond.stores.lmdb.stream_write import EnvironmentWriter
from tests.rings.sampling import examples

Rows = dict[bytes, bytes]
TABLE = "rows"


def column(texts: list[bytes]) -> Bytes:
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.array([len(text) for text in texts], np.int64), out=offsets[1:])
    return Bytes(offsets, np.frombuffer(bytearray(b"".join(texts)), np.uint8))


def write(folder: Path, tables: dict[str, Rows], cuts: list[int]) -> Path:
    folder.mkdir(exist_ok=True)
    with (folder / "data.mdb").open("wb") as target:
        writer = EnvironmentWriter(target)
        for name, rows in tables.items():
            writer.begin(name)
            keys = sorted(rows)
            places = sorted({0, len(keys), *(min(cut, len(keys)) for cut in cuts)})
            for low, high in pairwise(places):
                some = keys[low:high]
                writer.add(column(some), column([rows[key] for key in some]))
        size = writer.finish()
    assert (folder / "data.mdb").stat().st_size == size
    return folder


def rows_of(folder: Path, name: str) -> Rows:
    with lmdb.open(str(folder), max_dbs=8, readonly=True, lock=False) as environment:
        opened = environment.open_db(name.encode(), create=False)
        with environment.begin(db=opened) as transaction:
            assert transaction.stat(opened)["entries"] == sum(1 for _ in transaction.cursor())
            return dict(transaction.cursor())


@pytest.mark.usefixtures("process")
@settings(max_examples=examples(15, 60), deadline=None)
@given(
    rows=st.dictionaries(
        st.binary(min_size=1, max_size=511),
        st.one_of(st.binary(max_size=20), st.integers(0, 20_000).map(lambda size: b"x" * size)),
        max_size=80,
    ),
    cuts=st.lists(st.integers(0, 80), max_size=6),
)
def test_pieces_are_one_table(tmp_path_factory: pytest.TempPathFactory, rows: Rows, cuts: list[int]) -> None:
    folder = write(tmp_path_factory.mktemp("stream"), {"rows": rows, "empty": {}}, cuts)
    assert rows_of(folder, "rows") == rows
    assert read_through(folder) == {MAIN: 2, "rows": len(rows), "empty": 0}
    check_file(folder / "data.mdb", {"rows": False, "empty": False})


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("key_bytes", [6, 24, 500])
def test_many_rows_are_found_and_written_on_in(tmp_path: Path, key_bytes: int) -> None:
    rows = {b"%0*d" % (key_bytes, number): b"%d" % number for number in range(30_000 if key_bytes < 100 else 3_000)}
    folder = write(tmp_path / "stream", {"one": rows, "two": {b"k": bytes(9000)}}, list(range(0, 30_000, 777)))
    assert read_through(folder) == {MAIN: 2, "one": len(rows), "two": 1}
    with lmdb.open(str(folder), max_dbs=4, map_size=1 << 28, sync=False) as environment:
        one = environment.open_db(b"one")
        with environment.begin(db=one, write=True) as transaction:
            assert all(transaction.get(key) == value for key, value in rows.items())
            for key in sorted(rows)[::3]:
                assert transaction.delete(key)
            transaction.put(b"another", bytes(5000))
        with environment.begin(db=one) as transaction:
            assert len(list(transaction.cursor())) == len(rows) - len(sorted(rows)[::3]) + 1


def test_the_tree_is_the_same_wherever_the_rows_are_cut(tmp_path: Path) -> None:
    rows = {b"%08d" % number: b"%d" % number * 3 for number in range(20_000)}
    whole = write(tmp_path / "whole", {"rows": rows}, [])
    cut = write(tmp_path / "cut", {"rows": rows}, [1, 2, 500, 501, 7_000, 19_999])
    assert rows_of(whole, "rows") == rows_of(cut, "rows")
    stats = []
    for folder in (whole, cut):
        with (
            lmdb.open(str(folder), max_dbs=2, readonly=True, lock=False) as environment,
            environment.begin() as transaction,
        ):
            stats.append(transaction.stat(environment.open_db(b"rows", txn=transaction, create=False)))
    assert stats[0] == stats[1]


def test_an_unfinished_file_is_no_environment(tmp_path: Path) -> None:
    with (tmp_path / "data.mdb").open("wb") as target:
        writer = EnvironmentWriter(target)
        writer.begin("rows")
        writer.add(column([b"%d" % number for number in range(10)]), column([b""] * 10))
    with pytest.raises(lmdb.Error):
        lmdb.open(str(tmp_path), readonly=True, lock=False)


@pytest.mark.usefixtures("processor")
def test_a_leaf_ends_when_the_values_beside_it_are_many_bytes(tmp_path: Path) -> None:
    """So readers hold a few of them; LMDB takes such a file, also when it deletes and puts rows in it."""
    rows = {b"%03d" % number: bytes([number]) * (1 << 20) for number in range(40)}
    folder = write(tmp_path / "large", {TABLE: rows}, [7, 20])
    check_file(folder / "data.mdb", {TABLE: False})
    with lmdb.open(str(folder), max_dbs=8, map_size=1 << 30) as environment:
        opened = environment.open_db(TABLE.encode(), create=False)
        with environment.begin(db=opened, write=True) as transaction:
            record = transaction.get(TABLE.encode(), db=environment.open_db(None, transaction))
            assert record is not None
            assert 5 <= transaction.stat(opened)["leaf_pages"] <= 9
            pieces = list(read_pieces(folder / "data.mdb", record, 1_000))
            assert max(len(piece.values) for piece in pieces if isinstance(piece, Piece)) <= LEAF_VALUES_BYTES_MAX
            for number in range(0, 40, 3):
                assert transaction.delete(b"%03d" % number)
                rows.pop(b"%03d" % number)
            rows[b"017x"] = b"new"
            transaction.put(b"017x", b"new")
    assert rows_of(folder, TABLE) == rows
