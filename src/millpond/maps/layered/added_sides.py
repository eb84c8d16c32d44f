"""Merging two states of an aggregate: what both sides loaded counts, as long as the layers tell it apart.

    base     [b]                                   [L, b]         a revert of L: theirs is what lay under it
    theirs   [t2, t1, b]   two loads               [b]
    ours     [o1, b]       one load                [o1, L, b]
    outcome  [t2, t1, o1, b]                       [o1, b]

A side that only put partial layers on the base added those and nothing else: joined onto the other side they count with
all rules, and taking them away leaves the other side exactly. A side whose layers were folded, or that lost rows, is
compared address by address instead: what both changed is added up where that is exact (`added_rows.py`), and else a
conflict: never a wrong number.

States that are rolled up otherwise are looked at as rolled up as far as the outcome is. Where that is less than one is,
as when a roll-up is reverted, only the layers that were put on since can tell what counts (`aggregate_rolled_up`).

Invariants:
* a load that both sides absorbed since the base is not counted twice: a side that brings no other brings nothing, and
  else the merge is refused;
* the outcome remembers the loads that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from millpond.errors import Invalid
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.rolled_up import together
from millpond.maps.snapshots.layers import on_top
from millpond.maps.snapshots.manifest import TICKETS_MAX, Layer, LayerMode, SnapshotManifest
from millpond.maps.snapshots.sorted_runs import SpillTo
from millpond.stores.objects import Objects

__all__ = (
    "Sides", "in_common_buckets", "join_sides", "merged_tickets", "refuse_narrower", "remembering", "same_state",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sides:
    """The three states of a merge; None is a state without rows."""

    definition: MapDefinition
    base: SnapshotManifest | None
    ours: SnapshotManifest | None
    theirs: SnapshotManifest | None


def join_sides(
    objects: Objects, sides: Sides, *, version: int, created_ms: int, spill: SpillTo | None = None
) -> SnapshotManifest | None:
    """Ours with the layers that theirs added, or theirs with those that ours did; None where layers do not tell, where
    ours is the base, and for another kind.

    Raises: `Invalid`, kind `aggregate_loaded_twice`; `sum_overflow`; `NotFound`, `Corrupt`; `Unavailable`.
    """
    if sides.definition.aggregation is None or sides.theirs is None or same_state(sides.base, sides.ours):
        return None
    if _brings_nothing(sides.base, sides.theirs, sides.ours):
        return sides.ours
    if _brings_nothing(sides.base, sides.ours, sides.theirs):
        return replace(sides.theirs, shard_version=version, created_ms=created_ms)
    tickets = merged_tickets(sides)
    below, layers = sides.ours, _added(sides.base, sides.theirs)
    if layers is None:
        below, layers = sides.theirs, _added(sides.base, sides.ours)
    if layers is None:
        return None
    for layer in reversed(layers):
        below = on_top(
            objects, below, sides.definition, layer, version=version, created_ms=created_ms, spill=spill
        )  # fmt: skip
    return None if below is None else replace(below, shard_version=version, created_ms=created_ms, tickets=tickets)


def in_common_buckets(
    base: SnapshotManifest | None, ours: SnapshotManifest | None, theirs: SnapshotManifest | None
) -> Iterable[SnapshotManifest | None]:
    """The three states, rolled up as far as the outcome of their merge is; as they are where that is less than one is.

    Raises: `Invalid`, kind `resolution_finer`, for two sides that were rolled up to buckets that do not fit.
    """
    states = base, ours, theirs
    parts = [state.aggregation.rolled_up for state in states if state is not None and state.aggregation is not None]
    if not any(parts):
        return states
    before, mine, other = (() if state is None or state.aggregation is None else state.aggregation.rolled_up
                           for state in (base, ours or base, theirs or base))  # fmt: skip
    shown = []
    for state in states:
        if state is None or state.aggregation is None:
            shown.append(state)
            continue
        plain = replace(state.aggregation, rolled_up=())
        outcome = together(plain, other if mine == before else mine if other == before else (*mine, *other))
        if any(together(outcome, part) != outcome for part in parts):
            return states
        shown.append(state if state.aggregation == outcome else replace(state, aggregation=outcome))
    return shown


def refuse_narrower(sides: Sides) -> None:
    """Refuse to compare the rows of states that are rolled up otherwise.

    Raises: `Invalid`, kind `aggregate_rolled_up`.
    """
    if len({state.aggregation for state in (sides.base, sides.ours, sides.theirs) if state is not None}) > 1:
        raise Invalid(
            "rows in wide buckets do not tell which narrow ones they were of", kind="aggregate_rolled_up",
            map=sides.definition.name, hint="revert what came after the roll-up first, or restore the map as it was",
        )  # fmt: skip


def same_state(left: SnapshotManifest | None, right: SnapshotManifest | None) -> bool:
    """True when two states are the same one, or both have no rows."""
    return (None if left is None else left.id) == (None if right is None else right.id)


def remembering(manifest: SnapshotManifest | None, sides: Sides) -> SnapshotManifest | None:
    """The outcome of a merge by address, with the loads that it holds; itself for another kind.

    Raises: as `merged_tickets`.
    """
    if manifest is None or sides.definition.aggregation is None:
        return manifest
    return replace(manifest, tickets=merged_tickets(sides))


def _brings_nothing(
    base: SnapshotManifest | None, side: SnapshotManifest | None, other: SnapshotManifest | None
) -> bool:
    """True when a side made loads since the base, and nothing else, which the other side has, too."""
    if side is None or other is None or len(side.tickets) == TICKETS_MAX or not _added(base, side):
        return False
    new = {*side.tickets} - {*(() if base is None else base.tickets)}
    return bool(new) and new <= {*other.tickets}


def _added(base: SnapshotManifest | None, side: SnapshotManifest | None) -> tuple[Layer, ...] | None:
    """The partial layers that a side put on the base; None where it did something else."""
    under = () if base is None else base.layers
    layers = () if side is None else side.layers
    count = len(layers) - len(under)
    if count < 0 or layers[count:] != under:
        return None
    added = layers[:count]
    if not under and added:
        # The oldest layer of a map says that it is whole, and joins as any other.
        added = (*added[:-1], replace(added[-1], mode=LayerMode.JOIN))
    return added if all(layer.mode is LayerMode.JOIN for layer in added) else None


def merged_tickets(sides: Sides) -> tuple[str, ...]:
    """The loads that the outcome holds.

    Raises: `Invalid`, kind `aggregate_loaded_twice`, for a load that both sides absorbed.
    """
    base, ours, theirs = (() if side is None else side.tickets for side in (sides.base, sides.ours, sides.theirs))
    new = [ticket for ticket in theirs if ticket not in base]
    twice = [ticket for ticket in new if ticket in ours]
    if twice:
        raise Invalid(
            "both sides have the same load, which would count twice", kind="aggregate_loaded_twice",
            map=sides.definition.name, load=twice[0], hint="revert the load on one side first",
        )  # fmt: skip
    gone = {ticket for ticket in base if ticket not in theirs}
    return tuple(ticket for ticket in (*new, *ours) if ticket not in gone)[:TICKETS_MAX]
