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
from millpond.versions.repository_context import CompactionRules, Site, read_setting
from millpond.versions.staging.branch_head import Moving, collect_tokens
from millpond.versions.staging.branches import drop_tokens, get_branch, put_branch, sealed
from millpond.versions.staging.publishing import Collected, collections, publish, unless_collected
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
    site: Site, branch: str, *, paused: bool = False, fold: Callable[[Site, View], str] | None = None
) -> Compacted:
    """Fold what is staged on a branch; `paused`: not if another began lately.

    `fold` makes the index of a state; by default this process does.

    Raises: `NotFound`; `Unavailable`.
    """
    started = site.clock.monotonic()
    count = collections(site)
    moving = site.space.write(lambda tx: _begin(site, tx, branch, site.clock.random_id(), paused=paused))
    step("compaction.sealed")
    if moving is None:
        return Compacted(False, "another began lately")
    layers = moving.record.sealed
    if not layers:
        done = moving.record.compacted_index is not None
        return Compacted(False, "all that is staged was compacted before" if done else "nothing is staged")
    try:
        index = unless_collected(site, count, lambda: (fold or _fold_here)(site, moving.view))
        step("compaction.folded")
        switched = publish(site, [index], count, lambda tx: _switch(site, tx, branch, moving, index))
    except Collected:
        return Compacted(False, "garbage was collected meanwhile", len(layers))
    step("compaction.switched")
    ms = round(1000 * (site.clock.monotonic() - started))
    site.measures.compacted(done=bool(switched), layers=len(layers), ms=ms)
    if not switched:
        return Compacted(False, "the sealed layers changed", len(layers), ms)
    site.sensor.forget(site.uid, branch)
    site.after(lambda: collect_tokens(site.space))
    return Compacted(True, "", len(layers), ms)


def _fold_here(site: Site, view: View) -> str:
    return fold_view(site, view).index.id


def is_due(site: Site, branch: str) -> bool:
    """True when a branch has more sealed layers than the settings allow."""
    with site.space.read() as tx:
        rules = read_setting(tx, site.uid, CompactionRules)[0]
        return rules is not None and 0 < rules.sealed_tokens <= len(get_branch(tx, site.uid, branch).sealed)


def _begin(site: Site, tx: Transaction, branch: str, fresh: str, *, paused: bool) -> Moving | None:
    now = site.clock.now_ms()
    record = get_branch(tx, site.uid, branch)
    rules = read_setting(tx, site.uid, CompactionRules)[0] or CompactionRules()
    begun = record.compaction_start_time
    # a start that lies ahead was written under another time of day
    if paused and begun is not None and begun <= now < begun + rules.pause_ms:
        return None
    record = put_branch(tx, site.uid, branch, replace(sealed(tx, record, fresh), compaction_start_time=now))
    return Moving(record, get_commit(tx, site.graph.commits, record.commit_id))


def _switch(site: Site, tx: Transaction, branch: str, moving: Moving, index: str) -> bool:
    current, was = get_branch(tx, site.uid, branch), moving.record
    if (current.commit_id, current.sealed, current.compacted_index) != (was.commit_id, was.sealed, was.compacted_index):
        return False
    base = None if index == moving.head.tree else index
    put_branch(tx, site.uid, branch, replace(current, sealed=(), compacted_index=base))
    drop_tokens(tx, was.sealed_tokens)
    return True
