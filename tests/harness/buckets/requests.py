"""Requests to buckets, counted: as many as a provider writes on its bill."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from millpond.stores.objects import TaggedObject
from millpond.stores.objects.bucket import BucketObjects

__all__ = ("counted_requests", "fetched_bytes")

_VERBS = {
    "put": "PUT", "swap": "PUT", "get_tagged": "GET", "get_range": "GET", "size": "HEAD", "list": "LIST",
    "level": "LIST", "delete": "DELETE",
}  # fmt: skip


@contextmanager
def fetched_bytes() -> Iterator[list[int]]:
    """The bytes of the bodies that this process fetches, while the block runs, one by one."""
    sizes: list[int] = []
    tagged, part = BucketObjects.get_tagged, BucketObjects.get_range

    def get_tagged(self: BucketObjects, name: str) -> TaggedObject:
        got = tagged(self, name)
        sizes.append(got.data.size)
        return got

    def get_range(self: BucketObjects, name: str, start: int, stop: int | None = None) -> memoryview:
        got = part(self, name, start, stop)
        sizes.append(len(got))
        return got

    BucketObjects.get_tagged, BucketObjects.get_range = get_tagged, get_range  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        BucketObjects.get_tagged, BucketObjects.get_range = tagged, part  # type: ignore[method-assign]


@contextmanager
def counted_requests() -> Iterator[Counter[str]]:
    """The requests of this process by their verbs, while the block runs; a listing counts as one page."""
    counts, lock = Counter[str](), threading.Lock()
    originals: dict[str, Callable[..., Any]] = {name: getattr(BucketObjects, name) for name in _VERBS}

    def counting(name: str) -> Callable[..., Any]:
        def call(*words: Any, **named: Any) -> Any:
            with lock:
                counts[_VERBS[name]] += 1
            return originals[name](*words, **named)

        return call

    for name in _VERBS:
        setattr(BucketObjects, name, counting(name))
    try:
        yield counts
    finally:
        for name, original in originals.items():
            setattr(BucketObjects, name, original)
