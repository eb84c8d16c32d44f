"""Fetching what is missing, verifying what arrives, and telling what is damaged by its name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import ranges
from millpond.errors import Corrupt, NotFound
from millpond.kernel.steps import listening
from millpond.kernel.verify import checked
from millpond.ranges import FetchReport, Index, Verifier
from millpond.ranges.files import sealed_bytes
from millpond.ranges.ids import columns_id
from millpond.ranges.index import RangeEntry, store_index
from millpond.stores.objects import FolderObjects, Objects, open_objects
from millpond.testing.faults import flip_byte, truncate
from tests.unit.range_entries import (
    SCHEMA,
    SMALL,
    Model,
    Watched,
    batch_of,
    keys,
    large_models,
    model_of,
    plain,
    plain_values,
    synced_places,
)

MODEL: Model = {b"%06d" % n: plain(n) for n in range(1024)}


def written(objects: Objects, model: Model) -> Index:
    return ranges.write(objects, [batch_of(model)], SMALL)


@pytest.mark.usefixtures("processor")
@given(large_models, st.dictionaries(keys, plain_values, max_size=5))
def test_only_what_is_missing_travels(old: Model, edits: Model) -> None:
    source, target = Watched(), Watched()
    first, second = written(source, old), written(source, {**old, **edits})
    whole = ranges.fetch(source, target, first.id)
    assert whole.ranges == len(first.entries)
    assert whole.bytes == sum(found.size for found in target.list())
    source.forget()
    lacking = ranges.missing(second, target)
    assert set(lacking) == set(second.entries) - set(first.entries)
    before = sum(found.size for found in target.list())
    report = ranges.fetch(source, target, second.id)
    assert (report.ranges, report.ranges_reused) == (len(lacking), len(second.entries) - len(lacking))
    assert report.bytes == sum(found.size for found in target.list()) - before
    assert report.bytes_reused == second.size - sum(entry.size for entry in lacking)
    assert len(source.ranges_read()) == report.ranges
    assert model_of(ranges.open_index(target, second.id)) == {**old, **edits}


@pytest.mark.usefixtures("processor")
def test_fetching_twice_fetches_once() -> None:
    source, target = Watched(), Watched()
    index = written(source, MODEL)
    ranges.fetch(source, target, index.id)
    target.forget()
    report = ranges.fetch(source, target, index.id)
    assert report == FetchReport(ranges=0, bytes=0, ranges_reused=len(index.entries), bytes_reused=index.size)
    assert target.written == []


@pytest.mark.usefixtures("processor")
def test_what_was_fetched_before_is_made_durable(tmp_path: Path) -> None:
    """By one who died between giving it its name and making that durable."""
    source, target = open_objects("memory://"), open_objects(tmp_path)
    index = written(source, MODEL)
    ranges.fetch(source, target, index.id)
    with synced_places() as synced:
        ranges.fetch(source, target, index.id)
    assert synced == ["ranges", "indexes"]


def test_a_small_change_is_a_small_fetch() -> None:
    source, target = Watched(), Watched()
    full = ranges.fetch(source, target, written(source, MODEL).id)
    changed = written(source, {**MODEL, b"001000": plain(-1)})
    report = ranges.fetch(source, target, changed.id)
    assert report.ranges == 1
    assert report.bytes * 5 < full.bytes


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("fault", ["flipped", "cut short", "gone"])
def test_what_is_damaged_does_not_travel(tmp_path: Path, fault: str) -> None:
    source, target = open_objects(tmp_path / "source"), Watched()
    index = written(source, MODEL)
    bad = index.entries[len(index.entries) // 2]
    path = path_of(source, bad)
    if fault == "flipped":
        flip_byte(path, bad.size // 2)
    elif fault == "cut short":
        truncate(path, bad.size - 8)
    else:
        path.unlink()
    with pytest.raises((NotFound, Corrupt), match=bad.id):
        ranges.fetch(source, target, index.id)
    assert not target.exists(ranges.range_name(bad.id))
    assert not target.exists(ranges.index_name(index.id))


@pytest.mark.usefixtures("processor")
def test_a_damaged_index_does_not_travel(tmp_path: Path) -> None:
    source = open_objects(tmp_path / "source")
    index = written(source, MODEL)
    flip_byte(tmp_path / "source" / ranges.index_name(index.id), 300)
    target = Watched()
    with pytest.raises(Corrupt, match=index.id):
        ranges.fetch(source, target, index.id)
    assert target.written == []


@pytest.mark.usefixtures("processor")
def test_a_fetch_cut_short_is_gone_on_with(tmp_path: Path) -> None:
    source, target = Watched(), open_objects(tmp_path)
    index = written(source, MODEL)

    class CutShort(Exception):
        pass

    fetched: list[str] = []

    def cut_short(name: str) -> None:
        fetched.append(name)
        if len(fetched) == 10:
            raise CutShort

    with listening(cut_short), pytest.raises(CutShort):
        ranges.fetch(source, target, index.id)
    assert not target.exists(ranges.index_name(index.id))
    there = sum(1 for _ in target.list("ranges"))
    assert 10 <= there < len(index.entries)
    assert ranges.fetch(source, target, index.id).ranges == len(index.entries) - there
    assert ranges.verify(target, index.id).ok


def test_between_a_folder_and_a_bucket(tmp_path: Path, bucket: Objects) -> None:
    """Published to S3 from one machine, fetched by another, then read from the bucket itself."""
    source, target = open_objects(tmp_path / "source"), open_objects(tmp_path / "target")
    small = {key: MODEL[key] for key in sorted(MODEL)[:300]}
    index = written(source, small)
    published = ranges.fetch(source, bucket, index.id)
    assert published.ranges == len(index.entries)
    assert ranges.fetch(bucket, target, index.id).ranges == published.ranges
    assert model_of(ranges.open_index(target, index.id)) == small
    changed = written(source, {**small, b"000150": plain(-5)})
    assert ranges.fetch(source, bucket, changed.id).ranges == 1
    assert ranges.fetch(bucket, target, changed.id).ranges == 1
    remote = ranges.open_index(bucket, changed.id)
    row = remote.get(b"000150")
    assert row is not None
    assert row.column("hash").to_pylist() != [] and row.column("size").to_pylist() == [-2.5]
    assert ranges.verify(bucket, changed.id).ok
    assert written(bucket, small) == index
    overlay = written(bucket, {b"000200": plain(9)})
    assert ranges.merge(bucket, [overlay, index]) == written(Watched(), {**small, b"000200": plain(9)})
    assert [len(found) for found in ranges.diff(bucket, index, changed)] == [1]


def path_of(objects: Objects, entry: RangeEntry) -> Path:
    path = objects.local_path(ranges.range_name(entry.id))
    assert path is not None
    return path


# -- verify -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> FolderObjects:
    objects = open_objects(tmp_path / "objects")
    assert isinstance(objects, FolderObjects)
    return objects


@pytest.mark.usefixtures("processor")
def test_a_whole_index_has_no_problems(folder: FolderObjects) -> None:
    index = written(folder, MODEL)
    assert ranges.verify(folder, index.id) == checked("range file", 1 + len(index.entries))
    assert ranges.verify(folder, written(folder, {}).id) == checked("range file", 1)


@pytest.mark.usefixtures("processor")
@given(st.data())
def test_every_flipped_byte_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = open_objects(tmp_path_factory.mktemp("objects"))
    index = written(folder, {b"%02d" % n: plain(n) for n in range(20)})
    found = data.draw(st.sampled_from(sorted(folder.list(), key=lambda named: named.name)))
    path = folder.local_path(found.name)
    assert path is not None
    flip_byte(path, data.draw(st.integers(0, found.size - 1)))
    (problem,) = ranges.verify(folder, index.id).problems
    assert problem.place == str(path)
    assert "is not what was written" in problem.found
    (again,) = Verifier(folder).file(found.name).problems
    assert again.place == problem.place


@pytest.mark.usefixtures("processor")
def test_a_damaged_file_is_named_quarantined_and_fetched_again(tmp_path: Path, folder: FolderObjects) -> None:
    index = written(folder, MODEL)
    other = open_objects(tmp_path / "other")
    ranges.fetch(folder, other, index.id)
    bad, gone = index.entries[3], index.entries[5]
    flip_byte(path_of(folder, bad), bad.size // 2)
    path_of(folder, gone).unlink()
    report = ranges.verify(folder, index.id)
    assert report.checked == 1 + len(index.entries)
    assert [(problem.place, problem.found) for problem in report.problems] == [
        (str(path_of(folder, bad)), "the range is not what was written"),
        (str(path_of(folder, gone)), "a range is missing"),
    ]
    with pytest.raises(Corrupt, match=bad.id):
        ranges.open_range(folder, bad, verify=True)
    quarantined = Verifier(folder, quarantine_folder=True).index(index.id)
    assert [problem.place for problem in quarantined.problems] == [
        str(folder.local_path(f"quarantine/{bad.id}.arrow")),
        str(path_of(folder, gone)),
    ]
    assert folder.size(f"quarantine/{bad.id}.arrow") == bad.size
    with pytest.raises(Corrupt, match=bad.id):
        list(ranges.scan(folder, index))
    assert ranges.fetch(other, folder, index.id).ranges == 2
    assert ranges.verify(folder, index.id).ok
    assert model_of(ranges.open_index(folder, index.id)) == MODEL


def test_a_missing_index_is_a_problem(folder: FolderObjects) -> None:
    (problem,) = Verifier(folder, quarantine_folder=True).index("00" * 20).problems
    assert problem.found == "there is no such index"
    assert list(folder.list()) == []


def store(objects: Objects, batch: pa.RecordBatch, **changed: object) -> RangeEntry:
    """A range as a broken writer might store it."""
    name = columns_id("range", batch)
    data = sealed_bytes("range", name, batch)
    objects.put(ranges.range_name(name), data)
    held = batch.column("key").to_pylist()
    entry = {"first": held[0], "last": held[-1], "count": batch.num_rows, "size": data.size} | changed
    return RangeEntry(name, **entry)  # type: ignore[arg-type]


def test_checksums_are_not_the_only_check(folder: FolderObjects) -> None:
    """A file that was written wrong has a right checksum and a right id, and is reported all the same."""
    good = batch_of({b"%02d" % n: plain(n) for n in range(4)})
    backwards = good.take(pa.array([3, 2, 1, 0]))
    other = pa.record_batch({"key": pa.array([b"k1", b"k2"], pa.binary())})
    wrong: list[tuple[RangeEntry, str]] = [
        (store(folder, backwards, first=b"a0", last=b"a9"), "keys do not ascend"),
        (store(folder, good, first=b"b0", last=b"b9"), "first and last key are not those of the index"),
        (store(folder, good, first=b"c0", last=b"c9", count=5), "the range is not what its index says"),
        (store(folder, other), "the columns are not those of the index"),
    ]
    index = store_index(folder, [entry for entry, _ in wrong], SCHEMA, SMALL)
    assert [(problem.place, problem.found) for problem in ranges.verify(folder, index.id).problems] == [
        (str(path_of(folder, entry)), found) for entry, found in wrong
    ]


@pytest.mark.usefixtures("processor")
def test_a_range_that_lay_there_damaged_by_size_is_written_again(folder: FolderObjects) -> None:
    index = written(folder, MODEL)
    truncate(path_of(folder, index.entries[0]), 100)
    assert written(folder, MODEL) == index
    assert ranges.verify(folder, index.id).ok


@pytest.mark.usefixtures("processor")
@given(st.data())
def test_a_merge_or_a_diff_vouches_for_no_damage(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A file that is read to be written anew is verified first: damage must not get a name of its own."""
    folder = open_objects(tmp_path_factory.mktemp("objects"))
    index = written(folder, {b"%02d" % n: plain(n) for n in range(40)})
    overlay = written(folder, {b"17": plain(-1)})
    (hit,) = [entry for entry in index.entries if entry.first <= b"17" <= entry.last]
    flip_byte(path_of(folder, hit), data.draw(st.integers(0, hit.size - 1)))
    with pytest.raises(Corrupt, match=hit.id):
        ranges.merge(folder, [overlay, index])
    with pytest.raises(Corrupt, match=hit.id):
        list(ranges.diff(folder, overlay, index))


@pytest.mark.usefixtures("processor")
@given(st.data())
def test_looking_for_keys_survives_damage(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Mapped files are searched unverified: keys that lie astray are an error, and no crash."""
    folder = open_objects(tmp_path_factory.mktemp("objects"))
    index = written(folder, {b"%02d" % n: plain(n) for n in range(12)})
    for entry in index.entries:
        flip_byte(path_of(folder, entry), data.draw(st.integers(0, entry.size - 1)))
    for key in (b"00", b"05", b"11", b"99"):
        try:
            range_nos, rows = ranges.find(folder, index, pa.array([key], pa.binary()))
        except Corrupt as error:
            assert "ranges/" in str(error)  # noqa: PT017 - either is right, a crash is not
        else:
            assert range_nos[0] < len(index.entries)
            assert rows[0] < 12
