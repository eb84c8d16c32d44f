"""Files that a confined process reads: what they mean is what it is elsewhere, and what takes too much is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.arrays.arrow_streams import stream_of
from millpond.clock import ManualClock
from millpond.errors import Invalid, MillpondError
from millpond.maps.inputs.formats.arrived import NOTHING_REJECTED
from millpond.maps.inputs.formats.files import Piece, find_files
from millpond.maps.inputs.formats.readers import Read, Reading, read_piece
from millpond.maps.model.columns import RAW_DIGEST, canonical_schema
from millpond.maps.model.event_digest import digest_of
from millpond.maps.model.new_map import new_map
from millpond.server import confined_files
from millpond.server.confined import Confines
from millpond.server.confined_files import read_confined, read_table_confined
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects
from millpond.stores.objects.sources import open_source
from millpond.versions.imports.importing import Imports
from millpond.versions.imports.locations import TableLocation, read_table
from millpond.versions.repositories import Repositories

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from millpond.maps.model.definition import MapDefinition
    from millpond.versions.repository import Repository

TEXTS = new_map("texts", "state", "string", "1" * 32, {})
LATE = new_map(
    "late", None, None, "2" * 32, {},
    query="select origin as key, time_hour as time, avg(delay::double) as delay from events group by 1, 2",
)  # fmt: skip
LARGE = 600
"""MiB of the rows of a bomb: more than the process may take."""


def file_of(path: Path, definition: MapDefinition = TEXTS) -> tuple[Piece, Reading]:
    [file] = find_files([path])
    return Piece(file), Reading(maps={definition.name: definition}, map=definition.name)


def rows_of(reads: Sequence[Read]) -> tuple[list[Any], list[Any], int]:
    """All rows, all rejects, and their number as reads tell it."""
    rows = [row for read in reads if read.rows is not None for row in read.rows.to_pylist()]
    return rows, [row for read in reads for row in read.rejected.to_pylist()], sum(read.count for read in reads)


def bomb(path: Path, *names: str) -> Path:
    """A small table of Parquet, whose last column has a MiB in each row: a dictionary of one value."""
    large = pa.DictionaryArray.from_arrays(pa.array(np.zeros(LARGE, np.int32)), pa.array(["x" * (1 << 20)]))
    texts = pa.array([f"{number:04d}" for number in range(LARGE)])
    columns = [*(texts for _ in names[:-1]), large]
    pq.write_table(pa.table(columns, list(names)), path, store_schema=False)
    assert path.stat().st_size < 1 << 17
    return path


# -- the pieces of a batch ----------------------------------------------------------------------------


@given(st.lists(st.text("ab", max_size=30), max_size=40), st.integers(40, 400), st.integers(2, 40))
def test_a_batch_is_cut_into_pieces_that_may_be_sent(texts: list[str], bytes_max: int, elements_max: int) -> None:
    batch = pa.record_batch({"key": pa.array(texts, pa.string())}).replace_schema_metadata({RAW_DIGEST: "7"})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(confined_files, "BATCH_BYTES", bytes_max)
        patched.setattr(confined_files, "BATCH_ELEMENTS_MAX", elements_max)
        pieces = list(confined_files._cut(batch))
    assert [text for piece in pieces for text in piece.column(0).to_pylist()] == texts
    assert all(piece.nbytes <= bytes_max and piece.num_rows <= elements_max for piece in pieces)
    assert sum(int(piece.schema.metadata[RAW_DIGEST]) for piece in pieces) == 7


def test_a_row_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined_files, "BATCH_BYTES", 40)
    with pytest.raises(Invalid) as refused:
        list(confined_files._cut(pa.record_batch({"key": ["a", "b" * 40]})))
    assert refused.value.kind == "record_long"


def test_pieces_of_one_file_are_the_same_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delays = [*map(str, range(200)), "much"]
    lines = ({"origin": "JFK", "time_hour": "2026-01-01T00:00:00Z", "delay": delay} for delay in delays)
    (tmp_path / "raw.jsonl").write_text("\n".join(map(json.dumps, lines)))
    piece, reading = file_of(tmp_path / "raw.jsonl", LATE)
    monkeypatch.setattr(confined_files, "BATCH_BYTES", 1_000)

    def pieces(
        _confines: object, _answer: object, work: Callable[..., Iterator[Buffer]], *args: Any
    ) -> Iterator[bytes]:
        yield from map(bytes, work(bytes, *args))

    monkeypatch.setattr(confined_files, "confined_pieces", pieces)
    cut, whole = list(read_confined(piece, reading)), list(read_piece(piece, reading))
    assert len(cut) > len(whole) and rows_of(cut) == rows_of(whole)
    digests = [sum(digest_of(LATE, read.rows) for read in reads if read.rows is not None) for reads in (cut, whole)]
    assert digests[0] == digests[1] != 0


# -- files of maps ------------------------------------------------------------------------------------

CSV = b"key,value\nJFK,a\nLGA\n,b\nEWR,\n"
XML = b"""<?xml version="1.0" encoding="UTF-8"?>
<referenceData xmlns="reference-data:2"><reference><map>texts</map><key>JFK</key><value>a</value></reference>
</referenceData>"""


@pytest.mark.usefixtures("process")
def test_a_file_means_the_same_as_elsewhere(tmp_path: Path) -> None:
    lines = b'{"key": "JFK", "value": "a"}\n[]\n{"key": "LGA"}\n'
    for name, content in (("a.csv", CSV), ("a.csv.gz", gzip.compress(CSV)), ("a.jsonl", lines), ("a.xml", XML)):
        (tmp_path / name).write_bytes(content)
    table = pa.table({"key": [None, *map(str, range(40_000))], "value": ["x" * 3] * 40_001})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=9_000)
    for name in ("a.csv", "a.csv.gz", "a.jsonl", "a.xml", "a.parquet"):
        piece, reading = file_of(tmp_path / name)
        found, wanted = list(read_confined(piece, reading)), list(read_piece(piece, reading))
        assert rows_of(found) == rows_of(wanted) and rows_of(found)[2], name
        assert (found[-1].last, found[-1].read) == (wanted[-1].last, wanted[-1].read), name


@pytest.mark.usefixtures("process")
def test_a_file_that_takes_too_much_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "array.json.gz").write_bytes(gzip.compress(b"[" + b"{}," * (7 << 20) + b"1]", 1))
    (tmp_path / "line.jsonl.gz").write_bytes(gzip.compress(b'{"key": "a", "value": "' + b"x" * (160 << 20), 1))
    (tmp_path / "record.csv.gz").write_bytes(gzip.compress(b'key,value\na,"' + b"x" * (40 << 20) + b'"', 1))
    (tmp_path / "row.jsonl").write_bytes(json.dumps({"key": "a", "value": "x" * (20 << 20)}).encode())
    (tmp_path / "cut.parquet").write_bytes(bomb(tmp_path / "bomb.parquet", "key", "value").read_bytes()[200:])
    kinds = {
        "array.json.gz": "file_memory", "line.jsonl.gz": "file_memory", "record.csv.gz": "record_long",
        "row.jsonl": "record_long", "bomb.parquet": "file_memory", "cut.parquet": "input_damaged",
    }  # fmt: skip
    for name, kind in kinds.items():
        with pytest.raises(Invalid) as refused:
            list(read_confined(*file_of(tmp_path / name)))
        assert (refused.value.kind, refused.value.values["path"]) == (kind, str(tmp_path / name)), name
        assert refused.value.hint


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(("limit", "kind"), [("ROWS_BYTES_MAX", "file_rows"), ("_CONFINES", "file_slow")])
def test_all_of_a_file_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, kind: str) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    value = 10 if kind == "file_rows" else Confines(confined_files.MEMORY_BYTES, 0)
    monkeypatch.setattr(confined_files, limit, value)
    with pytest.raises(Invalid) as refused:
        list(read_confined(*file_of(tmp_path / "a.csv")))
    assert refused.value.kind == kind


def test_what_a_process_sends_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    nothing = stream_of(NOTHING_REJECTED)
    good = stream_of(pa.record_batch({"key": pa.array([b"a"]), "value": ["b"]}, canonical_schema(TEXTS)))
    broken = bytearray(good)
    broken[-200:] = bytes(200)
    other = stream_of(pa.record_batch({"key": ["a"]}))
    sent = [b"", b"\xc1", msgspec.msgpack.encode(["texts"])]
    for name, rows, rejected in (
        ("texts", other, nothing), ("other", good, nothing), (None, good, nothing), ("texts", good, other),
        ("texts", broken, nothing), ("texts", b"", nothing),
    ):  # fmt: skip
        payload = {"map": name, "rows": bytes(rows), "rejected": bytes(rejected), "last": 1, "read": 1}
        sent.append(msgspec.msgpack.encode(payload))
    for data in sent:
        monkeypatch.setattr(confined_files, "confined_pieces", lambda *_, data=data: (one for one in [data]))
        with pytest.raises(Invalid) as refused:
            list(read_confined(*file_of(tmp_path / "a.csv")))
        assert refused.value.kind == "file_memory", data


# -- tables of entries --------------------------------------------------------------------------------


def site_of_entries() -> Repository:
    repositories = Repositories(MemorySpace(), ManualClock(0), lambda _: MemoryObjects())
    return repositories.create("imports")


@pytest.mark.usefixtures("process")
def test_a_table_is_imported_as_elsewhere(tmp_path: Path) -> None:
    names = [f"{number:05d}" for number in range(3_000)]
    rows = pa.table({"path": names, "address": [f"s3://elsewhere/{name}" for name in names], "size": range(3_000)})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=700)
    with pa.ipc.new_file(tmp_path / "a.arrow", rows.schema) as sink:
        sink.write_table(rows, max_chunksize=700)
    source, name = open_source("local:///"), str(tmp_path)[1:]
    for file in (f"{name}/a.parquet", f"{name}/a.arrow"):
        found, wanted = (pa.Table.from_batches(read(source, file, 5)) for read in (read_table_confined, read_table))
        assert found == wanted
    repository = site_of_entries()
    imports = Imports(repository.branch("main").context, "main", read_table_confined)
    assert imports.commit([TableLocation(f"local://{tmp_path}/a.parquet", "t/")]).entries == len(names)
    assert [entry.path for entry in repository.ref("main").list(amount=3).results] == [
        f"t/{name}" for name in names[:3]
    ]


@pytest.mark.full
@pytest.mark.usefixtures("process")
def test_a_table_of_one_large_group_is_read_by_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = np.random.default_rng(1).integers(97, 123, 300_000_000, np.uint8)
    addresses = pa.StringArray.from_buffers(1_500_000, pa.py_buffer(np.arange(1_500_001, dtype=np.int32) * 200),
                                            pa.py_buffer(digits))  # fmt: skip
    names = [f"{number:07d}" for number in range(len(addresses))]
    table = pa.table({"path": names, "address": addresses})
    pq.write_table(table, tmp_path / "a", row_group_size=len(table), compression="none", use_dictionary=False)
    monkeypatch.setattr(confined_files, "_CONFINES", Confines(320 << 20, 60))
    found = pa.Table.from_batches(read_table_confined(open_source("local:///"), f"{tmp_path}/a"[1:], 0))
    assert found["address"].combine_chunks() == addresses


@pytest.mark.usefixtures("process")
def test_a_table_that_takes_too_much_is_refused_by_its_address(tmp_path: Path) -> None:
    bomb(tmp_path / "bomb", "path", "metadata")
    pq.write_table(pa.table({"path": ["b", "a"]}), tmp_path / "order")
    pq.write_table(pa.table({"colour": ["b", "a"]}), tmp_path / "columns")
    (tmp_path / "text").write_text("text")
    (tmp_path / "cut").write_bytes((tmp_path / "bomb").read_bytes()[:-20])
    repository = site_of_entries()
    head = repository.branch("main").head()
    imports = Imports(repository.branch("main").context, "main", read_table_confined)
    kinds = {
        "bomb": "file_memory", "order": "import_order", "columns": "stage_columns", "text": "import_table",
        "cut": "import_table", "none": "object_not_found",
    }  # fmt: skip
    for name, kind in kinds.items():
        for act in (imports.commit, imports.stage):
            with pytest.raises(MillpondError) as refused:
                act([TableLocation(f"local://{tmp_path}/{name}")])
            assert refused.value.kind == kind, name
            if kind in ("file_memory", "import_table", "import_order"):
                assert refused.value.values["address"] == f"local://{tmp_path}/{name}"
    assert repository.branch("main").head() == head
