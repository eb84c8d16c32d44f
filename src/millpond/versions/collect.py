"""Garbage collection of one repository: objects, ranges and indexes that nothing needs any more.

    needed objects   named by an active commit, a staged entry, a segment or a compacted index
    needed ranges    of every commit, active or not, of segments and compacted indexes

A commit is *active* while the one that took its place on a branch is younger than the branch's retention; heads, tagged
commits, and, while they are young, commits without children are active. Without rules all commits are.

Invariants:
* An object younger than the grace time stays: its entry may not be staged yet. Its name tells its time.
* What was named when the collection began stays, whatever moves meanwhile. Of ranges, also what becomes needed while
  it runs (`staging/publishing.py`), and what a reader may still read who took a state before another took its place
  (`unreferenced.py`). While an import runs, ranges and indexes stay: those that it writes are named by no row yet.
* The object and the parts of a multipart upload that is open stay. One that is over loses its row, then its parts.
* Objects outside of `data/`, or with names that tell no time, are never deleted. Nor is anything by a dry run.
* Memory: eight bytes for each needed object.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from numbers import Integral
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.argument_types import need_type
from millpond.arrays.xxh3 import hash_keys
from millpond.error_values import ShownAsTable
from millpond.errors import Invalid
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.ranges import RangeEntry, index_name, open_range, range_name
from millpond.stores.objects import ObjectInfo
from millpond.versions.copying import check_undisturbed, free_term
from millpond.versions.graph.commits import Commit, read_commits
from millpond.versions.imports.jobs import end_dead_imports, running_imports
from millpond.versions.keyspaces import TAG, UPLOAD
from millpond.versions.multipart import OPEN_MS_MAX, OpenUpload, open_uploads
from millpond.versions.objects.uploads import DATA, relative_address, stem_of, time_of
from millpond.versions.protocols import GRACE_MS
from millpond.versions.repository_context import RepositoryContext, Retention, read_setting
from millpond.versions.staging.branches import BranchRecord, all_branches
from millpond.versions.staging.commit_ranges import SCRATCH, scratch_time
from millpond.versions.staging.layers import Bounds, token_stream
from millpond.versions.staging.publishing import begin_collecting, end_collecting, guard_published, renew_collecting
from millpond.versions.staging.reads import at
from millpond.versions.unreferenced import Unneeded

__all__ = (
    "GRACE_MS", "GRACE_MS_MIN", "Garbage", "LocalWork", "Marked", "Work", "active_commits", "address_hashes",
    "checked_grace", "collect", "old_objects", "staged_addresses",
)  # fmt: skip

GRACE_MS_MIN = 60_000
"""An object is there before its row: a collection with less grace would delete an upload between the two."""
DAY_SECONDS = 86_400
NAMES_A_BLOCK = 10_000
LOOKS_MAX = 4
FILES_A_REQUEST = 100
"""Files of a bucket that are deleted at once."""


@dataclass(slots=True)
class Garbage(ShownAsTable):
    """The outcome of a collection: how much was deleted, or, in a dry run, would be."""

    dry_run: bool
    active_commits: int = 0
    expired_commits: int = 0
    objects: int = 0
    object_bytes: int = 0
    ranges: int = 0
    indexes: int = 0
    retained: int = 0
    """Ranges and indexes that nothing needs, for those who may be reading them."""
    scratch: int = 0
    """Files that jobs on other machines were given, and did not remove."""
    names: list[str] = field(default_factory=list)
    """The first of the names, below the namespace."""

    def add(self, name: str) -> None:
        """Show a name, unless there are many."""
        if len(self.names) < 1_000:
            self.names.append(name)


@dataclass(slots=True)
class Marked:
    """All that names objects and ranges in a repository at one moment: commits, branches, tags, uploads, imports."""

    commits: dict[str, Commit]
    branches: dict[str, BranchRecord]
    tags: set[str]
    rules: Retention | None
    uploads: dict[str, OpenUpload]
    """Multipart uploads that are not complete, by the beginnings of the names that belong to them."""
    importing: bool

    @classmethod
    def read(cls, context: RepositoryContext) -> Marked:
        """The present state."""
        with context.space.read() as tx:
            return cls(
                {commit.id: commit for commit in read_commits(tx, context.graph.commits)},
                dict(all_branches(tx, context.uid)),
                {row.decode() for _, row in tx.scan(TAG[context.uid].range())},
                read_setting(tx, context.uid, Retention)[0],
                {upload.address: upload for upload in open_uploads(tx, context.uid)},
                running_imports(tx, context.uid),
            )  # fmt: skip

    def active(self, now: int, rules: Retention | None = None) -> set[str]:
        """The ids of active commits; `now` counts seconds. `rules` hold where the repository has none."""
        heads = {name: record.commit_id for name, record in self.branches.items()}
        return active_commits(self.commits, heads, self.tags, self.rules or rules, now)

    def looks(self, context: RepositoryContext) -> Iterator[tuple[set[str], dict[str, BranchRecord]]]:
        """The indexes and branches that are staged, then those that moved while these were read, until none did.

        A token that a commit or a compaction takes may lose its rows while they are read: then they are in a tree that
        the next look finds. So two looks are enough for all that was named at the first. More of them find what was
        staged since, which is young, or a copy of what is marked.
        """
        state, trees, branches = self, self.staged_trees, self.branches
        for _ in range(LOOKS_MAX):
            yield trees, branches
            later = Marked.read(context)
            branches = {name: record for name, record in later.branches.items() if state.branches.get(name) != record}
            trees = {commit.tree for id_, commit in later.commits.items() if id_ not in state.commits}
            trees |= later.staged_trees - state.staged_trees
            if not branches and not trees:
                return
            state = later

    @property
    def staged_trees(self) -> set[str]:
        """The indexes of segments, and the compacted ones."""
        layers = (layer for record in self.branches.values() for layer in record.sealed)
        compacted = (record.compacted_index for record in self.branches.values())
        return {id_ for id_ in (*(layer.index for layer in layers), *compacted) if id_ is not None}

    @property
    def trees(self) -> set[str]:
        """Every index that a row names."""
        return self.staged_trees | {commit.tree for commit in self.commits.values()}


def active_commits(
    commits: dict[str, Commit], heads: dict[str, str], tags: Iterable[str], rules: Retention | None, now: int
) -> set[str]:
    """The ids of active commits; `heads` are the branches' by name, `now` counts seconds."""
    if rules is None:
        return set(commits)
    active = set(tags) & commits.keys()
    starts = [(head, rules.days(branch)) for branch, head in heads.items()]
    parents = {parent for commit in commits.values() for parent in commit.parents}
    named = set(heads.values())
    starts += [
        (commit.id, rules.default_days)
        for commit in commits.values()
        if commit.id not in parents and commit.id not in named and _young(commit, rules.default_days, now)
    ]
    for head, days in starts:
        commit = commits[head]
        active.add(commit.id)
        while commit.parents and _young(commit, days, now):
            commit = commits[commit.parents[0]]
            active.add(commit.id)
    return active


def _young(commit: Commit, days: int, now: int) -> bool:
    return now - commit.created < days * DAY_SECONDS


class Work(Protocol):
    """The part of a collection that reads and lists much: `LocalWork` does it here, Spark on many machines."""

    def mark(self, trees: set[str], branches: dict[str, BranchRecord]) -> None:
        """Note all that these indexes and the tokens of these branches name as needed."""

    def sweep(self, before: int, uploads: Container[str], garbage: Garbage, check: Callable[[], None]) -> None:
        """Count the objects older than `before` that are not needed and belong to no upload; delete them, unless the
        collection is a dry run. `check` is called before some are deleted, and raises when none may be any more.
        """


def checked_grace(grace_ms: int) -> int:
    """A grace time that a user gave.

    Raises:
        Invalid: it is too short for an upload that is on its way.
    """
    need_type("grace_ms", grace_ms, Integral)
    if grace_ms < GRACE_MS_MIN:
        raise Invalid(
            "the grace time is too short: an upload whose row comes after its object would be lost", kind="grace_short",
            grace_ms=grace_ms, grace_ms_min=GRACE_MS_MIN, hint="give a minute or more; without one it is a day",
        )  # fmt: skip
    return grace_ms


def collect(
    context: RepositoryContext, *, grace_ms: int = GRACE_MS, dry_run: bool = False, work: Work | None = None,
    readers_ms: int | None = None,
) -> Garbage:  # fmt: skip
    """Delete what nothing needs, or count it. `readers_ms`: the grace time of ranges, if it is another.

    `grace_ms` is to be longer than any upload takes until it is staged: it may await a collection that died for
    `COLLECTING_SECONDS`. Where another collection took files of a state that was being marked, marking begins anew.

    Raises: `Conflict` when another collection deletes, or a copy comes; `NotFound`, `Corrupt` for ranges: nothing is
    deleted then.
    """
    work = work or LocalWork(context)
    before = context.clock.now_ms() - grace_ms
    if not dry_run:
        end_dead_imports(context)
        _end_uploads(context)
    check = partial(check_undisturbed, context.space, 0 if dry_run else free_term(context.space, context.clock))
    state, active, needed = guard_published(lambda: _mark(context, work))
    garbage = Garbage(dry_run, len(active), len(state.commits) - len(active))
    step("collect.marked")
    if not state.branches:  # a bare repository, which waits for a restore of what lies in its namespace
        return garbage
    work.sweep(before, state.uploads, garbage, check)
    if not state.importing:
        _collect_ranges(context, state, needed, garbage, grace_ms if readers_ms is None else readers_ms, check)
    _collect_scratch(context, before, garbage)
    return garbage


def _mark(context: RepositoryContext, work: Work) -> tuple[Marked, set[str], set[str]]:
    """Mark what active commits and branches name, and what those that moved meanwhile do.

    Returned are the state, its active commits, and the files of its trees.
    """
    state = Marked.read(context)
    active = state.active(context.seconds())
    first = {state.commits[id_].tree for id_ in active}
    for trees, branches in state.looks(context):
        work.mark(first | trees, branches)
        first = set()
    return state, active, _files(context, state.trees)


def _end_uploads(context: RepositoryContext) -> None:
    """Delete the rows of uploads that were not completed in their time."""
    now = context.clock.now_ms()

    def end(tx: Transaction) -> None:
        for upload in list(open_uploads(tx, context.uid)):
            if now >= upload.created_ms + OPEN_MS_MAX:
                tx.delete(UPLOAD[context.uid].pack(upload.id))

    context.space.write(end)
    step("collect.uploads_ended")


class LocalWork:
    """The work of a collection in this process.

    Addresses of needed objects are sorted hashes: one that collides with another only retains more.
    """

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._ranges: set[str] = set()
        self._parts = [np.zeros(0, np.uint64)]

    def mark(self, trees: set[str], branches: dict[str, BranchRecord]) -> None:
        """Note the hashes of what is named."""
        ranges = (open_range(self._context.ranges, entry).column("address") for entry in self._entries(trees))
        for addresses in chain(ranges, staged_addresses(self._context, branches)):
            self._parts.append(np.unique(address_hashes(self._context.namespace, addresses)))
            if len(self._parts) > 64:
                self._parts = [np.unique(np.concatenate(self._parts))]

    def _entries(self, trees: set[str]) -> Iterator[RangeEntry]:
        for tree in sorted(trees):
            for entry in self._context.index(tree).entries:
                if entry.id not in self._ranges:
                    yield entry
                    self._ranges.add(entry.id)  # now its objects are noted, and not when it was missing

    def sweep(self, before: int, uploads: Container[str], garbage: Garbage, check: Callable[[], None]) -> None:
        """Go through the objects of the namespace."""
        data = self._context.data
        for infos in _blocks(old_objects(data.list(DATA, prefix=f"{DATA}/"), before, uploads)):
            needed = self._holds([info.name for info in infos])
            unneeded = [info for info, there in zip(infos, needed, strict=True) if not there]
            for info in unneeded:
                garbage.add(info.name)
            garbage.objects += len(unneeded)
            garbage.object_bytes += sum(info.size for info in unneeded)
            if not garbage.dry_run and unneeded:
                check()
                data.delete(*(info.name for info in unneeded))
                step("collect.objects_deleted")

    def _holds(self, names: list[str]) -> npt.NDArray[np.bool_]:
        """The names of needed objects, as a mask."""
        if len(self._parts) > 1:
            self._parts = [np.unique(np.concatenate(self._parts))]
        hashes = hash_keys(pa.array(names, pa.string()))
        part = self._parts[0]
        at = np.minimum(np.searchsorted(part, hashes), max(0, len(part) - 1))
        return part[at] == hashes if len(part) else np.zeros(len(names), np.bool_)


def old_objects(infos: Iterable[ObjectInfo], before: int, uploads: Container[str]) -> Iterator[ObjectInfo]:
    """The objects whose names tell a time before another, and that belong to no upload."""
    for info in infos:
        time = time_of(info.name)
        if time is not None and time < before and stem_of(info.name) not in uploads:
            yield info


def address_hashes(namespace: str, addresses: pa.Array) -> npt.NDArray[np.uint64]:
    """The hashes of addresses, as names below the namespace where they lie there."""
    whole = pc.match_substring(addresses, "://")
    if not pc.any(whole).as_py():
        return hash_keys(addresses)
    names = [relative_address(namespace, address) for address in addresses.to_pylist()]
    return hash_keys(pa.array(names, pa.string()))


def staged_addresses(context: RepositoryContext, branches: dict[str, BranchRecord]) -> Iterator[pa.Array]:
    """The addresses in the tokens of branches, of one moment: else what moves from one to another is in neither."""
    with context.space.read() as tx:
        for record in branches.values():
            for layer in record.layers:
                if layer.index is None:
                    for block in token_stream(at(tx), layer.id, Bounds(rows=NAMES_A_BLOCK)).blocks:
                        yield block.column("address")


def _blocks(infos: Iterator[ObjectInfo]) -> Iterator[list[ObjectInfo]]:
    while block := list(islice(infos, NAMES_A_BLOCK)):
        yield block


def _collect_ranges(
    context: RepositoryContext, state: Marked, needed: set[str], garbage: Garbage, grace_ms: int,
    check: Callable[[], None],
) -> None:  # fmt: skip
    """Delete ranges and indexes that no row has named for the grace time; those that were named meanwhile stay."""
    unreferenced = Unneeded.of(
        context,
        (
            info.name
            for folder in ("ranges", "indexes")
            for info in context.ranges.list(folder)
            if info.name not in needed
        ),
    )
    due = unreferenced.before(context.clock.now_ms() - grace_ms)
    garbage.retained = len(unreferenced.since) - len(due)
    if garbage.dry_run:
        _count(garbage, due)
        return
    names = _delete_ranges(context, state, garbage, due, check) if due else []
    unreferenced.note(context, names)


def _delete_ranges(
    context: RepositoryContext, state: Marked, garbage: Garbage, unneeded: list[str], check: Callable[[], None]
) -> list[str]:
    """Delete files, but those that were named meanwhile; the names that need no other look."""
    gone: list[str] = []
    lease = begin_collecting(context)
    try:
        step("collect.deleting")
        later = Marked.read(context)
        if later.importing:
            return gone
        needed = _files(context, later.trees - state.trees)
        # The lease is looked at before all that a store deletes at once. So a process that is halted for longer than a
        # lease deletes no more than that of what was named meanwhile: one file of a folder, one request to a bucket.
        size = 1 if context.ranges.local_path(unneeded[0]) is not None else FILES_A_REQUEST
        for at in range(0, len(unneeded), size):
            held = renew_collecting(context, lease)
            if held is None:
                break  # the next collection goes on
            lease = held
            check()
            block = unneeded[at : at + size]
            names = [name for name in block if name not in needed]
            context.ranges.delete(*names)
            _count(garbage, names)
            gone += block
    finally:
        end_collecting(context, lease)
    step("collect.deleted")
    return gone


def _collect_scratch(context: RepositoryContext, before: int, garbage: Garbage) -> None:
    """Delete the scratch files of those who died: what is older than the grace time."""
    names = [
        info.name for info in context.ranges.list(SCRATCH)
        if (time := scratch_time(info.name)) is not None and time < before
    ]  # fmt: skip
    garbage.scratch += len(names)
    if names and not garbage.dry_run:
        context.ranges.delete(*names)


def _files(context: RepositoryContext, trees: set[str]) -> set[str]:
    names = {index_name(tree) for tree in trees}
    return names | {range_name(entry.id) for tree in trees for entry in context.index(tree).entries}


def _count(garbage: Garbage, names: list[str]) -> None:
    garbage.ranges += sum(name.startswith("ranges/") for name in names)
    garbage.indexes += sum(name.startswith("indexes/") for name in names)
    for name in names:
        garbage.add(name)
