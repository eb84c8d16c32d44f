"""Ranges stay for those who may be reading them, and for builders, for the grace time; then they go."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from millpond.clock import ManualClock
from millpond.errors import Invalid, NotFound
from millpond.kernel.keys import KeyRange
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import listening
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import FolderObjects
from millpond.versions.collect import GRACE_MS, GRACE_MS_MIN, LocalWork, collect
from millpond.versions.objects.entries import entries_of
from millpond.versions.repositories import Repositories
from millpond.versions.repository import Repository
from millpond.versions.resets import reset_all
from millpond.versions.staging.branches import BranchRecord, get_branch
from millpond.versions.staging.commit_ranges import FrozenView, freeze
from millpond.versions.staging.publishing import (
    COLLECTING_SECONDS,
    DELETING,
    RENEW_SECONDS,
    Collected,
    begin_collecting,
    collections,
    end_collecting,
    publish,
    renew_collecting,
)
from millpond.versions.staging.reads import at, view_of
from millpond.versions.unreferenced import NOTE
from tests.harness.interleaving.stores import PassingClock
from tests.version_sites import TINY

T = TypeVar("T")


@pytest.fixture
def clock() -> ManualClock:
    return PassingClock(1_700_000_000_000)


@pytest.fixture
def repository(clock: ManualClock, tmp_path: Path) -> Repository:
    objects = FolderObjects(tmp_path)
    return Repositories(MemorySpace(), clock, lambda where: objects, boundaries=TINY).create("garbage")


def table(seed: str, count: int = 20) -> pa.Table:
    return pa.table({"path": [f"{number:03d}" for number in range(count)], "checksum": [seed] * count})


def frozen(repository: Repository) -> bytes:
    """The state of `main` as a job of Spark takes it: read by others, without the space and without a cache."""
    context = repository.context
    with context.space.read() as tx:
        view = freeze(context, at(tx), view_of(context, tx, get_branch(tx, context.uid, "main")))
    return pickle.dumps(view)


def checksums(pickled: bytes) -> list[str]:
    view: FrozenView = pickle.loads(pickled)
    return [entry.checksum for batch in view.entries(KeyRange(b"", None)) for entry in entries_of(batch)]


def test_an_upload_on_its_way_is_not_lost_by_a_short_grace_time(repository: Repository, clock: ManualClock) -> None:
    refused: list[str] = []

    def collect_now(name: str) -> None:
        if not name.startswith("versions.uploaded"):
            return
        clock.advance(1_000)
        for grace_ms in (GRACE_MS_MIN - 1, 0, -1):
            with pytest.raises(Invalid, match=f"grace_ms={grace_ms} grace_ms_min=60000") as caught:
                repository.collect(grace_ms=grace_ms)
            refused.append(f"{caught.value.kind}: {caught.value}")
        assert repository.collect(grace_ms=GRACE_MS_MIN).objects == 0

    with listening(collect_now):
        repository.branch("main").put("a", b"bytes" * 10_000)
    assert len(refused) == 3 and all("grace_short" in one and "a minute or more" in one for one in refused)
    assert repository.branch("main").get("a") == b"bytes" * 10_000


@pytest.mark.usefixtures("processor")
def test_nothing_is_deleted_of_a_bare_repository(clock: ManualClock, tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    repositories = Repositories(MemorySpace(), clock, lambda where: objects, boundaries=TINY)
    repository = repositories.create("garbage")
    repository.branch("main").put("a", b"bytes")
    repository.branch("main").commit("one")
    dump = list(repository.dump())
    repositories.delete("garbage")
    bare = repositories.create("garbage", repository.context.namespace, bare=True)
    clock.advance(2 * GRACE_MS)
    for _ in range(2):
        assert (bare.collect().objects, bare.collect().ranges) == (0, 0)
    repositories.restore("garbage", dump)
    assert repositories.get("garbage").branch("main").get("a") == b"bytes"


def test_a_frozen_state_is_read_for_the_grace_time_whatever_takes_its_place(
    repository: Repository, clock: ManualClock
) -> None:
    main = repository.branch("main")
    main.staging.stage(table("old"))
    main.staging.compact()
    main.staging.push(table("segment", 10).to_batches())
    clock.advance(5 * GRACE_MS)  # the files are old
    view = frozen(repository)
    main.staging.stage(table("new"))
    main.commit("another state")
    for _ in range(2):
        assert (repository.collect().ranges, repository.collect().retained > 0) == (0, True)
        assert checksums(view) == ["segment"] * 10 + ["old"] * 10
        clock.advance(GRACE_MS // 2 - 1)
    assert repository.collect(dry_run=True).ranges == 0
    clock.advance(2)
    expected = repository.collect(dry_run=True)
    found = repository.collect()
    assert found.ranges == expected.ranges > 0
    assert found.retained == 0
    with pytest.raises(NotFound):
        checksums(view)
    assert [entry.checksum for batch in main.entries() for entry in entries_of(batch)] == ["new"] * 20


def test_what_is_needed_again_is_not_deleted_when_its_time_is_over(repository: Repository, clock: ManualClock) -> None:
    main = repository.branch("main")
    main.staging.push(table("one").to_batches())
    main.reset()
    assert repository.collect().retained > 0
    main.staging.push(table("one").to_batches())
    clock.advance(2 * GRACE_MS)
    assert repository.collect().ranges == 0
    assert len(main.list().results) == 20
    main.reset()
    assert repository.collect().ranges == 0, "its grace time begins when it is found unneeded again"


def test_a_note_that_is_damaged_begins_the_grace_times_again(repository: Repository, clock: ManualClock) -> None:
    repository.branch("main").staging.push(table("one").to_batches())
    repository.branch("main").reset()
    assert repository.collect().retained > 0
    repository.context.ranges.put(NOTE, b"{")
    clock.advance(2 * GRACE_MS)
    assert (repository.collect().ranges, repository.collect().retained > 0) == (0, True)
    clock.advance(GRACE_MS)
    assert repository.collect().ranges > 0


def test_a_push_is_published_though_garbage_is_collected_while_it_is_built(
    repository: Repository, clock: ManualClock
) -> None:
    main, context = repository.branch("main"), repository.context
    main.staging.push(table("old").to_batches())
    main.reset()
    repository.collect()
    clock.advance(2 * GRACE_MS)
    ran: list[int] = []

    def collect_now(name: str) -> None:
        if name == "versions.segment_written" and not ran:
            ran.append(collections(context))
            assert repository.collect().ranges > 0
            ran.append(collections(context))

    with listening(collect_now):
        assert main.staging.push(table("new").to_batches()) == 20
    assert ran[0] < ran[1]
    assert len(main.list().results) == 20


class OvertakenObjects(FolderObjects):
    """A folder in which something happens once, right after a name was found there."""

    happens: Callable[[], object] | None = None

    def exists(self, name: str) -> bool:
        exists = super().exists(name)
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return exists


def test_what_another_collection_takes_while_it_is_looked_for_is_said_to_be_collected(
    clock: ManualClock, tmp_path: Path
) -> None:
    objects = OvertakenObjects(tmp_path)
    repository = Repositories(MemorySpace(), clock, lambda where: objects, boundaries=TINY).create("garbage")
    main, context = repository.branch("main"), repository.context
    main.staging.stage(table("old"))
    main.staging.compact()
    with context.space.read() as tx:
        index = get_branch(tx, context.uid, "main").compacted_index
    assert index is not None
    main.reset()
    repository.collect()
    clock.advance(2 * GRACE_MS)
    objects.happens = lambda: collect(context, readers_ms=0)
    with pytest.raises(Collected):
        publish(replace(context, ranges=objects), [index], DELETING, lambda tx: pytest.fail("it is published"))
    assert objects.happens is None


class HaltedObjects(FolderObjects):
    """A folder whose process is halted once, right after it deleted a file."""

    halt: Callable[[], object] | None = None

    def delete(self, *names: str) -> None:
        for name in names:
            super().delete(name)
            halt, self.halt = self.halt, None
            if halt is not None:
                halt()


def test_a_collection_that_was_halted_for_longer_than_its_lease_deletes_nothing_more(
    clock: ManualClock, tmp_path: Path
) -> None:
    objects = HaltedObjects(tmp_path)
    repository = Repositories(MemorySpace(), clock, lambda where: objects, boundaries=TINY).create("garbage")
    main = repository.branch("main")
    main.staging.push(table("old").to_batches())
    main.reset()
    due = collect(repository.context, readers_ms=0, dry_run=True)
    assert due.ranges > 2, "files are left to delete after the first"

    def halt() -> None:
        clock.advance(round(1000 * COLLECTING_SECONDS))
        assert main.staging.push(table("old").to_batches()) == 20, "the files that are left are named again"

    objects.halt = halt
    deleted = collect(repository.context, readers_ms=0)
    assert objects.halt is None and deleted.ranges + deleted.indexes == 1
    assert [entry.checksum for batch in main.entries() for entry in entries_of(batch)] == ["old"] * 20


def test_a_lease_is_renewed_in_time_and_only_looked_at_before(repository: Repository, clock: ManualClock) -> None:
    context, lease = repository.context, begin_collecting(repository.context)
    clock.advance(round(1000 * RENEW_SECONDS) - 1)
    assert renew_collecting(context, lease) == lease
    clock.advance(1)
    later = renew_collecting(context, lease)
    assert later is not None and later.beat == lease.beat + 1
    end_collecting(context, later)
    assert renew_collecting(context, later) is None, "another one ended it, if only a moment ago"


def test_a_lease_is_renewed_in_time_also_when_the_clock_is_set_back(repository: Repository, clock: ManualClock) -> None:
    context, lease = repository.context, begin_collecting(repository.context)
    clock.advance(round(1000 * COLLECTING_SECONDS) - 1)
    clock.now = lease.at_ms
    later = renew_collecting(context, lease)
    assert later is not None and later.beat == lease.beat + 1


@dataclass
class QueuedSpace:
    """A space whose writes have their turn later."""

    inner: Space
    passes: Callable[[], None]

    def read(self, *, wait: bool = True) -> AbstractContextManager[ReadTransaction]:
        return self.inner.read(wait=wait)

    def write(self, change: Callable[[Transaction], T]) -> T:
        self.passes()
        return self.inner.write(change)

    def close(self) -> None:
        """Close nothing: the inner space is another's."""


def test_a_lease_that_was_ended_while_its_renewal_had_to_wait_is_over(
    repository: Repository, clock: ManualClock
) -> None:
    context = repository.context
    lease = begin_collecting(context)
    assert collections(context) == DELETING
    clock.advance(round(1000 * COLLECTING_SECONDS) - 1)
    assert collections(context) == DELETING

    def passes() -> None:
        clock.advance(1)
        assert collections(context) == 1, "builders may publish what the collection is about to delete"

    assert renew_collecting(replace(context, space=QueuedSpace(context.space, passes)), lease) is None


class OvertakenWork(LocalWork):
    """Marks after the state that was to be marked lost its place, and another collection took its files."""

    overtaken = False

    def mark(self, trees: set[str], branches: dict[str, BranchRecord]) -> None:
        if not self.overtaken:
            self.overtaken = True
            reset_all(self._context, "main")
            assert collect(self._context, readers_ms=0).indexes > 0
        super().mark(trees, branches)


def test_a_collection_marks_anew_when_another_took_files_that_it_was_to_mark(repository: Repository) -> None:
    main = repository.branch("main")
    main.staging.stage(table("old"))
    main.staging.compact()
    work = OvertakenWork(repository.context)
    collect(repository.context, work=work, readers_ms=0)
    assert work.overtaken


class MovedBranches(dict[str, BranchRecord]):
    """Branches of which the last loses what is staged to the first, between the reading of the two."""

    repository: Repository

    def values(self) -> Any:
        first, last = (self.repository.branch(name) for name in ("first", "last"))
        for name, record in self.items():
            if name == "last":
                first.copy("old", "new", ref="last")
                last.delete("old")
            yield record


class MovedWork(LocalWork):
    """Marks while what is staged moves from one branch to another."""

    def __init__(self, repository: Repository) -> None:
        super().__init__(repository.context)
        self._repository = repository

    def mark(self, trees: set[str], branches: dict[str, BranchRecord]) -> None:
        moved = MovedBranches(sorted(branches.items()))
        moved.repository = self._repository
        super().mark(trees, moved)


def test_what_moves_between_branches_while_it_is_marked_stays(repository: Repository, clock: ManualClock) -> None:
    first, last = (repository.create_branch(name, "main") for name in ("first", "last"))
    last.put("old", b"bytes")
    clock.advance(2 * GRACE_MS)
    assert collect(repository.context, work=MovedWork(repository)).objects == 0
    assert first.get("new") == b"bytes"
