"""Repositories for tests: in memory, with small ranges, with what comes in between, and with reads that are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import pyarrow as pa

from millpond.clock import ManualClock
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.ranges import DEFAULT_BOUNDARIES, Boundaries
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects, ObjectStore
from millpond.versions.branch import Branch
from millpond.versions.keyspaces import CLEARED, STAGED
from millpond.versions.objects.entries import Entry
from millpond.versions.objects.staged_rows import TOMBSTONE
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository

T = TypeVar("T")
TINY = Boundaries(rows_min=2, rows_max=4, bits=1)


class CountedObjects(MemoryObjects):
    """Objects that count how often each was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def get(self, name: str) -> pa.Buffer:
        self.reads[name] += 1
        return super().get(name)

    def ranges_read(self) -> int:
        """The ranges read since the last time."""
        found = sum(count for name, count in self.reads.items() if name.startswith("ranges/"))
        self.reads.clear()
        return found


class InterruptedSpace:
    """A space in which something comes before chosen writes: `before` holds acts, each for one write."""

    def __init__(self) -> None:
        self.inner: Space = MemorySpace()
        self.before: list[Callable[[], object]] = []

    def read(self, *, wait: bool = True) -> AbstractContextManager[ReadTransaction]:
        return self.inner.read(wait=wait)

    def write(self, change: Callable[[Transaction], T]) -> T:
        if self.before:
            self.before.pop(0)()
        return self.inner.write(change)

    def close(self) -> None:
        self.inner.close()


class Place:
    """A space and stores, and any number of processes' repositories over them."""

    def __init__(self, boundaries: Boundaries = DEFAULT_BOUNDARIES) -> None:
        self.space = InterruptedSpace()
        self.clock = ManualClock(1_600_000_000_000)
        self.stores: dict[str, CountedObjects] = {}
        self.boundaries = boundaries
        self.later: list[Callable[[], object]] = []

    def repositories(self, *, later: bool = False) -> Repositories:
        """Those of one process; with `later` its maintenance waits in `self.later`."""
        options: dict[str, Callable[[Callable[[], object]], None]] = {"after": self.later.append} if later else {}
        return Repositories(self.space, self.clock, self.open, boundaries=self.boundaries, **options)  # type: ignore[arg-type]

    def open(self, where: str) -> ObjectStore:
        return self.stores.setdefault(where, CountedObjects())

    def ranges_read(self) -> int:
        """The ranges read since the last time, by all."""
        return sum(store.ranges_read() for store in self.stores.values())


def make(boundaries: Boundaries = DEFAULT_BOUNDARIES) -> tuple[Place, Repository]:
    """A place, and one repository in it."""
    place = Place(boundaries)
    return place, place.repositories().create("behaviours")


def entry(path: str, content: str = "1") -> Entry:
    return Entry(path, f"data/{content}", len(content), 0, content)


def put(branch: Branch, contents: dict[str, str]) -> None:
    for path, content in contents.items():
        branch.staging.link(entry(path, content))


def state(repository: Repository, ref: str) -> dict[str, str]:
    listed = repository.ref(ref).list(amount=10_000).results
    return {found.path: found.checksum for found in listed if isinstance(found, Entry)}


def seal(branch: Branch) -> None:
    """Seal the staging token, as a commit does that fails."""
    table = pa.record_batch({"path": ["\x02nothing"], "deleted": [True]})
    branch.staging.push([table])


def staged_rows(branch: Branch, token: str | None = None) -> dict[str, bytes]:
    """The rows of a token, by default of the staging token: paths and values."""
    prefix = STAGED[token or branch.staging.record().staging_token]
    with branch.context.space.read() as tx:
        return {str(prefix.unpack(key)[0]): value for key, value in tx.scan(prefix.range())}


def tombstones(branch: Branch) -> list[str]:
    """The paths that the staging token hides."""
    return [path for path, value in staged_rows(branch).items() if value == TOMBSTONE]


def tokens_with_rows(space: Space) -> set[str]:
    with space.read() as tx:
        return {str(k.unpack(key)[0]) for k in (STAGED, CLEARED) for key in tx.keys(k.range())}


def shown(repository: Repository, left: str, right: str, **options: bool) -> dict[str, str]:
    """The differences of two refs: path and type."""
    found = repository.diff(left, right, amount=10_000, **options).results  # type: ignore[arg-type]
    return {item.path: item.type for item in found}  # type: ignore[union-attr]


def staged(branch: Branch) -> dict[str, str]:
    """The uncommitted changes: path and type."""
    return {item.path: item.type for item in branch.diff(amount=10_000).results}  # type: ignore[union-attr]
