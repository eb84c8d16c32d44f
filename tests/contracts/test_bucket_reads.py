"""The requests of readers of a pond in a bucket, counted."""

from __future__ import annotations

from base64 import b85encode
from hashlib import shake_256
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millpond.errors import Corrupt, NotFound
from millpond.maps.snapshots import needed_ranges
from millpond.ranges.blocks import BLOCK_BYTES
from millpond.ranges.files import in_form
from millpond.stores.objects import FolderBeforeBucket
from tests.contracts.test_bucket_ponds import opened, url  # noqa: F401
from tests.harness.buckets.requests import counted_requests, fetched_bytes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("process")

ROWS = 60_000


def text(number: int, size: int) -> str:
    """A text that no compressor makes smaller, of a quarter more characters than bytes."""
    return b85encode(shake_256(b"%d" % number).digest(size)).decode()


def test_a_cold_question_fetches_what_may_answer_it(url: str, tmp_path: Path) -> None:  # noqa: F811
    keys = [f"k{number}" for number in range(ROWS)]
    with opened(url, tmp_path / "writer") as pond:
        made = pond.create_map("m", kind="state", value="long")
        made.load(pa.table({"key": keys, "value": list(range(ROWS))}))
        ranges = len(list(made.objects.list("ranges")))
        assert ranges > 2
    with counted_requests() as counts, opened(url, tmp_path / "reader", max_staleness=1e9) as pond:
        reader = pond.map("m")
        opening = counts.copy()
        assert opening.total() <= 8 and opening.keys() == {"GET", "LIST"}, opening
        counts.clear()
        assert reader.get("k7") == 7
        assert dict(counts) == {"GET": 3}, "a manifest, an index and one range"
        counts.clear()
        assert reader.get("k7") == 7 and reader.lookup(["k7", None], on_invalid="miss").to_pylist() == [7, None]
        assert not counts, "what was fetched is not fetched again"
        number = next(number for number in range(8, 1000) if not _asks(reader, f"k{number}", counts))
        assert reader.get(f"k{number}") == number
        assert reader.lookup(keys[:1000]).to_pylist() == list(range(1000))
        counts.clear()
        assert reader.lookup(keys).to_pylist() == list(range(ROWS))
        assert reader.get("none") is None and reader.get("k59999") == 59_999
        assert not counts, "all files are here"
    with counted_requests() as counts, opened(url, tmp_path / "reader", max_staleness=1e9) as pond:
        counts.clear()
        assert pond.map("m").get("k7") == 7
        assert not counts, "the cache has it"
    with counted_requests() as counts, opened(url, tmp_path / "many", max_staleness=1e9) as pond:
        counts.clear()
        pond.map("m").lookup(keys[:1000])
        assert counts.total() <= 2 + ranges


def test_a_cold_question_fetches_one_block_and_an_absent_key_nothing(url: str, tmp_path: Path) -> None:  # noqa: F811
    texts = [text(number, 160) for number in range(ROWS)]
    with opened(url, tmp_path / "writer") as pond:
        made = pond.create_map("m", kind="state", value="string")
        made.load(pa.table({"key": [f"k{number}" for number in range(ROWS)], "value": texts}))
        size = sum(info.size for info in made.objects.list("ranges"))
    with counted_requests() as counts, opened(url, tmp_path / "reader", max_staleness=1e9) as pond:
        reader = pond.map("m")
        counts.clear()
        assert reader.get("none") is None
        assert dict(counts) == {"GET": 2}, "a manifest and an index"
        counts.clear()
        absent = sum(_asks(reader, f"none{number}", counts) for number in range(300))
        assert absent <= 10, "about one of a hundred"
        present = [_asks(reader, f"k{number}", counts) for number in range(40)]
        assert sum(present) <= 40 and reader.get("k9") == texts[9]
        files = pond.map("m").objects
        assert isinstance(files, FolderBeforeBucket)
        copies = [copy for copy in files.copies.below(files.root) if copy.file.parent.name == "blocks"]
        assert len(copies) == 1
        fetched = sum(copy.size for copy in files.copies.below(files.root))
        assert fetched < size // 2
    with opened(url, tmp_path / "whole", max_staleness=1e9) as pond:
        files = pond.map("m").objects
        assert pond.map("m").snapshot().lookup(["k7", "none"]).to_pylist() == [texts[7], None]
        copied = [pa.ipc.open_file(file) for file in (files.root / "ranges").iterdir()]  # type: ignore[attr-defined]
        assert {file.num_record_batches for file in copied} == {1}, "copies are mapped where they lie"
        assert sum(file.get_batch(0).num_rows for file in copied) == ROWS


def test_few_keys_of_many_and_those_of_a_branch_cost_no_whole_map(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr(needed_ranges, "KEYS_MAX_LEAST", 4)
    with opened(url, tmp_path / "writer") as pond:
        made = pond.create_map("m", kind="state", value="string")
        texts = [text(number, 320) for number in range(20_000)]
        made.load(pa.table({"key": [f"k{number}" for number in range(20_000)], "value": texts}))
        size = sum(info.size for info in made.objects.list("ranges"))
        pond.branch("dev", source="main")
    blocks = size // BLOCK_BYTES
    assert blocks > 40
    with opened(url, tmp_path / "reader", max_staleness=1e9) as pond, fetched_bytes() as sizes:
        for place, few in ((pond, [3, 4, 5, 6, 7, 8]), (pond.branch("dev"), [11, 12])):
            reader = place.map("m")
            assert reader.lookup([f"k{number}" for number in few] * 50).to_pylist() == [texts[n] for n in few] * 50
            assert reader.get(f"k{few[0]}") == texts[few[0]]
            assert sum(sizes) < size // 2
        sizes.clear()
        many = range(0, 20_000, 20_000 // (4 * blocks))
        assert reader.lookup([f"k{number}" for number in many]).to_pylist() == [texts[number] for number in many]
        assert sum(sizes) > size // 2
    with opened(url, tmp_path / "writer") as pond:
        branch = pond.branch("dev").map("m")
        assert branch.get("k5") == texts[5]
        branch.load([{"key": "k5", "value": "new"}])
        assert branch.get("k5") == "new" and pond.map("m").get("k5") == texts[5]


def test_an_object_that_lies_is_named_and_never_answers(url: str, tmp_path: Path) -> None:  # noqa: F811
    with opened(url, tmp_path / "writer") as pond:
        made = pond.create_map("m", kind="state", value="string")
        texts = [text(number, 320) for number in range(4_000)]
        made.load(pa.table({"key": [f"k{number}" for number in range(4_000)], "value": texts}))
        [info] = made.objects.list("ranges")
        bucket = made.objects.bucket  # type: ignore[attr-defined]
        good = bucket.get(info.name).to_pybytes()
    assert info.size > 1 << 20
    for number, bad in enumerate((good[: len(good) // 3], bytes(len(good)), b"")):
        bucket.put(info.name, bad)
        with opened(url, tmp_path / f"reader-{number}") as pond, pytest.raises(Corrupt) as caught:
            for key in range(3_900, 4_000):
                assert pond.map("m").get(f"k{key}") == texts[key]
        assert caught.value.kind == "range_damaged" and info.name in str(caught.value)
    bucket.put(info.name, in_form(pa.py_buffer(good), info.name, blocks=False))
    with opened(url, tmp_path / "other") as pond:
        assert pond.map("m").get("k3999") == texts[3999], "another form of the same entries is read whole"
    bucket.put(info.name, good)
    with opened(url, tmp_path / "right") as pond:
        assert pond.map("m").get("k5") == texts[5]
        [file] = (tmp_path / "right").glob("*/snapshots/*/blocks/*")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(bytes(data))
    with opened(url, tmp_path / "right") as pond:
        assert pond.map("m").get("k5") == texts[5] and not file.exists()


def test_a_file_that_is_lost_fails_those_keys_alone_that_it_has(url: str, tmp_path: Path) -> None:  # noqa: F811
    texts = [text(number, 320) for number in range(40_000)]
    with opened(url, tmp_path / "writer") as pond:
        made = pond.create_map("m", kind="state", value="string")
        made.load(pa.table({"key": [f"k{number}" for number in range(40_000)], "value": texts}))
        lost = min(made.objects.list("ranges"), key=lambda info: info.size).name
        [batch] = pa.ipc.open_file(made.objects.get(lost)).read_all().to_batches()
        made.objects.bucket.delete(lost)  # type: ignore[attr-defined]
    missing, few = {key[8:].decode() for key in batch.column("key").to_pylist()}, range(0, 40_000, 97)
    assert 0 < len(missing) < 20_000
    with opened(url, tmp_path / "reader", max_staleness=1e9) as pond:
        reader = pond.map("m")
        for number in few:
            if f"k{number}" not in missing:
                assert reader.get(f"k{number}") == texts[number]
                continue
            with pytest.raises(NotFound, match=lost):
                reader.get(f"k{number}")
        [problem] = pond.verify().problems
        assert problem.place.startswith("s3://") and problem.place.endswith(f"/{lost}")
        assert "quarantined" not in str(problem) and "put it back from a copy" in str(problem)
        there = [number for number in few if f"k{number}" not in missing]
        assert reader.lookup([f"k{number}" for number in there]).to_pylist() == [texts[number] for number in there]


def _asks(reader: object, key: str, counts: dict[str, int]) -> bool:
    before = sum(counts.values())
    reader.get(key)  # type: ignore[attr-defined]
    return sum(counts.values()) > before


def test_what_is_loaded_later_is_seen_by_who_opened_a_part(url: str, tmp_path: Path) -> None:  # noqa: F811
    with opened(url, tmp_path / "writer") as pond, opened(url, tmp_path / "reader") as other:
        made = pond.create_map("m", kind="temporal_state", value="n long")
        there = other.map("m")
        assert there.get("a", at=5) is None and there.lookup([], at=[]).to_pylist() == []
        for number in range(4):
            made.load(
                [
                    {"key": f"k{number}", "effective_time": 1, "n": number},
                    {"key": "a", "effective_time": number, "n": number},
                ]
            )
            assert there.get("a", at=9) == {"n": number}
            assert there.lookup([f"k{number}", "none"], at=9).to_pylist() == [{"n": number}, None]
        other.alter_map("m", retain="10y")
        assert there.get("a", at=9) == {"n": 3}
        made.delete("key = 'a'")
        assert there.get("a", at=9) is None
        there.close()
        assert there.get("k1", at=9) == {"n": 1}
