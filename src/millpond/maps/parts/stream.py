"""The stream of a part: the pieces of its file in another order, as it travels from writers to nodes and between nodes.

    0       8 bytes   `MPPART` and the number of the format, 2 bytes
    8       8 bytes   the size of the manifest; all numbers are little-endian
    16      8 bytes   the size of `touched`
    24      8 bytes   the size of `data`
    32                the bytes of manifest, touched and data, in this order, without gaps

The first 32 bytes and the manifest are the *head*: who has it knows which part it is, of which map, and how much is to
come. The checksum of the manifest names the stream, because the manifest holds the checksums of the other two pieces.

Invariants:
* the bytes depend on the part alone, wherever it lies, so a stream may be continued at any byte, from any node;
* no name and no path travels: a stream brings one part, and nothing else;
* a head is refused when its sizes are not those of its manifest, or when the manifest does not fit its own checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from millpond.errors import Corrupt, Invalid
from millpond.maps.parts.part import PartManifest, parse_manifest
from millpond.maps.parts.tail import DATA, damaged, read_tail

__all__ = (
    "HEAD_BYTES_MAX", "MEDIA_TYPE", "PART_BYTES_MAX", "Head", "PartStream", "check_part_size",
    "parse_head", "read_head", "split_streams",
)  # fmt: skip

MEDIA_TYPE = "application/vnd.millpond.part"
"""One stream; with a load, several, one after another."""
MANIFEST_BYTES_MAX = 4 << 20
"""A manifest is a page of text; a larger one is none."""
PART_BYTES_MAX = 8 << 30
"""The largest part that is taken, unless a setting says otherwise."""
_MAGIC = b"MPPART\1\0"
_ZIP_MAGIC = b"PK"
_HEADER = struct.Struct("<8s3Q")
HEAD_BYTES_MAX = _HEADER.size + MANIFEST_BYTES_MAX
"""The largest head."""
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a stream. `checksum`: the xxh3_128 of the manifest's bytes, which names the stream."""

    manifest: PartManifest
    text: bytes
    touched_bytes: int
    checksum: str

    @property
    def size(self) -> int:
        """The offset at which `touched` begins."""
        return _HEADER.size + len(self.text)

    @property
    def data_start(self) -> int:
        """The offset at which `data` begins."""
        return self.size + self.touched_bytes

    @property
    def total(self) -> int:
        """The bytes of the whole stream."""
        return self.data_start + self.manifest.data_bytes


def parse_head(data: bytes | bytearray | memoryview, file: Path | str) -> Head | None:
    """The head with which a stream begins; None while too few bytes of it have come. Errors name the file.

    Raises: `Corrupt` when it is no stream of a part, `Invalid` when its manifest is too large.
    """
    begun = bytes(data[: len(_MAGIC)])
    if begun.startswith(_ZIP_MAGIC):
        raise Corrupt(
            "a part is not taken as a zip", kind="part_zipped", file=file,
            hint="send its stream, which docs/format/pond.md describes: 'millpond load' of this version does so",
        )  # fmt: skip
    if begun != _MAGIC[: len(begun)]:
        raise Corrupt("these bytes are no part", kind="part_stream", file=file, hint="send the stream of a part")
    if len(data) < _HEADER.size:
        return None
    _, text_bytes, touched_bytes, data_bytes = _HEADER.unpack_from(data)
    if text_bytes > MANIFEST_BYTES_MAX:
        raise Invalid(
            "the manifest of the part is too large", kind="part_too_large", bytes=text_bytes,
            bytes_max=MANIFEST_BYTES_MAX, hint="a map with fewer fields has a smaller one",
        )  # fmt: skip
    if len(data) < _HEADER.size + text_bytes:
        return None
    text = bytes(data[_HEADER.size : _HEADER.size + text_bytes])
    return _head_of(text, touched_bytes, data_bytes, file)


def split_streams(body: memoryview) -> list[tuple[Head, memoryview]]:
    """The streams of which a body consists, one after another: the head of each, and its bytes.

    Raises: as `parse_head`; `Corrupt` when there is none, the last one ends early, or a part comes twice.
    """
    streams: dict[str, tuple[Head, memoryview]] = {}
    while body or not streams:
        head = parse_head(body, "")
        if head is None or len(body) < head.total:
            raise Corrupt("the part ends early", kind="part_stream", bytes=len(body), hint="send its whole stream")
        if head.manifest.id in streams:
            raise Corrupt("the same part comes twice", kind="part_stream", part=head.manifest.id, hint="send it once")
        streams[head.manifest.id] = head, body[: head.total]
        body = body[head.total :]
    return list(streams.values())


def check_part_size(size: int, bytes_max: int) -> None:
    """Insist that a part is no larger than is taken here.

    Raises: `Invalid`, kind `part_too_large`.
    """
    if size > bytes_max:
        raise Invalid(
            "the part is larger than is taken here", kind="part_too_large", bytes=size, bytes_max=bytes_max,
            hint="write smaller parts",
        )  # fmt: skip


def _head_of(text: bytes, touched_bytes: int, data_bytes: int, file: Path | str) -> Head:
    manifest = parse_manifest(text, file)
    if manifest.data_bytes != data_bytes:
        raise damaged(file, DATA, found=data_bytes, wanted=manifest.data_bytes)
    return Head(manifest, text, touched_bytes, xxhash.xxh3_128_hexdigest(text))


def read_head(file: Path, *, whole: bool = True) -> tuple[Head, int]:
    """The head of the part in a file, and how much of the stream has come: all, unless one is wanted that is not
    `whole`.

    Raises: `Corrupt` when the file is missing or damaged, or not understood.
    """
    tail, text = read_tail(file, whole=whole)
    head = _head_of(text, tail.touched_bytes, tail.data_bytes, file)
    return head, head.total - tail.missing


class PartStream:
    """The stream of a part."""

    def __init__(self, file: Path) -> None:
        """Read the head of the part in a file.

        Raises: as `read_head`.
        """
        self.file = file
        self.head, _ = read_head(file)

    @property
    def size(self) -> int:
        """The bytes of the whole stream."""
        return self.head.total

    @property
    def start(self) -> bytes:
        """The bytes of the head."""
        head = self.head
        return _HEADER.pack(_MAGIC, len(head.text), head.touched_bytes, head.manifest.data_bytes) + head.text

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes `[start, stop)`, in large chunks.

        Raises: `Corrupt` when the file ends early; `FileNotFoundError` when the part was moved before the first one.
        """
        head, stop = self.head, self.size if stop is None else min(stop, self.size)
        with self.file.open("rb", buffering=0) as source:
            if start < min(head.size, stop):
                yield self.start[start:stop]
            pieces = ((head.size, head.data_start, head.manifest.data_bytes), (head.data_start, head.total, 0))
            for begin, end, place in pieces:
                at, last = max(start, begin), min(stop, end)
                source.seek(place + at - begin)
                while at < last:
                    chunk = source.read(min(_CHUNK_BYTES, last - at))
                    if not chunk:
                        raise damaged(self.file, DATA, reason="it ends early")
                    yield chunk
                    at += len(chunk)
