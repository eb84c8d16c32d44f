"""Checkpoints of a space in a bucket: all rows after a batch, so that a process begins there and not at the first.

    checkpoint                       the number, the chain after it, and the pieces that hold the rows, in their order
    rows/<number>-<content id>       a piece, named by the checkpoint that was the first to need it

Pieces are cut where a hash of a key says so: a change moves no other cut, so a checkpoint puts what changed alone.

Invariants:
* Pieces are there before the checkpoint that names them, and go after the next but one: who reads meanwhile finds them,
  or a newer checkpoint.
* A checkpoint replaces the one that it was made from. Its pieces carry its own number, so that who removes pieces of
  earlier ones never meets one that is still being put.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b

import xxhash

from millpond.clock import Clock
from millpond.errors import NotFound
from millpond.json_forms import FormError, JsonForm
from millpond.stores.bucket_space.batch_log import LogObjects, later
from millpond.stores.bucket_space.forms import NO_CHAIN, damaged, decode_rows, encode_rows, framed, row_bytes, unframed

__all__ = ("CHECKPOINT", "Checkpoint", "Checkpoints", "Former", "Replaced")

CHECKPOINT = "checkpoint"
PIECE_BYTES_MIN, PIECE_BYTES_MAX = 64 << 10, 1 << 20
_CUT_MASK = 0xFF
"""Behind the least size one of 256 keys ends a piece."""
FETCHES_MAX = 16
_CHECKPOINT, _PIECE = b"MPcp", b"MPro"


@dataclass(frozen=True, slots=True)
class Former:
    """An earlier checkpoint, up to which batches may be trimmed when it is old enough."""

    number: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All rows after batch `number`, in `pieces`. Batches up to `trimmed` have given way to marks."""

    number: int = 0
    time_ms: int = 0
    chain: str = NO_CHAIN.hex()
    trimmed: int = 0
    pieces: tuple[str, ...] = ()
    former: tuple[Former, ...] = ()


class Replaced(Exception):
    """The checkpoint was replaced while its pieces were read: read the new one."""


_FORM = JsonForm(Checkpoint)


class Checkpoints:
    """The checkpoints of one space."""

    def __init__(self, objects: LogObjects, clock: Clock) -> None:
        self._objects, self._clock = objects, clock

    def current(self) -> tuple[Checkpoint, str | None]:
        """The checkpoint of now and the tag to replace it by; an empty one, without a tag, before the first.

        Raises: `Corrupt`, `Invalid`; `Denied`, `Unavailable`.
        """
        try:
            tagged = self._objects.get_tagged(CHECKPOINT)
        except NotFound as error:
            if error.kind != "object_not_found":
                raise
            return Checkpoint(), None
        content = unframed(_CHECKPOINT, tagged.data.to_pybytes(), CHECKPOINT, self._objects.where)
        try:
            return _FORM.decode(content), tagged.tag
        except FormError as error:
            raise damaged(CHECKPOINT, self._objects.where, str(error)) from error

    def rows(self, checkpoint: Checkpoint) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a checkpoint, in the order of their keys.

        Raises: `Replaced`; `Corrupt`, naming the piece; `Denied`, `Unavailable`.
        """
        with ThreadPoolExecutor(min(FETCHES_MAX, len(checkpoint.pieces) or 1), thread_name_prefix="pieces") as threads:
            for content in threads.map(lambda piece: self._piece(checkpoint, piece), checkpoint.pieces):
                yield from ((key, value or b"") for key, value in decode_rows(content))

    def _piece(self, checkpoint: Checkpoint, name: str) -> bytes:
        data = later(lambda: self._there(checkpoint, name), self._clock)
        if data is None:
            raise damaged(name, self._objects.where, "it is gone, and the checkpoint names it")
        content = unframed(_PIECE, data, name, self._objects.where)
        if name.rpartition("-")[2] != _content_id(content):
            raise damaged(name, self._objects.where)
        return content

    def _there(self, checkpoint: Checkpoint, name: str) -> bytes | None:
        try:
            return self._objects.get(name).to_pybytes()
        except NotFound as error:
            if error.kind != "object_not_found":
                raise
            if self.current()[0].number > checkpoint.number:
                raise Replaced from error
            return None

    def put(
        self, made: Checkpoint, rows: Iterable[tuple[bytes, bytes]], base: Checkpoint, tag: str | None
    ) -> Checkpoint:
        """Store all rows as a checkpoint in the place of `base`, with the tag that it was read with.

        Raises: `Conflict` when another one has replaced it; `Unavailable`.
        """
        there = {name.rpartition("-")[2]: name for name in base.pieces}
        new: dict[str, bytes] = {}
        pieces: list[str] = []
        for content in _pieces(rows):
            id_ = _content_id(content)
            name = there.get(id_) or f"rows/{made.number:020d}-{id_}"
            if id_ not in there:
                new[name] = framed(_PIECE, content)
            pieces.append(name)
        with ThreadPoolExecutor(FETCHES_MAX, thread_name_prefix="pieces") as threads:
            list(threads.map(lambda item: self._objects.put(*item), new.items()))
        whole = Checkpoint(made.number, made.time_ms, made.chain, made.trimmed, tuple(pieces), made.former)
        self._objects.swap(CHECKPOINT, framed(_CHECKPOINT, _FORM.encode(whole)), tag)
        self._sweep(whole, base)
        return whole

    def _sweep(self, whole: Checkpoint, base: Checkpoint) -> None:
        """Remove the pieces of earlier checkpoints that neither this one nor the one before names."""
        needed, limit = {*whole.pieces, *base.pieces}, f"rows/{whole.number:020d}"
        names = [named.name for named in self._objects.list("rows") if named.name < limit and named.name not in needed]
        self._objects.delete(*names)


def _content_id(content: bytes) -> str:
    return blake2b(content, digest_size=20).hexdigest()


def _pieces(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The contents of pieces: rows up to a cut."""
    piece: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in rows:
        piece.append((key, value))
        size += row_bytes(key, value)
        cut = size >= PIECE_BYTES_MIN and not xxhash.xxh3_64_intdigest(key) & _CUT_MASK
        if cut or size >= PIECE_BYTES_MAX:
            yield encode_rows(piece)
            piece, size = [], 0
    if piece:
        yield encode_rows(piece)
