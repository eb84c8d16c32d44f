"""A snapshot read as `docs/format/snapshot.md` draws it, with nothing but Arrow, JSON and the hash."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from millpond.errors import Corrupt
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.snapshots.freeze import SnapshotManifest, freeze
from millpond.maps.snapshots.groups_of_rows import range_order_keys
from millpond.ranges.files import content_id
from millpond.ranges.verify import check_file
from millpond.stores.objects import open_objects
from tests.harness.rows import canonical_of

INT64_MIN = -(2**63)


def a_map(kind: Kind) -> MapDefinition:
    value = None if kind is Kind.SESSION else parse_value_type("string")
    return MapDefinition(name="weather", kind=kind, incarnation="0" * 16, value=value)


def read(folder: Path, name: str) -> pa.RecordBatch:
    """A file of one batch, which is what its name says."""
    data = (folder / name).read_bytes()
    if name.startswith("intervals/"):
        assert blake2b(data, digest_size=20).hexdigest() == Path(name).stem
    check_file(pa.py_buffer(data), name, str(folder))
    file = pa.ipc.open_file(data)
    assert file.num_record_batches == 1
    return file.get_batch(0)


def manifest_of(folder: Path, written: SnapshotManifest) -> dict[str, object]:
    file = folder / "manifests" / f"{written.id}.json"
    data = file.read_bytes()
    assert blake2b(data, digest_size=20).hexdigest() == written.id
    manifest = json.loads(data)
    assert json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode() == data
    return manifest


def layers_of(folder: Path, written: SnapshotManifest) -> list[list[pa.RecordBatch]]:
    layers = manifest_of(folder, written)["layers"]
    assert isinstance(layers, list)
    return [
        [
            read(folder, f"ranges/{id_.hex()}.arrow")
            for id_ in read(folder, f"indexes/{layer['index']}.arrow")["id"].to_pylist()
        ]
        for layer in layers
    ]


def groups_of(folder: Path, written: SnapshotManifest) -> list[dict[bytes, list[dict[str, object]]]]:
    return [
        {group["key"]: group["rows"] for batch in layer for group in batch.to_pylist()}
        for layer in layers_of(folder, written)
    ]


def order_key(key: str) -> bytes:
    return xxhash.xxh3_64_digest(key.encode()) + key.encode()


def test_keyed_groups_and_layers(tmp_path: Path) -> None:
    definition = a_map(Kind.TEMPORAL_STATE)
    rows = canonical_of(definition, [(("JFK", 5), "b"), (("JFK", -5), "a"), (("LGA", 0), None)])
    more = canonical_of(definition, [((f"key {n}", n), "v") for n in range(100)])
    base = freeze(open_objects(tmp_path), definition, [rows, more], shard_version=1, created_ms=7)
    touched = pa.array([b"LGA", b"JFK"], pa.binary())
    following = freeze(
        open_objects(tmp_path),
        definition,
        [rows.slice(0, 1)],
        base=base,
        touched=touched,
        shard_version=2,
        created_ms=8,
    )
    (oldest,) = groups_of(tmp_path, base)
    assert oldest[order_key("JFK")] == [{"effective_time": -5, "value": "a"}, {"effective_time": 5, "value": "b"}]
    assert oldest[order_key("LGA")] == [{"effective_time": 0, "value": None}]
    assert list(oldest) == sorted(oldest)
    newest, under = groups_of(tmp_path, following)
    assert newest == {order_key("JFK"): [{"effective_time": 5, "value": "b"}], order_key("LGA"): []}
    assert under == oldest
    for layer in layers_of(tmp_path, following):
        for batch in layer:
            hashes = [int.from_bytes(key[:8], "big") for key in batch["key"].to_pylist()]
            assert batch["hash"].to_pylist() == hashes
    manifest = manifest_of(tmp_path, following)
    assert (manifest["format"], manifest["shard_version"]) == (1, 2)
    assert (manifest["kind"], manifest["value"]) == ("temporal_state", "string")


def test_the_cover_of_nested_sessions(tmp_path: Path) -> None:
    definition = a_map(Kind.SESSION)
    plain = [(("plain", 0, 10), None), (("plain", 5, 20), None)]
    nested = [(("nested", 0, 100), None), (("nested", 10, 20), None), (("nested", 20, 30), None)]
    written = freeze(
        open_objects(tmp_path), definition, [canonical_of(definition, [*nested, *plain])], shard_version=1, created_ms=7
    )
    ((batch,),) = layers_of(tmp_path, written)
    cover = {
        group["key"][8:]: [(piece["from"], piece["row"]) for piece in group["cover"]] for group in batch.to_pylist()
    }
    assert cover == {b"plain": [], b"nested": [(0, 0), (10, 1), (20, 2), (31, 0), (101, -1)]}


@pytest.mark.parametrize("deep", [False, True])
def test_intervals(deep: bool, tmp_path: Path) -> None:
    """Written out or as a tree, they lead to the narrowest range known at the time."""
    definition = a_map(Kind.TEMPORAL_RANGED_STATE)
    spans = [(-50, 50), (0, 9), (5, 9), (5, 100), (INT64_MIN, -40), (60, 60)]
    spans += [(1_000 + n, 9_000 - n) for n in range(3_000)] if deep else []
    rows = [((start, end, 10 - n % 5), f"{start}..{end}") for n, (start, end) in enumerate(spans)]
    objects = open_objects(tmp_path)
    base = freeze(objects, definition, [canonical_of(definition, rows)], shard_version=1, created_ms=1)
    gone = range_order_keys(*(pa.array([n], pa.int64()).to_numpy() for n in (5, 9)))
    written = freeze(objects, definition, [], base=base, touched=gone, shard_version=2, created_ms=2)
    known = [row[0] for row in rows if row[0][:2] != (5, 9)]
    listed = one_row(tmp_path, str(manifest_of(tmp_path, written)["sections"]))
    assert listed["lower"] == [INT64_MIN], "one section"
    used = [listed["files"][number] for number in listed["uses"]]
    assert len(used) == listed["offsets"][1]
    columns = one_row(tmp_path, listed["id"][0].hex())
    assert (listed["first"], listed["last"]) == (columns["breaks"][:1], columns["breaks"][-1:])
    assert (columns["leaves"] != [0]) == deep
    pieces = [read(tmp_path, f"ranges/{id_.hex()}.arrow") for id_ in used]
    for number in (INT64_MIN, -51, -50, -1, 0, 5, 9, 10, 50, 60, 61, 101, 1_500, 5_000, 8_999, 2**63 - 1):
        for at in (5, 6, 8, 10):
            held = [span for span in known if span[0] <= number <= span[1] and span[2] <= at]
            best = min(held, key=lambda span: (span[1] - span[0], -span[0]), default=None)
            assert answer(columns, pieces, number, at) == (best and f"{best[0]}..{best[1]}"), (number, at)


def one_row(folder: Path, id_: str) -> dict[str, Any]:
    [columns] = read(folder, f"intervals/{id_}.arrow").to_pylist()
    return dict(columns)


def answer(columns: dict[str, list[int]], pieces: list[pa.RecordBatch], number: int, at: int) -> str | None:
    breaks, slots = columns["breaks"], columns["slots"]
    bits = (len(slots) - 1).bit_length() - 1
    span = max((breaks[-1] - breaks[0]).bit_length(), 1)
    distance = (min(max(number, breaks[0]), breaks[-1]) - breaks[0]) << (64 - span)
    slot = distance >> (64 - bits)
    among = [n for n in range(max(slots[slot] - 1, 0), slots[slot + 1]) if breaks[n] <= number]
    if not among:
        return None
    node = columns["leaves"][0] + among[-1]
    best: tuple[int, int] | None = None
    while True:
        entries = range(columns["lists"][node], columns["lists"][node + 1])
        first = next((entry for entry in entries if columns["since"][entry] <= at), None)
        if first is not None and (best is None or columns["rank"][first] < best[0]):
            best = columns["rank"][first], columns["place"][first]
        node //= 2
        if columns["leaves"] == [0] or node == 0:
            break
    if best is None:
        return None
    rows = pieces[best[1] >> 32]["rows"][best[1] & 0xFFFFFFFF].as_py()
    return str(rows[0]["value"])


@pytest.mark.parametrize(
    "damaged",
    [
        b"[" * 100_000,
        b'{"format":1,"layers":' + b"[" * 100_000,
        b'{"format":1,"layers":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"format":1,"map":5}',
        b'{"format":1}',
        b'{"format":1,"layers":[' + b"{}," * 100_000 + b"{}]}",
        b"\xff",
    ],
)
def test_a_damaged_manifest_is_named(damaged: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        SnapshotManifest.from_bytes(damaged)
    assert caught.value.values["object"] == f"manifests/{content_id(damaged)}.json"
