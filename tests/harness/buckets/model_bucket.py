"""A bucket in memory, and its clients, which lose answers, repeat requests and answer late, as a seed says.

What a put does and what its sender hears are apart:

| a put if absent | lands | the sender hears |
|---|---|---|
| well | now | its tag |
| lost | now, later or never | nothing: `Uncertain` |
| repeated | now | 412, of the second copy of its own request |
| busy | never | 409, as of a conflict; or 503, which is `Uncertain` |

Reads say 404 of what is there for a moment, listings leave out what came last, all fail now and then.

Invariants:
* put if absent is atomic: the first request that lands has the name;
* an object that was put stays what it was, until somebody puts another over it: what each name first had is in `first`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import xxhash

from millpond.errors import Unavailable, Uncertain
from millpond.stores.objects import Level, ObjectInfo, ObjectStore, TaggedObject
from millpond.stores.objects.protocol import beginning_of, changed, not_found

__all__ = ("WHERE", "BucketClient", "Killed", "ModelBucket", "tag_of")

WHERE = "s3://model/space"
FAULT_SHARE = 0.25


class Killed(BaseException):
    """The process was killed at this request."""


@dataclass
class ModelBucket:
    """The objects, what lands later, and what each name first had."""

    seed: int
    objects: dict[str, bytes] = field(default_factory=dict)
    first: dict[str, bytes] = field(default_factory=dict)
    late: list[tuple[str, bytes]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    requests: int = 0
    down: int = 0
    """The requests that nobody answers from now on."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    _requested: dict[str, int] = field(default_factory=dict)

    def chance(self, what: str) -> float:
        """A number in `[0, 1)` for each time that something is asked, whichever thread asks."""
        with self.lock:
            count = self._requested[what] = self._requested.get(what, 0) + 1
        return xxhash.xxh3_64_intdigest(f"{self.seed} {what} {count}".encode()) / 2**64

    def put_absent(self, name: str, data: bytes) -> bool:
        """Put an object if there is none; True when this one was put."""
        with self.lock:
            if name in self.objects:
                return False
            self.objects[name] = data
            self.first.setdefault(name, data)
            self.order.append(name)
            return True

    def land(self, share: float = 1.0) -> None:
        """Let requests land that were under way."""
        with self.lock:
            while self.late and self.chance("land") < share:
                self.put_absent(*self.late.pop(0))


def tag_of(data: bytes) -> str:
    """The tag of a content."""
    return xxhash.xxh3_64_hexdigest(data)


class BucketClient(ObjectStore):
    """The bucket as one process sees it. `between` is called before and after puts of the process's own thread: others
    act meanwhile, or the process is killed.
    """

    where = WHERE

    def __init__(self, bucket: ModelBucket, name: str, between: Callable[[], None]) -> None:
        self.bucket, self.name, self._between = bucket, name, between
        self.calm = False
        self._thread = threading.get_ident()

    def _chance(self, verb: str, name: str) -> float:
        return 1.0 if self.calm else self.bucket.chance(f"{self.name} {verb} {name}")

    def _meanwhile(self) -> None:
        self.bucket.requests += 1
        if not self.calm and threading.get_ident() == self._thread:
            self.bucket.land(0.3)
            self._between()

    def _is_down(self) -> bool:
        with self.bucket.lock:
            self.bucket.down = max(0, self.bucket.down - 1)
            return self.bucket.down > 0 and not self.calm

    def _fails(self, verb: str, name: str) -> None:
        if self._is_down() or self._chance(verb, name) < FAULT_SHARE / 8:
            raise Unavailable("the bucket does not answer", kind="objects_unavailable", object=name)

    def swap(self, name: str, data: bytes | memoryview | pa.Buffer, expected: str | None) -> str:
        content = bytes(memoryview(data))
        self._meanwhile()
        lost = Uncertain("the bucket's answer was lost", kind="objects_uncertain", object=name)
        fault = self._chance("swap", name) / FAULT_SHARE
        if self._is_down():
            fault = 0.15 if fault < 2 else 0.3
        if fault < 0.2:  # 409, or a lost request
            raise changed(name, WHERE) if fault < 0.1 else lost
        if fault < 0.4 and expected is None:
            self.bucket.late.append((name, content))
            raise lost
        if expected is None:
            landed = self.bucket.put_absent(name, content)
        else:
            with self.bucket.lock:
                landed = name in self.bucket.objects and tag_of(self.bucket.objects[name]) == expected
                if landed:
                    self.bucket.objects[name] = content
        self._meanwhile()
        if fault < 0.6:
            raise lost
        if not landed or fault < 0.8:  # or its own request came twice
            raise changed(name, WHERE)
        if fault < 1.0 and expected is None:
            self.bucket.late.append((name, content))  # a second copy, on its way
        return tag_of(content)

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        self._meanwhile()
        fault = self._chance("put", name) / FAULT_SHARE
        if fault < 0.1 or self._is_down():
            raise Unavailable("the bucket does not answer", kind="objects_unavailable", object=name)
        with self.bucket.lock:
            self.bucket.objects[name] = bytes(memoryview(data))
        if fault < 0.2:
            raise Unavailable("the bucket does not answer", kind="objects_unavailable", object=name)

    def get_tagged(self, name: str) -> TaggedObject:
        self._meanwhile()
        self._fails("get", name)
        data = self.bucket.objects.get(name)
        if data is None or self._chance("missing", name) < FAULT_SHARE / 8:
            raise not_found(name, WHERE)
        return TaggedObject(pa.py_buffer(data), tag_of(data))

    def get(self, name: str) -> pa.Buffer:
        return self.get_tagged(name).data

    def size(self, name: str) -> int:
        return int(self.get(name).size)

    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        self._fails("list", under)
        unseen = set(self.bucket.order[-2:]) if self._chance("late", under) < FAULT_SHARE else set[str]()
        beginning = beginning_of(under, prefix) or ""
        for name, data in sorted(self.bucket.objects.items()):
            if name.startswith(beginning) and name > after and name not in unseen:
                yield ObjectInfo(name, len(data))

    def delete(self, *names: str) -> None:
        self._fails("delete", "")
        for name in names:
            self.bucket.objects.pop(name, None)

    def rename(self, name: str, target: str) -> None:
        raise NotImplementedError

    def put_stream(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        raise NotImplementedError

    def level(self, folder: str = "") -> Level:
        raise NotImplementedError

    def local_path(self, name: str) -> Path | None:
        return None
