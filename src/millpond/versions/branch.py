"""A branch: objects are put, read and deleted on it, and what was staged is committed, merged, reset.

    fix = pond.repository("flights").branch("fix")
    fix.put("2013/01.csv", body)
    fix.commit("January")
    pond.repository("flights").branch("main").merge("fix")

`Branch.staging` has the verbs of bulk and of maintenance, `Branch.uploads` multipart uploads, and `Branch.imports`
takes in what lies elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from millpond.argument_types import need_type
from millpond.kernel.job_reports import JobReport
from millpond.kernel.keys import starting
from millpond.versions.commits import Message, commit_staged
from millpond.versions.compaction import Compacted, compact, is_due
from millpond.versions.diffs import Change, change_page, change_rows, two_dot
from millpond.versions.graph.commits import Commit
from millpond.versions.imports.importing import Imports
from millpond.versions.merges import Merging, Resolutions, Strategy, cherry_pick, merge_into, revert
from millpond.versions.multipart import Uploads
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry, check_path
from millpond.versions.objects.uploads import data_name, read_bytes, upload
from millpond.versions.paging import Listing, Page
from millpond.versions.reference import Reference
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.resets import reset_all, reset_hard, reset_path, restore_prefix
from millpond.versions.staging.branches import BranchRecord, BranchState, get_branch
from millpond.versions.staging.bulk import Rows, stage_rows
from millpond.versions.staging.publishing import collections
from millpond.versions.staging.reads import at, is_dirty, view_of
from millpond.versions.staging.segments import normal_batch, push_segment, write_segment
from millpond.versions.staging.writes import (
    Condition,
    delete_paths,
    delete_prefix,
    move_entry,
    put_entry,
    set_metadata,
)

__all__ = ("Branch", "Staging")


class Branch(Reference):
    """A branch of a repository, to read and to change. All methods raise `NotFound` when it is not there.

    Each change also raises `Denied` in a read-only repository or, but for a merge, on a protected branch.
    `force` lets it pass in a read-only repository.
    """

    def __init__(self, context: RepositoryContext, name: str) -> None:
        super().__init__(context, name)
        self.name = name
        self.staging = Staging(context, name)
        self.uploads = Uploads(context, name)
        self.imports = Imports(context, name)

    def put(
        self, path: str, body: bytes | memoryview | Iterable[bytes | memoryview], *,
        content_type: str = DEFAULT_CONTENT_TYPE, metadata: Mapping[str, str] | None = None,
        if_absent: bool = False, if_match: str | None = None, force: bool = False,
    ) -> Entry:  # fmt: skip
        """Store bytes at a path and stage the entry; an iterable of chunks is streamed.

        `if_absent`: only where nothing is. `if_match`: only over an entry with this checksum.

        Raises: `Conflict`, kind `precondition_failed`; `Invalid` for a path; `Unavailable` when the place is full.
        """
        check_path(path)
        context = self.context
        condition = Condition(if_absent, if_match) if if_absent or if_match is not None else None
        with context.space.read() as tx:  # before anything is uploaded in vain
            context.check_writable(tx, self.name, "write to", force=force)
            get_branch(tx, context.uid, self.name)
        stored = upload(context.data, data_name(context.clock.now_ms(), context.clock.random_id()), body)
        entry = Entry(
            path, stored.address, stored.size, context.seconds(), stored.checksum, content_type, dict(metadata or {})
        )
        put_entry(context, self.name, entry, condition, force=force)
        return entry

    def delete(self, path: str, *, force: bool = False) -> bool:
        """Delete a path; False when nothing was there, which is no error."""
        return delete_paths(self.context, self.name, [path], force=force) > 0

    def copy(
        self, path: str, target: str, *, ref: str | None = None, shared: bool = True, force: bool = False
    ) -> Entry:
        """Put the entry at a path, of this branch or of a ref, at another one; the bytes are shared, or copied.

        Raises: `NotFound` for the path, or for bytes that are to be copied, kind `data_missing`.
        """
        source, context = self if ref is None else Reference(self.context, ref), self.context
        entry = replace(source.stat(path), path=target, mtime=context.seconds())
        if not shared:
            store, name = source.context.locate(entry.address)
            chunks = read_bytes(store, name, 0, entry.size)
            stored = upload(context.data, data_name(context.clock.now_ms(), context.clock.random_id()), chunks)
            entry = replace(entry, address=stored.address)
        put_entry(context, self.name, entry, force=force)
        return entry

    def commit(
        self, message: str = "", *, committer: str = "", metadata: Mapping[str, str] | None = None,
        created: int | None = None, allow_empty: bool = False, prefixes: Sequence[str] | None = None,
        source_tree: str | None = None, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Commit what is staged; with `prefixes` only what lies below them. `created` counts seconds.

        Commits of one branch wait for one another. `source_tree`: an index that becomes the state of a clean branch.

        Raises: `Invalid`, kind `no_changes` (`values["commit"]` is the head, which has what was staged before).
        """
        words = Message(message, committer, metadata or {}, created)
        with self._reported("commit") as job:
            commit = commit_staged(
                self.context, self.name, words, allow_empty=allow_empty, force=force, prefixes=prefixes,
                source_tree=source_tree,
            )  # fmt: skip
            job.note(commit=commit.id)
        return commit

    def merge(
        self, source: str, message: str = "", *, committer: str = "", metadata: Mapping[str, str] | None = None,
        strategy: str | Strategy = Strategy.DEFAULT, resolutions: Resolutions = (), squash: bool = False,
        allow_empty: bool = False, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Merge a ref into this branch, on which nothing may be staged; the merge commit.

        Raises: `MergeConflict` with the `paths`; `Invalid`, kinds `branch_dirty`, `no_changes`, `merge_strategy`,
        `merge_take`.
        """
        merging = Merging.of(strategy, resolutions, squash=squash, allow_empty=allow_empty)
        words = Message(message, committer, metadata or {})
        with self._reported("merge") as job:
            commit = merge_into(self.context, self.name, source, words, merging, force=force)
            job.note(commit=commit.id)
        return commit

    @contextmanager
    def _reported(self, act: str) -> Iterator[JobReport]:
        """An act on this branch, in the job set `repository/REPOSITORY/BRANCH`."""
        with self.context.reports.job(f"repository/{self.context.name}/{self.name}", act=act) as job:
            job.running()
            yield job

    def diff(self, prefix: str = "", *, delimiter: str = "", after: str = "", amount: int = 100) -> Page[Change]:
        """One page of what is staged: the changes from the head."""
        listing = Listing(prefix, delimiter, after, amount)
        with self._reading() as (tx, view):
            return change_page(lambda keys: two_dot(self.context, at(tx), view.head, view, keys), listing)

    def reset(self, *, path: str | None = None, prefix: str | None = None, force: bool = False) -> None:
        """Take back what is staged: at a path, below a prefix, or all of it."""
        if path is not None:
            reset_path(self.context, self.name, path, force=force)
        elif prefix is not None:
            restore_prefix(self.context, self.name, prefix, force=force)
        else:
            reset_all(self.context, self.name, force=force)

    def revert(
        self, ref: str, *, parent_number: int | None = None, committer: str = "", message: str = "",
        metadata: Mapping[str, str] | None = None, allow_empty: bool = False, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Undo a commit by a new one; of a merge, what it brought to the parent of that number, counted from 1.

        Raises: `MergeConflict`; `Invalid`, kinds `branch_dirty`, `no_changes`, `parent_number`; `Conflict`, kind
        `revert_parent`.
        """
        words = Message(message, committer, metadata or {})
        return revert(
            self.context, self.name, ref, words, parent_number=parent_number, allow_empty=allow_empty, force=force
        )

    def cherry_pick(
        self, ref: str, *, parent_number: int | None = None, committer: str = "", message: str | None = None,
        metadata: Mapping[str, str] | None = None, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Make the changes of a commit again here.

        Raises: `MergeConflict`; `Invalid`, kinds `branch_dirty`, `parent_number`, `cherry_pick_parent`.
        """
        return cherry_pick(
            self.context, self.name, ref, committer, parent_number=parent_number, text=message, metadata=metadata,
            force=force,
        )  # fmt: skip


class Staging:
    """Staged entries of a branch, in bulk; and their maintenance."""

    def __init__(self, context: RepositoryContext, name: str) -> None:
        self.context = context
        self.name = name

    def record(self) -> BranchRecord:
        """The branch's record: head, tokens, compacted index."""
        with self.context.space.read() as tx:
            return get_branch(tx, self.context.uid, self.name)

    def state(self) -> BranchState:
        """The head, and the layers of what is staged."""
        with self.context.space.read() as tx:
            record = get_branch(tx, self.context.uid, self.name)
            return BranchState(
                record.commit_id, record.hidden, is_dirty(self.context, at(tx), view_of(self.context, tx, record)),
                len(record.sealed), record.compacted_index, record.compaction_start_time,
            )  # fmt: skip

    def link(self, entry: Entry, *, if_absent: bool = False, if_match: str | None = None, force: bool = False) -> Entry:
        """Stage an entry whose bytes lie at its address already.

        Raises: `Conflict`, kind `precondition_failed`.
        """
        need_type("entry", entry, Entry)
        condition = Condition(if_absent, if_match) if if_absent or if_match is not None else None
        put_entry(self.context, self.name, entry, condition, force=force)
        return entry

    def stage(self, rows: Rows, *, force: bool = False) -> int:
        """Stage the rows of a table, or of a stream of batches, all or none; how many. Columns: `path`, and any of
        `address`, `size`, `mtime`, `checksum`, `content_type`, `metadata`, `deleted`. Of one path the last row counts.

        Raises: `Invalid` for columns or paths.
        """
        count, staged = stage_rows(self.context, self.name, rows, force=force)
        if staged is not None:
            self._compact_if_due()
        return count

    def push(self, batches: Iterable[pa.RecordBatch], *, force: bool = False) -> int:
        """Stage batches that are sorted by path over all of them, as one segment, in bounded memory; how many rows.

        Raises: `Invalid` for columns, paths or an order that is wrong: nothing is staged then. `Unavailable`, kind
        `ranges_collected`, when garbage with the same content was collected meanwhile: push again.
        """
        need_type("batches", batches, Iterable)
        now, count = self.context.seconds(), collections(self.context)
        index = write_segment(self.context, (normal_batch(batch, mtime=now) for batch in batches))
        if index.count:
            push_segment(self.context, self.name, index, count, force=force)
            self._compact_if_due()
        return index.count

    def _compact_if_due(self) -> None:
        if is_due(self.context, self.name):
            self.context.after(lambda: self.compact(paused=True))

    def delete_many(self, paths: Sequence[str], *, force: bool = False) -> int:
        """Delete paths, all or none; how many of them were there."""
        return delete_paths(self.context, self.name, paths, force=force)

    def delete_prefix(self, prefix: str, *, force: bool = False) -> None:
        """Delete all paths that begin with a prefix, by one range tombstone."""
        need_type("prefix", prefix, str)
        delete_prefix(self.context, self.name, prefix, fresh_token=self.context.clock.random_id(), force=force)

    def copy_prefix(self, prefix: str, target: str, *, ref: str | None = None, force: bool = False) -> int:
        """Stage the entries below a prefix, of this branch or of a ref, below another one, all or none; how many.

        The bytes are shared.

        Raises: `Invalid` for a path that becomes too long.
        """
        need_type("prefix", prefix, str)
        need_type("target", target, str)
        source, length = Reference(self.context, ref or self.name), len(prefix)

        def moved() -> Iterator[pa.RecordBatch]:
            for batch in source.entries(prefix):
                below = pc.utf8_slice_codeunits(batch.column("key").cast(pa.string()), length)
                paths = pc.binary_join_element_wise(pa.scalar(target), below, "")
                yield batch.set_column(0, "path", paths).drop_columns(["mtime"])

        return self.push(moved(), force=force)

    def move(self, path: str, target: str, *, force: bool = False) -> Entry:
        """Let the entry at a path be at another one, in one write; whatever is there goes.

        Raises: `NotFound` for the path.
        """
        return move_entry(self.context, self.name, path, target, force=force)

    def set_metadata(self, path: str, metadata: Mapping[str, str], *, force: bool = False) -> Entry:
        """Replace the user metadata of an entry.

        Raises: `NotFound` for the path.
        """
        need_type("metadata", metadata, Mapping)
        return set_metadata(self.context, self.name, path, dict(metadata), force=force)

    def restore(self, prefix: str, ref: str, *, force: bool = False) -> int:
        """Stage what makes the paths below a prefix what they are at a ref; how many changed. No bytes are copied."""
        need_type("prefix", prefix, str)
        return restore_prefix(self.context, self.name, prefix, ref, force=force)

    def reset_hard(self, ref: str, *, force: bool = False) -> Commit:
        """Move the head to another commit; nothing may be staged, or with `force` it is forgotten.

        Raises: `Invalid`, kind `branch_dirty`.
        """
        return reset_hard(self.context, self.name, ref, force=force)

    def compact(self, *, paused: bool = False) -> Compacted:
        """Fold what is staged into a compacted index; `paused`: not if another compaction began lately."""
        return compact(self.context, self.name, paused=paused)

    def uncommitted(self, prefix: str = "") -> Iterator[pa.RecordBatch]:
        """The changes that are staged, as batches with the columns of `diffs.DIFFERENCES`, of one moment."""
        need_type("prefix", prefix, str)
        with self.context.space.read() as tx:
            view = view_of(self.context, tx, get_branch(tx, self.context.uid, self.name))
            for marked in two_dot(self.context, at(tx), view.head, view, starting(prefix)):
                yield change_rows(marked)
