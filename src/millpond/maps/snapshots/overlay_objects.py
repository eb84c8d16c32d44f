"""Objects in memory over those of another place: for what is needed at once and not for long.

A node answers a bulk question about rows that were merged a moment ago from a layer on top of its last snapshot. That
layer is never written to the disk: the next freeze writes a better one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from millpond.stores.objects import Named, Objects

__all__ = ("Overlay",)


class Overlay(Objects):
    """Objects over `base`, which is never changed: new objects stay in this process."""

    def __init__(self, base: Objects) -> None:
        self.where = base.where
        self._base = base
        self._held: dict[str, pa.Buffer] = {}

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("what memory holds stays where it is")

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Pause an object."""
        self._held[name] = pa.py_buffer(data)

    def get(self, name: str) -> pa.Buffer:
        """All bytes of an object.

        Raises: `NotFound`.
        """
        held = self._held.get(name)
        return self._base.get(name) if held is None else held

    def get_range(self, name: str, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)` of an object; fewer when it ends before.

        Raises: `NotFound`.
        """
        return bytes(memoryview(self.get(name))[start:stop])

    def size(self, name: str) -> int:
        """The number of bytes of an object.

        Raises: `NotFound`.
        """
        held = self._held.get(name)
        return self._base.size(name) if held is None else held.size

    def list(self, under: str = "") -> Iterator[Named]:
        """The objects below the folder `under`, in no order."""
        inside = {name: data for name, data in self._held.items() if not under or name.startswith(f"{under}/")}
        yield from (named for named in self._base.list(under) if named.name not in inside)
        yield from (Named(name, data.size) for name, data in inside.items())

    def delete(self, name: str) -> None:
        """Let go of an object that was put here."""
        self._held.pop(name, None)

    def rename(self, name: str, target: str) -> None:
        """Pause an object under another name.

        Raises: `NotFound`.
        """
        self._held[target] = self.get(name)
        self.delete(name)

    def local_path(self, name: str) -> Path | None:
        """Path of a file of the base; None for an object in memory, and for leases: the base is leased by itself."""
        return None if name in self._held or name.startswith("leases/") else self._base.local_path(name)
