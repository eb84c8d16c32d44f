"""Checkpoints of a space in a bucket: all rows after a batch, so that a process begins there and not at the first.

    checkpoint                       the number, the chain after it, and the pieces that hold the rows, in their order
    rows/<number>-<content id>       a piece, named by the checkpoint that was the first to need it

Pieces are cut where a hash of a key says so: a change moves no other cut, so a checkpoint puts what changed alone. Nor
is a piece made anew whose rows lie in the same blocks as when this process put the last checkpoint.

Invariants:
* Pieces are there before the checkpoint that names them, and go after the next but one: who reads meanwhile finds them,
  or a newer checkpoint.
* A checkpoint replaces the one that it was made from. Its pieces carry its own number, so that who removes pieces of
  earlier ones never meets one that is still being put.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain
from operator import is_

import xxhash

from millpond.clock import Clock
from millpond.errors import NotFound
from millpond.json_forms import FormError, JsonForm
from millpond.stores.bucket_space.batch_log import LogObjects, later
from millpond.stores.bucket_space.forms import NO_CHAIN, damaged, decode_rows, encode_rows, framed, row_bytes, unframed
from millpond.stores.memory import Block, Rows
from millpond.stores.objects.bringing import bring

__all__ = ("CHECKPOINT", "Checkpoint", "Checkpoints", "Former", "Piece", "Replaced", "pieces_of")

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
        self._last: dict[bytes, Piece] = {}
        """The pieces of the last checkpoint, by their first keys."""

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
        for content in bring(partial(self._piece, checkpoint), checkpoint.pieces, FETCHES_MAX):
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

    def put(self, made: Checkpoint, rows: Rows, base: Checkpoint, tag: str | None) -> Checkpoint:
        """Store all rows as a checkpoint in the place of `base`, with the tag that it was read with.

        Raises: `Conflict` when another one has replaced it; `Unavailable`.
        """
        there = {name.rpartition("-")[2]: name for name in base.pieces}
        pieces = list(pieces_of(rows, self._last))
        self._last = {piece.first: piece for piece in pieces}
        new = {f"rows/{made.number:020d}-{piece.id}": piece for piece in pieces if piece.id not in there}
        deque(bring(lambda name: self._objects.put(name, framed(_PIECE, new[name].content())), new, FETCHES_MAX), 0)
        names = tuple(there.get(piece.id) or f"rows/{made.number:020d}-{piece.id}" for piece in pieces)
        whole = Checkpoint(made.number, made.time_ms, made.chain, made.trimmed, names, made.former)
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


@dataclass(slots=True)
class Piece:
    """Rows up to a cut: those of blocks from the row `start` of the first on, up to before `stop` of the last. Without
    `cut` they go to the end of all rows.
    """

    blocks: Sequence[Block]
    start: int
    stop: int
    cut: bool
    id: str = ""

    def __post_init__(self) -> None:
        self.id = _content_id(self.content())

    @property
    def first(self) -> bytes:
        """The first key."""
        return self.blocks[0].keys[self.start]

    def content(self) -> bytes:
        """The rows, one after another."""
        begins = [self.start, *[0] * (len(self.blocks) - 1)]
        ends = [*[None] * (len(self.blocks) - 1), self.stop]
        spans = (
            zip(block.keys[begin:end], block.values[begin:end], strict=True)
            for block, begin, end in zip(self.blocks, begins, ends, strict=True)
        )
        return encode_rows(chain.from_iterable(spans))

    def lies_in(self, blocks: Sequence[Block], start: int) -> bool:
        """True when its rows are the next ones from a row of the first block on: blocks do not change."""
        there = blocks[: len(self.blocks)]
        same = len(there) == len(self.blocks) and all(map(is_, there, self.blocks))
        return same and start == self.start and (self.cut or len(blocks) == len(self.blocks))


def pieces_of(rows: Rows, last: Mapping[bytes, Piece]) -> Iterator[Piece]:
    """All rows as pieces, of which the last ones are taken over that no change has met."""
    number = start = 0
    while number < len(rows.blocks):
        piece = last.get(rows.blocks[number].keys[start])
        if piece is None or not piece.lies_in(rows.blocks[number : number + len(piece.blocks) + 1], start):
            piece = _next_piece(rows.blocks, number, start)
        yield piece
        number, start = number + len(piece.blocks) - 1, piece.stop
        if start == len(rows.blocks[number].keys):
            number, start = number + 1, 0


def _next_piece(blocks: Sequence[Block], number: int, start: int) -> Piece:
    """The rows from one of a block on, up to a cut."""
    size = 0
    for end in range(number, len(blocks)):
        begin, block = start if end == number else 0, blocks[end]
        keys, values = block.keys[begin:], block.values[begin:]
        whole = size + len(keys) * row_bytes(b"", b"") + sum(map(len, keys)) + sum(map(len, values))
        if whole < PIECE_BYTES_MIN:  # no row of it ends a piece
            size = whole
            continue
        for row in range(begin, len(block.keys)):
            key = block.keys[row]
            size += row_bytes(key, block.values[row])
            cut = size >= PIECE_BYTES_MIN and not xxhash.xxh3_64_intdigest(key) & _CUT_MASK
            if cut or size >= PIECE_BYTES_MAX:
                return Piece(blocks[number : end + 1], start, row + 1, cut=True)
    return Piece(blocks[number:], start, len(blocks[-1].keys), cut=False)
