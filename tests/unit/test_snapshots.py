"""The files of snapshots: what a refreeze writes, what is collected, who keeps what, and what damage looks like."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Closed, Corrupt, Invalid, NotFound
from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, parse_value_type
from millpond.maps.snapshots.finder import single_values
from millpond.maps.snapshots.freeze import KEEP_MS, collect, freeze, load_manifest
from millpond.maps.snapshots.groups_of_rows import range_order_keys
from millpond.maps.snapshots.leases import end_lease, pin, pinned_until, unpin
from millpond.maps.snapshots.manifest import manifest_name
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.stores.objects import FolderObjects, MemoryObjects, open_objects
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from millpond.maps.snapshots.freeze import SnapshotManifest

LATER = 1_000_000_000


def a_map(kind: Kind = Kind.STATE, value: str | None = "long") -> MapDefinition:
    value_type = None if value is None or kind is Kind.SESSION else parse_value_type(value)
    return MapDefinition(name="m", kind=kind, incarnation="0" * 16, value=value_type)


@pytest.fixture
def objects(tmp_path: Path) -> FolderObjects:
    opened = open_objects(tmp_path)
    assert isinstance(opened, FolderObjects)
    return opened


def full(objects: FolderObjects, keys: range, version: int = 1, extra: int = 0) -> SnapshotManifest:
    rows = canonical_of(a_map(), [((f"key {n}",), n + extra) for n in keys])
    return freeze(objects, a_map(), [rows], shard_version=version, created_ms=version)


def again(
    objects: FolderObjects, base: SnapshotManifest, changed: dict[str, int | None], version: int
) -> SnapshotManifest:
    """Refreeze with these values; None: the key is gone."""
    rows = canonical_of(a_map(), [((key,), value) for key, value in changed.items() if value is not None])
    touched = pa.array([key.encode() for key in changed], pa.binary())
    return freeze(objects, a_map(), [rows], base=base, touched=touched, shard_version=version, created_ms=version)


def files(objects: FolderObjects, folder: str) -> set[str]:
    return {named.name for named in objects.list(folder)}


def test_a_refreeze_writes_only_what_was_touched(objects: FolderObjects) -> None:
    base = full(objects, range(50_000))
    before = files(objects, "ranges")
    assert len(before) > 1
    following = again(objects, base, {"key 7": 70, "key 8": None, "new": 1}, 2)
    written = files(objects, "ranges") - before
    assert len(written) == 1
    assert sum((objects.root / name).stat().st_size for name in written) < 4_096
    assert following.layers[1:] == base.layers
    with Snapshot.open(objects, following) as snapshot:
        assert snapshot.lookup(["key 7", "key 8", "new", "key 9"]).to_pylist() == [70, None, 1, 9]


@pytest.mark.usefixtures("processor")
def test_layers_are_folded_before_they_are_many(objects: FolderObjects) -> None:
    manifest = full(objects, range(2_000))
    expected = {f"key {n}": n for n in range(2_000)}
    for version in range(2, 40):
        changed = {f"key {n}": n * version for n in range(version * 40, version * 40 + 40)}
        expected |= changed
        manifest = again(objects, manifest, dict(changed), version)
        assert len(manifest.layers) <= 3
        counts = [layer.groups for layer in manifest.layers]
        assert all(sum(counts[:n]) * 8 <= counts[n] for n in range(1, len(counts)))
    with Snapshot.open(objects, manifest) as snapshot:
        assert snapshot.lookup(list(expected)).to_pylist() == list(expected.values())


def test_the_same_rows_make_the_same_files(tmp_path: Path) -> None:
    one, other = FolderObjects(tmp_path / "a"), FolderObjects(tmp_path / "b")
    rows = canonical_of(a_map(), [((f"key {n}",), n) for n in range(9_000)])
    first = freeze(one, a_map(), [rows], shard_version=1, created_ms=5)
    pieces = [rows.slice(n, 1_000) for n in range(8_000, -1, -1_000)]
    second = freeze(other, a_map(), pieces, shard_version=1, created_ms=5)
    assert first.id == second.id
    assert files(one, "ranges") == files(other, "ranges")
    assert load_manifest(one, first.id) == first


def test_a_map_without_rows_answers_nothing(objects: FolderObjects) -> None:
    for kind in PLAIN_KINDS:
        definition = a_map(kind)
        manifest = freeze(objects, definition, [], shard_version=0, created_ms=0)
        assert manifest.layers == ()
        with Snapshot.open(objects, manifest) as snapshot:
            keys: list[object] = ["a", None] if kind.keyed else [1, None]
            assert snapshot.lookup(keys, at=5).to_pylist() == [None, None]
            assert snapshot.lookup(pa.array([], pa.string() if kind.keyed else pa.int64()), at=5).to_pylist() == []


def test_what_is_gone_from_everywhere_leaves_no_tombstone(objects: FolderObjects) -> None:
    base = full(objects, range(3))
    emptied = again(objects, base, {f"key {n}": None for n in range(3)}, 2)
    assert emptied.layers == ()
    assert again(objects, emptied, {"key 1": None}, 3).layers == ()


def test_ranges_that_are_gone_answer_no_more(objects: FolderObjects) -> None:
    definition = a_map(Kind.RANGED_STATE, "string")
    rows = [
        ((0, 100), "wide"),
        ((10, 20), "narrow"),
        ((200, 300), "far"),
        *(((n, n), "one") for n in range(1_000, 1_020)),
    ]
    base = freeze(objects, definition, [canonical_of(definition, rows)], shard_version=1, created_ms=1)
    touched = range_order_keys(*(pa.array([n], pa.int64()).to_numpy() for n in (10, 20)))
    following = freeze(objects, definition, [], base=base, touched=touched, shard_version=2, created_ms=2)
    for manifest, value in ((base, "narrow"), (following, "wide")):
        with Snapshot.open(objects, manifest) as snapshot:
            assert snapshot.lookup([15, 100, 101, 200, 1_005]).to_pylist() == [value, "wide", None, "far", "one"]


# -- collecting ---------------------------------------------------------------------------------------


def test_nothing_but_the_snapshot_that_counts_stays(objects: FolderObjects) -> None:
    old = full(objects, range(10_000))
    counts = full(objects, range(10_000), 2, extra=1)
    (objects.root / "ranges" / ("f" * 40 + ".arrow")).write_bytes(b"left by a freeze that died")
    assert collect(objects, counts, now_ms=2 + KEEP_MS - 1).snapshots == 0
    collected = collect(objects, counts, now_ms=2 + KEEP_MS)
    assert collected.snapshots == 1
    assert collected.files >= 2
    with pytest.raises(NotFound):
        load_manifest(objects, old.id)
    with pytest.raises(NotFound, match="ask for the one"):
        Snapshot.open(objects, old)
    with Snapshot.open(objects, counts, verify=True) as snapshot:
        assert snapshot.lookup(["key 5"]).to_pylist() == [6]
    assert len(files(objects, "manifests")) == 1
    assert files(objects, "leases") != set()
    assert collect(objects, counts, now_ms=LATER).files == 0
    assert files(objects, "leases") == {f"leases/{counts.id}.lock"}


@pytest.mark.parametrize("kind", [Kind.STATE, Kind.RANGED_STATE])
def test_a_reader_keeps_the_snapshot_it_holds(objects: FolderObjects, kind: Kind) -> None:
    definition = a_map(kind)
    rows = [((f"key {n}",) if kind.keyed else (n, n), n) for n in range(6_000)]
    changed = [(address, n + 1) for n, (address, _) in enumerate(rows)]
    keys: list[object] = ["key 5"] if kind.keyed else [5]
    old, counts = (
        freeze(objects, definition, [canonical_of(definition, content)], shard_version=version, created_ms=version)
        for version, content in ((1, rows), (2, changed))
    )
    reader = Snapshot.open(objects, old)
    assert collect(objects, counts, now_ms=LATER).snapshots == 0
    assert reader.lookup(keys).to_pylist() == [5]
    other = Snapshot.open(objects, old, verify=True)
    reader.close()
    assert collect(objects, counts, now_ms=LATER).snapshots == 0
    assert other.lookup(keys).to_pylist() == [5]
    del other
    assert collect(objects, counts, now_ms=LATER).snapshots == 1


def test_layers_shared_with_a_snapshot_that_counts_are_not_collected(objects: FolderObjects) -> None:
    base = full(objects, range(10_000))
    counts = again(objects, base, {"key 1": 5}, 2)
    collected = collect(objects, counts, now_ms=LATER)
    assert (collected.snapshots, collected.files) == (1, 0)
    with Snapshot.open(objects, counts, verify=True) as snapshot:
        assert snapshot.lookup(["key 1", "key 2"]).to_pylist() == [5, 2]


@pytest.mark.usefixtures("process")
def test_a_reader_that_dies_lets_go(objects: FolderObjects) -> None:
    old, counts = full(objects, range(10)), full(objects, range(11), 2)
    reader = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(objects.root), old.id], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdin is not None and reader.stdout is not None
    with reader.stdin, reader.stdout:
        assert reader.stdout.readline() == b"open\n"
        assert collect(objects, counts, now_ms=LATER).snapshots == 0
        reader.kill()
        reader.wait()
    assert collect(objects, counts, now_ms=LATER).snapshots == 1


_HOLD = """
import sys
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.maps.snapshots.freeze import load_manifest
from millpond.stores.objects import open_objects
objects = open_objects(sys.argv[1])
snapshot = Snapshot.open(objects, load_manifest(objects, sys.argv[2]))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("processor")
def test_many_threads_ask_one_snapshot(objects: FolderObjects) -> None:
    keys = [f"key {n}" for n in range(20_000)]
    with Snapshot.open(objects, full(objects, range(20_000))) as snapshot, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda n: snapshot.lookup(keys[n:]).to_pylist(), range(16)))
    assert answers == [list(range(n, 20_000)) for n in range(16)]


# -- misuse and damage --------------------------------------------------------------------------------


def test_a_closed_snapshot_says_so(objects: FolderObjects) -> None:
    snapshot = Snapshot.open(objects, full(objects, range(3)))
    found = snapshot.find(["key 1"])
    snapshot.close()
    snapshot.close()
    with pytest.raises(Closed):
        snapshot.lookup(["key 1"])
    with pytest.raises(Closed):
        snapshot.take(found)


def test_questions_that_are_none(objects: FolderObjects) -> None:
    definition = a_map(Kind.TEMPORAL_STATE)
    rows = canonical_of(definition, [(("a", 5), 1)])
    with Snapshot.open(objects, freeze(objects, definition, [rows], shard_version=1, created_ms=1)) as snapshot:
        with pytest.raises(Invalid, match="asked at a time"):
            snapshot.lookup(["a"])
        with pytest.raises(Invalid, match="as many times"):
            snapshot.lookup(["a"], at=[1, 2])
        with pytest.raises(Invalid, match="not understood"):
            snapshot.lookup(["a", "a"], at=["1970-01-01T00:00:00Z", "soon"])
        with pytest.raises(Invalid, match="no one way of being written"):
            snapshot.lookup([1.5], at=5)
        assert snapshot.lookup(["a", "a"], at=["1970-01-01T00:00:00.005Z", "1970-01-01T00:00:00.004Z"]).to_pylist() == [
            1,
            None,
        ]
    ranged = freeze(objects, a_map(Kind.RANGED_STATE), [], shard_version=1, created_ms=1)
    with Snapshot.open(objects, ranged) as snapshot, pytest.raises(Invalid, match="whole numbers"):
        snapshot.lookup(["ten"])


def one_range(objects: FolderObjects) -> Path:
    (name,) = files(objects, "ranges")
    return objects.root / name


def test_a_shortened_range_is_named(objects: FolderObjects) -> None:
    manifest = full(objects, range(3))
    damaged = one_range(objects)
    damaged.write_bytes(damaged.read_bytes()[:-8])
    with pytest.raises(Corrupt, match=damaged.name):
        Snapshot.open(objects, manifest)


def test_a_changed_byte_is_found_when_verifying(objects: FolderObjects) -> None:
    manifest = full(objects, range(3))
    damaged = one_range(objects)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(Corrupt, match=damaged.name):
        Snapshot.open(objects, manifest, verify=True)
    # What could not be opened is not held either.
    assert collect(objects, full(objects, range(4), 2), now_ms=LATER).snapshots == 1


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_offsets_that_lead_astray_are_an_error_and_no_crash(objects: FolderObjects, kind: Kind, step: int) -> None:
    """One byte of the files after the other becomes another: a lookup answers, or names the file."""
    definition = a_map(kind, "string")
    addresses = {"key": ("a", "bb", "bb"), "key_start": (1, 1, 2), "key_end": (9, 5, 2), "end": (8, 9, 7)}
    rows = [(tuple(addresses.get(name, (1, 2, 3))[n] for name in kind.address), "value") for n in range(3)]
    unique = list(dict(rows).items())
    manifest = freeze(objects, definition, [canonical_of(definition, unique)], shard_version=1, created_ms=1)
    keys: list[object] = ["a", "bb", "c"] if kind.keyed else [1, 5, 100]
    refused = 0
    for name in sorted(files(objects, "ranges") | files(objects, "intervals")):
        file = objects.root / name
        whole = file.read_bytes()
        for place in range(0, len(whole), step):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
            try:
                with Snapshot.open(objects, manifest) as snapshot:
                    assert len(snapshot.lookup(keys, at=4)) == 3
            except Corrupt as error:
                refused += Path(name).name in str(error)
        file.write_bytes(whole)
    assert refused > 100 // step


def test_opening_copies_nothing(objects: FolderObjects) -> None:
    manifest = full(objects, range(50_000))
    before = pa.total_allocated_bytes()
    with Snapshot.open(objects, manifest) as snapshot:
        assert pa.total_allocated_bytes() == before
        assert snapshot.lookup(["key 7"]).to_pylist() == [7]


def test_a_missing_range_is_named(objects: FolderObjects) -> None:
    manifest = full(objects, range(3))
    damaged = one_range(objects)
    damaged.unlink()
    with pytest.raises(NotFound, match=damaged.name):
        Snapshot.open(objects, manifest)


def test_a_changed_manifest_is_named(objects: FolderObjects) -> None:
    manifest = full(objects, range(3))
    file = objects.root / "manifests" / f"{manifest.id}.json"
    file.write_bytes(file.read_bytes().replace(b'"shard_version":1', b'"shard_version":2'))
    with pytest.raises(Corrupt, match=manifest.id):
        load_manifest(objects, manifest.id)


HOLDERS = st.sampled_from(["", "a", "b"])


@given(st.lists(st.tuples(HOLDERS, st.one_of(st.none(), st.integers(1, 9))), max_size=12), st.integers(0, 9))
def test_a_pin_that_ends_leaves_those_of_others(acts: list[tuple[str, int | None]], now_ms: int) -> None:
    objects, model = MemoryObjects(), dict[str, int]()
    for id_ in ("ab", "abc"):
        objects.put(manifest_name(id_), b"{}")
    for holder, until_ms in acts:
        if until_ms is not None:
            pin(objects, "ab", until_ms, holder=holder)
            model[holder] = max(until_ms, model.get(holder, 0))
        elif holder:
            unpin(objects, "ab", holder)
            model.pop(holder, None)
        assert pinned_until(objects, "ab") == max(model.values(), default=0) and pinned_until(objects, "abc") == 0
    assert end_lease(objects, "ab", now_ms) is (max(model.values(), default=0) <= now_ms)
    assert [*objects.list("pins")] == [] or objects.exists(manifest_name("ab"))


@pytest.mark.parametrize("numbers", [pa.array([1, -5, 1 << 40]), pa.array([1.5, -0.0])])
def test_single_values_are_read_wherever_a_fetched_block_lies(numbers: pa.Array) -> None:
    shifted = pa.py_buffer(b"x" + numbers.buffers()[1].to_pybytes()).slice(1)
    values = single_values(pa.Array.from_buffers(numbers.type, len(numbers), [None, shifted]))
    assert [values[number] for number in range(len(numbers))] == numbers.to_pylist()
