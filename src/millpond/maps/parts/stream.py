"""The stream of a part: its three files one after another, as it travels from a writer to a node and between nodes.

    0       8 bytes   `MPPART` and the number of the format, 2 bytes
    8       8 bytes   the size of `manifest.json`; all numbers are little-endian
    16      8 bytes   the size of `touched.arrow`
    24      8 bytes   the size of `data.mdb`
    32                the bytes of these files, in this order, without gaps

The first 32 bytes and the manifest are the *head*: who has it knows which part it is, of which map, and how much is to
come. The checksum of the manifest names the stream, because the manifest holds the checksums of the other two files.

Invariants:
* the bytes depend on the part alone, wherever it lies, so a stream may be continued at any byte, from any node;
* no name and no path travels: a stream brings three files, and nothing else;
* a head is refused when its sizes are not those of its manifest, or when the manifest does not fit its own checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from millpond.errors import Corrupt, Invalid
from millpond.maps.parts.part import MANIFEST, PartManifest, parse_manifest

__all__ = (
    "HEAD_BYTES_MAX",
    "MANIFEST_BYTES_MAX",
    "MEDIA_TYPE",
    "PART_BYTES_MAX",
    "Head",
    "PartStream",
    "check_part_size",
    "head_of",
    "parse_head",
    "split_streams",
)

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
        """The offset at which `touched.arrow` begins."""
        return _HEADER.size + len(self.text)

    @property
    def data_start(self) -> int:
        """The offset at which `data.mdb` begins."""
        return self.size + self.touched_bytes

    @property
    def total(self) -> int:
        """The bytes of the whole stream."""
        return self.data_start + self.manifest.data_bytes


def parse_head(data: bytes | bytearray | memoryview, folder: Path | str) -> Head | None:
    """The head with which a stream begins; None while too few bytes of it have come. Errors name the folder.

    Raises: `Corrupt` when it is no stream of a part, `Invalid` when its manifest is too large.
    """
    begun = bytes(data[: len(_MAGIC)])
    if begun.startswith(_ZIP_MAGIC):
        raise Corrupt(
            "a part is not taken as a zip", kind="part_zipped", folder=folder,
            hint="send its stream, which docs/format/pond.md describes: 'millpond load' of this version does so",
        )  # fmt: skip
    if begun != _MAGIC[: len(begun)]:
        raise Corrupt("these bytes are no part", kind="part_stream", folder=folder, hint="send the stream of a part")
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
    head = head_of(text, touched_bytes, folder)
    if head.manifest.data_bytes != data_bytes:
        raise Corrupt(
            "the part is not as large as its manifest says", kind="part_damaged", file="data.mdb", folder=folder,
            found=data_bytes, wanted=head.manifest.data_bytes,
        )  # fmt: skip
    return head


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


def head_of(text: bytes, touched_bytes: int, folder: Path | str) -> Head:
    """The head of a part with this manifest, which lies in a folder, or will.

    Raises: `Corrupt` when the manifest is damaged or not understood.
    """
    return Head(parse_manifest(text, folder), text, touched_bytes, xxhash.xxh3_128_hexdigest(text))


class PartStream:
    """The stream of a part that lies in a folder."""

    def __init__(self, folder: Path) -> None:
        """Read the manifest and the sizes of the other files.

        Raises: `Corrupt` when a file of the part is missing or has another size than the manifest says.
        """
        self.folder = folder
        try:
            text = (folder / MANIFEST).read_bytes()
            touched_bytes, data_bytes = ((folder / name).stat().st_size for name in ("touched.arrow", "data.mdb"))
        except FileNotFoundError as error:
            raise Corrupt(
                "a file of the part is missing", kind="part_file_missing", file=Path(error.filename).name, folder=folder
            ) from None
        self.head = head_of(text, touched_bytes, folder)
        if data_bytes != self.head.manifest.data_bytes:
            raise Corrupt(
                "a file of the part is damaged", kind="part_damaged", file="data.mdb", folder=folder,
                bytes=data_bytes, wanted=self.head.manifest.data_bytes,
            )  # fmt: skip

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

        Raises: `Corrupt` when a file ends early; `FileNotFoundError` when the part was moved meanwhile.
        """
        head, stop = self.head, self.size if stop is None else min(stop, self.size)
        if start < min(head.size, stop):
            yield self.start[start:stop]
        for name, begin, end in (
            ("touched.arrow", head.size, head.data_start), ("data.mdb", head.data_start, head.total),
        ):  # fmt: skip
            first, last = max(start, begin), min(stop, end)
            if first < last:
                yield from _read(self.folder / name, first - begin, last - begin)


def _read(file: Path, start: int, stop: int) -> Iterator[bytes]:
    with file.open("rb", buffering=0) as source:
        source.seek(start)
        while start < stop:
            chunk = source.read(min(_CHUNK_BYTES, stop - start))
            if not chunk:
                raise Corrupt("a file of the part ends early", kind="part_damaged", file=file.name, folder=file.parent)
            yield chunk
            start += len(chunk)
