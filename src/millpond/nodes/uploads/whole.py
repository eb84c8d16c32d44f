"""A part that one request brings whole: received, checked and settled in one turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from millpond.maps.parts.part import PartFile
from millpond.nodes.uploads.receiver import Receiver, UploadState
from millpond.nodes.uploads.session import UploadOffer, UploadSession

__all__ = ("bring_whole", "finished", "leaving", "take_whole")


def take_whole(receiver: Receiver, offer: UploadOffer, chunks: Sequence[bytes], patience: float) -> UploadState:
    """Take all that a request brings. `patience`: the seconds for which another writer of the part is waited for.

    Raises: as `Receiver.begin` and `UploadSession`.
    """
    session = receiver.begin(offer, patience=patience)
    if session is None:
        return receiver.state(offer.part)
    with leaving(session):
        session.write(chunks)
        return finished(session)


@contextmanager
def bring_whole(
    receiver: Receiver, offer: UploadOffer, chunks: Sequence[bytes | memoryview]
) -> Iterator[PartFile | None]:
    """The part of a request that brings all of it, validated but not synced; None when it is here or known already.

    Nobody else may send the part meanwhile. Afterwards nothing is left of it where it was received.

    Raises: as `Receiver.begin` and `UploadSession`; `Unavailable`, kind `upload_busy`, when somebody else sends it now.
    """
    session = receiver.begin(offer, patience=0.0)
    if session is None:
        yield None
        return
    with leaving(session):
        session.write(chunks)
        yield session.hand_over()


def finished(session: UploadSession) -> UploadState:
    """Finish a session when all bytes have come; the state of the part.

    Raises: as `UploadSession.finish`.
    """
    return UploadState("here") if session.finish() else UploadState("partial", session.offset)


@contextmanager
def leaving(session: UploadSession) -> Iterator[None]:
    """Leave a session at the end, also after an error."""
    try:
        yield
    except BaseException as error:
        session.leave(error)
        raise
    session.leave()
