"""Fetching a part from a node: its stream is taken apart into the part's files as it comes.

    <folder>.<checksum>/    what has come so far, of the part whose manifest has this xxh3_128
    <folder>/               whole, checked and durable

The checksum is the tag of the stream, so what a broken download left is continued only by the same part: also by
another process, after a crash.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.errors import Corrupt, Invalid, Unavailable
from millpond.maps.parts.part import PartManifest
from millpond.maps.parts.partial import PartialPart
from millpond.maps.parts.stream import PART_BYTES_MAX, Head, check_part_size
from millpond.retry import retry
from millpond.stores.files import disk_errors, remove_tree, sync

if TYPE_CHECKING:
    from millpond.client.transport import Body, Connection

__all__ = ("fetch_part",)

ATTEMPTS = 4
CHUNK_BYTES = 1 << 20
_TAG = re.compile(r'"([0-9a-f]{32})"')


def fetch_part(
    connection: Connection, part_id: str, folder: Path, *, bytes_max: int = PART_BYTES_MAX, attempts: int = ATTEMPTS
) -> PartManifest:
    """Fetch a part into a new folder; on its way again up to `attempts` times when the connection is lost.

    Raises:
        NotFound: the node has no such part.
        Unavailable: the node cannot be reached, or the disk has no room; what came stays for the next time.
        Corrupt: what came is not that part; nothing of it stays.
        Invalid: kind `part_too_large`.
    """
    with disk_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    return retry(
        lambda: _fetch_once(connection, part_id, folder, bytes_max),
        lambda error, failures, _: 0.0 if _is_lost_connection(error) and failures < attempts else None,
        connection.clock,
    )


def _is_lost_connection(error: BaseException) -> bool:
    return isinstance(error, Unavailable) and error.kind == "node_unreachable"


def _fetch_once(connection: Connection, part_id: str, folder: Path, bytes_max: int) -> PartManifest:
    left = _left_of(folder)
    offset = left.size if left is not None else 0
    tag = left.folder.name.rpartition(".")[2] if left is not None else ""
    headers = {"Range": f"bytes={offset}-", "If-Range": f'"{tag}"'} if offset else {}
    with connection.stream("GET", f"/v1/parts/{part_id}/stream", headers=headers) as body:
        begun = offset if body.status == 206 else 0
        partial = _begun(folder, left, body, begun, bytes_max, part_id)
        try:
            while chunk := body.read(CHUNK_BYTES):
                partial.write([chunk])
            manifest = partial.seal()
        except (Corrupt, Invalid):
            partial.remove()
            raise
        finally:
            partial.close()
    partial.folder.rename(folder)
    sync(folder.parent)
    return manifest


def _left_of(folder: Path) -> PartialPart | None:
    """The leftover of an earlier download; one of them if there are several."""
    found: PartialPart | None = None
    named = re.compile(re.escape(folder.name) + r"\.[0-9a-f]{32}")
    for place in sorted(place for place in folder.parent.iterdir() if named.fullmatch(place.name)):
        left = PartialPart.left(place) if found is None else None
        if left is None:
            remove_tree(place)
        else:
            found = left
    return found


def _begun(folder: Path, left: PartialPart | None, body: Body, begun: int, bytes_max: int, part_id: str) -> PartialPart:
    """The part to continue, of which `begun` bytes are there; else one of which nothing is."""
    length = int(body.headers.get("Content-Length") or 0)
    if left is not None:
        if begun and left.resume(begun + length):
            return left
        left.remove()
        if begun:
            raise Corrupt("what came before is no beginning of the part", kind="part_stream", source=body.node)
    tag = _TAG.fullmatch(body.headers.get("ETag") or "")
    place = folder.with_name(f"{folder.name}.{tag[1] if tag else '0' * 32}")

    def admit(head: Head) -> None:
        if head.manifest.id != part_id or (tag is not None and head.checksum != tag[1]):
            raise Corrupt(
                "a node sent another part than was requested", kind="part_other", node=body.node, wanted=part_id,
                found=head.manifest.id,
            )  # fmt: skip
        check_part_size(head.total, bytes_max)
        _check_room(place.parent, head.total)

    return PartialPart(place, admit)


def _check_room(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise Unavailable(
            "the disk has no room for a part", kind="disk_full", file=folder, wanted=wanted, free=free,
            hint="free some space and try again",
        )  # fmt: skip
