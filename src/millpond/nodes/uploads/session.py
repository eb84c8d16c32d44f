"""A writer's turn at sending one part: bytes go to the disk as they come, until it is whole or the writer leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millpond.errors import Conflict, Invalid, MillpondError
from millpond.kernel.steps import step
from millpond.maps.parts.part import PartFile, PartManifest
from millpond.maps.parts.partial import PartialPart

__all__ = ("UploadOffer", "UploadSession")


@dataclass(frozen=True, slots=True)
class UploadOffer:
    """A writer's description of what it sends: the stream of a part, from the byte `offset` on.

    `length`: the bytes of the whole. `checksum`: the xxh3_128 of the part's manifest. `offset` None: from where the
    last writer stopped, which the session says.
    """

    part: str
    map: str
    length: int
    checksum: str
    offset: int | None = 0


class UploadSession:
    """The one who sends a part now. Its methods may be called from any thread, but one after another."""

    def __init__(
        self, received: PartialPart, offer: UploadOffer, *, accept: Callable[[PartManifest], None],
        settle: Callable[[], None], over: Callable[[bool], None],
    ) -> None:  # fmt: skip
        """`accept` validates the part when it is whole, and `settle` takes it; `over` learns at the end if the received
        bytes are worth keeping.

        Raises: `Conflict`, kind `upload_offset`.
        """
        self._received, self._offer = received, offer
        self._accept, self._settle, self._over = accept, settle, over
        self._left = self._handed_over = False
        if offer.offset not in (None, received.size):
            raise Conflict(
                "the part is to be continued elsewhere", kind="upload_offset", part=offer.part, offset=received.size,
                found=offer.offset, hint="send the bytes from that offset on",
            )  # fmt: skip
        step("receive.began")

    @property
    def offset(self) -> int:
        """The number of bytes received."""
        return self._received.size

    @property
    def missing(self) -> int:
        """The number of bytes still to come."""
        return self._offer.length - self.offset

    def write(self, chunks: Sequence[bytes | memoryview]) -> None:
        """Take the next bytes.

        Raises: `Invalid` when there are more than was said; `Unavailable` when the disk is full; what the node has
        against the part, as soon as its manifest has come.
        """
        if sum(len(chunk) for chunk in chunks) > self.missing:
            raise Invalid(
                "more bytes came than were announced", kind="upload_length", part=self._offer.part,
                length=self._offer.length, hint="Upload-Length is the length of the whole",
            )  # fmt: skip
        self._received.write(chunks)
        step("receive.written")

    def finish(self) -> bool:
        """Make a part of what came; False when bytes are missing still.

        Raises: `Corrupt` when it is not what was offered.
        """
        if self.missing:
            return False
        step("receive.whole")
        manifest = self._received.seal()
        step("receive.sealed")
        self._accept(manifest)
        self._settle()
        return True

    def hand_over(self) -> PartFile:
        """The part, whole and validated, but not synced: whoever takes it does that before it counts.

        Raises: `Corrupt` when it is not what was offered.
        """
        assert not self.missing, "all bytes have come"
        step("receive.whole")
        manifest = self._received.check()
        self._accept(manifest)
        self._handed_over = True
        step("receive.checked")
        return PartFile(str(self._received.folder), manifest)

    def leave(self, error: BaseException | None = None) -> None:
        """Let go: bytes are kept for whoever continues, unless an error of ours says that they are of no use, or the
        part was handed over: what was not taken of it then is removed.

        To leave twice is harmless.
        """
        if self._left:
            return
        self._left = True
        self._received.close()
        self._over(not (self._handed_over or isinstance(error, MillpondError)))
