"""A reference: a state of a repository to read, named by an expression: `main`, `main@`, `v1~2`, `3f2a`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from numbers import Integral
from types import NoneType
from typing import TypeAlias, TypeVar

import pyarrow as pa

from millpond.argument_types import need_count, need_type
from millpond.errors import Invalid
from millpond.kernel.keys import KeyRange, starting
from millpond.kernel.listed import Listed
from millpond.kernel.page import behind
from millpond.kernel.space import ReadTransaction
from millpond.ranges import diff
from millpond.ranges.key_columns import key_column
from millpond.versions.faces import ReferenceFace
from millpond.versions.graph.commits import Commit, commit_not_found, find_commit, get_commit
from millpond.versions.graph.history import Window, log
from millpond.versions.objects.entries import IDENTITY, Entry, entries_of, path_list
from millpond.versions.objects.uploads import read_bytes
from millpond.versions.paging import Block, Listing, Page, page
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.branches import get_branch
from millpond.versions.staging.layers import Bounds
from millpond.versions.staging.publishing import guard_published
from millpond.versions.staging.reads import View, at, find_entry, find_in_index, head_view, view_of, visible
from millpond.versions.staging.writes import entry_not_found

__all__ = ("Reference", "filtered_log", "page_of", "view_at")

ENTRIES_ROWS = 1 << 14
T = TypeVar("T")
_Decode: TypeAlias = "Callable[[pa.RecordBatch], list[T]]"


def view_at(context: RepositoryContext, tx: ReadTransaction, expression: str) -> View:
    """The state that an expression names: of a branch with what is staged, unless it ends with `@`.

    Raises: `Invalid`, `NotFound`.
    """

    def read() -> View:
        resolved = context.graph.resolve(tx, expression)
        if resolved.staged and resolved.branch is not None:
            return view_of(context, tx, get_branch(tx, context.uid, resolved.branch))
        return head_view(get_commit(tx, context.graph.commits, resolved.commit).tree)

    return context.views.get(tx, expression, read)


class Reference(ReferenceFace):
    """A state to read. Nothing is looked up before it is read, and every read looks again.

    Each method raises `NotFound` for a ref that names nothing, `Invalid` for text that is no ref.
    """

    def __init__(self, context: RepositoryContext, expression: str) -> None:
        self.context = context
        self.expression = expression

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.context.name!r}, {self.expression!r})"

    def head(self) -> Commit:
        """The commit; of a branch its head."""
        with self.context.space.read() as tx:
            return self.context.graph.commit(tx, self.expression)

    def stat(self, path: str) -> Entry:
        """The entry at a path.

        Raises: `NotFound`, kind `entry_not_found`.
        """
        need_type("path", path, str)

        def find() -> Entry | None:
            with self.context.space.read() as tx:
                return find_entry(self.context, tx, view_at(self.context, tx, self.expression), path)

        entry = guard_published(find)
        if entry is None:
            raise entry_not_found(path)
        return entry

    def get(self, path: str) -> bytes:
        """All bytes at a path.

        Raises: `NotFound`; kind `data_missing` when the entry is there and its bytes are not.
        """
        return b"".join(self.read(path))

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes `[start, stop)` at a path, in chunks; all by default.

        Raises: as `get`.
        """
        need_type("start", start, Integral)
        need_type("stop", stop, Integral, NoneType)
        if start < 0:
            raise Invalid("bytes are counted from the first", kind="byte_range", start=start)
        entry = self.stat(path)
        store, name = self.context.locate(entry.address)
        return read_bytes(store, name, start, entry.size if stop is None else min(stop, entry.size))

    def list(
        self, prefix: str = "", *, delimiter: str = "", after: str = "", amount: int = 100, reverse: bool = False
    ) -> Page[Entry]:
        """One page of entries, in the order of the paths' bytes, from one moment."""
        return page_of(self, Listing(prefix, delimiter, after, amount, reverse), lambda rows: list(entries_of(rows)))

    def entries(self, prefix: str = "", *, after: str = "") -> Iterator[pa.RecordBatch]:
        """All entries as batches with the columns of `objects/entries.py`, in order.

        Of a commit they are of one state; of a branch every batch is of one moment, and the next may be of a later one.
        """
        need_type("prefix", prefix, str)
        need_type("after", after, str)
        keys = behind(starting(prefix), after.encode()) if after else starting(prefix)

        def read(keys: KeyRange) -> pa.RecordBatch | None:
            with self._reading() as (tx, view):
                return next(visible(self.context, at(tx), view, Bounds(keys, rows=ENTRIES_ROWS)), None)

        while True:
            batch = guard_published(partial(read, keys))
            if batch is None:
                return
            yield batch
            keys = behind(keys, batch.column("key")[-1].as_py())

    def log(
        self, window: Window | None = None, *, paths: Iterable[str] = (), prefixes: Iterable[str] = (),
        limit: int | None = None,
    ) -> Iterator[Commit]:  # fmt: skip
        """The commits from here back; with paths or prefixes only those that changed one of them, no merges."""
        need_type("window", window, Window, NoneType)
        need_count("limit", limit, NoneType)
        commits = filtered_log(self.context, self.head().id, window, path_list(paths), path_list(prefixes), limit)
        return Listed(f"the log of {self.expression}", commits)

    @contextmanager
    def _reading(self) -> Iterator[tuple[ReadTransaction, View]]:
        """One moment, and the state at it."""
        with self.context.space.read() as tx:
            yield tx, view_at(self.context, tx, self.expression)


def page_of(reference: Reference, listing: Listing, decode: _Decode[T]) -> Page[T]:
    """One page of what `decode` makes of the rows of entries.

    Raises: as the methods of a reference.
    """
    context = reference.context

    def read() -> Page[T]:
        with context.space.read() as tx:
            view = view_at(context, tx, reference.expression)

            def blocks(keys: KeyRange) -> Iterator[Block[T]]:
                bounds = Bounds(keys, listing.reverse, listing.amount + 1)
                return (_block(batch, decode) for batch in visible(context, at(tx), view, bounds))

            return page(blocks, listing)

    return guard_published(read)


def _block(batch: pa.RecordBatch, decode: _Decode[T]) -> Block[T]:
    def chosen(rows: Sequence[int]) -> list[T]:
        side_by_side = isinstance(rows, range) and rows.step == 1
        return decode(batch.slice(rows[0], len(rows)) if side_by_side else batch.take(pa.array(rows, pa.int64())))

    return Block(key_column(batch.column("key")), chosen)


def filtered_log(
    context: RepositoryContext, start: str, window: Window | None, paths: tuple[str, ...], prefixes: tuple[str, ...],
    limit: int | None,
) -> Iterator[Commit]:  # fmt: skip
    """The commits from one back; those alone, merges left out, that changed a path or something below a prefix."""

    def load(id_: str) -> Commit:
        with context.space.read() as tx:
            newest = find_commit(tx, context.graph.commits, id_)
        if newest is None:
            raise commit_not_found(id_)
        return newest

    commits = log(load, start, window)
    if paths or prefixes:
        empty = context.empty_index().id

        def touched(commit: Commit) -> bool:
            before = load(commit.parents[0]).tree if commit.parents else empty
            return not commit.merge and _changed(context, before, commit.tree, paths, prefixes)

        commits = filter(touched, commits)
    return islice(commits, limit)


def _changed(context: RepositoryContext, old: str, new: str, paths: tuple[str, ...], prefixes: tuple[str, ...]) -> bool:
    if old == new:
        return False
    for path in paths:
        before, after = (find_in_index(context, index, path) for index in (old, new))
        if before is None or after is None:
            if before is not after:
                return True
        elif not before.same(after):
            return True
    a, b = context.index(old), context.index(new)
    return any(
        next(diff(context.ranges, a, b, prefix=prefix, same=IDENTITY, limit=1), None) is not None for prefix in prefixes
    )
