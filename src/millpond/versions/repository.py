"""A repository: its branches, tags and commits, and its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from millpond.argument_types import need_type
from millpond.errors import AlreadyExists, Conflict, Denied, NotFound
from millpond.kernel.keys import starting, text_prefix
from millpond.kernel.keyspace import Keyspace
from millpond.kernel.page import behind, cut
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.versions.branch import Branch
from millpond.versions.collect import GRACE_MS, Garbage, checked_grace, collect
from millpond.versions.diffs import Change, change_page, change_rows, three_dot, two_dot
from millpond.versions.dumps import dump_chunks
from millpond.versions.faces import RepositoryFace
from millpond.versions.graph.commits import Commit, find_commit
from millpond.versions.graph.names import check_branch, check_tag, is_commit_id
from millpond.versions.keyspaces import BRANCH, TAG
from millpond.versions.merges import common_base
from millpond.versions.paging import Listing, Page
from millpond.versions.reference import Reference, view_at
from millpond.versions.repository_context import (
    RepositoryContext,
    RepositoryRecord,
    clear_setting,
    put_repository,
    read_setting,
    write_setting,
)
from millpond.versions.staging.branch_head import collect_tokens
from millpond.versions.staging.branches import (
    BranchRecord,
    drop_tokens,
    find_branch,
    get_branch,
    parse_branch,
    put_branch,
)
from millpond.versions.staging.reads import at, head_view

__all__ = ("Named", "Repository", "new_branch")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Named:
    """A branch or a tag of a listing, and its commit."""

    name: str
    commit_id: str


class Repository(RepositoryFace):
    """A repository. Its methods raise `NotFound` once it is deleted."""

    def __init__(self, context: RepositoryContext, record: RepositoryRecord) -> None:
        self.context = context
        self.record = record
        self.name = record.name

    def __repr__(self) -> str:
        return f"Repository({self.name!r})"

    # -- references -----------------------------------------------------------------------------------

    def branch(self, name: str) -> Branch:
        """A branch to read and to change; it is looked up when it is used."""
        return Branch(self.context, name)

    def ref(self, expression: str) -> Reference:
        """A state to read: `main`, `main@`, `v1~2`, a commit's id or its first digits."""
        return Reference(self.context, expression)

    def branches(self, prefix: str = "", *, after: str = "", amount: int = 100, hidden: bool = False) -> Page[Named]:
        """One page of branches; hidden ones only on request."""

        def shown(name: str, row: bytes) -> Named | None:
            record = parse_branch(row, name)
            return Named(name, record.commit_id) if hidden or not record.hidden else None

        return self._names(BRANCH, Listing(prefix, "", after, amount), shown)

    def tags(self, prefix: str = "", *, after: str = "", amount: int = 100) -> Page[Named]:
        """One page of tags."""
        return self._names(TAG, Listing(prefix, "", after, amount), lambda name, row: Named(name, row.decode()))

    def _names(self, keyspace: Keyspace, listing: Listing, shown: Callable[[str, bytes], Named | None]) -> Page[Named]:
        prefix = keyspace[self.context.uid]
        keys = starting(prefix.packed + text_prefix(listing.prefix))
        if listing.after:
            keys = behind(keys, prefix.pack(listing.after))
        with self.context.space.read() as tx:
            self.context.record(tx)
            every = (shown(str(prefix.unpack(key)[0]), row) for key, row in tx.scan(keys))
            names, more = cut((named for named in every if named is not None), listing.amount)
        return Page(tuple(names), more, names[-1].name if more else "")

    def create_branch(self, name: str, source: str, *, hidden: bool = False, force: bool = False) -> Branch:
        """A new branch at the commit of a ref; what is staged elsewhere stays there.

        Raises: `AlreadyExists`; `Invalid` for a name; `Conflict` for that of a tag or a commit; `NotFound`.
        """
        check_branch(name)
        token = self.context.clock.random_id()

        def create(tx: Transaction) -> None:
            self.context.check_writable(tx, None, "create", force=force)
            self._check_no_commit(tx, name)
            if tx.get(TAG[self.context.uid].pack(name)) is not None:
                raise Conflict(f"tag ID {name}: conflict found", kind="branch_named_tag", branch=name)
            if find_branch(tx, self.context.uid, name) is not None:
                raise AlreadyExists("branch already exists", kind="branch_exists", branch=name)
            commit = self.context.graph.commit(tx, source)
            new_branch(tx, self.context.uid, name, BranchRecord(commit.id, token, hidden=hidden))

        self.context.space.write(create)
        return self.branch(name)

    def _check_no_commit(self, tx: ReadTransaction, name: str) -> None:
        """Refuse the name of a ref that is a commit's id."""
        if is_commit_id(name) and find_commit(tx, self.context.graph.commits, name) is not None:
            raise Conflict(f"commit ID {name}: conflict found", kind="branch_named_commit", ref=name)

    def delete_branch(self, name: str, *, force: bool = False) -> None:
        """Delete a branch with what is staged on it. Its commits stay.

        Raises: `NotFound`; `Denied` for the default branch and for a protected one.
        """

        def delete(tx: Transaction) -> None:
            if self.context.record(tx).default_branch == name:
                get_branch(tx, self.context.uid, name)
                raise Denied("cannot delete repository default branch", kind="branch_default", branch=name)
            self.context.check_writable(tx, name, "delete", force=force)
            record = get_branch(tx, self.context.uid, name)
            tx.delete(BRANCH[self.context.uid].pack(name))
            drop_tokens(tx, (record.staging_token, *record.sealed_tokens))

        self.context.space.write(delete)
        self.context.tombstones.forget(self.context.uid, name)
        self.context.after(lambda: collect_tokens(self.context.space))

    def create_tag(self, name: str, ref: str, *, force: bool = False) -> Commit:
        """Name the commit of a ref.

        Raises: `AlreadyExists`; `Invalid` for a name, or a ref with `$`; `Conflict` for that of a branch or a commit;
        `NotFound`.
        """
        check_tag(name)

        def create(tx: Transaction) -> Commit:
            self.context.check_writable(tx, None, "create", force=force)
            key = TAG[self.context.uid].pack(name)
            if tx.get(key) is not None:
                raise AlreadyExists("tag already exists", kind="tag_exists", tag=name)
            self._check_no_commit(tx, name)
            if find_branch(tx, self.context.uid, name) is not None:
                raise Conflict(f"branch name {name}: conflict found", kind="tag_named_branch", tag=name)
            commit = self.context.graph.commit(tx, ref)
            tx.put(key, commit.id.encode())
            return commit

        return self.context.space.write(create)

    def delete_tag(self, name: str, *, force: bool = False) -> None:
        """Delete a tag; its commit stays.

        Raises: `NotFound`.
        """

        def delete(tx: Transaction) -> None:
            self.context.check_writable(tx, None, "delete", force=force)
            if not tx.delete(TAG[self.context.uid].pack(name)):
                raise NotFound("tag not found", kind="tag_not_found", tag=name)

        self.context.space.write(delete)

    def tag(self, name: str) -> str:
        """The id of the commit that a tag names.

        Raises: `NotFound`.
        """
        with self.context.space.read() as tx:
            self.context.record(tx)
            row = tx.get(TAG[self.context.uid].pack(name))
        if row is None:
            raise NotFound("tag not found", kind="tag_not_found", tag=name)
        return row.decode()

    # -- comparing ------------------------------------------------------------------------------------

    def diff(
        self, left: str, right: str, prefix: str = "", *, three_dots: bool = True, delimiter: str = "",
        after: str = "", amount: int = 100,
    ) -> Page[Change]:  # fmt: skip
        """One page of differences: what `right` changed since the merge base, or all that turns `left` into `right`.

        `right` may be `branch$`, with two dots.

        Raises: `Invalid`, `NotFound`.
        """
        listing = Listing(prefix, delimiter, after, amount)
        if three_dots:
            base, ours, theirs = self._three(left, right)
            return change_page(lambda keys: three_dot(self.context, base.tree, ours.tree, theirs.tree, keys), listing)
        with self.context.space.read() as tx:
            old = self.context.graph.commit(tx, left).tree
            resolved = self.context.graph.resolve(tx, right)
            view = (
                view_at(self.context, tx, right)
                if resolved.explicit
                else head_view(self.context.graph.commit(tx, right).tree)
            )
            return change_page(lambda keys: two_dot(self.context, at(tx), old, view, keys), listing)

    def diff_rows(
        self, left: str, right: str, prefix: str = "", *, three_dots: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """All differences of two commits, as batches with the columns of `diffs.DIFFERENCES`.

        Raises: as `diff`.
        """
        need_type("prefix", prefix, str)
        keys = starting(prefix)
        if three_dots:
            base, ours, theirs = self._three(left, right)
            yield from map(change_rows, three_dot(self.context, base.tree, ours.tree, theirs.tree, keys))
            return
        with self.context.space.read() as tx:
            old, new = (self.context.graph.commit(tx, ref).tree for ref in (left, right))
        yield from map(change_rows, two_dot(self.context, self.context.space.read, old, head_view(new), keys))

    def merge_base(self, left: str, right: str) -> Commit:
        """The merge base of two refs.

        Raises: `Invalid`, kind `no_merge_base`; `NotFound`.
        """
        return self._three(left, right)[0]

    def _three(self, left: str, right: str) -> tuple[Commit, Commit, Commit]:
        with self.context.space.read() as tx:
            ours, theirs = (self.context.graph.commit(tx, ref) for ref in (left, right))
        return common_base(self.context, ours.id, theirs.id), ours, theirs

    def collect(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> Garbage:
        """Delete objects, ranges and indexes that nothing needs, or count them.

        Raises: `Conflict` when another collection deletes. `Invalid` for a grace time below a minute.
        """
        return collect(self.context, grace_ms=checked_grace(grace_ms), dry_run=dry_run)

    def dump(self) -> Iterator[bytes]:
        """The commits, tags, branches and settings as lines of JSON, in chunks; `Repositories.restore` reads them.

        What is staged is not in it, nor are bytes: they stay in the namespace.
        """
        return dump_chunks(self.context)

    # -- settings -------------------------------------------------------------------------------------

    def setting(self, kind: type[T]) -> tuple[T | None, str]:
        """A setting (`ProtectedBranches`, `Retention`, `CompactionRules`) and its tag; None when it was never set."""
        with self.context.space.read() as tx:
            self.context.record(tx)
            return read_setting(tx, self.context.uid, kind)

    def set(self, value: object, *, expected: str | None = None) -> str:
        """Store a setting, which holds at once; `expected` is the tag it must have had. The new tag.

        Raises: `Conflict`, kind `setting_changed`.
        """

        def change(tx: Transaction) -> str:
            self.context.record(tx)
            return write_setting(tx, self.context.uid, value, expected=expected)

        return self.context.space.write(change)

    def clear(self, kind: type) -> None:
        """Forget a setting, if it was ever set."""

        def change(tx: Transaction) -> None:
            self.context.record(tx)
            clear_setting(tx, self.context.uid, kind)

        self.context.space.write(change)

    def alter(
        self, *, metadata: Mapping[str, str] | Callable[[Mapping[str, str]], Mapping[str, str]] | None = None,
        read_only: bool | None = None,
    ) -> RepositoryRecord:  # fmt: skip
        """Replace the repository's metadata, if a function is given by what it makes of them; let it be read-only."""

        def change(tx: Transaction) -> RepositoryRecord:
            record = self.context.record(tx)
            if metadata is not None:
                values = metadata(record.metadata) if callable(metadata) else metadata
                need_type("metadata", values, Mapping)
                record = replace(record, metadata=dict(values))
            if read_only is not None:
                record = replace(record, read_only=read_only)
            put_repository(tx, record)
            return record

        self.record = self.context.space.write(change)
        return self.record


def new_branch(tx: Transaction, uid: str, name: str, record: BranchRecord) -> None:
    """Store the record of a branch that is new."""
    assert find_branch(tx, uid, name) is None
    put_branch(tx, uid, name, replace(record, revision=0))
