"""The parts in a place for backups: each is one object, the stream in which it travels between nodes."""

from __future__ import annotations

from pathlib import Path

from millpond.errors import Corrupt
from millpond.maps.parts.part import PartManifest
from millpond.maps.parts.partial import PartialPart
from millpond.maps.parts.stream import PART_BYTES_MAX, check_part_size
from millpond.nodes.backups.layout import object_chunks
from millpond.stores.files import remove_tree
from millpond.stores.objects import Objects

__all__ = ("fetch_stored_part", "part_name")


def part_name(part_id: str) -> str:
    """The object that a part is stored as."""
    return f"parts/{part_id}.part"


def fetch_stored_part(place: Objects, part_id: str, folder: Path, bytes_max: int = PART_BYTES_MAX) -> PartManifest:
    """Fetch a part into a new folder, checked; nothing is in the folder when it raises.

    Raises: `NotFound`; `Corrupt` when it is damaged, or another part; `Invalid` when it is too large.
    """
    try:
        manifest = _receive(place, part_name(part_id), folder, bytes_max)
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
