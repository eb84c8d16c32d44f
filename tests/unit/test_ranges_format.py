"""The format of ranges as its page draws it, read and written with nothing but Arrow and a hash."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pyarrow as pa
import xxhash

from millpond import ranges
from millpond.ranges.key_columns import hash_of_key
from millpond.stores.objects import open_objects

PAGE = (Path(__file__).parents[2] / "docs" / "format" / "ranges.md").read_text(encoding="utf-8")
AIRPORTS = pa.record_batch(
    {"key": pa.array([b"EWR", b"JFK", b"LGA"], pa.binary()), "elevation": pa.array([18, 13, None], pa.int64())}
)


def test_the_hashes_are_those_of_the_page() -> None:
    for key in (b"", b"JFK"):
        assert f"`{hash_of_key(key):016x}`" in PAGE


AIRPORTS_FORM = [
    b"millpond range 2",
    0, b"",
    44, (2, 3, b"key", 1, b"z", b"\0", 0, 9, b"elevation", 1, b"l", b"\1", 0),
    8, (b"\3", bytes(7)),
    b"\3" + bytes(7), 0, b"", 16, (0, 3, 6, 9), 9, b"EWRJFKLGA",
    b"\3" + bytes(7), 1, b"\3", 24, (18, 0, 13, 0, 0, 0),
]  # fmt: skip
"""The hashed content of the range of the page; numbers here are lengths of 8 bytes, those in a tuple have 4."""


def hashed(form: list[bytes | int | tuple[bytes | int, ...]]) -> bytes:
    out = b""
    for part in form:
        if isinstance(part, tuple):
            out += b"".join(piece if isinstance(piece, bytes) else piece.to_bytes(4, "little") for piece in part)
        else:
            out += part if isinstance(part, bytes) else part.to_bytes(8, "little")
    return out


def seal_of(file: Path) -> list[str]:
    """The words of the seal, the checksum verified."""
    data = file.read_bytes()
    with pa.ipc.open_file(data) as opened:
        seal = opened.schema.metadata[b"millpond"]
    checksum = seal[-32:]
    assert data.count(seal) == 2
    assert xxhash.xxh3_128_hexdigest(data.replace(seal, seal[:-32] + b"0" * 32)).encode() == checksum
    return seal.decode().split()


def test_an_index_is_read_by_hand(tmp_path: Path) -> None:
    index = ranges.write(open_objects(tmp_path), [AIRPORTS])
    path = tmp_path / "indexes" / f"{index.id}.arrow"
    assert seal_of(path)[:3] == ["index", "2", index.id]
    with pa.ipc.open_file(path) as file:
        assert file.num_record_batches == 1
        metadata = file.schema.metadata
        (row,) = file.get_batch(0).to_pylist()
    boundaries = {"rows_min": 4096, "rows_max": 65536, "bits": 14, "bytes_max": 33554432}
    assert json.loads(metadata[b"boundaries"]) == boundaries
    schema = pa.ipc.read_schema(pa.py_buffer(metadata[b"schema"]))
    id_ = row.pop("id").hex()
    path = tmp_path / "ranges" / f"{id_}.arrow"
    assert row == {"first": b"EWR", "last": b"LGA", "count": 3, "size": path.stat().st_size}
    assert seal_of(path)[:3] == ["range", "2", id_]
    with pa.ipc.open_file(path) as file:
        assert list(file.schema.metadata) == [b"millpond"]
        assert file.schema.remove_metadata().equals(schema, check_metadata=True)
        assert file.get_batch(0).to_pylist() == AIRPORTS.to_pylist()


def test_the_id_of_the_page_is_made_by_hand(tmp_path: Path) -> None:
    (entry,) = ranges.write(open_objects(tmp_path), [AIRPORTS]).entries
    assert hashlib.sha256(hashed(AIRPORTS_FORM)).hexdigest() == entry.id
    assert f"`{entry.id}`" in PAGE
    drawn = PAGE.partition("hashed, byte by byte")[2].partition("```")[2].partition("```")[0]
    written = re.findall(r"^((?:[0-9a-f]{2} {1,2})*[0-9a-f]{2})(?:   |$)", drawn, re.MULTILINE)
    assert b"".join(bytes.fromhex(line) for line in written) == hashed(AIRPORTS_FORM)


def test_the_columns_lie_as_the_page_draws_them(tmp_path: Path) -> None:
    """Behind the headers, which are Arrow's affair."""
    (entry,) = ranges.write(open_objects(tmp_path), [AIRPORTS]).entries
    data = (tmp_path / ranges.range_name(entry.id)).read_bytes()
    drawn = re.findall(r"^\+([0-9a-f]{2})  ((?:[0-9a-f]{2} {1,2})*[0-9a-f]{2})", PAGE, re.MULTILINE)
    assert len(drawn) >= 6
    body = data.index(bytes.fromhex(drawn[0][1]))
    for at, text in drawn:
        expected = bytes.fromhex(text)
        assert data[body + int(at, 16) :][: len(expected)] == expected, at
    assert sum(len(bytes.fromhex(text)) for _, text in drawn) == 64
