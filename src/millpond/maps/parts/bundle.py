"""A part as a zip, for programs that know no other form; its bytes depend on the part alone.

Nodes and writers send each other the stream of a part, see `stream.py`.

    manifest.json, data.mdb, touched.arrow      in this order, stored, all of the same fixed time

Written here, members are never deflated: a part is sent from its files as they lie, from any byte on. What is read may
be deflated, but is else held to this form before a byte of it is written: exactly these names, each once, no folders,
no links, no more bytes than a limit, whatever the zip says of itself.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from millpond.errors import Corrupt, Invalid, Unavailable
from millpond.maps.parts.part import PartManifest, verify_part
from millpond.maps.parts.stream import MANIFEST_BYTES_MAX
from millpond.stores.files import disk_errors, sync

__all__ = (
    "CHUNK_BYTES",
    "MEMBERS",
    "Sink",
    "bundle_size",
    "open_bundle_stream",
    "unpack_bundle",
    "write_bundle",
)

MEMBERS = ("manifest.json", "data.mdb", "touched.arrow")
CHUNK_BYTES = 1 << 20

PART_BYTES_MAX = 8 << 30
"""The largest part that is unpacked, unless a setting says otherwise."""

_TIME, _DATE = 0, (1 << 5) | 1  # midnight, 1 January 1980: where the time of a zip begins
_HEADER_BYTES, _ENTRY_BYTES, _END_BYTES, _WIDE_END_BYTES = 30, 46, 22, 76
_FILE_MODE = (stat.S_IFREG | 0o644) << 16
_WIDE = 0xFFFFFFFF
_NARROW_MAX = _WIDE - 1
"""Larger sizes and offsets are written with 64 bits, beside the fields of 32 bits, which then are all ones."""


class Sink(Protocol):
    """A destination of bytes."""

    def write(self, data: bytes | memoryview, /) -> object: ...


# -- writing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Member:
    """One file of a part and where it begins in the bundle."""

    name: str
    file: Path
    size: int
    offset: int
    version_of_file: tuple[int, int]

    @property
    def crc(self) -> int:
        return _crc_of(self.file, self.size, *self.version_of_file)

    def header(self) -> bytes:
        """The local header, which precedes the bytes of the file."""
        extra = struct.pack("<HHQQ", 1, 16, self.size, self.size) if self.wide else b""
        narrow = _WIDE if self.wide else self.size
        fixed = struct.pack(
            "<4s5H3L2H", b"PK\3\4", self.version, 0, zipfile.ZIP_STORED, _TIME, _DATE, self.crc, narrow, narrow,
            len(self.name), len(extra),
        )  # fmt: skip
        return fixed + self.name.encode() + extra

    def entry(self) -> bytes:
        """The entry of the directory at the end."""
        extra = struct.pack("<HHQQQ", 1, 24, self.size, self.size, self.offset) if self.wide else b""
        size, offset = (_WIDE, _WIDE) if self.wide else (self.size, self.offset)
        fixed = struct.pack(
            "<4s2B5H3L5H2L", b"PK\1\2", self.version, 3, self.version, 0, zipfile.ZIP_STORED, _TIME, _DATE, self.crc,
            size, size, len(self.name), len(extra), 0, 0, 0, _FILE_MODE, offset,
        )  # fmt: skip
        return fixed + self.name.encode() + extra

    @property
    def wide(self) -> bool:
        """True when it needs 64-bit sizes."""
        return self.size > _NARROW_MAX or self.offset > _NARROW_MAX

    @property
    def version(self) -> int:
        return 45 if self.wide else 20

    @property
    def stop(self) -> int:
        """The offset of the next member."""
        return self.offset + _HEADER_BYTES + len(self.name) + (20 if self.wide else 0) + self.size


@lru_cache(maxsize=4096)
def _crc_of(file: Path, _size: int, _changed_ns: int, _inode: int) -> int:
    """A part never changes, and is sent to every node: its sums are kept."""
    crc = 0
    with file.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc


def _members(folder: Path) -> list[_Member]:
    members: list[_Member] = []
    for name in MEMBERS:
        file = folder / name
        try:
            known = file.stat()
        except FileNotFoundError:
            raise Corrupt("a file of the part is missing", kind="part_file_missing", file=file) from None
        start = members[-1].stop if members else 0
        members.append(_Member(name, file, known.st_size, start, (known.st_mtime_ns, known.st_ino)))
    return members


def _directory(members: list[_Member]) -> bytes:
    """The end of a zip."""
    entries = b"".join(member.entry() for member in members)
    start = members[-1].stop
    count = len(members)
    wide = b""
    if start > _NARROW_MAX:
        wide = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(entries), start)
        wide += struct.pack("<4sLQL", b"PK\6\7", 0, start + len(entries), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(entries), _WIDE if wide else start, 0)
    return entries + wide + end


def bundle_size(folder: Path) -> int:
    """The bytes of a part's bundle, whose files are not read for that.

    Raises: `Corrupt` when a file of the part is missing.
    """
    members = _members(folder)
    entries = sum(_ENTRY_BYTES + len(member.name) + (28 if member.wide else 0) for member in members)
    return members[-1].stop + entries + (_WIDE_END_BYTES if members[-1].stop > _NARROW_MAX else 0) + _END_BYTES


def open_bundle_stream(folder: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The bytes `[start, stop)` of a part's bundle, in large chunks.

    Raises: `Corrupt` when a file of the part is missing or ends early.
    """
    members = _members(folder)
    left = None if stop is None else max(stop - start, 0)
    for chunk in _from(members, start):
        if left is None:
            yield chunk
            continue
        if left <= 0:
            return
        yield chunk[:left]
        left -= len(chunk)


def _from(members: list[_Member], start: int) -> Iterator[bytes]:
    position = 0
    for member in members:
        header = member.header()
        if start < position + len(header):
            yield header[max(start - position, 0) :]
        position += len(header)
        if start < position + member.size:
            yield from _file_from(member, max(start - position, 0))
        position += member.size
    tail = _directory(members)
    if start < position + len(tail):
        yield tail[max(start - position, 0) :]


def _file_from(member: _Member, start: int) -> Iterator[bytes]:
    left = member.size - start
    with member.file.open("rb", buffering=0) as source:
        source.seek(start)
        while left > 0:
            chunk = source.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise Corrupt("a file of the part ends early", kind="part_damaged", file=member.file)
            yield chunk
            left -= len(chunk)


def write_bundle(folder: Path, sink: Sink) -> int:
    """Write a part's bundle; how many bytes that were.

    Raises: as `open_bundle_stream`.
    """
    written = 0
    for chunk in open_bundle_stream(folder):
        sink.write(chunk)
        written += len(chunk)
    return written


# -- reading ------------------------------------------------------------------------------------------


def unpack_bundle(
    file: Path, target: Path, bytes_max: int = PART_BYTES_MAX, *, check_room: Callable[[int], None] | None = None
) -> PartManifest:
    """Unpack a bundle into a new folder, whose content is durable then; the part in it, checked.

    `check_room` is called with the bytes that will be written, before the first of them; it raises when the disk has no
    room for them.

    Raises:
        Corrupt: it is no whole zip, or what it holds is not the part that it says.
        Invalid: kind `bundle_members`: it is not of the form of a bundle; `part_too_large`: it unpacks to more.
        Unavailable: the disk is full, or what is to be unpacked would fill it.
    When it raises, the folder may be there in part: remove it.
    """
    try:
        with file.open("rb", buffering=0) as source, zipfile.ZipFile(file) as bundle:
            members = _checked(bundle, source, file, bytes_max)
            with disk_errors(target):
                wanted = sum(member.size for member in members)
                (check_room or partial(_check_room, target))(wanted)
                target.mkdir()
                for member in members:
                    _unpack(bundle, source, member, target / member.name)
                sync(target)
    except _NO_ZIP as error:
        raise Corrupt("the bundle is no whole zip", kind="bundle_damaged", file=file, reason=error) from error
    return verify_part(target)


_NO_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error, UnicodeDecodeError)
"""The errors of `zipfile` for bytes that are no archive."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A member and where its bytes lie: `[start, stop)`."""

    info: zipfile.ZipInfo
    start: int
    stop: int

    @property
    def name(self) -> str:
        return self.info.filename

    @property
    def size(self) -> int:
        """Unpacked."""
        return self.info.file_size

    @property
    def stored(self) -> bool:
        return self.info.compress_type == zipfile.ZIP_STORED


def _checked(bundle: zipfile.ZipFile, source: io.FileIO, file: Path, bytes_max: int) -> list[_Place]:
    """The members, when they are what a bundle holds, and lie where its directory says, each by itself."""
    members = bundle.infolist()
    _check_form(members, file)
    size = sum(member.file_size for member in members)
    manifest = next(member.file_size for member in members if member.filename == MEMBERS[0])
    if size > bytes_max or manifest > MANIFEST_BYTES_MAX:
        raise Invalid(
            "the part is larger than this node takes", kind="part_too_large", bytes=size, bytes_max=bytes_max,
            hint="write smaller parts, or raise max_part_bytes",
        )  # fmt: skip
    places = sorted((_place_of(source, member) for member in members), key=lambda place: place.start)
    for earlier, later in pairwise(places):
        if earlier.stop > later.info.header_offset:
            raise zipfile.BadZipFile(f"{earlier.name} and {later.name} share bytes")
    if places[-1].stop > bundle.start_dir:
        raise zipfile.BadZipFile(f"{places[-1].name} ends in the directory")
    return places


def _check_form(members: list[zipfile.ZipInfo], file: Path) -> None:
    names = [member.orig_filename for member in members]
    if sorted(names) != sorted(MEMBERS):
        raise _form(file, f"holds {', '.join(repr(name) for name in names[:8])}")
    for member in members:
        mode = member.external_attr >> 16
        if member.filename not in MEMBERS or (stat.S_IFMT(mode) and not stat.S_ISREG(mode)):
            raise _form(file, f"{member.filename} is no plain file")
        if member.flag_bits & 0x1:
            raise _form(file, f"{member.filename} is encrypted")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _form(file, f"{member.filename} is neither stored nor deflated")
        if member.compress_type == zipfile.ZIP_STORED and member.compress_size != member.file_size:
            raise _form(file, f"{member.filename} has two sizes")


def _form(file: Path, reason: str) -> Invalid:
    return Invalid(
        "the bundle does not have the form of a part", kind="bundle_members", file=file.name, reason=reason,
        hint=f"it holds exactly {', '.join(MEMBERS)}",
    )  # fmt: skip


def _place_of(source: io.FileIO, member: zipfile.ZipInfo) -> _Place:
    """The offset of a member's bytes: its own header must agree with the directory."""
    name, header = member.filename, os.pread(source.fileno(), _HEADER_BYTES, max(member.header_offset, 0))
    if member.header_offset < 0 or len(header) != _HEADER_BYTES or header[:4] != b"PK\3\4":
        raise zipfile.BadZipFile(f"{name} has no header")
    flags, method, packed, size, name_length, extra_length = struct.unpack("<6xHH8xLL2H", header)
    if os.pread(source.fileno(), name_length, member.header_offset + _HEADER_BYTES) != name.encode():
        raise zipfile.BadZipFile(f"the header of {name} names another file")
    deferred = flags & 0x8 or _WIDE in (packed, size)
    if method != member.compress_type or not (deferred or (packed, size) == (member.compress_size, member.file_size)):
        raise zipfile.BadZipFile(f"the header of {name} and the directory differ")
    start = member.header_offset + _HEADER_BYTES + name_length + extra_length
    return _Place(member, start, start + member.compress_size)


def _check_room(target: Path, wanted: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if wanted > free:
        raise Unavailable(
            "the disk has no room for what is to be unpacked", kind="disk_full", file=target, wanted=wanted, free=free,
            hint="free some space and try again",
        )  # fmt: skip


def _unpack(bundle: zipfile.ZipFile, source: io.FileIO, member: _Place, target: Path) -> None:
    with target.open("xb", buffering=0) as sink:
        if member.stored:
            _copy(source, member.start, member.size, sink)
        else:
            _inflate(bundle, member.info, sink)
        os.fsync(sink.fileno())


def _copy(source: io.FileIO, offset: int, size: int, sink: Sink) -> None:
    """Copy as it lies. Sums of zip are left alone: those of the part are better, and are checked next."""
    source.seek(offset)
    buffer = memoryview(bytearray(min(CHUNK_BYTES, max(size, 1))))  # one, which stays in the processor's cache
    left = size
    while left > 0:
        count = source.readinto(buffer[: min(len(buffer), left)])
        if not count:
            raise zipfile.BadZipFile("it ends early")
        sink.write(buffer[:count])
        left -= count


def _inflate(bundle: zipfile.ZipFile, member: zipfile.ZipInfo, sink: Sink) -> None:
    left = member.file_size
    with bundle.open(member) as source:
        while chunk := source.read(CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise zipfile.BadZipFile(f"{member.filename} inflates to more than it says")
            sink.write(chunk)
    if left:
        raise zipfile.BadZipFile(f"{member.filename} inflates to less than it says")
