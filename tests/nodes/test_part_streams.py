"""The stream of a part: the same bytes wherever it lies, in any pieces, continued anywhere; nothing hostile gets in."""

from __future__ import annotations

import json
import os
import struct
from itertools import pairwise
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Corrupt, Invalid, MillpondError
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.parts.part import PartFile, verify_part
from millpond.maps.parts.partial import PartialPart
from millpond.maps.parts.stream import HEAD_BYTES_MAX, PartStream, parse_head
from millpond.maps.parts.tail import DATA, MANIFEST, TOUCHED
from millpond.testing.faults import flip_byte
from tests.harness.part_pieces import flip_piece, pieces_of
from tests.nodes.test_uploads import sealed

MAP = MapDefinition(name="m", kind=Kind.STATE, incarnation="0" * 16, value=parse_value_type("long"))
IN_ORDER = (MANIFEST, TOUCHED, DATA)


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> PartFile:
    return sealed(MAP, tmp_path_factory.mktemp("part"), count=300)


@pytest.fixture(scope="module")
def stream(part: PartFile) -> bytes:
    return b"".join(PartStream(part.file).chunks())


def test_it_is_the_sizes_and_the_pieces(part: PartFile, stream: bytes) -> None:
    found = pieces_of(part.file)
    files = [found[name] for name in IN_ORDER]
    assert stream == struct.pack("<8s3Q", b"MPPART\1\0", *map(len, files)) + b"".join(files)
    assert PartStream(part.file).size == len(stream)
    head = parse_head(stream, "here")
    assert head is not None
    assert (head.manifest, head.checksum) == (part.manifest, xxhash.xxh3_128_hexdigest(files[0]))
    assert (head.size, head.data_start, head.total) == (32 + len(files[0]), len(stream) - len(files[2]), len(stream))
    assert PartStream(part.file).start == stream[: head.size]


@given(data=st.data())
def test_any_piece_of_it_can_be_had(part: PartFile, stream: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(stream)))
    stop = data.draw(st.none() | st.integers(0, len(stream) + 10))
    assert b"".join(PartStream(part.file).chunks(start, stop)) == stream[start:stop]


@given(data=st.data())
def test_it_comes_in_any_pieces(
    part: PartFile, stream: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """In pieces of any size; between any two the connection may be lost, or the process end."""
    folder = tmp_path_factory.mktemp("come") / "here"
    head = PartStream(part.file).head.size
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)) | st.integers(head - 2, head + 600), max_size=12)))
    lost = data.draw(st.sets(st.sampled_from(cuts))) if cuts else set()
    ended = data.draw(st.sets(st.sampled_from(cuts))) if cuts else set()
    partial = PartialPart(folder)
    for start, stop in pairwise([0, *cuts, len(stream)]):
        middle = (start + stop) // 2
        partial.write([stream[start:middle], stream[middle:stop]])
        assert partial.size == stop
        if stop in lost | ended and stop >= head:
            partial.close()
            left = PartialPart.left(folder) if stop in ended else partial
            assert left.resume(len(stream))
            assert left.size == stop
            partial = left
    assert partial.seal() == part.manifest == verify_part(folder)
    assert b"".join(PartStream(folder).chunks()) == stream
    assert folder.read_bytes() == part.file.read_bytes()


@given(data=st.data())
def test_no_damage_goes_unseen(
    part: PartFile, stream: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes overwritten anywhere, mostly in the head: only our own errors come out, and nothing lies elsewhere."""
    damaged = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 900) | st.integers(0, len(stream) - 1))
        noise = data.draw(st.binary(min_size=1, max_size=8))
        damaged[at : at + len(noise)] = noise
    folder = tmp_path_factory.mktemp("noise")
    partial = PartialPart(folder / "here")
    cut = data.draw(st.integers(1, len(damaged) - 1))
    try:
        for piece in (bytes(damaged[:cut]), bytes(damaged[cut:])):
            partial.write([piece])
        manifest = partial.seal()
    except (Corrupt, Invalid):
        assert {place.name for place in folder.iterdir()} <= {"here"}
        assert partial.size <= len(damaged)
        partial.remove()
        assert list(folder.iterdir()) == []
    else:
        assert manifest == part.manifest
        assert damaged[: len(stream)] == stream


def refused(folder: Path, *pieces: bytes) -> MillpondError:
    partial = PartialPart(folder / "here")
    with pytest.raises((Corrupt, Invalid)) as caught:
        partial.write(pieces)
    partial.remove()
    assert list(folder.iterdir()) == []
    return caught.value


def test_more_bytes_than_declared_are_refused(stream: bytes, tmp_path: Path) -> None:
    assert refused(tmp_path, stream, b"x").kind == "upload_length"
    assert refused(tmp_path, stream + b"x").kind == "upload_length"


def test_fewer_bytes_than_declared_are_no_part(stream: bytes, tmp_path: Path) -> None:
    partial = PartialPart(tmp_path / "here")
    partial.write([stream[:-1]])
    with pytest.raises(Corrupt, match="ends early"):
        partial.seal()


def forged(stream: bytes, changed: dict[str, object] | None = None, **sizes: int) -> bytes:
    """The stream with another manifest, signed, or with other sizes in its header."""
    _, text_bytes, touched, data = struct.unpack_from("<8s3Q", stream)
    payload = json.loads(stream[32 : 32 + text_bytes])
    payload.pop("checksum")
    payload |= changed or {}
    checksum = xxhash.xxh3_128_hexdigest(json.dumps(payload, sort_keys=True).encode())
    text = json.dumps({**payload, "checksum": checksum}).encode()
    fields = [sizes.get("manifest", len(text)), sizes.get("touched", touched), sizes.get("data", data)]
    return struct.pack("<8s3Q", stream[:8], *fields) + text + stream[32 + text_bytes :]


@pytest.mark.parametrize(
    ("changed", "sizes", "kind"),
    [
        ({}, {"manifest": 1 << 63}, "part_too_large"),
        ({}, {"manifest": HEAD_BYTES_MAX}, "part_too_large"),
        ({}, {"manifest": 3}, "part_manifest"),
        ({}, {"manifest": 0}, "part_manifest"),
        ({}, {"data": 1}, "part_damaged"),
        ({}, {"data": (1 << 64) - 1}, "part_damaged"),
        ({"data_bytes": 1}, {}, "part_damaged"),
        ({"data_bytes": 1}, {"data": 1}, "upload_length"),
        ({"data_bytes": "../../etc"}, {}, "part_manifest"),
        ({"files": ["../../etc/passwd"]}, {}, "part_manifest"),
        ({"format": 99}, {}, "part_format"),
        ({"format": None}, {}, "part_format"),
    ],
)
def test_a_hostile_head_is_refused(
    stream: bytes, tmp_path: Path, changed: dict[str, object], sizes: dict[str, int], kind: str
) -> None:
    assert refused(tmp_path, forged(stream, changed, **sizes)).kind == kind


def test_a_stream_forged_without_a_change_is_taken(stream: bytes, tmp_path: Path) -> None:
    """Else the test above would prove nothing."""
    partial = PartialPart(tmp_path / "here")
    partial.write([forged(stream)])
    partial.seal()


@pytest.mark.parametrize(
    "changed", [{"data_checksum": "0" * 32}, {"touched_checksum": "0" * 32}, {"data_checksum": "../../x"}]
)
def test_a_manifest_with_wrong_sums_is_refused_at_the_end(
    stream: bytes, tmp_path: Path, changed: dict[str, object]
) -> None:
    partial = PartialPart(tmp_path / "here")
    partial.write([forged(stream, changed)])
    with pytest.raises(Corrupt) as caught:
        partial.seal()
    assert caught.value.kind == "upload_damaged"


@pytest.mark.parametrize("changed", ["longer", "another length", "cut", "no tail", "another part", "gone"])
def test_what_a_crash_left_is_continued_only_when_it_is_a_beginning(
    part: PartFile, stream: bytes, tmp_path: Path, changed: str
) -> None:
    partial = PartialPart(tmp_path / "here")
    partial.write([stream[:-100]])
    partial.close()
    total = len(stream)
    file = tmp_path / "here"
    if changed == "longer":
        file.write_bytes(file.read_bytes() + bytes(200))
    elif changed == "another length":
        total -= 200
    elif changed == "cut":
        os.truncate(file, 5000)
    elif changed == "no tail":
        flip_byte(file, -10)
    elif changed == "another part":
        flip_piece(file, MANIFEST, 0.5)
    else:
        file.unlink()
    left = PartialPart.left(tmp_path / "here")
    assert left.head is None or not left.resume(total)
