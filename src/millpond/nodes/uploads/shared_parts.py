"""Parts that were sent to a node on a bucket, for the node that enters their load: a balancer may choose another.

    uploads/<part id>       the stream of a part, below the prefix of the pond

An object is put when all of the part is here and was checked, before its writer hears of it. Whoever enters the part
removes the object; what nobody enters goes with uploads of its age.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from millpond.errors import MillpondError, NotFound
from millpond.maps.parts.stream import HEAD_BYTES_MAX, PartStream, parse_head
from millpond.nodes.uploads.session import UploadOffer, UploadSession
from millpond.stores.objects import ObjectStore

__all__ = ("SharedParts",)

PIECE_BYTES = 8 << 20
FOLDER = "uploads"


class SharedParts:
    """The parts that the nodes of one pond share. `refresh` takes in what the other nodes entered."""

    def __init__(self, objects: ObjectStore, refresh: Callable[[], object]) -> None:
        self._objects, self.refresh, self._fetched = objects, refresh, set[str]()

    def put(self, part: str, file: Path) -> None:
        """Let other nodes have a part.

        Raises: as `ObjectStore.put_stream`.
        """
        if part not in self._fetched:
            self._objects.put_stream(f"{FOLDER}/{part}", PartStream(file).chunks())

    def fetch(self, part: str, begin: Callable[[UploadOffer], UploadSession | None]) -> None:
        """Take a part that came to another node, as one that is sent; nothing when it came to none.

        Raises: as `Receiver.begin` and `UploadSession`, and as `ObjectStore.get_range`.
        """
        try:
            self._fetch(part, f"{FOLDER}/{part}", begin)
        except NotFound as error:
            if error.kind != "object_not_found":
                raise
        finally:
            self._fetched.discard(part)

    def _fetch(self, part: str, name: str, begin: Callable[[UploadOffer], UploadSession | None]) -> None:
        size = self._objects.size(name)
        head = parse_head(self._objects.get_range(name, 0, min(size, HEAD_BYTES_MAX)), name)
        session = None
        if head is not None:  # else it was cut short: as good as none
            session = begin(UploadOffer(part, head.manifest.map, head.total, head.checksum))
        if session is None:
            return
        self._fetched.add(part)
        with session:
            for start in range(0, size, PIECE_BYTES):
                session.write([self._objects.get_range(name, start, min(start + PIECE_BYTES, size))])
            session.finish()

    def forget(self, parts: Sequence[str]) -> None:
        """Remove what a load took; what cannot be removed expires."""
        names = [f"{FOLDER}/{part}" for part in parts]
        try:
            if names:
                self._objects.delete(*names)
        except MillpondError:
            return

    def expire(self, before_ms: int) -> int:
        """Remove what came before a time of the bucket; how many.

        Raises: as `ObjectStore.list` and `delete`.
        """
        old = [info.name for info in self._objects.list(FOLDER) if info.modified_ms < before_ms]
        if old:
            self._objects.delete(*old)
        return len(old)
