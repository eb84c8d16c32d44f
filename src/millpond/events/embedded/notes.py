"""Small rows beside the streams of a space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.events.keyspaces import NOTE

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.events.protocol import NoteKind
    from millpond.kernel.space import Space

__all__ = ("EmbeddedNotes",)


class EmbeddedNotes:
    """The `Notes` of a space."""

    def __init__(self, space: Callable[[], Space]) -> None:
        self._space = space

    def read(self, kind: NoteKind) -> dict[str, bytes]:
        """See `Notes.read`."""
        with self._space().read() as tx:
            return {str(NOTE.unpack(key)[1]): row for key, row in tx.scan(NOTE[kind.value].range())}

    def put(self, kind: NoteKind, name: str, row: bytes) -> None:
        """See `Notes.put`."""
        self._space().write(lambda tx: tx.put(NOTE.pack(kind.value, name), row))

    def remove(self, kind: NoteKind, name: str) -> None:
        """See `Notes.remove`."""
        self._space().write(lambda tx: tx.delete(NOTE.pack(kind.value, name)))
