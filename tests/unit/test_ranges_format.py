"""The format of ranges as its page draws it, read and written with nothing but Arrow and a hash."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pyarrow as pa

from millpond.stores import ranges
from millpond.stores.objects import open_objects
from millpond.stores.range_keys import hash_of_key

PAGE = (Path(__file__).parents[2] / "docs" / "format" / "ranges.md").read_text(encoding="utf-8")
AIRPORTS = pa.record_batch(
    {"key": pa.array([b"EWR", b"JFK", b"LGA"], pa.binary()), "elevation": pa.array([18, 13, None], pa.int64())}
)


def test_the_hashes_are_those_of_the_page() -> None:
    for key in (b"", b"JFK"):
        assert f"`{hash_of_key(key):016x}`" in PAGE


def digest(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=20).hexdigest()


def test_an_index_is_read_by_hand(tmp_path: Path) -> None:
    index = ranges.write(open_objects(tmp_path), [AIRPORTS])
    path = tmp_path / "indexes" / f"{index.id}.arrow"
    assert digest(path) == index.id
    with pa.ipc.open_file(path) as file:
        assert file.num_record_batches == 1
        told = file.schema.metadata
        (row,) = file.get_batch(0).to_pylist()
    assert told[b"millpond.index"] == b"1"
    assert json.loads(told[b"boundaries"]) == {"rows_min": 4096, "rows_max": 65536, "bits": 14, "bytes_max": 33554432}
    schema = pa.ipc.read_schema(pa.py_buffer(told[b"schema"]))
    id_ = row.pop("id").hex()
    path = tmp_path / "ranges" / f"{id_}.arrow"
    assert row == {"first": b"EWR", "last": b"LGA", "count": 3, "size": path.stat().st_size}
    assert digest(path) == id_
    with pa.ipc.open_file(path) as file:
        assert file.schema.equals(schema, check_metadata=True)
        assert file.get_batch(0).to_pylist() == AIRPORTS.to_pylist()


def test_the_bytes_are_those_of_the_page(tmp_path: Path) -> None:
    index = ranges.write(open_objects(tmp_path), [AIRPORTS])
    assert f"`{index.entries[0].id}`" in PAGE, "Arrow writes its messages otherwise: draw them anew"
    data = (tmp_path / ranges.range_name(index.entries[0].id)).read_bytes()
    drawn = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} {1,2})*[0-9a-f]{2})", PAGE, re.MULTILINE)
    assert len(drawn) >= 10
    for at, text in drawn:
        expected = bytes.fromhex(text)
        assert data[int(at, 16) :][: len(expected)] == expected, at
    assert sum(len(bytes.fromhex(text)) for at, text in drawn if 0x1A0 <= int(at, 16) < 0x1E0) == 64
