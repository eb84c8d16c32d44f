"""Parts that writers send to this node, until a load enters them, or nobody does.

    uploads/<part id>                   whole, checked and durable: the part is *here*
    uploads/<part id>.<checksum>        what came so far of the part whose manifest has this xxh3_128

Invariants:
* nothing is said to be here before every byte of it is on the disk and has been checked against its part's manifest;
* a crash or a lost connection at any moment leaves bytes that the same part is continued with, or a whole part, or
  nothing; bytes of a part are continued by the part with the same manifest alone;
* one writer at a time sends a part; who comes second waits, and finds it here;
* what is taken on fits on the disk, together with what others are sending;
* a disk that is full leaves nothing of the upload behind.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from millpond.clock import Clock
from millpond.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from millpond.maps.log.queue import map_of_part, series_of
from millpond.maps.model.catalogue import find_map, known_map
from millpond.maps.parts.part import PartFile, PartManifest, read_manifest
from millpond.maps.parts.partial import PartialPart
from millpond.maps.parts.stream import Head, check_part_size
from millpond.maps.parts.tail import MANIFEST
from millpond.nodes.limits import NodeLimits
from millpond.nodes.uploads.session import UploadOffer, UploadSession, UploadState
from millpond.nodes.uploads.shared_parts import SharedParts
from millpond.pond import Pond
from millpond.stores.files import check_room, remove_tree, sync
from millpond.stores.shared_sync import SharedSync

__all__ = ("TURN_SECONDS", "Receiver")

TURN_SECONDS = 60.0
"""The time for which a writer waits for another that sends the same part."""
LEAVING_SECONDS = 1.0
"""The time for which a request for the state waits for another writer to leave."""
DISK_SPARE_BYTES = 16 << 20
"""Left free for everything else a node writes meanwhile."""
_DIGEST = re.compile(r"[0-9a-f]{32}")
_PARTIAL = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{32})")


@dataclass(slots=True)
class _Upload:
    """The upload of one part, as far as it is known."""

    seen_ms: int
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one who sends it."""
    map: str | None = None
    received: PartialPart | None = None
    """The bytes that are being sent, or came before a connection was lost."""
    length: int = 0
    """The bytes of the whole, while somebody sends it."""

    def missing(self) -> int:
        """The number of bytes still to come from the one who sends it."""
        return self.length and self.length - (0 if self.received is None else self.received.size)


class Receiver:
    """The uploads of one node."""

    def __init__(
        self, pond: Pond, limits: NodeLimits, clock: Clock, *, decides: Callable[[], bool],
        need_ready: Callable[[], object] = lambda: None, shared: SharedParts | None = None,
    ) -> None:  # fmt: skip
        """`decides` is true when what this node knows of maps is the truth; one that follows another may know it later.

        `need_ready` raises while the node is not ready: one that lost its disk cannot know that a map is missing.
        `shared` are the parts that other nodes enter, too.
        """
        self._need_ready, self._shared = need_ready, shared
        self._pond, self._limits, self._clock, self._decides = pond, limits, clock, decides
        self._space = pond.space
        self.folder = pond.own_folder / "uploads"
        self._lock = threading.Lock()
        self._uploads: dict[str, _Upload] = {}
        self.folder.mkdir(exist_ok=True)
        sync(self.folder.parent)
        self._names_sync = SharedSync(self.folder)
        self._sweep()

    def _sweep(self) -> None:
        """Find what can be continued, and remove the rest of what a crash left."""
        for place in list(self.folder.iterdir()):
            named = _PARTIAL.fullmatch(place.name)
            left = PartialPart.left(place) if named else None
            if place.is_dir():  # a part, as earlier versions kept it: its writer sends it again
                remove_tree(place)
            elif named and left and left.head and self._of(named[1]).received is None:
                self._of(named[1]).received = left
            elif not _DIGEST.fullmatch(place.name):
                place.unlink()

    # -- what is there --------------------------------------------------------------------------------

    def state(self, part: str) -> UploadState:
        """The state of a part.

        Raises: `Invalid` when it is no part's id.
        """
        if self.uploaded(part) is not None:
            return UploadState("here")
        if self.map_of(part) is not None:
            return UploadState("known")
        begun = self._begun(part)
        return UploadState("absent") if begun is None else UploadState("partial", begun.size)

    def state_between(self, part: str) -> UploadState:
        """The state of a part, for a writer that wants to resume its upload.

        While somebody sends it a moment is waited: mostly that is the same writer, on a lost connection, whose last
        bytes are still being written.
        """
        self._place(part)
        turn = self._of(part).turn
        if turn.acquire(timeout=LEAVING_SECONDS):
            turn.release()
        return self.state(part)

    def uploaded(self, part: str, *, anywhere: bool = False, branch: str | None = None) -> Path | None:
        """The file of a part that is here, checked; whoever enters it moves it away. `anywhere`: one that came to
        another node on the bucket is fetched, for a map on a `branch`.

        Raises: as `SharedParts.fetch`.
        """
        file = self._place(part)
        if anywhere and self._shared is not None and not file.exists():
            self._shared.fetch(part, lambda offer: self.begin(replace(offer, branch=branch)))
            if not file.exists():
                # Another node may have entered it a moment ago. It removes the object then, and not before.
                self._shared.refresh()
        if not file.exists():
            return None
        self._of(part, touched=True)
        return file

    def map_of(self, part: str) -> str | None:
        """The map that took a part, in a load that was entered; None when none did."""
        with self._space.read() as tx:
            return map_of_part(tx, part)

    def map_of_upload(self, part: str) -> str | None:
        """The map of a part that is here, known, or on its way; None when it cannot be known.

        Raises: as `state`.
        """
        file = self._place(part)
        if file.exists():
            with suppress(Corrupt):  # entered or removed meanwhile
                return read_manifest(file).map
        begun = self._begun(part)
        if begun is not None and begun.head is not None:
            return begun.head.manifest.map
        upload = self._uploads.get(part)
        return self.map_of(part) or (None if upload is None else upload.map)

    def _begun(self, part: str) -> PartialPart | None:
        """The bytes of a part that have come; without its head nothing of one is retained."""
        upload = self._uploads.get(part)
        begun = None if upload is None else upload.received
        return None if begun is None or begun.head is None else begun

    def _place(self, part: str) -> Path:
        if not _DIGEST.fullmatch(part):
            raise Invalid("this is no id of a part", kind="part_id", part=part, hint="it is 32 hexadecimal digits")
        return self.folder / part

    def _of(self, part: str, *, touched: bool = False) -> _Upload:
        with self._lock:
            upload = self._uploads.setdefault(part, _Upload(self._clock.now_ms()))
            if touched:
                upload.seen_ms = self._clock.now_ms()
            return upload

    # -- receiving ------------------------------------------------------------------------------------

    def begin(self, offer: UploadOffer, *, patience: float | None = None) -> UploadSession | None:
        """Take bytes of a part from its offset on; None when the part is here or known already.

        Until `leave` is called of what is returned, nobody else may send the part. `patience`: the seconds for which
        another writer of the same part is waited for, `TURN_SECONDS` by default.

        Raises:
            Conflict: kind `upload_offset`, with the offset wanted.
            NotFound: there is no such map.
            Invalid: the part is larger than the node takes.
            Unavailable: the disk has no room; somebody else keeps sending the part.
        """
        place = self._place(offer.part)
        self._check(offer)
        upload = self._turn(offer.part, TURN_SECONDS if patience is None else patience)
        session = None
        try:
            session = self._begin(place, offer, upload)
        except NotFound:
            self._need_ready()
            raise
        finally:
            if session is None:
                self._leave(offer.part, upload)
        return session

    def _turn(self, part: str, patience: float) -> _Upload:
        """The upload of a part, whose turn is held; who waited while it was forgotten waits for the next one."""
        while True:
            upload = self._of(part)
            if not upload.turn.acquire(timeout=patience):
                raise Unavailable("somebody else sends this part", kind="upload_busy", part=part, hint="ask again")
            if self._uploads.get(part) is upload:
                return upload
            upload.turn.release()

    def take(self, offer: UploadOffer, chunks: Sequence[bytes], patience: float) -> UploadState:
        """Take all that one request brings. `patience`: as of `begin`.

        Raises: as `begin` and `UploadSession`.
        """
        session = self.begin(offer, patience=patience)
        if session is None:
            return self.state(offer.part)
        with session:
            session.write(chunks)
            return session.finish()

    @contextmanager
    def bring(self, offer: UploadOffer, chunks: Sequence[bytes | memoryview]) -> Iterator[PartFile | None]:
        """The part of a request that brings all of it, validated but not synced; None when it is here or known already.

        Nobody else may send the part meanwhile. Afterwards nothing is left of it where it was received.

        Raises: as `begin` and `UploadSession`; `Unavailable`, kind `upload_busy`, when somebody else sends it now.
        """
        session = self.begin(offer, patience=0.0)
        if session is None:
            yield None
            return
        with session:
            session.write(chunks)
            yield session.hand_over()

    def _begin(self, place: Path, offer: UploadOffer, upload: _Upload) -> UploadSession | None:
        self._of(offer.part, touched=True)
        upload.map = upload.map or offer.map
        if self._has(offer):
            return None
        left = upload.received
        if left is not None and not self._continues(left, offer):
            left.remove()  # of the same part from another source, or sent anew: of no use
            left = None
        upload.received = received = left or PartialPart(
            place.with_suffix(f".{offer.checksum}"), admit=lambda head: self._admit(head, offer)
        )
        try:
            self._take_room(offer, upload)
            return UploadSession(
                received, offer, accept=partial(self._accept, offer.branch), settle=partial(self._settle, place),
                over=partial(self._let_go, offer.part, upload),
            )  # fmt: skip
        except BaseException as error:
            received.close()
            self._end(upload, keep=left is not None and isinstance(error, Conflict))
            raise

    def _continues(self, left: PartialPart, offer: UploadOffer) -> bool:
        """True when what came before is the beginning of what is offered, and open to be continued."""
        if offer.offset == 0 or left.head is None or left.head.checksum != offer.checksum:
            return False
        try:
            return left.resume(offer.length)
        except (Corrupt, FileNotFoundError):
            return False

    def _settle(self, place: Path, received: Path) -> None:
        """Give a part that is whole its place, durably."""
        if self._shared is not None:
            self._shared.put(place.name, received)
        received.rename(place)
        self._names_sync.run()

    def _let_go(self, part: str, upload: _Upload, keep: bool) -> None:
        """End a writer's turn."""
        self._end(upload, keep=keep)
        self._leave(part, upload)

    def _leave(self, part: str, upload: _Upload) -> None:
        """Give back the turn, and forget an upload of which nothing is here: a load took it, or it is of no use."""
        here = (self.folder / part).exists()
        with self._lock:
            upload.seen_ms = self._clock.now_ms()
            if upload.received is None and not here and self._uploads.get(part) is upload:
                del self._uploads[part]
        upload.turn.release()

    def forget(self, parts: Iterable[str]) -> None:
        """Forget the uploads of parts that a load took, but for those that somebody sends again."""
        parts = list(parts)
        if self._shared is not None:
            self._shared.forget(parts)
        for part in parts:
            upload = self._uploads.get(part)
            if upload is not None and upload.turn.acquire(blocking=False):
                self._leave(part, upload)

    def _end(self, upload: _Upload, *, keep: bool) -> None:
        """Give back the room for what was to come. Without its head nothing of a part is retained."""
        upload.length = 0
        received = upload.received
        if received is not None and (not keep or received.head is None):
            upload.received = None
            received.remove()

    def _has(self, offer: UploadOffer) -> bool:
        """True when the part is here or was entered before; only its own map can have taken it."""
        if self.uploaded(offer.part) is not None:
            return True
        if offer.branch is not None:
            return False  # what was entered elsewhere is nothing to a branch
        with self._space.read() as tx:
            try:
                definition = find_map(tx, offer.map)
            except NotFound:
                if self._decides():
                    raise
                return False
            return series_of(definition.name).knows(tx, offer.part)

    def _check(self, offer: UploadOffer) -> None:
        if not _DIGEST.fullmatch(offer.checksum):
            raise Invalid(
                "this is no checksum", kind="upload_checksum", found=offer.checksum,
                hint="Upload-Checksum is the xxh3_128 of the part's manifest, as 32 hexadecimal digits",
            )  # fmt: skip
        if offer.length > self._limits.upload_bytes_max:
            raise Invalid(
                "the part is larger than this node takes", kind="upload_too_large", bytes=offer.length,
                bytes_max=self._limits.upload_bytes_max, hint="write smaller parts",
            )  # fmt: skip

    def _take_room(self, offer: UploadOffer, upload: _Upload) -> None:
        """Reserve disk for the bytes to come, of this upload and of others."""
        with self._lock:
            upload.length = offer.length
            check_room(self._pond.folder, sum(begun.missing() for begun in self._uploads.values()) + DISK_SPARE_BYTES)

    def _admit(self, head: Head, offer: UploadOffer) -> None:
        """Check what a stream says of itself, before a byte of it is written.

        Raises: `Corrupt` when it is not what was offered; `Conflict` kind `map_incarnation`; `Invalid` when it is too
        large.
        """
        self._need_same_map(head.manifest, offer)
        if head.checksum != offer.checksum:
            raise Corrupt(
                "the part was damaged on its way", kind="upload_damaged", part=offer.part, piece=MANIFEST,
                found=head.checksum, wanted=offer.checksum, hint="send it again",
            )  # fmt: skip
        if head.total != offer.length:
            raise Invalid(
                "the part has another length than was announced", kind="upload_length", part=offer.part,
                length=offer.length, found=head.total, hint="Upload-Length is the length of the whole",
            )  # fmt: skip
        check_part_size(head.total, self._limits.part_bytes_max)

    def _need_same_map(self, manifest: PartManifest, offer: UploadOffer) -> None:
        if (manifest.id, manifest.map) != (offer.part, offer.map.lower()):
            raise Corrupt(
                "the upload holds another part", kind="part_other", part=manifest.id, wanted=offer.part,
                map=manifest.map, wanted_map=offer.map,
            )  # fmt: skip
        if not self._decides():
            return
        if offer.branch is not None:
            definition = self._pond.refs.states.map_at(offer.branch, manifest.map).definition
        else:
            with self._space.read() as tx:
                definition = find_map(tx, manifest.map)
        if definition.incarnation != manifest.incarnation:
            raise Conflict(
                "the part was written for an earlier map of this name", kind="map_incarnation", map=manifest.map,
                hint="write the rows again",
            )  # fmt: skip

    def _accept(self, branch: str | None, manifest: PartManifest, file: Path) -> None:
        """Validate a part that came whole.

        Raises: `Corrupt` when it holds what its map cannot have.
        """
        if branch is not None:
            return  # its load verifies it, for the map as it is there by then
        with self._space.read() as tx:
            definition = known_map(tx, manifest.map)
        # A node that follows another may learn of the map later: it validates the part before it merges it.
        if definition is not None and definition.incarnation == manifest.incarnation:
            self._pond.loads.accepted.accept(file, manifest, definition)

    # -- letting go -----------------------------------------------------------------------------------

    def discard(self, part: str) -> bool:
        """Forget an upload; true if there was one. An upload in progress is left alone."""
        place, upload = self._place(part), self._of(part)
        if not upload.turn.acquire(blocking=False):
            return False
        try:
            left, here = upload.received, place.exists()
            self._end(upload, keep=False)
            place.unlink(missing_ok=True)
        finally:
            self._leave(part, upload)
        return here or left is not None

    def recent_uploads(self, seconds: float) -> int:
        """The number of uploads that came or grew in the last seconds, and that no load has entered."""
        since_ms = self._clock.now_ms() - int(seconds * 1000)
        with self._lock:
            lately = [(part, upload) for part, upload in self._uploads.items() if upload.seen_ms >= since_ms]
        return sum(upload.received is not None or (self.folder / part).exists() for part, upload in lately)

    def expire(self, now_ms: int) -> int:
        """Remove the uploads that no load has entered and nobody touched for `NodeLimits.upload_idle_ms`; how many."""
        before_ms = now_ms - self._limits.upload_idle_ms
        if self._shared is not None:
            self._shared.expire(before_ms)
        here = {place.name for place in self.folder.iterdir() if _DIGEST.fullmatch(place.name)}
        gone = sum(self.discard(part) for part in here | {*self._uploads} if self._of(part).seen_ms < before_ms)
        with self._lock:
            self._uploads = {
                part: upload for part, upload in self._uploads.items()
                if upload.seen_ms >= before_ms or upload.received is not None or upload.turn.locked()
            }  # fmt: skip
        return gone
