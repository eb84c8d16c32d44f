"""Staging compaction: the sealed layers of a branch are folded into an index that stands below what is staged.

    seal, note the start ─ fold the sealed layers onto the compacted index or the head's ─ switch

Invariants:
* The state of the branch is the same before and after; only its layers are fewer.
* It fails, harmlessly, when the sealed layers or the head changed meanwhile: a commit won, and it did the same work.
* After one began, none begins for the pause of the settings, whoever tries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.versions.commits import fold_view
from millpond.versions.graph.commits import get_commit
from millpond.versions.repository_context import CompactionRules, RepositoryContext, read_setting
from millpond.versions.staging.branch_head import Moving, collect_tokens
from millpond.versions.staging.branches import drop_tokens, get_branch, put_branch, sealed
from millpond.versions.staging.publishing import Collected, collections, publish, retry_if_collected
from millpond.versions.staging.reads import View

__all__ = ("Compacted", "compact", "is_due")


@dataclass(frozen=True, slots=True)
class Compacted:
    """The outcome of a compaction: `done`, or the reason why nothing was switched; the layers folded, and the time."""

    done: bool
    reason: str = ""
    layers: int = 0
    ms: int = 0


def compact(
    context: RepositoryContext, branch: str, *, paused: bool = False,
    fold: Callable[[RepositoryContext, View], str] | None = None,
) -> Compacted:  # fmt: skip
    """Fold what is staged on a branch; `paused`: not if another began lately.

    `fold` makes the index of a state; by default this process does.

    Raises: `NotFound`; `Unavailable`.
    """
    started = context.clock.monotonic()
    count = collections(context)
    moving = context.space.write(lambda tx: _begin(context, tx, branch, context.clock.random_id(), paused=paused))
    step("compaction.sealed")
    if moving is None:
        return Compacted(False, "another began lately")
    layers = moving.record.sealed
    if not layers:
        done = moving.record.compacted_index is not None
        return Compacted(False, "all that is staged was compacted before" if done else "nothing is staged")
    try:
        index = retry_if_collected(context, count, lambda: (fold or _fold_here)(context, moving.view))
        step("compaction.folded")
        switched = publish(context, [index], count, lambda tx: _switch(context, tx, branch, moving, index))
    except Collected:
        return Compacted(False, "garbage was collected meanwhile", len(layers))
    step("compaction.switched")
    ms = round(1000 * (context.clock.monotonic() - started))
    context.measures.compacted(done=bool(switched), layers=len(layers), ms=ms)
    if not switched:
        return Compacted(False, "the sealed layers changed", len(layers), ms)
    context.tombstones.forget(context.uid, branch)
    context.after(lambda: collect_tokens(context.space))
    return Compacted(True, "", len(layers), ms)


def _fold_here(context: RepositoryContext, view: View) -> str:
    return fold_view(context, view).index.id


def is_due(context: RepositoryContext, branch: str) -> bool:
    """True when a branch has more sealed layers than the settings allow."""
    with context.space.read() as tx:
        rules = read_setting(tx, context.uid, CompactionRules)[0]
        return rules is not None and 0 < rules.sealed_tokens <= len(get_branch(tx, context.uid, branch).sealed)


def _begin(context: RepositoryContext, tx: Transaction, branch: str, fresh: str, *, paused: bool) -> Moving | None:
    now = context.clock.now_ms()
    record = get_branch(tx, context.uid, branch)
    rules = read_setting(tx, context.uid, CompactionRules)[0] or CompactionRules()
    begun = record.compaction_start_time
    # a start that lies ahead was written under another time of day
    if paused and begun is not None and begun <= now < begun + rules.pause_ms:
        return None
    record = put_branch(tx, context.uid, branch, replace(sealed(tx, record, fresh), compaction_start_time=now))
    return Moving(record, get_commit(tx, context.graph.commits, record.commit_id))


def _switch(context: RepositoryContext, tx: Transaction, branch: str, moving: Moving, index: str) -> bool:
    current, was = get_branch(tx, context.uid, branch), moving.record
    if (current.commit_id, current.sealed, current.compacted_index) != (was.commit_id, was.sealed, was.compacted_index):
        return False
    base = None if index == moving.head.tree else index
    put_branch(tx, context.uid, branch, replace(current, sealed=(), compacted_index=base))
    drop_tokens(tx, was.sealed_tokens)
    return True
