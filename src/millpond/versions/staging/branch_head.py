"""Moving the head of a branch: the one way by which commits, merges, reverts and imports become visible.

    turn ─ seal ─ build the new state from layers that no longer change ─ swap ─ drop the tokens that were consumed
              ▲                                                             │
              └────────────── the branch is not what it was ◀───────────────┘

Invariants:
* The swap compares the branch with what the state was built from: its head, its compacted index, and the oldest of its
  sealed layers. Layers that came on top meanwhile stay.
* So does a refusal: compactions take no turn, and the rows of layers that they took may be gone while they are read.
* The commit record, the branch record and the notes of dropped tokens are one write.
* A move that fails leaves a sealed token at most, and files that no record names.
* Writers never wait for a move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from millpond.errors import Invalid, MillpondError
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step
from millpond.tracing import span
from millpond.versions.graph.commits import Commit, get_commit, put_commit
from millpond.versions.keyspaces import CLEARED, DROPPED, STAGED
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.branches import BranchRecord, Layer, drop_tokens, get_branch, put_branch, sealed, without
from millpond.versions.staging.publishing import (
    Collected,
    check_published,
    collections,
    guard_published,
    retry_if_collected,
    wait_collected,
)
from millpond.versions.staging.reads import View, is_dirty

__all__ = ("Built", "Moving", "branch_dirty", "check_clean", "move_head", "collect_tokens")

ROWS_DROPPED = 5_000


@dataclass(frozen=True, slots=True)
class Moving:
    """A branch that is to move: its record after the seal, its head, and its state without the staging token."""

    record: BranchRecord
    head: Commit

    @classmethod
    def sealed(cls, context: RepositoryContext, tx: Transaction, branch: str, fresh_token: str) -> Moving:
        """A branch, whose staging token is sealed if anything is staged."""
        before = get_branch(tx, context.uid, branch)
        record = sealed(tx, before, fresh_token)
        if record is not before:
            record = put_branch(tx, context.uid, branch, record)
        return cls(record, get_commit(tx, context.graph.commits, record.commit_id))

    @property
    def view(self) -> View:
        """The state that the sealed layers make."""
        return View(self.record.sealed, self.record.compacted_index or self.head.tree, self.head.tree)


@dataclass(frozen=True, slots=True)
class Built:
    """The outcome of building: the commit that the branch is to have, new or old."""

    commit: Commit
    layers: tuple[Layer, ...] | None = None
    """The sealed layers that stay, of those that were there; None: none of them."""
    compacted: str | None = None
    """The index that is the base of the layers that stay."""
    ancestors: tuple[Commit, ...] = ()
    """New commits that lead to it, the oldest first."""


def branch_dirty(branch: str) -> Invalid:
    """The error for a branch that must have nothing staged."""
    return Invalid(
        "uncommitted changes (dirty branch)", kind="branch_dirty", branch=branch, hint="commit or reset them first"
    )


def move_head(
    context: RepositoryContext, branch: str, act: str | None, build: Callable[[Moving], Built], *, clean: bool = False,
    force: bool = False, besides: Callable[[Transaction, Commit], None] | None = None,
) -> Commit:  # fmt: skip
    """Seal a branch, build a commit and make it the head; the commit.

    `act`: what protection is checked for, None for nothing. `clean`: refuse when anything is staged. `besides` is done
    in the write that moves the head. What it or `build` raises is raised, and the head stays.

    Raises: `NotFound`, `Denied`; `Invalid` for a branch that is not clean.
    """
    if clean:
        check_clean(context, branch)
    with (
        span("commit", repository=context.name, branch=branch),
        context.head_locks.hold(context.uid, branch) as lock,
    ):
        tries = 0
        while True:
            tries += 1

            def seal(tx: Transaction, fresh: str = context.clock.random_id()) -> Moving:
                context.check_writable(tx, branch if act else None, act or "", force=force)
                return Moving.sealed(context, tx, branch, fresh)

            count = collections(context)
            moving = cast("Moving", context.head_locks.write(lock, seal))
            step("versions.sealed")

            def make(moving: Moving = moving) -> Built:
                if clean and is_dirty(context, context.space.read, moving.view):
                    raise branch_dirty(branch)
                return build(moving)

            def swap(tx: Transaction, moving: Moving, built: Built, count: int) -> bool:
                check_published(context, tx, count)
                context.check_writable(tx, branch if act else None, act or "", force=force)
                done = _swap(context, tx, branch, moving, built)
                if done:
                    lock.give_back(tx)
                    if besides is not None:
                        besides(tx, built.commit)
                return done

            try:
                built = retry_if_collected(context, count, make)
                step("versions.built")
                if context.head_locks.write(lock, partial(swap, moving=moving, built=built, count=count)):
                    break
            except Collected:  # what was built may be gone: build again
                wait_collected(context)
            except MillpondError:
                with context.space.read() as tx:
                    if _is_still(moving.record, get_branch(tx, context.uid, branch)):
                        raise
                # of another state: a compaction took the layers that were being read
    step("versions.moved")
    context.measures.moved(tries=tries)
    context.tombstones.forget(context.uid, branch)
    context.after(lambda: collect_tokens(context.space))
    return built.commit


def check_clean(context: RepositoryContext, branch: str) -> None:
    """Refuse a branch on which something is staged, before anything of it is sealed.

    Raises: `NotFound`; `Invalid`, kind `branch_dirty`.
    """

    def dirty() -> bool:
        with context.space.read() as tx:
            record = get_branch(tx, context.uid, branch)
            head = get_commit(tx, context.graph.commits, record.commit_id)
        return is_dirty(
            context, context.space.read, View(record.layers, record.compacted_index or head.tree, head.tree)
        )

    if guard_published(dirty):
        raise branch_dirty(branch)


def _is_still(was: BranchRecord, now: BranchRecord) -> bool:
    """True when a branch is what it was, but for layers on top."""
    newer = len(now.sealed) - len(was.sealed)
    return (
        now.commit_id == was.commit_id
        and now.compacted_index == was.compacted_index
        and newer >= 0
        and now.sealed[newer:] == was.sealed
    )


def _swap(context: RepositoryContext, tx: Transaction, branch: str, moving: Moving, built: Built) -> bool:
    current, was = get_branch(tx, context.uid, branch), moving.record
    if not _is_still(was, current):
        return False
    consumed = was.sealed
    stay = built.layers or ()
    for commit in (*built.ancestors, built.commit):
        put_commit(tx, context.graph.commits, commit)
    record = without(current, consumed)
    record = replace(record, commit_id=built.commit.id, sealed=(*record.sealed, *stay), compacted_index=built.compacted)
    put_branch(tx, context.uid, branch, record)
    drop_tokens(tx, (layer.id for layer in consumed if layer.index is None and layer not in stay))
    return True


def collect_tokens(space: Space) -> int:
    """Delete the rows of dropped tokens, some at a time; how many tokens are gone."""
    with space.read() as tx:
        tokens = [str(DROPPED.unpack(key)[0]) for key in tx.keys(DROPPED.range())]
    for token in tokens:
        while space.write(lambda tx, token=token: _collect_some(tx, token)):  # type: ignore[misc]
            step("versions.token_swept")
    return len(tokens)


def _collect_some(tx: Transaction, token: str) -> bool:
    """Delete rows of a token; True when there may be more."""
    for keyspace in (STAGED, CLEARED):
        if tx.delete_range(keyspace[token].range(), ROWS_DROPPED) == ROWS_DROPPED:
            return True
    tx.delete(DROPPED.pack(token))
    return False
