"""Parts that writers send to this node, until a load enters them, or nobody does.

    uploads/<part id>/<checksum>.bundle     the bytes that came so far, of the bundle with that xxh3_128, and beside it
    uploads/<part id>/<checksum>.data       those of its two large
    uploads/<part id>/<checksum>.touched    files, see `bundle_file.py`
    uploads/<part id>/unpacking/            being unpacked and checked
    uploads/<part id>/part/                 whole, checked and durable: the part is *here*

Invariants:
* nothing is said to be here before every byte of it is on the disk and has been checked against its part's manifest;
* a crash or a lost connection at any moment leaves bytes that the same bundle is continued with, or a whole part, or
  nothing; bytes of a bundle are continued by that bundle alone;
* one writer at a time sends a part; who comes second waits, and finds it here;
* what is taken on fits on the disk, together with what others are sending;
* a disk that is full leaves nothing of the upload behind.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from millpond.clock import Clock
from millpond.errors import Conflict, Corrupt, Invalid, Unavailable
from millpond.kernel.steps import step
from millpond.maps.log.queue import series_of
from millpond.maps.model.catalogue import find_map, known_map, list_maps
from millpond.maps.parts.bundle import Apart, PartName, unpack_bundle
from millpond.maps.parts.part import read_manifest
from millpond.nodes.uploads.partial_file import SUFFIXES, bytes_come
from millpond.nodes.uploads.session import UploadOffer, UploadSession
from millpond.pond import Pond
from millpond.settings import Settings
from millpond.stores.files import remove_tree, sync

__all__ = ("Receiver", "UploadState")

TURN_SECONDS = 60.0
"""The time for which a writer waits for another that sends the same part."""
LEAVING_SECONDS = 1.0
"""The time for which a request for the state waits for another writer to leave."""
DISK_SPARE_BYTES = 16 << 20
"""Left free for everything else a node writes meanwhile."""
_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class UploadState:
    """The state of a part: `absent`, `partial`, `here`, or `known` (entered before); and the bytes received."""

    state: str
    offset: int = 0


class Receiver:
    """The uploads of one node."""

    def __init__(self, pond: Pond, settings: Settings, clock: Clock, *, decides: bool) -> None:
        """`decides`: what this node knows of maps is the truth; one that follows another may know it later."""
        self._pond, self._settings, self._clock, self._decides = pond, settings, clock, decides
        self._space = pond.space
        self.folder = pond.folder / "uploads"
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._seen: dict[str, int] = {}
        self._offered: dict[str, str] = {}
        self._coming: dict[str, Callable[[], int]] = {}  # how many bytes are still to come
        self.folder.mkdir(exist_ok=True)
        sync(self.folder.parent)
        self._sweep()

    def _sweep(self) -> None:
        """Remove what a crash left half unpacked or half removed."""
        for pattern in ("*/unpacking", "*/.*.gone", ".*.gone"):
            for place in self.folder.glob(pattern):
                shutil.rmtree(place, ignore_errors=True)
        for place in self._places():
            if (place / "part").is_dir():
                _unlink(place)
            with suppress(OSError):
                place.rmdir()  # only when it is empty

    def _places(self) -> list[Path]:
        return [place for place in self.folder.glob("*") if _DIGEST.fullmatch(place.name)]

    # -- what is there --------------------------------------------------------------------------------

    def state(self, part: str) -> UploadState:
        """The state of a part.

        Raises: `Invalid` when it is no part's id.
        """
        if self.uploaded(part) is not None:
            return UploadState("here")
        if self.map_of(part) is not None:
            return UploadState("known")
        with suppress(FileNotFoundError):
            for bundle in self._place(part).glob("*.bundle"):
                return UploadState("partial", bytes_come(bundle))
        return UploadState("absent")

    def state_between(self, part: str) -> UploadState:
        """The state of a part, for a writer that wants to resume its upload.

        While somebody sends it a moment is waited: mostly that is the same writer, on a lost connection, whose last
        bytes are still being written.
        """
        turn = self._turn(part)
        if turn.acquire(timeout=LEAVING_SECONDS):
            turn.release()
        return self.state(part)

    def uploaded(self, part: str) -> Path | None:
        """The folder of a part that is here, checked; whoever enters it moves it away."""
        folder = self._place(part) / "part"
        if not folder.is_dir():
            return None
        self._touch(part)
        return folder

    def map_of(self, part: str) -> str | None:
        """The map that took a part, in a load that was entered; None when none did."""
        with self._space.read() as tx:
            return next(
                (definition.name for definition in list_maps(tx) if series_of(definition.name).knows(tx, part)), None
            )

    def map_of_upload(self, part: str) -> str | None:
        """The map of a part that is here, known, or being sent since the node started; None when it cannot be known.

        Raises: as `state`.
        """
        folder = self._place(part) / "part"
        if folder.is_dir():
            with suppress(Corrupt):  # entered or removed meanwhile
                return read_manifest(folder).map
        with self._lock:
            offered = self._offered.get(part)
        return self.map_of(part) or offered

    def _place(self, part: str) -> Path:
        if not _DIGEST.fullmatch(part):
            raise Invalid("this is no id of a part", kind="part_id", part=part, hint="it is 32 hexadecimal digits")
        return self.folder / part

    def _touch(self, part: str) -> None:
        with self._lock:
            self._seen[part] = self._clock.now_ms()

    # -- receiving ------------------------------------------------------------------------------------

    def begin(self, offer: UploadOffer) -> UploadSession | None:
        """Take bytes of a bundle from its offset on; None when the part is here or known already.

        Until `leave` is called of what is returned, nobody else may send the part.

        Raises:
            Conflict: kind `upload_offset`, with the offset wanted.
            NotFound: there is no such map.
            Invalid: the bundle is larger than the node takes.
            Unavailable: the disk has no room; somebody else keeps sending the part.
        """
        place = self._place(offer.part)
        self._check(offer)
        turn = self._turn(offer.part)
        if not turn.acquire(timeout=TURN_SECONDS):
            raise Unavailable("somebody else sends this part", kind="upload_busy", part=offer.part, hint="ask again")
        try:
            arriving = self._begin(place, offer, turn)
        except BaseException:
            turn.release()
            raise
        if arriving is None:
            turn.release()
        return arriving

    def _begin(self, place: Path, offer: UploadOffer, turn: threading.Lock) -> UploadSession | None:
        self._touch(offer.part)
        with self._lock:
            self._offered.setdefault(offer.part, offer.map)
        if self.state(offer.part).state in ("here", "known"):
            return None
        bundle = place / f"{offer.checksum}.bundle"
        _unlink(place, but=offer.checksum)  # of the same part from another source: of no use to this one
        try:
            self._take_room(offer, place)
            return self._arriving(bundle, offer, turn)
        except BaseException as error:
            with self._lock:
                self._coming.pop(offer.part, None)
            if not isinstance(error, Conflict):
                remove_tree(place)
            raise

    def _arriving(self, bundle: Path, offer: UploadOffer, turn: threading.Lock) -> UploadSession:
        def over(keep: bool) -> None:
            with self._lock:
                self._coming.pop(offer.part, None)
            if not keep:
                remove_tree(bundle.parent)
            self._touch(offer.part)
            turn.release()

        arriving = UploadSession(
            bundle, offer, admit=lambda named: self._admit(named, offer),
            settle=lambda came, apart: self._settle(came, apart, offer), over=over,
        )  # fmt: skip
        with self._lock:
            self._coming[offer.part] = lambda: arriving.missing
        return arriving

    def _check(self, offer: UploadOffer) -> None:
        if not _DIGEST.fullmatch(offer.checksum):
            raise Invalid(
                "this is no checksum", kind="upload_checksum", found=offer.checksum,
                hint="Upload-Checksum is the xxh3_128 of the whole bundle, as 32 hexadecimal digits",
            )  # fmt: skip
        if offer.length > self._settings.max_upload_bytes:
            raise Invalid(
                "the bundle is larger than this node takes", kind="upload_too_large", bytes=offer.length,
                bytes_max=self._settings.max_upload_bytes, hint="write smaller parts, or raise max_upload_bytes",
            )  # fmt: skip
        if self._decides:
            with self._space.read() as tx:
                find_map(tx, offer.map)

    def _turn(self, part: str) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(part, threading.Lock())

    def _take_room(self, offer: UploadOffer, place: Path) -> None:
        """Reserve disk for the bytes to come, of this upload and of others; unpacking takes hardly more."""
        with self._lock:
            coming = offer.length - offer.offset
            wanted = coming + sum(missing() for missing in self._coming.values()) + DISK_SPARE_BYTES
            free = shutil.disk_usage(self._pond.folder).free
            if free < wanted:
                raise Unavailable(
                    "no space is left on the disk", kind="disk_full", file=place, wanted=wanted, free=free,
                    hint="free some space on the node and try again",
                )  # fmt: skip
            self._coming[offer.part] = lambda: coming

    def _admit(self, named: PartName, offer: UploadOffer) -> None:
        """Check what a part says of itself.

        Raises: `Corrupt` when it is another one than was offered; `Conflict` kind `map_incarnation`.
        """
        if (named.id, named.map) != (offer.part, offer.map.lower()):
            raise Corrupt(
                "the bundle holds another part", kind="part_other", part=named.id, wanted=offer.part, map=named.map,
                wanted_map=offer.map,
            )  # fmt: skip
        if not self._decides:
            return
        with self._space.read() as tx:
            definition = find_map(tx, named.map)
        if definition.incarnation != named.incarnation:
            raise Conflict(
                "the part was written for an earlier map of this name", kind="map_incarnation", map=named.map,
                hint="write the rows again",
            )  # fmt: skip

    def _settle(self, bundle: Path, apart: Mapping[str, Apart], offer: UploadOffer) -> None:
        """Make a part of a bundle that came whole.

        Raises: see `unpack_bundle`.
        """
        place = bundle.parent
        unpacking, part = place / "unpacking", place / "part"
        remove_tree(unpacking)
        manifest = unpack_bundle(bundle, unpacking, self._settings.max_part_bytes, apart=apart)
        step("receive.unpacked")
        self._admit(PartName(manifest.id, manifest.map, manifest.incarnation), offer)
        with self._space.read() as tx:
            definition = known_map(tx, manifest.map)
        # A node that follows another may learn of the map later: it validates the part before it merges it.
        if definition is not None and definition.incarnation == manifest.incarnation:
            self._pond.loads.accepted.accept(unpacking, manifest, definition)
        unpacking.rename(part)
        sync(place)
        sync(self.folder)
        step("receive.here")
        _unlink(place)
        step("receive.cleared")

    # -- letting go -----------------------------------------------------------------------------------

    def discard(self, part: str) -> bool:
        """Forget an upload; true if there was one. An upload in progress is left alone."""
        place = self._place(part)
        with self._idle(part) as idle:
            if not idle or not place.exists():
                return False
            remove_tree(place)
        return True

    def recent_uploads(self, seconds: float) -> int:
        """The number of uploads that came or grew in the last seconds, and that no load has entered."""
        since_ms = self._clock.now_ms() - int(seconds * 1000)
        with self._lock:
            lately = [part for part, seen in self._seen.items() if seen >= since_ms]
        return sum((self.folder / part).exists() for part in lately)

    def expire(self) -> int:
        """Remove the uploads that no load has entered and nobody touched for `upload_expiry`; how many."""
        before_ms = self._clock.now_ms() - self._settings.upload_expiry
        gone = 0
        for place in self._places():
            with self._lock:
                seen = self._seen.setdefault(place.name, self._clock.now_ms())
            if seen < before_ms:
                gone += self.discard(place.name)
        with self._lock:
            self._seen = {part: seen for part, seen in self._seen.items() if seen >= before_ms}
            self._offered = {part: name for part, name in self._offered.items() if part in self._seen}
            self._turns = {part: turn for part, turn in self._turns.items() if part in self._seen or turn.locked()}
        return gone

    @contextmanager
    def _idle(self, part: str) -> Iterator[bool]:
        turn = self._turn(part)
        if not turn.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            turn.release()


def _unlink(place: Path, *, but: str = "") -> None:
    """Remove what came of bundles; of one, nothing."""
    for pattern in ("*.bundle", *(f"*{suffix}" for suffix in SUFFIXES.values())):
        for file in place.glob(pattern):
            if file.stem != but:
                file.unlink()
