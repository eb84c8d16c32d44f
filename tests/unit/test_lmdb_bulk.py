"""A file written in one go is an LMDB file: read whole, written on in, copied, and the same bytes every time."""

from __future__ import annotations

from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.stores.lmdb.bulk_read import Piece, read_pieces
from millpond.stores.lmdb.bulk_write import LEAF_VALUES_BYTES_MAX, BulkTable, write_environment
from millpond.stores.lmdb.page_check import check_file
from millpond.stores.lmdb.probe import MAIN, read_through
from tests.rings.sampling import examples


def table(name: str, rows: dict[bytes, bytes], *, duplicates: bool = False) -> BulkTable:
    keys = sorted(rows)
    values = [rows[key] for key in keys]

    def column(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)]).astype(np.int64)
        return offsets, np.frombuffer(b"".join(texts), np.uint8)

    return BulkTable(name, *column(keys), *column(values), duplicates)


def written(folder: Path, tables: list[BulkTable]) -> bytes:
    folder.mkdir(exist_ok=True)
    with (folder / "data.mdb").open("wb") as target:
        size = write_environment(tables, target.write)
    assert (folder / "data.mdb").stat().st_size == size
    return (folder / "data.mdb").read_bytes()


def rows_of(environment: lmdb.Environment, name: str) -> dict[bytes, bytes]:
    opened = environment.open_db(name.encode(), create=False)
    with environment.begin(db=opened) as transaction:
        assert transaction.stat(opened)["entries"] == sum(1 for _ in transaction.cursor())
        return dict(transaction.cursor())


def numbered(count: int, key_bytes: int = 12, value_bytes: int = 20) -> dict[bytes, bytes]:
    return {b"%0*d" % (key_bytes, number): b"%d" % number * (value_bytes // 4) for number in range(count)}


SIZES = [0, 1, 2, 60, 500, 20_000]


@pytest.mark.usefixtures("process")
@pytest.mark.sample(6)
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("key_bytes", [5, 24, 511])
def test_all_rows_are_read_back_by_lmdb(tmp_path: Path, count: int, key_bytes: int) -> None:
    rows = numbered(min(count, 3000 if key_bytes == 511 else count), key_bytes)
    written(tmp_path / "bulk", [table("one", rows), table("two", {}), table("three", {b"k": b""})])
    assert read_through(tmp_path / "bulk") == {MAIN: 3, "one": len(rows), "two": 0, "three": 1}
    with lmdb.open(str(tmp_path / "bulk"), max_dbs=4) as environment:
        assert rows_of(environment, "one") == rows
        assert rows_of(environment, "two") == {}
        assert rows_of(environment, "three") == {b"k": b""}
        one = environment.open_db(b"one")
        with environment.begin(db=one) as transaction:
            assert all(transaction.get(key) == value for key, value in rows.items())
            cursor = transaction.cursor()
            assert [key for key, _ in cursor.iterprev()] == sorted(rows, reverse=True)


@pytest.mark.usefixtures("process")
@settings(max_examples=examples(15, 60))
@given(
    rows=st.dictionaries(
        st.binary(min_size=1, max_size=511),
        st.one_of(st.binary(max_size=20), st.integers(0, 20_000).map(lambda size: b"x" * size)),
        max_size=60,
    ),
    changes=st.lists(
        st.tuples(st.integers(0, 80), st.binary(min_size=1, max_size=5), st.integers(0, 5000)), max_size=30
    ),
)
def test_lmdb_writes_on_in_it(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[bytes, bytes], changes: list[tuple[int, bytes, int]]
) -> None:
    folder = tmp_path_factory.mktemp("bulk")
    written(folder, [table("rows", rows)])
    expected = dict(rows)
    with lmdb.open(str(folder), max_dbs=2, map_size=1 << 26, sync=False) as environment:
        opened = environment.open_db(b"rows")
        for number, key, size in changes:
            with environment.begin(db=opened, write=True) as transaction:
                if number < len(expected):
                    gone = sorted(expected)[number]
                    assert transaction.delete(gone)
                    del expected[gone]
                transaction.put(key, bytes(size))
                expected[key] = bytes(size)
        assert rows_of(environment, "rows") == expected
        copy = folder / "copy"
        copy.mkdir()
        environment.copy(str(copy), compact=True)
    assert read_through(copy) == {MAIN: 1, "rows": len(expected)}


def test_a_large_tree_is_emptied_and_filled_again(tmp_path: Path) -> None:
    rows = numbered(30_000, 40)
    written(tmp_path / "bulk", [table("rows", rows)])
    with lmdb.open(str(tmp_path / "bulk"), max_dbs=2, map_size=1 << 28, sync=False) as environment:
        opened = environment.open_db(b"rows")
        keys = sorted(rows)
        for part in (keys[::3], keys[1::3], keys[2::3]):
            with environment.begin(db=opened, write=True) as transaction:
                assert all(transaction.delete(key) for key in part)
        assert rows_of(environment, "rows") == {}
        with environment.begin(db=opened, write=True) as transaction:
            transaction.cursor().putmulti(rows.items())
        assert rows_of(environment, "rows") == rows


def test_tables_with_duplicates_take_more(tmp_path: Path) -> None:
    rows = numbered(5000, 8)
    written(tmp_path / "bulk", [table("dup", rows, duplicates=True)])
    with lmdb.open(str(tmp_path / "bulk"), max_dbs=2, map_size=1 << 26) as environment:
        opened = environment.open_db(b"dup")
        assert opened.flags()["dupsort"]
        with environment.begin(db=opened, write=True) as transaction:
            for key in list(rows)[::7]:
                transaction.put(key, b"another")
        with environment.begin(db=opened) as transaction:
            cursor = transaction.cursor()
            for number, key in enumerate(rows):
                assert cursor.set_key(key)
                found = sorted(cursor.iternext_dup())
                assert found == sorted([rows[key], b"another"] if number % 7 == 0 else [rows[key]])


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    tables = [table("one", numbered(3000)), table("big", {b"k%d" % size: bytes(size) for size in range(0, 9000, 500)})]
    assert written(tmp_path / "a", tables) == written(tmp_path / "b", tables)
    with lmdb.open(str(tmp_path / "a"), max_dbs=4, readonly=True, lock=False) as environment:
        assert rows_of(environment, "big") == {b"k%d" % size: bytes(size) for size in range(0, 9000, 500)}


def test_a_tree_is_described_as_lmdb_describes_it(tmp_path: Path) -> None:
    rows = numbered(20_000, 16, 40)
    written(tmp_path / "bulk", [table("rows", rows)])
    stats = []
    with lmdb.open(str(tmp_path / "plain"), max_dbs=2, map_size=1 << 26) as environment:
        opened = environment.open_db(b"rows")
        with environment.begin(db=opened, write=True) as transaction:
            transaction.cursor().putmulti(sorted(rows.items()), append=True)
    for name in ("bulk", "plain"):
        with (
            lmdb.open(str(tmp_path / name), max_dbs=2, readonly=True) as environment,
            environment.begin() as transaction,
        ):
            stats.append(transaction.stat(environment.open_db(b"rows", txn=transaction, create=False)))
    assert stats[0] == stats[1]


@pytest.mark.usefixtures("processor")
def test_a_leaf_ends_when_the_values_beside_it_are_many_bytes(tmp_path: Path) -> None:
    """So readers hold a few of them; LMDB takes such a file, also when it deletes and puts rows in it."""
    rows = {b"%03d" % number: bytes([number]) * (1 << 20) for number in range(40)}
    written(tmp_path / "large", [table("rows", rows)])
    file = tmp_path / "large" / "data.mdb"
    check_file(file, file.stat().st_size, {"rows": False})
    with lmdb.open(str(tmp_path / "large"), max_dbs=8, map_size=1 << 30) as environment:
        opened = environment.open_db(b"rows", create=False)
        with environment.begin(db=opened, write=True) as transaction:
            record = transaction.get(b"rows", db=environment.open_db(None, transaction))
            assert record is not None
            assert 5 <= transaction.stat(opened)["leaf_pages"] <= 9
            pieces = list(read_pieces(tmp_path / "large" / "data.mdb", record, 1_000))
            assert max(len(piece.values) for piece in pieces if isinstance(piece, Piece)) <= LEAF_VALUES_BYTES_MAX
            for number in range(0, 40, 3):
                assert transaction.delete(b"%03d" % number)
                rows.pop(b"%03d" % number)
            rows[b"017x"] = b"new"
            transaction.put(b"017x", b"new")
        assert rows_of(environment, "rows") == rows
