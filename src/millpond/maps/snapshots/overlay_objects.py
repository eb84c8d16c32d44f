"""Objects in memory over those of another place: for what is needed at once and not for long.

A node answers a bulk question about rows that were merged a moment ago from a layer on top of its last snapshot. That
layer is never written to the disk: the next freeze writes a better one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from millpond.stores.objects import ObjectInfo, Objects

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
        self._held[name] = pa.py_buffer(data)

    def get(self, name: str) -> pa.Buffer:
        content = self._held.get(name)
        return self._base.get(name) if content is None else content

    def size(self, name: str) -> int:
        content = self._held.get(name)
        return self._base.size(name) if content is None else content.size

    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        base = self._base.list(under, prefix=prefix, after=after)
        inside = {
            name: data.size for name, data in self._held.items()
            if (not under or name.startswith(f"{under}/")) and name.startswith(prefix) and name > after
        }  # fmt: skip
        sizes = {info.name: info.size for info in base} | inside
        yield from (ObjectInfo(name, size) for name, size in sorted(sizes.items()))

    def delete(self, *names: str) -> None:
        """Let go of objects that were put here."""
        for name in names:
            self._held.pop(name, None)

    def rename(self, name: str, target: str) -> None:
        self._held[target] = self.get(name)
        self.delete(name)

    def local_path(self, name: str) -> Path | None:
        """Path of a file of the base; None for an object in memory, and for leases: the base is leased by itself."""
        return None if name in self._held or name.startswith("leases/") else self._base.local_path(name)
