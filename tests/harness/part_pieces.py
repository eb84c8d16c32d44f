"""The pieces of a part's file, to look at and to damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.maps.parts.tail import DATA, MANIFEST, TOUCHED, Tail, read_tail
from millpond.testing.faults import flip_byte

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ("PIECES", "bounds_of", "flip_piece", "pieces_of", "put_pieces", "quarantined_in")

PIECES = (DATA, TOUCHED, MANIFEST)


def bounds_of(file: Path, piece: str) -> tuple[int, int]:
    """The bytes `[start, stop)` of a file that a piece of it has."""
    tail, text = read_tail(file, whole=False)
    ends = [0, tail.data_bytes, tail.manifest_start, tail.manifest_start + len(text)]
    at = PIECES.index(piece)
    return ends[at], ends[at + 1]


def pieces_of(file: Path) -> dict[str, bytes]:
    """The bytes of each piece."""
    data = file.read_bytes()
    return {piece: data[slice(*bounds_of(file, piece))] for piece in PIECES}


def put_pieces(file: Path, pieces: dict[str, bytes]) -> None:
    """Write a part's file of these pieces."""
    data = [pieces.get(piece, b"") for piece in PIECES]
    file.write_bytes(b"".join(data) + Tail(*map(len, data)).pack())


def flip_piece(file: Path, piece: str, share: float) -> None:
    """Change one byte of a piece, so far into it."""
    start, stop = bounds_of(file, piece)
    flip_byte(file, start + int((stop - start) * share))


def quarantined_in(pond: Path) -> Path:
    """The file of the only part in quarantine."""
    [file] = (place for place in (pond / "quarantine").iterdir() if place.suffix != ".json")
    return file
