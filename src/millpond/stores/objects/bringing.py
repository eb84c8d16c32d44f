"""Files that are brought from one place to another: those of a listing that the target lacks, a few at a time.

    listing ─▶ what is missing there ─▶ fetched ─▶ compared with its sum ─▶ put, whole ─▶ what names them all, last

Whoever brings files says what is missing, and how one comes. A file has its name when it is whole, so bringing that was
cut short goes on with the files that are missing then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from threading import Event, Lock
from typing import TypeVar

import pyarrow as pa

from millpond.arrays.ahead import ordered_results
from millpond.stores.objects.below import ObjectsBelow
from millpond.stores.objects.protocol import Objects

__all__ = ("CountedObjects", "bring", "object_chunks")

AT_ONCE = 4
"""The files on their way at once, each of which may be whole in memory."""
_TURNS = 8
"""The turns of a thread that may begin before the oldest file is there: one that is large holds the others up less."""
_CHUNK_BYTES = 8 << 20

Item = TypeVar("Item")
Result = TypeVar("Result")


def bring(act: Callable[[Item], Result], items: Iterable[Item], threads: int = AT_ONCE) -> Iterator[Result]:
    """The results of an act that brings one file, in the order of the items; after the first that fails none begins.

    Raises: what the act raised for the first of the items that failed.
    """
    failed = Event()

    def begun(item: Item) -> tuple[Result, ...]:
        if failed.is_set():
            return ()  # nobody takes it: the one that failed stands before it
        try:
            return (act(item),)
        except BaseException:
            failed.set()
            raise

    for results in ordered_results(begun, items, threads, _TURNS * threads):
        yield from results


class CountedObjects(ObjectsBelow):
    """A place that calls `put_one` with the name and the bytes of each file that was put, in one thread at a time."""

    def __init__(self, inner: Objects, put_one: Callable[[str, int], object]) -> None:
        super().__init__(inner)
        self._put_one, self._lock = put_one, Lock()

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        super().put(name, data)
        with self._lock:
            self._put_one(name, memoryview(data).nbytes)


def object_chunks(place: Objects, name: str) -> Iterator[bytes]:
    """The bytes of an object, in large chunks.

    Raises: `NotFound`, at once.
    """
    size = place.size(name)
    return (
        bytes(place.get_range(name, start, min(start + _CHUNK_BYTES, size))) for start in range(0, size, _CHUNK_BYTES)
    )
