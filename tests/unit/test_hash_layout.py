"""The `hash` scheme with 8 bytes, read by hand: plain `lmdb`, `struct` and `xxhash`, none of our own decoding.

| kind | key | value (a duplicate row where keys clash) |
|---|---|---|
| state | hash | key length · key · value type · value |
| temporal state | hash · effective time | key length · key · value type · value |
| ranged state | start · end | value type · value |
| temporal ranged state | start · end · effective time | value type · value |
| session | hash · start · end | key |

Longs are two's complement, big-endian, 8 bytes; lengths are 4 bytes; the hash is xxh3_64. LMDB takes at most 511 bytes
as a duplicate row: longer ones lie in table `overflow` with a clash number of 2 bytes behind the same key.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import lmdb
import pytest
import xxhash

from millpond.maps.model.definition import Kind, MapDefinition, Scheme, parse_value_type
from millpond.maps.shard.shard import Shard
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.models import Row

LONG_KEY = "long" * 150
LONG_VALUE = "v" * 600
# One over and one under what a duplicate row may be: 4 bytes of length, 2 of key, 1 of type.
FITS, SPILLS = "x" * 504, "x" * 505
Table = list[tuple[bytes, bytes]]


def definition_of(kind: Kind, **options: Any) -> MapDefinition:
    value = None if kind is Kind.SESSION else parse_value_type(options.pop("value", "string"))
    return MapDefinition(name="m", kind=kind, incarnation="0" * 16, value=value, scheme=Scheme.HASH, **options)


def stored(folder: Path, definition: MapDefinition, rows: list[Row]) -> dict[str, Table]:
    """The tables of a shard that these rows were put into, as plain lmdb reads them."""
    shard = Shard(folder / "shards" / "m", definition)
    batch = canonical_of(definition, sorted(rows, key=lambda row: row[0]))
    shard.change(lambda tx: shard.put_rows(tx, batch, 0, overwrite=True), None)
    shard.close()
    generation = (folder / "shards" / "m" / "current").read_text().strip()
    with lmdb.open(str(folder / "shards" / "m" / generation), readonly=True, max_dbs=16) as env:
        names = [name for name in (b"hashed", b"overflow", b"ranges") if _has(env, name)]
        return {name.decode(): _read(env, name) for name in names}


def _has(env: lmdb.Environment, name: bytes) -> bool:
    with env.begin() as tx:
        return tx.get(name) is not None


def _read(env: lmdb.Environment, name: bytes) -> Table:
    table = env.open_db(name, create=False)
    with env.begin(db=table) as tx:
        return [(bytes(key), bytes(value)) for key, value in tx.cursor()]


def hash_of(key: str, bits: int = 64) -> bytes:
    return struct.pack(">Q", xxhash.xxh3_64_intdigest(key.encode()) & (2**bits - 1))


def row_of(key: str, value: bytes) -> bytes:
    return struct.pack(">i", len(key.encode())) + key.encode() + value


def text(value: str) -> bytes:
    return b"\x07" + value.encode()


def test_state(tmp_path: Path) -> None:
    values = {"": "empty key", "k": "one", "é\0": "", "n": None}
    tables = stored(tmp_path, definition_of(Kind.STATE), [((key,), value) for key, value in values.items()])
    expected = {hash_of(key): row_of(key, b"\x00" if value is None else text(value)) for key, value in values.items()}
    assert tables["hashed"] == sorted(expected.items())
    assert tables["overflow"] == []
    decoded = {}
    for _, row in tables["hashed"]:
        (length,) = struct.unpack(">i", row[:4])
        decoded[row[4 : 4 + length].decode()] = (row[4 + length], row[5 + length :].decode())
    assert decoded == {"": (7, "empty key"), "k": (7, "one"), "é\0": (7, ""), "n": (0, "")}


def test_temporal_state_before_and_after_1970(tmp_path: Path) -> None:
    rows: list[Row] = [(("k", time), f"at {time}") for time in (-5, 0, 7)]
    tables = stored(tmp_path, definition_of(Kind.TEMPORAL_STATE), rows)
    assert tables["hashed"] == [
        (hash_of("k") + struct.pack(">q", time), row_of("k", text(f"at {time}"))) for time in (0, 7, -5)
    ]


def test_ranged_state(tmp_path: Path) -> None:
    tables = stored(tmp_path, definition_of(Kind.RANGED_STATE, value="long"), [((10, 30), 1), ((-4, 2**62), -2)])
    assert tables == {
        "ranges": [
            (struct.pack(">qq", 10, 30), b"\x05" + struct.pack(">q", 1)),
            (struct.pack(">qq", -4, 2**62), b"\x05" + struct.pack(">q", -2)),
        ]
    }


def test_temporal_ranged_state(tmp_path: Path) -> None:
    rows: list[Row] = [((10, 30, time), time / 2) for time in (-1, 5)]
    tables = stored(tmp_path, definition_of(Kind.TEMPORAL_RANGED_STATE, value="double"), rows)
    assert tables == {"ranges": [(struct.pack(">qqq", 10, 30, t), b"\x03" + struct.pack(">d", t / 2)) for t in (5, -1)]}


def test_session(tmp_path: Path) -> None:
    tables = stored(tmp_path, definition_of(Kind.SESSION), [(("ann|mail", 5, 9), None), (("ann|mail", 5, 7), None)])
    assert tables["hashed"] == [(hash_of("ann|mail") + struct.pack(">qq", 5, end), b"ann|mail") for end in (7, 9)]


@pytest.mark.parametrize("kind", [Kind.STATE, Kind.TEMPORAL_STATE, Kind.SESSION])
def test_clashing_keys_are_duplicate_rows_of_one_table_key(tmp_path: Path, kind: Kind) -> None:
    times = {Kind.STATE: (), Kind.TEMPORAL_STATE: (3,), Kind.SESSION: (3, 4)}[kind]
    keys = [f"key {n}" for n in range(20)]
    value = None if kind is Kind.SESSION else "v"
    tables = stored(tmp_path, definition_of(kind, hash_bits=1), [((key, *times), value) for key in keys])
    tail = struct.pack(f">{len(times)}q", *times)
    rows = [key.encode() if kind is Kind.SESSION else row_of(key, text("v")) for key in keys]
    expected = sorted((hash_of(key, bits=1) + tail, row) for key, row in zip(keys, rows, strict=True))
    assert tables["hashed"] == expected
    assert len({table_key for table_key, _ in expected}) == 2


def test_a_row_longer_than_a_duplicate_may_be_overflows(tmp_path: Path) -> None:
    values = {LONG_KEY: "v", "k": LONG_VALUE, "k1": FITS, "k2": SPILLS}
    tables = stored(tmp_path, definition_of(Kind.STATE), [((key,), value) for key, value in values.items()])
    assert tables["hashed"] == [(hash_of("k1"), row_of("k1", text(FITS)))]
    assert len(tables["hashed"][0][1]) == 511
    spilled = {hash_of(key) + b"\0\0": row_of(key, text(values[key])) for key in (LONG_KEY, "k", "k2")}
    assert tables["overflow"] == sorted(spilled.items())


@pytest.mark.parametrize("kind", [Kind.STATE, Kind.TEMPORAL_STATE, Kind.SESSION])
def test_clashing_long_rows_are_distinguished_by_a_number(tmp_path: Path, kind: Kind) -> None:
    times = {Kind.STATE: (), Kind.TEMPORAL_STATE: (-3,), Kind.SESSION: (-3, 4)}[kind]
    keys = [f"{'k' * 520} {n}" for n in range(8)]
    value = None if kind is Kind.SESSION else "v"
    tables = stored(tmp_path, definition_of(kind, hash_bits=1), [((key, *times), value) for key in keys])
    assert tables["hashed"] == []
    tail = struct.pack(f">{len(times)}q", *times)
    rows = {key.encode() if kind is Kind.SESSION else row_of(key, text("v")): key for key in keys}
    numbers: dict[bytes, list[int]] = {}
    for table_key, row in tables["overflow"]:
        assert table_key[:-2] == hash_of(rows.pop(row), bits=1) + tail
        numbers.setdefault(table_key[:-2], []).append(struct.unpack(">H", table_key[-2:])[0])
    assert rows == {}
    assert all(group == list(range(len(group))) for group in numbers.values())


def test_an_empty_key_of_a_session_has_its_documented_place(tmp_path: Path) -> None:
    # A duplicate row cannot be empty, and a session's row is its key alone.
    tables = stored(tmp_path, definition_of(Kind.SESSION), [(("", 1, 2), None)])
    assert tables["overflow"] == [(hash_of("") + struct.pack(">qqH", 1, 2, 0), b"")]


def test_four_byte_hashes_fold_both_halves(tmp_path: Path) -> None:
    keys = ["test59126", "test102406"]
    tables = stored(tmp_path, definition_of(Kind.STATE, hash_bytes=4), [((key,), "v") for key in keys])
    assert tables["hashed"] == sorted((bytes.fromhex("5f1623d6"), row_of(key, text("v"))) for key in keys)
    wide = xxhash.xxh3_64_intdigest(keys[0].encode())
    assert (wide ^ wide >> 32) & 0xFFFFFFFF == 0x5F1623D6


def test_every_value_type_has_its_byte(tmp_path: Path) -> None:
    cases: dict[str, tuple[object, bytes]] = {
        "string": ("é", b"\x07\xc3\xa9"),
        "long": (-2, b"\x05" + struct.pack(">q", -2)),
        "double": (-0.5, b"\x03" + struct.pack(">d", -0.5)),
        "boolean": (True, b"\x01\x01"),
        "binary": (b"\0\xff", b"\x40\0\xff"),
        "json": ("{}", b"\x41{}"),
        "a long, b string, c double": (
            {"a": 1, "b": "xy", "c": None},
            b"\x42\x01\x01\x00" + struct.pack(">qi", 1, 2) + b"xy",
        ),
    }
    for number, (value_type, (value, expected)) in enumerate(cases.items()):
        definition = definition_of(Kind.STATE, value=value_type)
        tables = stored(tmp_path / str(number), definition, [(("k",), value), (("null",), None)])
        assert tables["hashed"] == sorted(
            [(hash_of("k"), row_of("k", expected)), (hash_of("null"), row_of("null", b"\x00"))]
        )
