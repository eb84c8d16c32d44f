"""Writes to a branch: each is one transaction that reads the branch, checks, and writes to its staging token.

What a condition or a deletion must know about the layers that are files (segments and the index) is read before the
transaction, for they never change. Within it only rows are read. When the branch has other files by then, the write
begins anew.

Invariants:
* An acknowledged write is in the token that was the staging token when it was committed.
* A condition holds in the transaction that writes.
* A tombstone is written only where a layer below shows the path; a row that hides nothing goes instead.
* No range tombstone of a token lies within another of that token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

import pyarrow as pa

from millpond.errors import Conflict, NotFound
from millpond.kernel.scans import put_rows
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.steps import step
from millpond.versions.graph.commits import get_commit
from millpond.versions.keyspaces import CLEARED, STAGED
from millpond.versions.objects.entries import Entry, check_path, path_list
from millpond.versions.objects.staged_rows import TOMBSTONE, decode_entry, encode_entry, encode_rows
from millpond.versions.repository_context import CompactionRules, RepositoryContext, read_setting
from millpond.versions.staging.branches import BranchRecord, Layer, get_branch, put_branch
from millpond.versions.staging.reads import is_cleared
from millpond.versions.staging.segments import find_presence, find_rows

__all__ = (
    "Below", "Condition", "clear_prefix", "delete_paths", "delete_prefix", "entry_not_found", "put_entries",
    "move_entry", "put_entry", "set_metadata", "shown", "writable_branch", "write_below",
)  # fmt: skip

T = TypeVar("T")
ROWS_DELETED_MAX = 1_000
"""Rows of a prefix that are deleted with the range tombstone; with more of them the token is sealed instead."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The entry that must be at a path for it to be written: nothing (`absent`), or an entry with a checksum."""

    absent: bool = False
    checksum: str | None = None

    def check(self, path: str, entry: Entry | None) -> None:
        """Refuse to write.

        Raises: `Conflict`.
        """
        if self.absent and entry is not None:
            raise Conflict("path already exists", kind="precondition_failed", path=path, hint="choose another path")
        if self.checksum is not None and (entry is None or entry.checksum != self.checksum):
            raise Conflict(
                "the object is not the one expected", kind="precondition_failed", path=path,
                expected=self.checksum, found=None if entry is None else entry.checksum,
            )  # fmt: skip


class _MoreFiles(Exception):
    """Ends a transaction that needs a file that was not read before it."""

    def __init__(self, index: str, *, presence: bool = False) -> None:
        super().__init__(index)
        self.index = index
        self.presence = presence


@dataclass(slots=True)
class Below:
    """The entries that layers which are files hold at some paths, by index: read outside of transactions."""

    context: RepositoryContext
    paths: Sequence[str]
    entries: dict[str, dict[str, Entry | None]] = field(default_factory=dict)
    shows: dict[str, list[int]] = field(default_factory=dict)

    def read(self, more: _MoreFiles) -> None:
        """Read what an index holds at the paths."""
        if more.presence:
            self.shows[more.index] = find_presence(self.context, more.index, self.paths)
        else:
            self.entries[more.index] = find_rows(self.context, more.index, self.paths)

    def presence(self, index: str) -> list[int]:
        """Of each path 1 when an index shows it, 0 when it has a tombstone there, -1 when it has nothing."""
        if index not in self.shows:
            raise _MoreFiles(index, presence=True)
        return self.shows[index]

    def at(self, index: str) -> dict[str, Entry | None]:
        """The entries of an index at the paths."""
        if index not in self.entries:
            raise _MoreFiles(index)
        return self.entries[index]


def write_below(context: RepositoryContext, below: Below, change: Callable[[Transaction], T]) -> T:
    """Make a write; whenever it needs a file that was not read, read that and begin anew."""
    while True:
        try:
            return context.space.write(change)
        except _MoreFiles as more:
            below.read(more)


def shown(
    context: RepositoryContext, tx: ReadTransaction, record: BranchRecord, layers: Sequence[Layer], below: Below,
    path: str,
) -> Entry | None:  # fmt: skip
    """The entry that these layers, and the index below them, show at a path."""
    for layer in layers:
        if layer.index is not None:
            rows = below.at(layer.index)
            if path in rows:
                return rows[path]
            continue
        row = tx.get(STAGED[layer.id].pack(path))
        if row is not None:
            return decode_entry(path, row)
        if is_cleared(tx, layer.id, path):
            return None
    return below.at(_base(context, tx, record)).get(path)


def _base(context: RepositoryContext, tx: ReadTransaction, record: BranchRecord) -> str:
    """The index below all layers of a branch."""
    return record.compacted_index or get_commit(tx, context.graph.commits, record.commit_id).tree


def writable_branch(context: RepositoryContext, tx: ReadTransaction, branch: str, *, force: bool) -> BranchRecord:
    """The record of a branch that takes writes.

    Raises: `NotFound`; `Denied` for a protected branch, or a read-only repository without `force`.
    """
    context.check_writable(tx, branch, "write to", force=force)
    return get_branch(tx, context.uid, branch)


def put_entry(
    context: RepositoryContext, branch: str, entry: Entry, condition: Condition | None = None, *, force: bool = False,
    besides: Callable[[Transaction], None] | None = None,
) -> None:  # fmt: skip
    """Stage an entry; `besides` is done in the same write.

    Raises: `NotFound` for the branch; `Denied` for a protected branch; `Conflict` for a condition that does not hold;
    what `besides` raises.
    """
    check_path(entry.path)
    context.check_paths([entry.path])
    value = encode_entry(entry)
    below = Below(context, [entry.path])

    def change(tx: Transaction) -> None:
        record = writable_branch(context, tx, branch, force=force)
        if condition is not None:
            condition.check(entry.path, shown(context, tx, record, record.layers, below, entry.path))
        tx.put(STAGED[record.staging_token].pack(entry.path), value)
        if besides is not None:
            besides(tx)

    write_below(context, below, change)


def put_entries(context: RepositoryContext, branch: str, batch: pa.RecordBatch, *, force: bool = False) -> None:
    """Stage rows with the columns of entries or of changes, all or none; of rows of one path the last one counts.

    Raises: as `put_entry`.
    """
    paths = batch.column("key").cast(pa.string()).to_pylist()
    context.check_paths(paths)
    values = encode_rows(batch)

    def change(tx: Transaction) -> tuple[str, int]:
        record = writable_branch(context, tx, branch, force=force)
        put_rows(tx, list(zip(STAGED[record.staging_token].pack_texts(paths), values, strict=True)))
        return record.staging_token, values.count(TOMBSTONE)

    _count(context, branch, *context.space.write(change))


def delete_paths(context: RepositoryContext, branch: str, paths: Sequence[str], *, force: bool = False) -> int:
    """Delete paths, all or none; how many of them were there. A path that is not there is no error.

    Raises: as `put_entry`, without conditions.
    """
    paths = path_list(paths)
    context.check_paths(paths)
    below = Below(context, paths)
    with context.space.read() as tx:  # the files, before the write, which would begin anew for each
        record = writable_branch(context, tx, branch, force=force)
        layers = [layer.index for layer in record.sealed if layer.index is not None]
        base = _base(context, tx, record)
    for index in (*layers, base):
        below.read(_MoreFiles(index, presence=True))

    def change(tx: Transaction) -> tuple[int, str, int]:
        record = writable_branch(context, tx, branch, force=force)
        return _delete(context, tx, record, below)

    present, token, tombstones = write_below(context, below, change)
    _count(context, branch, token, tombstones)
    return present


def _delete(context: RepositoryContext, tx: Transaction, record: BranchRecord, below: Below) -> tuple[int, str, int]:
    token, paths = record.staging_token, below.paths
    keys = STAGED[token].pack_texts(paths)
    rows = tx.get_many(keys)
    hidden = _clears(tx, token)
    open_ = range(len(paths)) if hidden is None else [at for at, path in enumerate(paths) if not hidden(path)]
    under = _present(context, tx, record, below, open_)
    present, tombstones = 0, []
    for at, (key, row) in enumerate(zip(keys, rows, strict=True)):
        if row == TOMBSTONE:
            continue
        if under[at]:
            tombstones.append((key, TOMBSTONE))
        elif row is not None:
            tx.delete(key)
        else:
            continue
        present += 1
    put_rows(tx, tombstones)
    return present, token, len(tombstones)


def _clears(tx: ReadTransaction, token: str) -> Callable[[str], bool] | None:
    """True for the paths that a range tombstone of the token hides; None when it has no range tombstone."""
    if next(tx.keys(CLEARED[token].range()), None) is None:
        return None
    return lambda path: is_cleared(tx, token, path)


def _present(
    context: RepositoryContext, tx: ReadTransaction, record: BranchRecord, below: Below, positions: Sequence[int]
) -> list[bool]:
    """Of each path, at those places, true when the layers below the staging token show something there."""
    flags = [False] * len(below.paths)
    rest: Sequence[int] = positions
    for layer in record.sealed:
        if layer.index is not None:
            shows = below.presence(layer.index)
            for at in rest:
                flags[at] = shows[at] > 0
            rest = [at for at in rest if shows[at] < 0]
            continue
        rows = tx.get_many(STAGED[layer.id].pack_texts([below.paths[at] for at in rest]))
        hidden = _clears(tx, layer.id)
        for at, row in zip(rest, rows, strict=True):
            flags[at] = row is not None and row != TOMBSTONE
        missing = [at for at, row in zip(rest, rows, strict=True) if row is None]
        rest = missing if hidden is None else [at for at in missing if not hidden(below.paths[at])]
    shows = below.presence(_base(context, tx, record))
    for at in rest:
        flags[at] = shows[at] > 0
    return flags


def delete_prefix(
    context: RepositoryContext, branch: str, prefix: str, *, fresh_token: str, force: bool = False
) -> None:
    """Delete every path that begins with a prefix: one range tombstone, however many there are.

    Raises: as `put_entry`, without conditions.
    """

    context.check_paths([prefix, context.composed] if context.composed.startswith(prefix) else [prefix])

    def change(tx: Transaction) -> str:
        record = writable_branch(context, tx, branch, force=force)
        return clear_prefix(context, tx, branch, record, prefix, fresh_token).staging_token

    token = context.space.write(change)
    step("versions.prefix_deleted")
    _count(context, branch, token, 1)


def clear_prefix(
    context: RepositoryContext, tx: Transaction, branch: str, record: BranchRecord, prefix: str, fresh_token: str
) -> BranchRecord:
    """Put a range tombstone into the staging token; the record with the token it went to.

    Rows of the token itself would count over it. Few of them are deleted; many are sealed below a new token.
    """
    rows = STAGED[record.staging_token].starting(prefix)
    if len(list(islice(tx.keys(rows), ROWS_DELETED_MAX + 1))) > ROWS_DELETED_MAX:
        record = put_branch(tx, context.uid, branch, replace(record, staging_token=fresh_token, sealed=record.layers))
    else:
        tx.delete_range(rows)
    cleared = CLEARED[record.staging_token]
    if not is_cleared(tx, record.staging_token, prefix):
        tx.delete_range(cleared.starting(prefix))
        tx.put(cleared.pack(prefix), b"")
    return record


def set_metadata(
    context: RepositoryContext, branch: str, path: str, metadata: dict[str, str], *, force: bool = False
) -> Entry:
    """Replace the user metadata of an entry.

    Raises: `NotFound` for the path too.
    """
    context.check_paths([path])
    below = Below(context, [path])

    def change(tx: Transaction) -> Entry:
        record = writable_branch(context, tx, branch, force=force)
        current = shown(context, tx, record, record.layers, below, path)
        if current is None:
            raise entry_not_found(path)
        entry = replace(current, metadata=metadata)
        tx.put(STAGED[record.staging_token].pack(path), encode_entry(entry))
        return entry

    return write_below(context, below, change)


def move_entry(context: RepositoryContext, branch: str, path: str, target: str, *, force: bool = False) -> Entry:
    """Put the entry of a path at another one, and delete the path, in one write.

    Raises: as `put_entry`, without conditions; `NotFound` for the path too.
    """
    check_path(target)
    context.check_paths([path, target])
    below = Below(context, [path])

    def change(tx: Transaction) -> tuple[Entry, str, int]:
        record = writable_branch(context, tx, branch, force=force)
        current = shown(context, tx, record, record.layers, below, path)
        if current is None:
            raise entry_not_found(path)
        entry = replace(current, path=target)
        _, token, tombstones = _delete(context, tx, record, below)
        tx.put(STAGED[token].pack(target), encode_entry(entry))
        return entry, token, tombstones

    entry, token, tombstones = write_below(context, below, change)
    _count(context, branch, token, tombstones)
    return entry


def entry_not_found(path: str) -> NotFound:
    """The error for a path without an entry."""
    return NotFound("not found", kind="entry_not_found", path=path)


def _count(context: RepositoryContext, branch: str, token: str, tombstones: int) -> None:
    if not tombstones:
        return
    with context.space.read() as tx:
        rules = read_setting(tx, context.uid, CompactionRules)[0]
    if rules is not None:
        context.tombstones.count(context.uid, branch, token, tombstones=tombstones, threshold=rules.deletions)
