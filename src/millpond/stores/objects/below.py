"""The objects below a prefix of another place, under their names from there on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from millpond.stores.objects.protocol import Level, ObjectInfo, Objects, ObjectStore, TaggedObject

__all__ = ("ObjectsBelow", "StoreBelow")


class ObjectsBelow(Objects):
    """A folder of a place, or all of it, as a place of its own. It may be pickled when that one may."""

    def __init__(self, inner: Objects, folder: str = "") -> None:
        self.inner = inner
        self.folder = f"{folder.strip('/')}/" if folder else ""
        self.where = f"{inner.where.rstrip('/')}/{self.folder}" if folder else inner.where
        self.in_blocks = inner.in_blocks

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.inner, self.folder))

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        self.inner.put(self.folder + name, data)

    def get(self, name: str) -> pa.Buffer:
        return self.inner.get(self.folder + name)

    def get_range(self, name: str, start: int, stop: int | None = None) -> memoryview:
        return self.inner.get_range(self.folder + name, start, stop)

    def size(self, name: str) -> int:
        return self.inner.size(self.folder + name)

    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        path = (self.folder + under).rstrip("/")
        for info in self.inner.list(path, prefix=self.folder + prefix, after=self.folder + after if after else ""):
            yield replace(info, name=info.name.removeprefix(self.folder))

    def delete(self, *names: str) -> None:
        self.inner.delete(*(self.folder + name for name in names))

    def rename(self, name: str, target: str) -> None:
        self.inner.rename(self.folder + name, self.folder + target)

    def local_path(self, name: str) -> Path | None:
        return self.inner.local_path(self.folder + name)


class StoreBelow(ObjectsBelow, ObjectStore):
    """The same of a place with conditional writes."""

    def __init__(self, inner: ObjectStore, folder: str) -> None:
        super().__init__(inner, folder)
        self._store = inner

    def swap(self, name: str, data: bytes | memoryview | pa.Buffer, expected: str | None) -> str:
        return self._store.swap(self.folder + name, data, expected)

    def get_tagged(self, name: str) -> TaggedObject:
        return self._store.get_tagged(self.folder + name)

    def put_stream(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        self._store.put_stream(self.folder + name, chunks)

    def level(self, folder: str = "") -> Level:
        level, cut = self._store.level(self.folder + folder), len(self.folder)
        objects = tuple(ObjectInfo(info.name[cut:], info.size) for info in level.objects)
        return Level(objects, tuple(prefix[cut:] for prefix in level.prefixes))
