"""A bundle while it is being sent: its file grows, and is summed as it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millpond.errors import Conflict, Corrupt, Invalid, MillpondError
from millpond.kernel.steps import step
from millpond.maps.parts.bundle import Apart, PartName, peek_manifest
from millpond.nodes.uploads.partial_file import BundleFile
from millpond.stores.files import disk_errors

__all__ = ("UploadSession", "UploadOffer")


@dataclass(frozen=True, slots=True)
class UploadOffer:
    """A writer's description of a bundle, before its bytes from `offset` on."""

    part: str
    map: str
    length: int
    checksum: str
    offset: int = 0


class UploadSession:
    """The one who sends a part now. Its methods may be called from any thread, but one after another."""

    def __init__(
        self, bundle: Path, offer: UploadOffer, *, admit: Callable[[PartName], None],
        settle: Callable[[Path, Mapping[str, Apart]], None], over: Callable[[bool], None],
    ) -> None:  # fmt: skip
        """Open the file; `over` learns at the end whether the received bytes are worth keeping.

        Raises: `Conflict`, kind `upload_offset`; `Unavailable` when the disk is full.
        """
        self._bundle, self._offer = bundle, offer
        self._admit, self._settle, self._over = admit, settle, over
        self._admitted = self._left = False
        with disk_errors(bundle):
            bundle.parent.mkdir(parents=True, exist_ok=True)
            self._file = BundleFile(bundle, anew=offer.offset == 0)
        try:
            self._continue()
        except BaseException:
            self._file.close()
            raise
        step("receive.began")

    def _continue(self) -> None:
        if self._offer.offset != self.offset:
            raise Conflict(
                "the bundle is to be continued elsewhere", kind="upload_offset", part=self._offer.part,
                offset=self.offset, found=self._offer.offset, hint="send the bytes from that offset on",
            )  # fmt: skip

    @property
    def offset(self) -> int:
        """The number of bytes received."""
        return self._file.size

    @property
    def missing(self) -> int:
        """The number of bytes still to come."""
        return self._offer.length - self.offset

    @property
    def whole(self) -> bool:
        """True when all bytes are received."""
        return self.missing == 0

    def write(self, chunks: Sequence[bytes]) -> None:
        """Take the next bytes.

        Raises: `Invalid` when there are more than was said; `Unavailable` when the disk is full; what `admit` raises,
        as soon as the part's manifest has come.
        """
        size = sum(len(chunk) for chunk in chunks)
        if self.offset + size > self._offer.length:
            raise Invalid(
                "more bytes came than the bundle has", kind="upload_length", part=self._offer.part,
                length=self._offer.length, hint="Upload-Length is the length of the whole bundle",
            )  # fmt: skip
        with disk_errors(self._bundle):
            self._file.append(chunks, size)
        step("receive.written")
        if not self._admitted:
            named = peek_manifest(self._file.handle)
            if named is not None:
                self._admit(named)
                self._admitted = True

    def finish(self) -> bool:
        """Make a part of what came; False when bytes are missing still.

        Raises: `Corrupt` when it is not what was offered; what `settle` raises.
        """
        if not self.whole:
            return False
        step("receive.whole")
        found = self._file.checksum
        if found != self._offer.checksum:
            raise Corrupt(
                "the bundle was damaged on its way", kind="upload_damaged", part=self._offer.part, found=found,
                wanted=self._offer.checksum, hint="send it again",
            )  # fmt: skip
        self._settle(self._bundle, self._file.apart)
        return True

    def leave(self, error: BaseException | None = None) -> None:
        """Let go: bytes are kept for whoever continues, unless an error of ours says that they are of no use.

        To leave twice is harmless.
        """
        if self._left:
            return
        self._left = True
        self._file.close()
        self._over(not isinstance(error, MillpondError))
