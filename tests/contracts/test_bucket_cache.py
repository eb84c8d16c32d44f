"""Copies of what lies in a bucket: bounded, checked, shared by processes, and never needed."""

from __future__ import annotations

import os
import resource
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock, SystemClock
from millpond.errors import Corrupt, Invalid, NotFound
from millpond.maps.loads.bucket_location import bucket_location
from millpond.ranges import RangeEntry, open_range
from millpond.ranges.files import content_id
from millpond.ranges.verify import check_file
from millpond.stores.objects import (
    CopiesOf,
    FolderBeforeBucket,
    MemoryObjects,
    Part,
    fetch_parts,
    forget_copies,
    hold_read,
    read_once,
    uncopied,
)
from tests.contracts.test_bucket_ponds import opened, url  # noqa: F401
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.clock import Clock

pytestmark = pytest.mark.usefixtures("process")

OWN = ("leases",)
Acts: TypeAlias = "list[tuple[str, list[int]]]"


class CountedObjects(MemoryObjects):
    """Objects that count how often each was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def get(self, name: str) -> pa.Buffer:
        self.reads.append(name)
        return super().get(name)

    def get_range(self, name: str, start: int, stop: int | None = None) -> memoryview:
        self.reads.append(f"{name} {start} {stop}")
        return memoryview(super().get(name)).cast("B")[start:stop]


def before(folder: Path, bucket: MemoryObjects, bytes_max: int, clock: Clock | None = None) -> FolderBeforeBucket:
    copies = CopiesOf(folder, "*/*", OWN, clock or SystemClock(), check_file, bytes_max)
    return FolderBeforeBucket(folder / "pond" / "map", bucket, copies)


def name_of(data: bytes) -> str:
    return f"intervals/{content_id(data)}.arrow"


def filled(bucket: MemoryObjects, count: int, size: int = 1000) -> list[tuple[str, bytes]]:
    rows = [bytes([number % 256]) * size + b"%d" % number for number in range(count)]
    for data in rows:
        bucket.put(name_of(data), data)
    return [(name_of(data), data) for data in rows]


def names_here(objects: FolderBeforeBucket) -> set[str]:
    return {copy.file.name for copy in objects.copies.all()}


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    bucket, clock = CountedObjects(), ManualClock(4_000_000_000_000)
    rows = filled(bucket, 12)
    objects = before(tmp_path, bucket, 10_500, clock)
    for name, data in rows[:10]:
        clock.advance(1)
        assert objects.get(name).to_pybytes() == data
    clock.advance(1)
    objects.get(rows[0][0])
    assert len(bucket.reads) == 10
    clock.advance(1)
    objects.get(rows[10][0])
    here = names_here(objects)
    left = [number for number, (name, _) in enumerate(rows) if name.partition("/")[2] in here]
    assert 0 in left and 10 in left and 1 not in left, left
    assert sum(copy.size for copy in objects.copies.all()) <= 10_500
    assert objects.get(rows[1][0]).to_pybytes() == rows[1][1]


def test_an_object_larger_than_the_bound_is_read_and_not_kept(tmp_path: Path) -> None:
    bucket = CountedObjects()
    [(name, data)] = filled(bucket, 1)
    for bound in (0, 100):
        objects = before(tmp_path, bucket, bound)
        assert objects.get(name).to_pybytes() == data
        assert objects.local_path(name) is None and not names_here(objects)
        objects.put(name, data)
        assert not names_here(objects)


@pytest.mark.parametrize("damage", ["bytes", "short", "empty"])
def test_a_damaged_copy_is_fetched_again(tmp_path: Path, damage: str) -> None:
    bucket = CountedObjects()
    [(name, data)] = filled(bucket, 1)
    before(tmp_path, bucket, 1 << 20).get(name)
    file = before(tmp_path, bucket, 1 << 20).local_path(name)
    assert file is not None
    file.write_bytes({"bytes": b"\xff" + data[1:], "short": data[:-1], "empty": b""}[damage])
    assert before(tmp_path, bucket, 1 << 20).get(name).to_pybytes() == data
    assert file.read_bytes() == data and len(bucket.reads) == 2


def test_what_the_bucket_has_damaged_is_never_a_copy(tmp_path: Path) -> None:
    bucket = CountedObjects()
    name = name_of(b"as it was")
    bucket.put(name, b"as it is now")
    objects = before(tmp_path, bucket, 1 << 20)
    assert objects.get(name).to_pybytes() == b"as it is now"  # the reader checks it, and names it
    assert not names_here(objects)
    with pytest.raises(NotFound):
        objects.get(name_of(b"never there"))


def turned(data: pa.Buffer) -> pa.Buffer:
    """Another form of a part, as this machine has it."""
    return pa.py_buffer(data.to_pybytes()[::-1] + b"!")


class Parts:
    """An object of the bucket, and parts of it."""

    def __init__(self, bucket: CountedObjects, count: int, size: int) -> None:
        self.bucket, self.size = bucket, size
        self.content = np.random.default_rng(7).bytes(count * size)
        bucket.put("ranges/one.arrow", self.content)

    def part(self, number: int, *, wanted: bool = True) -> Part:
        start, stop = self.size * number, self.size * (number + 1)
        return Part(start, stop, xxhash.xxh3_128_digest(self.content[start:stop]), turned, wanted)

    def fetched(self, objects: FolderBeforeBucket, *numbers: int) -> int:
        """The requests that a question for parts needs, whose answer is right."""
        self.bucket.reads.clear()
        parts = [self.part(number, wanted=number in numbers) for number in range(numbers[0], numbers[-1] + 1)]
        found = fetch_parts(objects, "ranges/one.arrow", parts)()
        for part, data in zip(parts, found, strict=True):
            content = pa.py_buffer(self.content[part.start : part.stop])
            assert not part.is_answer or data in (content, turned(content))
        return len(self.bucket.reads)


def test_a_part_that_lay_between_others_is_here_and_not_given(tmp_path: Path) -> None:
    parts = Parts(CountedObjects(), 9, 1_000)
    objects = before(tmp_path, parts.bucket, 1 << 20)
    some = [parts.part(number, wanted=number != 1) for number in range(3)]
    for requests in (1, 0):
        parts.bucket.reads.clear()
        first, between, last = fetch_parts(objects, "ranges/one.arrow", some)()
        assert (first, between, last) == (turned(content_of(parts, 0)), None, turned(content_of(parts, 2)))
        assert len(parts.bucket.reads) == requests
    assert fetch_parts(objects, "ranges/one.arrow", [parts.part(1)])() == [content_of(parts, 1)]
    assert parts.fetched(before(tmp_path, parts.bucket, 1 << 20), 0, 1, 2) == 0


def content_of(parts: Parts, number: int) -> pa.Buffer:
    return pa.py_buffer(parts.content[1_000 * number : 1_000 * (number + 1)])


def segments(objects: FolderBeforeBucket) -> list[Path]:
    return [copy.file for copy in objects.copies.all() if copy.file.parent.name == "blocks"]


def test_a_thousand_parts_lie_in_one_file_which_processes_share(tmp_path: Path) -> None:
    parts = Parts(CountedObjects(), 1_010, 1_000)
    first, second = (before(tmp_path, parts.bucket, 1 << 30) for _ in range(2))
    assert sum(parts.fetched(first, number) for number in range(1_000)) == 1_000
    assert len(segments(first)) == 1
    assert parts.fetched(second, *range(1_000)) == 0
    assert parts.fetched(second, 1_000) == 1 and len(segments(first)) == 2, "each process has its own"
    assert parts.fetched(first, 1_000) == parts.fetched(second, *range(1_001)) == 0
    assert parts.fetched(first, 1_001) == 1 and parts.fetched(second, 1_001) == 0, "what was appended later, too"
    assert parts.fetched(first, *range(1_000, 1_004)) == 1, "some are here, and the others come by one request"
    own = max(segments(first), key=lambda file: file.stat().st_size)
    whole = own.read_bytes()
    for torn in (whole[:-1_000], whole[:-1_060], whole + b"MPpart02" * 10, whole + bytes(4096)):
        own.write_bytes(torn)
        assert parts.fetched(before(tmp_path, parts.bucket, 1 << 30), *range(1_000)) == 0, "a writer was killed"


def test_parts_of_a_request_are_kept_together_or_not_at_all(tmp_path: Path) -> None:
    parts = Parts(CountedObjects(), 9, 1_000)
    first = before(tmp_path, parts.bucket, 1 << 20)
    assert parts.fetched(first, 0, 1, 2, 4) == 1
    [segment] = segments(first)
    segment.write_bytes(bytes(64) + segment.read_bytes()[64:])  # what a writer writes last
    assert parts.fetched(before(tmp_path, parts.bucket, 1 << 20), 0, 1, 2, 4) == 1, "its writer was killed"
    assert parts.fetched(before(tmp_path, parts.bucket, 1 << 20), 0, 1, 2, 4) == 0


def test_parts_go_with_what_was_used_longest_ago(tmp_path: Path) -> None:
    parts, clock = Parts(CountedObjects(), 40, 1_000), ManualClock(4_000_000_000_000)
    objects = before(tmp_path, parts.bucket, 20_000, clock)
    for number in [*range(16), 0]:
        clock.advance(1)
        parts.fetched(objects, number)
    for number in range(16, 20):
        clock.advance(1)
        parts.fetched(objects, 0)
        parts.fetched(objects, number)
    assert sum(copy.size for copy in objects.copies.all()) <= 20_000
    assert parts.fetched(objects, 0) == 0 and parts.fetched(objects, 1) == 1
    for bound in (0, 1_000):
        none = before(tmp_path / "none", parts.bucket, bound)
        assert parts.fetched(none, 3) == parts.fetched(none, 3) == 1 and not segments(none)


@settings(max_examples=examples(20, 200), deadline=None)
@given(
    acts=st.lists(
        st.tuples(st.sampled_from("ABABxtrf"), st.lists(st.integers(0, 11), min_size=1, max_size=3)), max_size=25
    )
)
def test_whatever_happens_to_copies_parts_are_right(tmp_path_factory: pytest.TempPathFactory, acts: Acts) -> None:
    folder = tmp_path_factory.mktemp("copies")
    parts = Parts(CountedObjects(), 12, 1_000)
    readers = {name: before(folder, parts.bucket, 100_000) for name in "AB"}
    here: set[int] = set()
    harmed = False
    for act, numbers in acts:
        files = sorted(segments(readers["A"]))
        if act in readers:
            wanted = sorted(set(numbers))
            requests = parts.fetched(readers[act], *wanted)
            # What is found damaged goes with its whole segment.
            assert requests <= (harmed or not here.issuperset(wanted)), (wanted, here)
            here |= set(wanted)
        elif act == "f":
            forget_copies(readers["A"])
            here.clear()
        elif files:
            harm(act, files[numbers[0] % len(files)], numbers[-1])
            harmed = harmed or act != "r"
            here.clear()


def harm(act: str, file: Path, number: int) -> None:
    if act == "r":
        file.unlink()
    elif act == "t":
        os.truncate(file, file.stat().st_size * number // 12)
    else:
        data = bytearray(file.read_bytes())
        if data:
            data[number * 997 % len(data)] ^= 1
        file.write_bytes(bytes(data))


def test_what_the_bucket_has_damaged_is_no_copy_of_a_part(tmp_path: Path) -> None:
    parts = Parts(CountedObjects(), 9, 1_000)
    objects = before(tmp_path, parts.bucket, 1 << 20)
    parts.bucket.put("ranges/one.arrow", parts.content[:8_500])
    assert fetch_parts(objects, "ranges/one.arrow", [parts.part(8)])() == [None], "the reader refuses it"
    assert not segments(objects) and objects.local_path("ranges/one.arrow") is None


def test_what_was_read_is_held_until_copies_are_forgotten(tmp_path: Path) -> None:
    bucket = CountedObjects()
    (name, data), (other, _) = filled(bucket, 2)
    objects = before(tmp_path, bucket, 0)

    def size() -> int:
        return read_once(objects, name, lambda: objects.get(name), lambda content: int(content.size))

    assert (size(), size(), bucket.reads) == (len(data), len(data), [name])
    hold_read(objects, other, 7, 1)
    assert read_once(objects, other, lambda: objects.get(other), lambda content: int(content.size)) == 7
    forget_copies(objects)
    assert (size(), bucket.reads) == (len(data), [name, name])
    objects.rename(name, other)
    with pytest.raises(NotFound):
        size()
    assert read_once(bucket, other, lambda: bucket.get(other), lambda content: content.to_pybytes()) == data


def test_what_a_task_puts_has_no_copy_and_is_known(tmp_path: Path) -> None:
    bucket = CountedObjects()
    data = b"rows" * 100
    objects = before(tmp_path, bucket, 1 << 20)
    uncopied(objects).put(name_of(data), data)
    assert not names_here(objects) and name_of(data) in objects.presence
    assert objects.get(name_of(data)).to_pybytes() == data and names_here(objects)
    assert uncopied(bucket) is bucket


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_room_on_the_disk_it_is_read_from_the_bucket(tmp_path: Path) -> None:
    bucket = CountedObjects()
    [(name, data)] = filled(bucket, 1, 100_000)
    objects = before(tmp_path, bucket, 1 << 20)
    with files_up_to(5_000):
        assert objects.get(name).to_pybytes() == data
        objects.put(name, data)
        parts = Parts(bucket, 9, 1_000)
        assert [parts.fetched(objects, number) for number in (0, 1, 2, 3, 4, 5, 0, 4, 5)] == [1] * 6 + [0, 1, 1]
        assert [file.stat().st_size for file in segments(objects)] == [4 * 1_088]
        forget_copies(objects)
    assert not names_here(objects) and not list((objects.root / ".partial").iterdir())
    assert objects.get(name).to_pybytes() == data and names_here(objects)


def test_processes_make_room_for_each_other_while_copies_are_read(tmp_path: Path) -> None:
    bucket = MemoryObjects()
    rows = filled(bucket, 40)
    wrong: list[str] = []

    def read(step: int) -> None:
        objects, held = before(tmp_path, bucket, 8_000), []
        for number in range(200):
            name, data = rows[number * step % len(rows)]
            held.append((objects.get(name), data))
        wrong.extend("read" for buffer, data in held if buffer.to_pybytes() != data)

    threads = [threading.Thread(target=partial(read, step)) for step in (1, 3, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    # Each of four adds no more than a sixteenth before it looks, and one file.
    assert sum(copy.size for copy in before(tmp_path, bucket, 8_000).copies.all()) <= 8_000 + 4 * 1_600


def test_a_pond_reads_right_within_a_bound_and_without_copies(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    rows = [{"key": f"k{number}", "value": number} for number in range(500)]
    with opened(url, tmp_path / "whole") as pond:
        for name in ("m", "n", "o"):
            pond.create_map(name, kind="state", value="long").load(rows)
    for value, bound in enumerate(("30KB", "0"), 1000):
        with opened(url, tmp_path / bound, cache_max=bound) as pond:
            for name in ("m", "n", "o", "m"):
                held = pond.map(name).snapshot()
                assert held.lookup(["k7", "none"]).to_pylist() == [7, None]
                for copy in list(pond.location.copies.all()):  # type: ignore[attr-defined]
                    copy.file.unlink()
                assert held.lookup(["k499"]).to_pylist() == [499]
            pond.map("m").load([{"key": "k8", "value": value}])
            assert pond.map("m").get("k8") == value
            assert sum(copy.size for copy in pond.location.copies.all()) <= 30_000  # type: ignore[attr-defined]
    monkeypatch.setenv("MILLPOND_BUCKET_CACHE_MAX", "12KiB")
    assert bucket_location(url, SystemClock(), cache=str(tmp_path)).cache_max == 12 << 10
    for wrong in ("many", -1):
        with pytest.raises(Invalid):
            millpond.open(url, cache=tmp_path, cache_max=wrong)


def test_a_damaged_range_in_the_cache_answers_right(url: str, tmp_path: Path) -> None:  # noqa: F811
    with opened(url, tmp_path / "one") as pond:
        pond.create_map("m", kind="state", value="long").load([{"key": "a", "value": 1}])
        assert pond.map("m").get("a") == 1
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for file in (tmp_path / "two").glob("*/snapshots/*/ranges/*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(bytes(data))
    with opened(url, tmp_path / "two") as pond:
        assert pond.map("m").get("a") == 1
        [name] = [info.name for info in pond.map("m").objects.list("ranges")]
        pond.map("m").objects.bucket.put(name, b"damaged in the bucket")  # type: ignore[attr-defined]
        assert pond.map("m").snapshot().lookup(["a"]).to_pylist() == [1]
    with opened(url, tmp_path / "three") as pond, pytest.raises(Corrupt) as caught:
        pond.map("m").get("a")
    assert caught.value.kind == "range_damaged" and name in str(caught.value)


def test_a_range_that_went_is_named_where_it_lay(tmp_path: Path) -> None:
    bucket = MemoryObjects()
    entry = RangeEntry("0" * 64, b"a", b"b", 1, 10)
    with pytest.raises(NotFound) as caught:
        open_range(before(tmp_path, bucket, 1 << 20), entry)
    assert (caught.value.kind, caught.value.values["where"]) == ("range_not_found", bucket.where)
