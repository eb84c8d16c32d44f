"""Small rows beside the streams of a place: one hash for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.events.redis.servers import Call

if TYPE_CHECKING:
    from millpond.events.protocol import NoteKind
    from millpond.events.redis.keys import Place
    from millpond.events.redis.servers import Servers

__all__ = ("RedisNotes",)


class RedisNotes:
    """The `Notes` of a place in Redis."""

    def __init__(self, servers: Servers, place: Place) -> None:
        self._servers, self._place = servers, place

    def read(self, kind: NoteKind) -> dict[str, bytes]:
        """See `Notes.read`."""
        (pairs,) = self._servers.run([Call(0, (b"HGETALL", self._place.notes(kind)))], repeat=True)
        return {name.decode(): row for name, row in zip(pairs[::2], pairs[1::2], strict=True)}

    def put(self, kind: NoteKind, name: str, row: bytes) -> None:
        """See `Notes.put`."""
        self._servers.run([Call(0, (b"HSET", self._place.notes(kind), name, row))], repeat=True)

    def remove(self, kind: NoteKind, name: str) -> None:
        """See `Notes.remove`."""
        self._servers.run([Call(0, (b"HDEL", self._place.notes(kind), name))], repeat=True)
