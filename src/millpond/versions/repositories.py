"""The repositories of a space: made, found, listed and deleted.

    pond.repositories.create("flights")
    pond.repository("flights").branch("main").put("2013/01.csv", b"…")

A repository's *namespace* is the place of its bytes: a folder or `s3://bucket/prefix`. `_millpond/` in it holds ranges
and indexes, and a mark, so that no two repositories share a namespace.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from types import NoneType
from typing import Any, cast

from millpond.argument_types import need_type
from millpond.clock import Clock
from millpond.errors import AlreadyExists, Conflict, Denied, Invalid, MillpondError, NotFound
from millpond.json_forms import parse_object, to_json
from millpond.kernel.job_reports import NO_REPORTS, JobReports
from millpond.kernel.keys import starting, text_prefix
from millpond.kernel.moments import Moments
from millpond.kernel.page import behind, cut
from millpond.kernel.space import ReadTransaction, RemoteSpace, Space, Transaction, WouldBlock
from millpond.kernel.steps import step
from millpond.ranges import DEFAULT_BOUNDARIES, Boundaries, CachedObjects
from millpond.ranges.cache import RANGES_BYTES_MAX
from millpond.stores.objects import ObjectStore
from millpond.stores.objects.settled import settled_swap
from millpond.stores.objects.sources import Source, open_source
from millpond.versions.compaction import compact
from millpond.versions.entry_lookups import EntryLookups, EntryName
from millpond.versions.graph.commits import Commit, put_commit
from millpond.versions.graph.names import check_branch, check_repository
from millpond.versions.imports.jobs import ImportJobs
from millpond.versions.keyspaces import BRANCH, COMMIT, DELETED, IMPORT, REPOSITORY, SETTING, TAG, TURN, UPLOAD
from millpond.versions.measures import Measures
from millpond.versions.objects.entries import Entry
from millpond.versions.objects.signing import Signer
from millpond.versions.paging import Listing, Page
from millpond.versions.repository import Repository, new_branch
from millpond.versions.repository_context import (
    RepositoryContext,
    RepositoryRecord,
    get_repository,
    graph_of,
    parse_repository,
    put_repository,
)
from millpond.versions.restores import Restored, parse_head, restore_refs, split_lines
from millpond.versions.staging.branch_head import collect_tokens
from millpond.versions.staging.branches import BranchRecord, drop_tokens, find_branch, parse_branch
from millpond.versions.staging.head_lock import HeadLocks
from millpond.versions.staging.tombstone_counter import TombstoneCounter

__all__ = ("METADATA_FOLDER", "Background", "Repositories")

_LOG = logging.getLogger(__name__)
METADATA_FOLDER = "_millpond"
_MARK = "repository"
ROWS_DELETED = 5_000
CACHED_MAX = 1_000
"""Repositories that a process keeps ready."""


class Background:
    """Maintenance that nobody waits for: one thread, started with the first act."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="versions")
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, act: Callable[[], object]) -> None:
        """Run an act later; after `close`, not at all: the next open repairs what is left."""
        with self._lock:
            if not self._closed:
                self._threads.submit(_quietly, act)

    def close(self) -> None:
        """Finish the act that is running, and drop those behind it."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)


def _quietly(act: Callable[[], object]) -> None:
    try:
        act()
    except MillpondError as error:
        _LOG.warning("maintenance of versions failed: %s", error)


class Repositories:
    """All repositories of a space.

    `open_store` opens the place that a namespace names, `open_source` the root of addresses elsewhere, and `namespace`
    names that of a repository which names none. `after` runs maintenance; by default at once. `boundaries` are those of
    new repositories: they are part of the ids of trees. `ranges_bytes_max`: what each holds of its ranges in memory.
    `reports`: where commits and merges report to. `open_repository` makes the object of a repository.
    """

    def __init__(
        self, space: Space, clock: Clock, open_store: Callable[[str], ObjectStore], *,
        open_source: Callable[[str], Source] = open_source, after: Callable[[Callable[[], object]], None] = _quietly,
        boundaries: Boundaries = DEFAULT_BOUNDARIES, namespace: Callable[[str], str] = "local://{}".format,
        ranges_bytes_max: int = RANGES_BYTES_MAX, reports: JobReports = NO_REPORTS,
        open_repository: Callable[[RepositoryContext, RepositoryRecord], Repository] = Repository,
    ) -> None:  # fmt: skip
        self.space = space
        self.clock = clock
        self._open_store = open_store
        self._open_source = open_source
        self._after = after
        self._boundaries = boundaries
        self._namespace = namespace
        self._ranges_bytes_max = ranges_bytes_max
        self._reports = reports
        self._open_repository = open_repository
        self._head_locks = HeadLocks(space, clock)
        self.signer = Signer(space, clock)
        self.imports = ImportJobs()
        self.tombstones = TombstoneCounter(self._offered)
        self.measures = Measures()
        self._sources: dict[str, Source] = {}
        self._cache: dict[str, tuple[bytes, Repository, Repository]] = {}
        self._current: Moments[tuple[bytes, Repository, Repository]] = Moments()
        self._stores: dict[str, tuple[ObjectStore, CachedObjects]] = {}
        self._compacting: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._swept = False
        self.lookups = None
        """Lookups of entries that share their journeys; None where reads need none."""
        if hasattr(space, "read_together"):
            self.lookups = EntryLookups(cast("RemoteSpace", space), self._row_in)

    def __repr__(self) -> str:
        return f"Repositories({type(self.space).__name__})"

    def close(self) -> None:
        """Stop the imports that run."""
        self.imports.close()

    def create(
        self, name: str, namespace: str | None = None, *, default_branch: str = "main", read_only: bool = False,
        metadata: Mapping[str, str] | None = None, bare: bool = False,
    ) -> Repository:  # fmt: skip
        """A new repository with one branch and one commit; without a namespace its bytes lie beside the pond's.

        A `bare` one whose namespace is that of a repository of this name which is gone has no branch: a dump that is
        stored there brings them back.

        Raises: `AlreadyExists`; `Invalid` for names, and kind `namespace_used` for a namespace of another repository.
        """
        check_repository(name)
        check_branch(default_branch)
        need_type("metadata", metadata, Mapping, NoneType)
        uid = self.clock.random_id()
        record = RepositoryRecord(
            name, uid, namespace or self._namespace(f"{name}-{uid}"), default_branch, self.clock.now_ms() // 1000,
            read_only, dict(metadata or {}),
        )  # fmt: skip
        marked = self._marked(record.namespace) if bare else {}
        if marked.get("repository") == name:
            self._make_bare(replace(record, uid=marked["uid"]))
            return self.get(name)
        with self.space.read() as tx:  # before a place is marked for ever
            _check_absent(tx, name)
            _check_apart(tx, record.namespace)
        self._check_above(record.namespace)
        self._mark(record)
        context = self.context(record)
        tree = context.empty_index().id
        commit = Commit.make(tree, (), committer="", message="Repository created", created=record.created)
        token = self.clock.random_id()

        def create(tx: Transaction) -> None:
            _check_absent(tx, name)
            _check_apart(tx, record.namespace)
            put_commit(tx, context.graph.commits, commit)
            new_branch(tx, uid, default_branch, BranchRecord(commit.id, token))
            put_repository(tx, record)

        step("versions.namespace_marked")
        self.space.write(create)
        return self._open_repository(context, record)

    def _mark(self, record: RepositoryRecord) -> None:
        ranges = cast("ObjectStore", self._store(record.namespace)[1].inner)
        mark = to_json({"repository": record.name, "uid": record.uid})
        try:
            settled_swap(ranges, _MARK, mark, None, self.clock)
        except Conflict as error:
            raise _used(record.namespace) from error

    def _marked(self, namespace: str) -> dict[str, Any]:
        """The name and the uid of the repository that has a namespace, or had it."""
        try:
            return parse_object(bytes(self._store(namespace)[1].inner.get(_MARK)))
        except NotFound:
            return {}

    def _check_above(self, namespace: str) -> None:
        """Refuse a namespace inside one that a repository has or had, of this pond or of another."""
        scheme, colon, name = namespace.rpartition("://")
        for above in PurePosixPath(name).parents:
            with suppress(Denied):  # what may not be looked at has no mark of ours
                if above.name and self._open_store(f"{scheme}{colon}{above}").exists(f"{METADATA_FOLDER}/{_MARK}"):
                    raise _used(namespace)

    def get(self, name: str, *, wait: bool = True) -> Repository:
        """The repository of that name, looked up without a wait if need be.

        Raises: `NotFound`; without `wait` also `WouldBlock`.
        """
        repository = self._get(name, wait=wait)[1]
        if wait:
            self._sweep_once()
        return repository

    def _sweep_once(self) -> None:
        """Sweep, once in a process: a crash may have left rows that are to go."""
        if not self._swept:
            self._swept = True
            self._after(self.sweep)

    def remembered(self, name: str) -> Repository | None:
        """The repository of that name as it was when it was last looked up here; None when it was not.

        It may be gone: for writes that begin by looking up its record, and are then given the one of `get`.
        """
        cached = self._cache.get(name)
        return None if cached is None else cached[1]

    def get_at_once(self, name: str) -> Repository:
        """The repository of that name, for reads that must not wait: they raise `WouldBlock`.

        Raises: `NotFound`, `WouldBlock`.
        """
        return self._get(name, wait=False)[2]

    def _get(self, name: str, *, wait: bool) -> tuple[bytes, Repository, Repository]:
        """The row of a repository, and the repository of that row, made once."""
        need_type("name", name, str)
        if not wait and not hasattr(self.space, "last_change"):
            raise WouldBlock("reads of a database wait", hint="read where waiting is allowed")
        with self.space.read(wait=wait) as tx:
            return self._current.get(tx, name, lambda: self._of_row(name, tx.get(REPOSITORY.pack(name))))

    def find_entries(self, names: Sequence[EntryName]) -> Sequence[tuple[RepositoryContext, Entry] | MillpondError]:
        """As `EntryLookups.find_all`, in a space that has them."""
        assert self.lookups is not None
        return self.lookups.find_all(names)

    def _row_in(self, tx: ReadTransaction, name: str) -> Repository:
        self._sweep_once()
        return self._of_row(name, tx.get(REPOSITORY.pack(name)))[1]

    def _of_row(self, name: str, row: bytes | None) -> tuple[bytes, Repository, Repository]:
        cached = self._cache.get(name)
        if cached is not None and cached[0] == row:
            return cached
        if row is None:
            raise NotFound("repository not found", kind="repository_not_found", repository=name)
        record = parse_repository(row, name)
        context = self.context(record)
        cached = (
            row, self._open_repository(context, record), self._open_repository(context.at_once() or context, record),
        )  # fmt: skip
        with self._lock:
            if len(self._cache) >= CACHED_MAX:
                self._cache.clear()
            self._cache[name] = cached
        return cached

    def list(self, prefix: str = "", *, after: str = "", amount: int = 100) -> Page[RepositoryRecord]:
        """One page of repositories, by name."""
        listing = Listing(prefix, "", after, amount)
        keys = starting(REPOSITORY.packed + text_prefix(prefix))
        if after:
            keys = behind(keys, REPOSITORY.pack(after))
        with self.space.read() as tx:
            rows, more = cut(tx.scan(keys), listing.amount)
        records = [parse_repository(row, str(REPOSITORY.unpack(key)[0])) for key, row in rows]
        return Page(tuple(records), more, records[-1].name if more else "")

    def delete(self, name: str) -> None:
        """Delete a repository: its branches, tags and commits. Its namespace stays as it is, and is never used again.

        Raises: `NotFound`.
        """

        def delete(tx: Transaction) -> str:
            record = get_repository(tx, name)
            tx.delete(REPOSITORY.pack(name))
            tx.put(DELETED.pack(record.uid), b"")
            return record.uid

        self.space.write(delete)
        step("versions.repository_deleted")
        self._after(self.sweep)

    def restore(
        self, name: str, chunks: Iterable[bytes], *, force: bool = False,
        check_namespace: Callable[[str], object] = str,
    ) -> Restored:  # fmt: skip
        """Restore the commits, tags, branches and settings of a dump, all or none; `chunks` are its bytes.

        They become those of the repository, which nobody used yet. Without one of that name it is made, in the
        namespace and with the uid that the dump names: where the rows were lost, and the bytes were not.
        `check_namespace` refuses a namespace that the caller may not name.

        Raises: `Invalid`, kinds `dump_damaged`, `dump_format`, `dump_incomplete`; `Conflict`, kinds `repository_used`
        and, where the dump's repository still has another name, `repository_lives`.
        """
        lines = split_lines(chunks)
        head = next(lines, b"")
        record = parse_head(head)
        with self.space.read() as tx:
            row = tx.get(REPOSITORY.pack(check_repository(name)))
        if row is None:
            check_namespace(record.namespace)
            self._make_bare(replace(record, name=name))
        step("restores.repository_made")
        try:
            restored = restore_refs(self.get(name).context, head, lines, force=force)
        except MillpondError:
            if row is None:
                self.delete(name)
            raise
        if row is None and record.read_only:
            self.get(name).alter(read_only=True)
        return restored

    def _make_bare(self, record: RepositoryRecord) -> None:
        """Make a repository without branches in the namespace that it had before.

        Raises: `Conflict`; `Invalid` for a namespace that is not its own.
        """
        self.sweep()
        if self._marked(record.namespace).get("uid") != record.uid:
            raise Invalid(
                "the namespace is not that of the dump's repository", kind="dump_incomplete",
                namespace=record.namespace, repository=record.name,
                hint="to restore elsewhere, copy its bytes to a new repository's namespace, and restore into that one",
            )  # fmt: skip

        def make(tx: Transaction) -> None:
            _check_absent(tx, record.name)
            lives = [str(REPOSITORY.unpack(key)[0]) for key, row in tx.scan(REPOSITORY.range())
                     if parse_repository(row, "").uid == record.uid]  # fmt: skip
            if lives:
                raise Conflict(
                    "the repository of this dump is still there", kind="repository_lives", repository=lives[0],
                    hint="delete it first; or restore into a new repository that has a copy of its bytes",
                )  # fmt: skip
            put_repository(tx, replace(record, read_only=False))

        self.space.write(make)

    def sweep(self) -> None:
        """Delete the rows of deleted repositories and of dropped tokens: what a crash may have left, too."""
        with self.space.read() as tx:
            uids = [str(DELETED.unpack(key)[0]) for key in tx.keys(DELETED.range())]
        for uid in uids:
            while self.space.write(lambda tx, uid=uid: _sweep_repository(tx, uid)):  # type: ignore[misc]
                step("versions.repository_swept")
        collect_tokens(self.space)

    def context(self, record: RepositoryRecord) -> RepositoryContext:
        """The components of a repository."""
        data, ranges = self._store(record.namespace)

        def head(tx: ReadTransaction, branch: str) -> str | None:
            branch_record = find_branch(tx, record.uid, branch)
            return None if branch_record is None else branch_record.commit_id

        return RepositoryContext(
            record.name, record.uid, record.namespace, self.space, self.clock, data, ranges,
            graph_of(record.uid, head), self._head_locks, self.tombstones, self._after, self.source,
            self.signer, self._boundaries, self.measures,
            reports=self._reports,
        )  # fmt: skip

    def _store(self, namespace: str) -> tuple[ObjectStore, CachedObjects]:
        with self._lock:
            if namespace not in self._stores:
                ranges = self._open_store(f"{namespace.rstrip('/')}/{METADATA_FOLDER}")
                self._stores[namespace] = (
                    self._open_store(namespace),
                    CachedObjects(ranges, bytes_max=self._ranges_bytes_max),
                )
            return self._stores[namespace]

    def source(self, root: str) -> Source:
        """The source at a root, opened once.

        Raises: `Invalid` for a root that is none.
        """
        with self._lock:
            if root not in self._sources:
                self._sources[root] = self._open_source(root)
            return self._sources[root]

    def _offered(self, uid: str, branch: str, token: str) -> bool:
        """Take a branch from the sensor: compact it in the background, once at a time."""
        key = (uid, branch)
        with self._lock:
            if key in self._compacting:
                return False
            self._compacting.add(key)

        def act() -> None:
            try:
                record = self._record_of(uid)
                if record is not None:
                    compact(self.context(record), branch, paused=True)
            finally:
                with self._lock:
                    self._compacting.discard(key)

        self._after(act)
        return True

    def _record_of(self, uid: str) -> RepositoryRecord | None:
        with self.space.read() as tx:
            records = (parse_repository(row, "") for _, row in tx.scan(REPOSITORY.range()))
            return next((record for record in records if record.uid == uid), None)


def _used(namespace: str) -> Invalid:
    return Invalid(
        "storage namespace already in use", kind="namespace_used", namespace=namespace,
        hint="name a place that no repository ever had, neither inside that of another one nor around it",
    )  # fmt: skip


def _check_apart(tx: ReadTransaction, namespace: str) -> None:
    """Refuse a namespace inside that of a repository, or around it."""
    own = f"{namespace.rstrip('/')}/"
    for _, row in tx.scan(REPOSITORY.range()):
        other = f"{parse_repository(row, '').namespace.rstrip('/')}/"
        if own.startswith(other) or other.startswith(own):
            raise _used(namespace)


def _check_absent(tx: ReadTransaction, name: str) -> None:
    if tx.get(REPOSITORY.pack(name)) is not None:
        raise AlreadyExists("not unique", kind="repository_exists", repository=name, hint="choose another name")


def _sweep_repository(tx: Transaction, uid: str) -> bool:
    """Delete rows of a deleted repository; True when there may be more."""
    for number, (key, row) in enumerate(tx.scan(BRANCH[uid].range())):
        if number == ROWS_DELETED:
            return True
        record = parse_branch(row, str(BRANCH[uid].unpack(key)[0]))
        drop_tokens(tx, (record.staging_token, *record.sealed_tokens))
        tx.delete(key)
    for keyspace in (TAG, COMMIT, SETTING, TURN, UPLOAD, IMPORT):
        if tx.delete_range(keyspace[uid].range(), ROWS_DELETED) == ROWS_DELETED:
            return True
    tx.delete(DELETED.pack(uid))
    return False
