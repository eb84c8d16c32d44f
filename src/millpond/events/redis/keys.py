"""The keys of streams in Redis; drawn in `docs/format/events.md`.

    millpond:{7f}:head:etl/nightly        {…} is the part that a cluster hashes to a slot
    └ place  └ shard      └ queue/job set, escaped

Streams are spread over 256 shards by their names. The keys of a stream and the registry of its shard have one slot, so
a script changes them together, and no crash can part them.

Invariants:
* no two streams share a key: `/`, `:`, `=` and braces are always escaped, and a long part is `=` and its SHA-256;
* the names of keys are ASCII, and their order is an order of streams in which those of a queue stand together.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.events.names import StreamName
from millpond.events.protocol import NoteKind, Work

__all__ = ("SHARDS", "PondKeys", "StreamKeys", "due_member", "escaped", "is_hashed", "parse_name")

SHARDS = 256
"""A part of the format: streams would not be found again if it changed."""
PART_CHARS_MAX = 120
_HASHED = "="
_NAME = re.compile("[A-Za-z0-9_.-]{1,63}")


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The keys of one stream, and those of the registry of its shard."""

    stream: StreamName
    shard: int
    name: bytes
    head: bytes
    index: bytes
    raw: bytes
    sources: bytes
    batches: bytes
    """The beginning of the keys of compressed segments; the last day follows."""
    due: tuple[bytes, bytes, bytes]
    names: bytes
    lost: bytes
    clock: bytes

    def batches_of(self, last_day: int) -> bytes:
        """The key of the batches of a segment."""
        return self.batches + b"%d" % last_day


class PondKeys:
    """The name before all keys: several ponds share one Redis."""

    def __init__(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise Invalid(
                "the name of a place in Redis is not understood", kind="redis_url", name=shown(name),
                hint="letters, digits, dots, dashes and underscores, at most 63, after the #",
            )  # fmt: skip
        self._name = name
        self.pattern = f"{name}:{{??}}:*".encode()
        """The keys of the place, for a scan; names hold no sign that a pattern has."""
        self.keys_of = lru_cache(maxsize=4096)(self._keys_of)
        self.tags = [f"{name}:{{{shard:02x}}}" for shard in range(SHARDS)]

    def _keys_of(self, stream: StreamName) -> StreamKeys:
        name = f"{escaped(stream.queue)}/{escaped(stream.job_set)}"
        shard = self.shard_of(name.encode())
        tag = self.tags[shard]

        def key(kind: str) -> bytes:
            return f"{tag}:{kind}:{name}".encode()

        due = tuple(self.due(work, shard) for work in Work)
        assert len(due) == 3
        return StreamKeys(
            stream, shard, name.encode(), key("head"), key("index"), key("raw"), key("sources"), key("batches") + b":",
            due, self.names(shard), self.lost(shard), self.clock(shard),
        )  # fmt: skip

    @staticmethod
    def shard_of(name: bytes) -> int:
        """The shard of a stream whose name is escaped."""
        return zlib.crc32(name) % SHARDS

    def due(self, work: Work, shard: int) -> bytes:
        """The registry of a shard for a kind of work."""
        return f"{self.tags[shard]}:due:{work.value}".encode()

    def notes(self, kind: NoteKind) -> bytes:
        """The small rows of a kind, which are of no stream: in the first shard."""
        return f"{self.tags[0]}:notes:{kind.value}".encode()

    def names(self, shard: int) -> bytes:
        """The names of a shard's streams."""
        return f"{self.tags[shard]}:names".encode()

    def lost(self, shard: int) -> bytes:
        """The mark of a shard: the id up to which its streams were lost."""
        return f"{self.tags[shard]}:lost".encode()

    def clock(self, shard: int) -> bytes:
        """The time that was believed last, for the scripts of a shard."""
        return f"{self.tags[shard]}:clock".encode()

    def head(self, name: bytes) -> bytes:
        """The head of a stream whose name is escaped."""
        return self.tags[self.shard_of(name)].encode() + b":head:" + name


def escaped(part: str) -> str:
    """A part of a name, in letters that keys may hold.

    >>> escaped("a/b é"), escaped("")
    ('a%2Fb%20%C3%A9', '')
    """
    text = quote(part, safe="")
    return text if len(text) <= PART_CHARS_MAX else _HASHED + hashlib.sha256(part.encode()).hexdigest()


def is_hashed(name: bytes) -> bool:
    """True when a name does not tell the stream, which its head does."""
    return _HASHED.encode() in name


def parse_name(name: bytes) -> StreamName:
    """The stream of a name that is not hashed."""
    queue, _, job_set = name.decode("ascii").partition("/")
    return StreamName(unquote(queue), unquote(job_set))


def due_member(day: int, name: bytes) -> bytes:
    """The entry of a registry: entries are ordered by day, then by name."""
    return b"%07d%s" % (day, name)
