"""A table read from its pages has the rows that a cursor finds, by any writer, whatever is written since."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import Corrupt
from millpond.stores.lmdb.bulk_read import Piece, Rest, read_from, read_pieces
from millpond.stores.lmdb.bulk_write import BulkTable, write_environment
from millpond.stores.lmdb.page_format import PAGE
from tests.rings.sampling import examples

Rows = list[tuple[bytes, bytes]]

ROWS = st.dictionaries(
    st.binary(min_size=1, max_size=511),
    st.one_of(st.binary(max_size=20), st.integers(0, 20_000).map(lambda size: b"x" * size)),
    max_size=60,
)


def cut(offsets: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[offsets[i] : offsets[i + 1]].tobytes() for i in range(len(offsets) - 1)]


def collect(pieces: Iterator[Piece | Rest]) -> tuple[Rows, bytes | None]:
    """All rows, and the key from which a cursor has to go on."""
    rows: Rows = []
    for piece in pieces:
        if isinstance(piece, Rest):
            return rows, piece.key
        rows += zip(cut(piece.key_offsets, piece.keys), cut(piece.value_offsets, piece.values), strict=True)
    return rows, None


@contextmanager
def environment(folder: Path) -> Iterator[lmdb.Environment]:
    with lmdb.open(str(folder), max_dbs=3, map_size=1 << 28, sync=False) as env:
        yield env


def read(folder: Path, tx: lmdb.Transaction, rows_max: int = 1000) -> tuple[Rows, bytes | None]:
    return collect(read_pieces(folder / "data.mdb", tx.get(b"rows"), rows_max))


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(10, 40))
@given(rows=ROWS, removed=st.integers(0, 30), rows_max=st.integers(1, 100))
def test_what_lmdb_wrote(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[bytes, bytes], removed: int, rows_max: int
) -> None:
    folder = tmp_path_factory.mktemp("lmdb")
    with environment(folder) as env:
        table = env.open_db(b"rows")
        with env.begin(write=True, db=table) as tx:
            tx.cursor().putmulti(rows.items())
        with env.begin(write=True, db=table) as tx:
            for key in sorted(rows)[:removed]:
                tx.delete(key)
        with env.begin() as tx:
            assert read(folder, tx, rows_max) == (sorted(rows.items())[removed:], None)


@settings(max_examples=examples(6, 20))
@given(rows=ROWS)
def test_what_was_written_in_one_go(tmp_path_factory: pytest.TempPathFactory, rows: dict[bytes, bytes]) -> None:
    folder = tmp_path_factory.mktemp("bulk")

    def column(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)]).astype(np.int64)
        return offsets, np.frombuffer(b"".join(texts), np.uint8)

    keys = sorted(rows)
    with (folder / "data.mdb").open("wb") as target:
        write_environment([BulkTable("rows", *column(keys), *column([rows[key] for key in keys]))], target.write)
    with environment(folder) as env, env.begin() as tx:
        assert read(folder, tx) == (sorted(rows.items()), None)


def test_a_transaction_sees_its_own_moment(tmp_path: Path) -> None:
    before = [(b"%08d" % number, b"old" * (number % 50)) for number in range(0, 20_000, 2)]
    with environment(tmp_path) as env:
        table = env.open_db(b"rows")
        with env.begin(write=True, db=table) as tx:
            tx.cursor().putmulti(before)
        with env.begin() as reading:
            pieces = read_pieces(tmp_path / "data.mdb", reading.get(b"rows"), 500)
            first = next(pieces)
            for number in range(1, 20_000, 97):
                with env.begin(write=True, db=table) as tx:
                    tx.put(b"%08d" % number, b"new")
                    tx.delete(b"%08d" % (number - 1))
            rows, rest = collect(pieces)
            assert isinstance(first, Piece)
            assert (cut(first.key_offsets, first.keys) + [key for key, _ in rows], rest) == (
                [k for k, _ in before],
                None,
            )
        with env.begin() as tx:
            after, _ = read(tmp_path, tx)
            assert after == list(tx.cursor(db=table))


def test_several_rows_under_one_key_are_left_to_a_cursor(tmp_path: Path) -> None:
    with environment(tmp_path) as env:
        table = env.open_db(b"rows", dupsort=True)
        with env.begin(write=True, db=table) as tx:
            tx.cursor().putmulti([(b"%08d" % number, b"one") for number in range(10_000)])
            tx.put(b"%08d" % 7_000, b"two")
        with env.begin() as tx:
            rows, rest = read(tmp_path, tx)
            assert rest is not None and rest <= b"%08d" % 7_000
            cursor = tx.cursor(db=table)
            assert cursor.set_range(rest)
            assert [*rows, *cursor] == list(tx.cursor(db=table))


@pytest.mark.parametrize("few", [0, 30_000])
def test_so_many_rows_under_one_key_that_they_are_a_table(tmp_path: Path, few: int) -> None:
    with environment(tmp_path) as env:
        table = env.open_db(b"rows", dupsort=True)
        with env.begin(write=True, db=table) as tx:
            tx.cursor().putmulti([(b"a%08d" % number, b"one") for number in range(few)])
            tx.cursor().putmulti([(b"b", b"%0200d" % number) for number in range(3_000)])
            tx.cursor().putmulti([(b"c%08d" % number, b"one") for number in range(few)])
        with env.begin() as tx:
            rows, rest = read(tmp_path, tx)
            assert rest is not None
            cursor = tx.cursor(db=table)
            assert cursor.set_range(rest)
            assert [*rows, *cursor] == list(tx.cursor(db=table))


def test_a_file_that_was_unlinked_is_left_to_a_cursor(tmp_path: Path) -> None:
    with environment(tmp_path) as env:
        table = env.open_db(b"rows")
        with env.begin(write=True, db=table) as tx:
            tx.put(b"a", b"1")
        with env.begin() as tx:
            (tmp_path / "data.mdb").unlink()
            assert read(tmp_path, tx) == ([], b"")


@pytest.mark.usefixtures("processor")
def test_no_byte_of_the_file_leads_outside_it(tmp_path: Path) -> None:
    with environment(tmp_path) as env:
        table = env.open_db(b"rows")
        with env.begin(write=True, db=table) as tx:
            tx.cursor().putmulti([(b"%0200d" % number, b"v" * (number % 7)) for number in range(200)])
            tx.put(b"large", b"x" * 9_000)
        with env.begin() as tx:
            record = tx.get(b"rows")
    sound = (tmp_path / "data.mdb").read_bytes()
    file = tmp_path / "damaged.mdb"
    refused = 0
    for page in range(2, len(sound) // PAGE):
        for at in (*range(64), *range(64, PAGE, 97)):
            damaged = bytearray(sound)
            damaged[page * PAGE + at] ^= 0xFF
            file.write_bytes(damaged)
            try:
                collect(read_pieces(file, record, 50))
            except Corrupt:
                refused += 1
    assert refused > 100
    for at in range(len(record)):
        wrong = bytearray(record)
        wrong[at] ^= 0x7F
        try:
            collect(read_pieces(tmp_path / "data.mdb", bytes(wrong), 50))
        except Corrupt:
            refused += 1


def piece_rows(piece: Piece) -> Rows:
    return list(
        zip(cut(piece.key_offsets, piece.keys), cut(piece.value_offsets, piece.values), strict=True)
    )  # fmt: skip


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(15, 60))
@given(
    rows=ROWS, many=st.integers(0, 2_000), removed=st.integers(0, 400), first=st.binary(max_size=12),
    rows_max=st.integers(1, 300),
)  # fmt: skip
def test_rows_from_a_key_on(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[bytes, bytes], many: int, removed: int, first: bytes,
    rows_max: int,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("lmdb")
    rows |= {b"%06d" % (n * 7919 % 10_000): b"y" * (n % 90) for n in range(many)}
    with environment(folder) as env:
        table = env.open_db(b"rows")
        with env.begin(write=True, db=table) as tx:
            tx.cursor().putmulti(rows.items())
        with env.begin(write=True, db=table) as tx:
            for key in sorted(rows)[10 : 10 + removed]:
                del rows[key]
                tx.delete(key)
        with env.begin() as tx:
            for start in (first, b"%05d" % len(first), b"", *sorted(rows)[:: max(1, len(rows) // 5)]):
                found = read_from(folder / "data.mdb", tx.get(b"rows"), start, rows_max)
                assert not isinstance(found, Rest)
                expected = [row for row in sorted(rows.items()) if row[0] >= start]
                following = expected[rows_max][0] if len(expected) > rows_max else None
                assert (piece_rows(found[0]), found[1]) == (expected[:rows_max], following)


@pytest.mark.usefixtures("processor")
def test_rows_from_a_key_on_are_bounded_in_bytes(tmp_path: Path) -> None:
    with environment(tmp_path) as env:
        table = env.open_db(b"rows")
        with env.begin(write=True, db=table) as tx:
            for number in range(400):
                tx.put(b"%03d" % number, b"z" * 400_000)
        with env.begin() as tx:
            found = read_from(tmp_path / "data.mdb", tx.get(b"rows"), b"", 1000)
            assert not isinstance(found, Rest)
            assert 1 <= len(found[0]) < 400
            assert found[1] == b"%03d" % len(found[0])


def test_rows_from_a_key_on_end_before_several_under_one_key(tmp_path: Path) -> None:
    with environment(tmp_path) as env:
        table = env.open_db(b"rows", dupsort=True)
        with env.begin(write=True, db=table) as tx:
            for number in range(3_000):
                tx.put(b"%06d" % number, b"v" * 40)
            tx.put(b"001500", b"w")
        with env.begin() as tx:
            found = read_from(tmp_path / "data.mdb", tx.get(b"rows"), b"000007", 5_000)
            assert not isinstance(found, Rest)
            piece, following = found
            assert following is not None
            assert [key for key, _ in piece_rows(piece)] == [b"%06d" % n for n in range(7, int(following))]
            assert int(following) <= 1_500
            assert read_from(tmp_path / "data.mdb", tx.get(b"rows"), following, 10) == Rest(following)
            assert read_from(tmp_path / "data.mdb", tx.get(b"rows"), b"001500", 10) == Rest(b"001500")


@pytest.mark.usefixtures("processor")
def test_damage_below_a_key_is_reported(tmp_path: Path) -> None:
    with environment(tmp_path) as env:
        table = env.open_db(b"rows")
        with env.begin(write=True, db=table) as tx:
            for number in range(3_000):
                tx.put(b"%06d" % number, b"v" * 40)
        with env.begin() as tx:
            record = tx.get(b"rows")
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    spoiled = tmp_path / "spoiled.mdb"
    random = np.random.default_rng(7)
    for _ in range(300):
        harmed = bytearray(data)
        for place in random.integers(2 * PAGE, len(data), 200):
            harmed[place] = random.integers(0, 256)
        spoiled.write_bytes(harmed)
        try:
            found = read_from(spoiled, record, b"%06d" % random.integers(0, 3_000), 500)
        except Corrupt:
            continue
        assert isinstance(found, Rest) or len(found[0]) <= 500
