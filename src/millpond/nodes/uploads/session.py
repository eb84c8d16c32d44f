"""A writer's turn at sending one part: bytes go to the disk as they come, until it is whole or the writer leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from millpond.errors import Conflict, Invalid, MillpondError
from millpond.kernel.steps import step
from millpond.maps.parts.part import PartFile, PartManifest
from millpond.maps.parts.partial import PartialPart

__all__ = ("UploadOffer", "UploadSession", "UploadState")


@dataclass(frozen=True, slots=True)
class UploadState:
    """The state of a part: `absent`, `partial`, `here`, or `known` (entered before); and the bytes received."""

    state: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class UploadOffer:
    """A writer's description of what it sends: the stream of a part, from the byte `offset` on.

    `length`: the bytes of the whole. `checksum`: the xxh3_128 of the part's manifest. `offset` None: from where the
    last writer stopped, which the session says. `branch`: where the map is, if not on `main`.
    """

    part: str
    map: str
    length: int
    checksum: str
    offset: int | None = 0
    branch: str | None = None


class UploadSession:
    """The one who sends a part now; as a context manager it is left at the end.

    Its methods may be called from any thread, but one after another.
    """

    def __init__(
        self, received: PartialPart, offer: UploadOffer, *, accept: Callable[[PartManifest, Path], None],
        settle: Callable[[Path], None], over: Callable[[bool], None],
    ) -> None:  # fmt: skip
        """`accept` validates the part when it is whole, and `settle` takes it; `over` learns at the end if the received
        bytes are worth keeping.

        Raises: `Conflict`, kind `upload_offset`.
        """
        self._received, self._offer = received, offer
        self._accept, self._settle, self._over = accept, settle, over
        self._left = self._taken = False
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

    def finish(self) -> UploadState:
        """Make a part of what came, when no byte is missing; its state.

        Raises: `Corrupt` when it is not what was offered.
        """
        if self.missing:
            return UploadState("partial", self.offset)
        step("receive.whole")
        self._received.seal(self._accept)
        step("receive.sealed")
        self._settle(self._received.file)
        self._taken = True
        step("receive.here")
        return UploadState("here")

    def hand_over(self) -> PartFile:
        """The part, whole and validated, but not synced: whoever takes it does that before it counts.

        Raises: `Corrupt` when it is not what was offered.
        """
        assert not self.missing, "all bytes have come"
        step("receive.whole")
        manifest = self._received.check()
        self._accept(manifest, self._received.file)
        self._taken = True
        step("receive.checked")
        return PartFile(self._received.file, manifest)

    def leave(self, error: BaseException | None = None) -> None:
        """Let go: bytes are kept for whoever continues, unless an error of ours says that they are of no use, or the
        part was taken: what is left of it in its place then is removed.

        To leave twice is harmless.
        """
        if self._left:
            return
        self._left = True
        self._received.close()
        self._over(not (self._taken or isinstance(error, MillpondError)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(error)
