"""Objects in the memory of this process: for tests, and for what lives no longer than a computation."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator

import pyarrow as pa

from millpond.stores.objects.protocol import (
    Level,
    ObjectInfo,
    ObjectStore,
    TaggedObject,
    beginning_of,
    changed,
    check_name,
    not_found,
)

__all__ = ("MemoryObjects", "content_tag", "level_of")


class MemoryObjects(ObjectStore):
    """A dictionary of names and bytes; every write copies what it is given."""

    def __init__(self) -> None:
        self.where = "memory://"
        self._held: dict[str, pa.Buffer] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), ())

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        self._held[check_name(name)] = pa.py_buffer(bytes(data))

    def put_stream(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Store an object of any size; memory bounds it here."""
        check_name(name)
        self.put(name, b"".join(chunks))

    def swap(self, name: str, data: bytes | memoryview | pa.Buffer, expected: str | None) -> str:
        new = pa.py_buffer(bytes(data))
        with self._lock:
            content = self._held.get(check_name(name))
            if (None if content is None else content_tag(content)) != expected:
                raise changed(name, self.where)
            self._held[name] = new
        return content_tag(new)

    def get(self, name: str) -> pa.Buffer:
        return self._find(name)

    def _find(self, name: str) -> pa.Buffer:
        content = self._held.get(check_name(name))
        if content is None:
            raise not_found(name, self.where)
        return content

    def get_tagged(self, name: str) -> TaggedObject:
        data = self._find(name)
        return TaggedObject(data, content_tag(data))

    def size(self, name: str) -> int:
        """The number of bytes of an object.

        Raises: `NotFound`.
        """
        return self._find(name).size

    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        beginning = beginning_of(under, prefix)
        for name, data in sorted(self._held.items()):
            if beginning is not None and name > after and name.startswith(beginning):
                yield ObjectInfo(name, data.size)

    def level(self, folder: str = "") -> Level:
        """The objects and folders right in a folder."""
        return level_of(self.list(folder), folder)

    def delete(self, *names: str) -> None:
        for name in [check_name(name) for name in names]:
            self._held.pop(name, None)

    def rename(self, name: str, target: str) -> None:
        """Give an object another name, over what has that name.

        Raises: `NotFound`.
        """
        data = self._find(name)
        self._held[check_name(target)] = data
        if name != target:
            del self._held[name]


def content_tag(data: bytes | memoryview | pa.Buffer) -> str:
    """The tag of a content, where a store has none of its own.

    >>> content_tag(b"")
    'cae66941d9efbd404e4d88758ea67670'
    """
    return hashlib.blake2b(memoryview(data), digest_size=16).hexdigest()


def level_of(infos: Iterable[ObjectInfo], folder: str) -> Level:
    """The level of a folder, from all that lies below it."""
    start = len(folder.strip("/")) + 1 if folder else 0
    objects, prefixes = list[ObjectInfo](), list[str]()
    for info in infos:
        head, slash, _ = info.name[start:].partition("/")
        prefix = f"{info.name[:start]}{head}/"
        if not slash:
            objects.append(info)
        elif not prefixes or prefixes[-1] != prefix:
            prefixes.append(prefix)
    return Level(tuple(objects), tuple(prefixes))
