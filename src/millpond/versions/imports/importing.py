"""An import, from its locations to a commit or a segment.

    locations ─ sorted blocks ─ merged ─ ranges, index ─┬▶ folded onto the head: commit
                                                        └▶ a segment over what is staged

Invariants:
* An import that cannot read its source fails before it writes anything.
* The branch changes by one write, to all of the import or not at all; a commit needs a branch with nothing staged.
* What is there is replaced as `locations.py` says. Where two locations have one path, an object counts over a table,
  a table over a prefix, and of each the later in the list.
* Memory holds a block of each location, and the ranges that are being written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from millpond.errors import Unavailable
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.ranges import Index, Spans, fold, write
from millpond.versions.commits import Message
from millpond.versions.graph.commits import Commit
from millpond.versions.imports.locations import (
    Location,
    ObjectLocation,
    PrefixLocation,
    ReadTable,
    TableLocation,
    check_readable,
    object_block,
    prefix_blocks,
    read_table,
    replaced,
    table_blocks,
)
from millpond.versions.objects.entries import CHANGES, ENTRIES, IDENTITY
from millpond.versions.repository_context import COMPRESSION, RepositoryContext
from millpond.versions.staging.branch_head import Built, Moving, check_clean, move_head
from millpond.versions.staging.layers import Bounds, Stream, combine, index_stream
from millpond.versions.staging.publishing import DELETING, Collected, check_there, collections
from millpond.versions.staging.segments import push_segment

__all__ = ("Imported", "Imports", "Watch")


@dataclass(frozen=True, slots=True)
class Imported:
    """The outcome of an import: how many entries it read, their index, and the commit, where there is one."""

    entries: int
    index: str
    commit: Commit | None


class Watch:
    """The watch over an import: it sees how far it is, ends it by raising an error, and takes part in its write."""

    def __call__(self, entries: int) -> None:
        """Take note of the number of entries read so far; called for each block."""

    def done(self, tx: Transaction, imported: Imported) -> None:
        """Take part in the write that changes the branch."""


class Imports:
    """Imports into a branch. `read_table` reads tables: by default in this process."""

    def __init__(self, context: RepositoryContext, branch: str, read_table: ReadTable = read_table) -> None:
        self._context = context
        self._branch = branch
        self._read_table = read_table

    def check(self, locations: Sequence[Location], *, force: bool = False, staged: bool = False) -> None:
        """Refuse an import that cannot end well: the branch, the locations.

        Raises: `NotFound`, `Denied`, `Unavailable` for branch or source; `Invalid` for an address or a dirty branch.
        """
        with self._context.space.read() as tx:
            self._context.check_writable(tx, self._branch, "write to" if staged else "commit to", force=force)
        if not staged:
            check_clean(self._context, self._branch)
        check_readable(self._context, locations, self._read_table)

    def commit(
        self, locations: Sequence[Location], message: str = "", *, committer: str = "",
        metadata: Mapping[str, str] | None = None, created: int | None = None, force: bool = False,
        watch: Watch | None = None,
    ) -> Imported:  # fmt: skip
        """Import and commit; on a branch with nothing staged.

        Raises: as `check`; what `watch` raises; `Invalid` for names and rows that no entry can have.
        """
        self.check(locations, force=force)
        context, watch = self._context, watch or Watch()
        count = collections(context)
        index, entries = self._write(locations, watch)
        words = Message(message, committer, metadata or {}, created)
        spans = Spans.of(keys for location in locations if (keys := replaced(location)) is not None)

        def build(moving: Moving) -> Built:
            _check_written(context, index, count)
            base = context.index(moving.head.tree)
            tree = index.id
            if base.count or "deleted" in index.schema.names:
                blocks = _counted(index_stream(context.ranges, index, Bounds(rows=1 << 15)), lambda _: watch(entries))
                tree = fold(context.ranges, base, blocks, spans, same=IDENTITY, compression=COMPRESSION).index.id
            step("versions.import_folded")
            return Built(words.commit(context, tree, [moving.head]))

        def done(tx: Transaction, commit: Commit) -> None:
            watch.done(tx, Imported(entries, index.id, commit))

        commit = move_head(context, self._branch, "commit to", build, clean=True, force=force, besides=done)
        return Imported(entries, index.id, commit)

    def stage(self, locations: Sequence[Location], *, force: bool = False, watch: Watch | None = None) -> Imported:
        """Import over what is staged, as one segment; nothing is removed.

        Raises: as `check`; what `watch` raises.
        """
        self.check(locations, force=force, staged=True)
        count, watch = collections(self._context), watch or Watch()
        index, entries = self._write(locations, watch)
        imported = Imported(entries, index.id, None)
        push_segment(
            self._context, self._branch, index, count, force=force, besides=lambda tx: watch.done(tx, imported)
        )
        return imported

    def _write(self, locations: Sequence[Location], watch: Watch) -> tuple[Index, int]:
        read = _Read(watch)
        blocks = read.counted(self._merged(locations))
        if not any(isinstance(location, TableLocation) for location in locations):
            blocks = (block.select(ENTRIES.names) for block in blocks)
            schema = ENTRIES
        else:
            schema = CHANGES
        index = write(self._context.ranges, blocks, self._context.boundaries, schema=schema, compression=COMPRESSION)
        step("versions.import_written")
        return index, read.entries

    def _merged(self, locations: Sequence[Location]) -> Iterator[pa.RecordBatch]:
        """The changes of all locations, one a path."""
        context, read = self._context, self._read_table
        objects = [location for location in locations if isinstance(location, ObjectLocation)]
        tables = [
            table_blocks(context, location, read) for location in locations if isinstance(location, TableLocation)
        ]
        prefixes = [prefix_blocks(context, location) for location in locations if isinstance(location, PrefixLocation)]
        newest_first = [*reversed(tables), *reversed(prefixes)]
        if objects:
            newest_first.insert(0, iter([object_block(context, objects)]))
        if len(newest_first) == 1:
            return newest_first[0]
        return combine([Stream(blocks) for blocks in newest_first])[0]


def _check_written(context: RepositoryContext, index: Index, count: int) -> None:
    """Refuse an index whose files were collected since they were written: its sources were read already."""
    if count == collections(context) != DELETING:
        return
    try:
        check_there(context, [index.id])
    except Collected as error:
        raise Unavailable(
            "garbage with the same content was collected during the import", kind="ranges_collected",
            hint="import again",
        ) from error  # fmt: skip


class _Read:
    """The entries that were read so far."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self.entries = 0

    def counted(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            self.entries += block.num_rows
            self._progress(self.entries)
            yield block


def _counted(blocks: Iterator[pa.RecordBatch], progress: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    return _Read(progress).counted(blocks)
