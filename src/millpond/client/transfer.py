"""Bytes on their way between this process and a node: each transfer goes on where a lost connection stopped it.

    <name>.<tag>.partial     what has come so far, of the file with that tag, or of the part

*Fetched*: the tag names the bytes, so what a broken download left is continued only by the same bytes: also by another
process, after a crash. A node that has them no more sends its own from the start, and what was left is thrown away.
Nothing has its name before all of it came, was compared with its checksum, and is durable.

*Sent*: a small part is one request. Of a larger one the head goes first: a node that has the part, does not want it or
has no room says so before the rest is sent. After a lost connection the part goes on where the node stopped receiving.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.client.connections import Broken
from millpond.errors import Conflict, Corrupt, Invalid, Unavailable
from millpond.kernel.steps import step
from millpond.maps.parts.part import PartFile, PartManifest
from millpond.maps.parts.partial import PartialPart
from millpond.maps.parts.stream import MEDIA_TYPE, PART_BYTES_MAX, Head, PartStream, check_part_size
from millpond.retry import retry
from millpond.stores.files import check_room, disk_errors, move
from millpond.stores.growing_file import GrowingFile

if TYPE_CHECKING:
    from millpond.client.transport import Body, Connection

__all__ = ("CHECKSUM", "SMALL_BYTES", "Fetched", "Sending", "SentPart", "Stopped", "fetch_file", "fetch_part")

T = TypeVar("T")
C = TypeVar("C", GrowingFile, PartialPart)

CHECKSUM = "Content-Checksum"
"""The header that carries the xxh3_128 of a whole file, as hexadecimal digits."""
ATTEMPTS = 4
CHUNK_BYTES = 1 << 20
SMALL_BYTES = 4 << 20
"""The size up to which a part, or a load with its parts, is sent in one request."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that came whole, and the headers it came with."""

    file: Path
    headers: Mapping[str, str]
    bytes: int


# -- fetching -----------------------------------------------------------------------------------------


def fetch_file(
    connection: Connection, path: str, target: Path, *, query: Mapping[str, str] | None = None,
    timeout: float | None = None, attempts: int = ATTEMPTS,
) -> Fetched:  # fmt: skip
    """Fetch a file whole; on its way again up to `attempts` times when the connection is lost.

    Raises:
        Unavailable: the node cannot be reached or the disk is full; what came is kept for the next time.
        Corrupt: what came is not what was sent; nothing of it is kept.
        MillpondError: the node refuses.
    """

    def begin(place: Path, _answer: Body) -> GrowingFile:
        begun = GrowingFile(place)
        begun.open()
        return begun

    def finish(file: GrowingFile, answer: Body) -> Fetched:
        checksum = answer.headers.get(CHECKSUM)
        if checksum is not None and file.checksum() != checksum:
            raise Corrupt(
                "what was fetched is not what was sent", kind="fetch_damaged", node=connection.url, path=path,
                found=file.checksum(), wanted=checksum, hint="try again",
            )  # fmt: skip
        with disk_errors(target):
            file.sync()
        file.path.replace(target)
        return Fetched(target, {name.lower(): value for name, value in answer.headers.items()}, file.size)

    return _fetch(connection, path, target, GrowingFile.left, begin, finish, attempts, query=query, timeout=timeout)


def fetch_part(
    connection: Connection, part_id: str, target: Path, *, bytes_max: int = PART_BYTES_MAX, attempts: int = ATTEMPTS
) -> PartManifest:
    """Fetch a part: its stream is put in order in the part's file as it comes.

    Raises: `NotFound` when the node has no such part; `Invalid`, kind `part_too_large`; as `fetch_file`.
    """

    def begin(place: Path, answer: Body) -> PartialPart:
        tag = _tag(answer)

        def admit(head: Head) -> None:
            if head.manifest.id != part_id or (len(tag) == len(head.checksum) and tag != head.checksum):
                raise Corrupt(
                    "a node sent another part than was requested", kind="part_other", node=answer.node, wanted=part_id,
                    found=head.manifest.id,
                )  # fmt: skip
            check_part_size(head.total, bytes_max)
            check_room(target.parent, head.total)

        return PartialPart(place, admit)

    def finish(part: PartialPart, _answer: Body) -> PartManifest:
        manifest = part.seal()
        move(part.file, target)
        return manifest

    return _fetch(connection, f"/v1/parts/{part_id}/stream", target, PartialPart.left, begin, finish, attempts)


def _fetch(
    connection: Connection, path: str, target: Path, leftover: Callable[[Path], C], begin: Callable[[Path, Body], C],
    finish: Callable[[C, Body], T], attempts: int, **request: Any,
) -> T:  # fmt: skip
    """`leftover` gives what an earlier attempt left at a place; `begin` nothing; `finish` gives what came its name."""
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)

    def once() -> T:
        left, tag = _left_of(target, leftover)
        headers = {} if left is None else {"Range": f"bytes={left.size}-", "If-Range": f'"{tag}"'}
        with connection.stream("GET", path, headers=headers, **request) as answer:
            coming = left if left is not None and _goes_on(left, answer) else None
            if coming is None:
                coming = begin(target.with_name(f"{target.name}.{_tag(answer)}.partial"), answer)
            try:
                while chunk := answer.read(CHUNK_BYTES):
                    coming.write([chunk])
                return finish(coming, answer)
            except (Corrupt, Invalid):
                coming.remove()
                raise
            finally:
                coming.close()

    def pause(error: Exception, failures: int, _chance: float) -> float | None:
        lost = isinstance(error, Unavailable) and error.kind == "node_unreachable"
        return 0.0 if lost and failures < attempts else None

    return retry(once, pause, connection.clock)


def _tag(answer: Body) -> str:
    """The tag of the bytes, as it can stand in the name of a file."""
    return re.sub(r"[^0-9A-Za-z]", "", answer.headers.get("ETag") or "") or "untagged"


def _left_of(target: Path, leftover: Callable[[Path], C]) -> tuple[C | None, str]:
    """The leftover of an earlier attempt, one of them if there are several, and its tag."""
    best: C | None = None
    tag = ""
    for place in sorted(target.parent.glob(f"{escape(target.name)}.*.partial")):
        left = leftover(place)
        if best is None and left.size:
            best, tag = left, place.name.split(".")[-2]
        else:
            left.remove()
    return best, tag


def _goes_on(left: GrowingFile | PartialPart, answer: Body) -> bool:
    """True when the answer is the rest of what came before, which is thrown away else."""
    begun = answer.status == 206
    if begun and left.resume(left.size + int(answer.headers.get("Content-Length") or 0)):
        return True
    left.remove()
    if begun:
        raise Corrupt("what came before is no beginning of what is sent", kind="part_stream", source=answer.node)
    return False


# -- sending ------------------------------------------------------------------------------------------


class Stopped(Exception):
    """The transfer was ended from elsewhere."""


class SentPart:
    """A part as it is sent, the same for every node; `at` names the branch that it is for."""

    def __init__(self, part: PartFile, at: Mapping[str, str]) -> None:
        self.at = {"branch": at["branch"]} if "branch" in at else {}
        self.stream = PartStream(part.file)
        self.size = self.stream.size
        self.path = f"/v1/parts/{part.manifest.id}/upload"
        self.headers = {
            "Content-Type": MEDIA_TYPE, "Upload-Map": part.manifest.map, "Upload-Length": str(self.size),
            "Upload-Checksum": self.stream.head.checksum,
        }  # fmt: skip


class Sending:
    """One part on its way to one node; `report` is called with the bytes that are new to the node."""

    def __init__(self, node: Connection, part: SentPart, stop: threading.Event, report: Callable[[int], None]) -> None:
        self.node, self.part, self.stop, self.report = node, part, stop, report
        self.counted = 0  # bytes reported as progress
        self.reached = -1  # the furthest the node ever had
        self.tried = 0  # attempts since it had more than before

    def run(self) -> None:
        """Send what the node lacks.

        Raises: what it refuses; `Unavailable` when the connection is lost too often without progress; `Stopped`.
        """
        self.node.persist(self._send, enough=lambda _: self.tried >= self.node.attempts)
        self._count(self.part.size)

    def _send(self) -> None:
        part = self.part
        self.tried += 1
        offset = 0
        if self.tried > 1 or self.reached >= 0 or part.size > SMALL_BYTES:
            state = self.node.ask(
                "POST", part.path, query=part.at, headers=part.headers, body=part.stream.start
            ).json()  # fmt: skip
            if state["state"] in ("here", "known"):
                return
            offset = int(state["offset"])
        if offset > self.reached:
            self.reached, self.tried = offset, 1
        length = {"Upload-Offset": str(offset), "Content-Length": str(part.size - offset)}
        try:
            self.node.ask("PUT", part.path, query=part.at, headers=part.headers | length, body=self._chunks(offset))
        except (Conflict, Corrupt) as error:
            if error.kind == "upload_offset":
                raise Broken("somebody else uploads the same part", sent=True) from None
            if error.kind == "upload_damaged" and offset > len(part.stream.start):
                # What an earlier attempt left there was not what it sent; the node has thrown it away.
                raise Broken("the part was damaged on its way", sent=True) from None
            raise
        step("upload.sent")

    def _chunks(self, offset: int) -> Iterator[bytes]:
        for chunk in self.part.stream.chunks(offset):
            if self.stop.is_set():
                raise Stopped
            yield chunk
            offset += len(chunk)
            self._count(offset)

    def _count(self, upto: int) -> None:
        # What is sent a second time is no progress.
        self.report(max(0, upto - self.counted))
        self.counted = max(self.counted, upto)
