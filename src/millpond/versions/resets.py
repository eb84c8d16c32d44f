"""Resets: what is staged is taken back, whole, below a prefix, or at one path; and the head moved to another commit.

To restore a prefix is the same act with another state as its target: entries are staged that lead there, and no bytes
are copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from millpond.errors import Conflict
from millpond.kernel.keys import starting
from millpond.kernel.space import Transaction
from millpond.ranges import Difference
from millpond.versions.graph.commits import Commit, get_commit
from millpond.versions.keyspaces import STAGED
from millpond.versions.objects.staged_rows import TOMBSTONE, encode_entry
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.branch_head import Built, Moving, collect_tokens, move_head
from millpond.versions.staging.branches import Layer, drop_tokens, get_branch, put_branch
from millpond.versions.staging.layers import difference_blocks
from millpond.versions.staging.publishing import Collected, collections, publish, retry_if_collected
from millpond.versions.staging.reads import View, is_cleared, uncommitted
from millpond.versions.staging.segments import write_segment
from millpond.versions.staging.writes import Below, shown, write_below

__all__ = ("reset_all", "reset_hard", "reset_path", "restore_prefix")

_TRIES_MAX = 100


def reset_all(context: RepositoryContext, branch: str, *, force: bool = False) -> None:
    """Forget everything staged.

    Raises: `NotFound`; `Denied` on a protected branch, and in a read-only repository.
    """
    fresh = context.clock.random_id()

    def change(tx: Transaction) -> None:
        context.check_writable(tx, branch, "write to", force=force)
        record = get_branch(tx, context.uid, branch)
        put_branch(tx, context.uid, branch, replace(record, staging_token=fresh, sealed=(), compacted_index=None))
        drop_tokens(tx, (record.staging_token, *record.sealed_tokens))

    context.space.write(change)
    context.tombstones.forget(context.uid, branch)
    context.after(lambda: collect_tokens(context.space))


def reset_path(context: RepositoryContext, branch: str, path: str, *, force: bool = False) -> None:
    """Let a path be again what it is in the head commit; one that is not staged stays as it is.

    Raises: as `reset_all`.
    """
    below = Below(context, [path])

    def change(tx: Transaction) -> None:
        context.check_writable(tx, branch, "write to", force=force)
        record = get_branch(tx, context.uid, branch)
        head = get_commit(tx, context.graph.commits, record.commit_id).tree
        target = below.at(head).get(path)
        key = STAGED[record.staging_token].pack(path)
        hidden = is_cleared(tx, record.staging_token, path)
        under = None if hidden else shown(context, tx, record, record.sealed, below, path)
        if under == target or (under is not None and target is not None and under.same(target)):
            tx.delete(key)
        else:
            tx.put(key, TOMBSTONE if target is None else encode_entry(target))

    write_below(context, below, change)


def restore_prefix(
    context: RepositoryContext, branch: str, prefix: str, ref: str | None = None, *, force: bool = False
) -> int:
    """Let the paths that begin with a prefix be what they are at a ref, by default at the head; how many changed.

    What is written meanwhile stays, above.

    Raises: as `reset_all`; `NotFound` for the ref; `Conflict` when others change the branch again and again.
    """
    if ref is not None:
        context.check_paths([prefix, context.composed] if context.composed.startswith(prefix) else [prefix])
    for _ in range(_TRIES_MAX):
        count = collections(context)
        moving = _seal(context, branch, force=force)
        tree = moving.head.tree
        if ref is not None:
            with context.space.read() as tx:
                tree = context.graph.commit(tx, ref).tree
        view = View(moving.view.layers, moving.view.base, tree)
        counted = [0]

        def blocks(view: View = view, counted: list[int] = counted) -> Iterator[pa.RecordBatch]:
            for difference in uncommitted(context, context.space.read, view, starting(prefix)):
                counted[0] += len(difference)
                yield from difference_blocks(_inverse(difference))

        try:
            index = retry_if_collected(context, count, lambda blocks=blocks: write_segment(context, blocks()))  # type: ignore[misc]
            if counted[0] == 0 or _insert(context, branch, moving, Layer(context.clock.random_id(), index.id), count):
                return counted[0]
        except Collected:
            continue
    raise Conflict("the branch changes too often", kind="branch_moved", branch=branch, hint="try again")


def _inverse(difference: Difference) -> Difference:
    return Difference(
        removed=difference.added, added=difference.removed, before=difference.after, after=difference.before
    )


def _seal(context: RepositoryContext, branch: str, *, force: bool) -> Moving:
    fresh = context.clock.random_id()

    def seal(tx: Transaction) -> Moving:
        context.check_writable(tx, branch, "write to", force=force)
        return Moving.sealed(context, tx, branch, fresh)

    return context.space.write(seal)


def _insert(context: RepositoryContext, branch: str, moving: Moving, segment: Layer, count: int) -> bool:
    """Put a segment right above the layers that it was made from; False when they are not what they were."""

    def change(tx: Transaction) -> bool:
        current, was = get_branch(tx, context.uid, branch), moving.record
        newer = len(current.sealed) - len(was.sealed)
        same = current.commit_id == was.commit_id and current.compacted_index == was.compacted_index
        if not same or newer < 0 or current.sealed[newer:] != was.sealed:
            return False
        layers = (*current.sealed[:newer], segment, *was.sealed)
        put_branch(tx, context.uid, branch, replace(current, sealed=layers))
        return True

    return bool(publish(context, [segment.index or ""], count, change))


def reset_hard(context: RepositoryContext, branch: str, ref: str, *, force: bool = False) -> Commit:
    """Move the head of a branch to another commit; what is staged is forgotten with `force`, and refused without.

    Raises: `Invalid` for a branch that is not clean; `NotFound`; `Denied` for a protected branch.
    """

    def build(_: Moving) -> Built:
        with context.space.read() as tx:
            return Built(context.graph.commit(tx, ref))

    with context.space.read() as tx:
        context.graph.commit(tx, ref)
    return move_head(context, branch, "commit to", build, clean=not force, force=force)
