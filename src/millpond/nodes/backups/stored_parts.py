"""The parts in a place for backups: each is one object, the stream in which it travels between nodes.

    parts/<part id>.part     written by this version
    parts/<part id>.zip      written up to format 2 of backups: the three files of the part

A zip is only read here. Of its members the three files of a part are taken, by their names, and no byte more than they
may have; what was taken is compared with the checksums of its manifest, as a stream is.
"""

from __future__ import annotations

import shutil
import zipfile
import zlib
from pathlib import Path

from millpond.errors import Corrupt, NotFound
from millpond.maps.parts.part import PART_FILES, PartManifest, verify_part
from millpond.maps.parts.partial import PartialPart
from millpond.maps.parts.stream import MANIFEST_BYTES_MAX, PART_BYTES_MAX, check_part_size
from millpond.nodes.backups.layout import READ_BYTES, fetch_object
from millpond.stores.files import disk_errors, remove_tree, sync
from millpond.stores.objects import Objects, ObjectStore
from millpond.stores.objects.bringing import object_chunks

__all__ = ("fetch_stored_part", "has_part", "part_name", "part_names")


def part_name(part_id: str) -> str:
    """The object that a part is stored as."""
    return f"parts/{part_id}.part"


def part_names(part_id: str) -> tuple[str, str]:
    """The names of a part in both forms."""
    return part_name(part_id), f"parts/{part_id}.zip"


def has_part(place: ObjectStore, part_id: str) -> bool:
    """True when a part is stored, in either form."""
    return any(map(place.exists, part_names(part_id)))


def fetch_stored_part(place: Objects, part_id: str, folder: Path, bytes_max: int = PART_BYTES_MAX) -> PartManifest:
    """Fetch a part into a new folder, checked; nothing is in the folder when it raises.

    Raises: `NotFound`; `Corrupt` when it is damaged, or another part; `Invalid` when it is too large.
    """
    stream, zipped = part_names(part_id)
    try:
        try:
            manifest = _receive(place, stream, folder, bytes_max)
        except NotFound:
            manifest = _unzip(fetch_object(place, zipped, folder.with_suffix(".zip")), folder, bytes_max)
    except BaseException:
        remove_tree(folder)
        raise
    if manifest.id != part_id:
        remove_tree(folder)
        raise Corrupt(
            "the backup holds another part under this name", kind="part_other", backup=place.where, wanted=part_id,
            found=manifest.id,
        )  # fmt: skip
    return manifest


def _receive(place: Objects, name: str, folder: Path, bytes_max: int) -> PartManifest:
    chunks, received = (
        object_chunks(place, name),
        PartialPart(folder, lambda head: check_part_size(head.total, bytes_max)),
    )
    try:
        for chunk in chunks:
            received.write([chunk])
        return received.seal()
    finally:
        received.close()


_NO_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError, UnicodeDecodeError)
"""The errors of `zipfile` for bytes that are no archive, or one without the file that is read, or an encrypted one."""


def _unzip(file: Path, folder: Path, bytes_max: int) -> PartManifest:
    try:
        with disk_errors(folder), zipfile.ZipFile(file) as archive:
            members = [archive.getinfo(name) for name in PART_FILES]
            check_part_size(sum(member.file_size for member in members), bytes_max)
            check_part_size(archive.getinfo("manifest.json").file_size, MANIFEST_BYTES_MAX)
            folder.mkdir()
            for member in members:
                # `zipfile` gives no more bytes than the directory says, which were counted above.
                with archive.open(member) as source, (folder / member.filename).open("xb") as sink:
                    shutil.copyfileobj(source, sink, READ_BYTES)
                sync(folder / member.filename)
            sync(folder)
    except _NO_ZIP as error:
        raise Corrupt("the zip is no whole part", kind="bundle_damaged", file=file.name, reason=error) from error
    finally:
        file.unlink()
    return verify_part(folder)
