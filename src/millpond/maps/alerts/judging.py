"""Judging a change of an aggregate by its rules, before it is entered.

| change | judged |
|---|---|
| a load into `main` | the groups of its layer; of a shard, those of its parts, by whoever merges it, see `merged.py` |
| a merge into `main`, a cherry-pick, a revert, a restore | the groups that differ |
| a delete, retain | nothing: rows that are left stay what they are; a rule falls back where its rows went |
| a load or commit on a branch | nothing, until it is merged |

Invariants:
* the outcome is about one state before and one after: where another change came first, it is made anew;
* memory does not grow with a change: groups are judged some keys at a time, and at most `CROSSINGS_MAX` of one
  rule are told, the others counted;
* a map without rules is asked for them, and no file is opened; nor is one for a rule that no group of a load can reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from millpond import ranges
from millpond.errors import Conflict
from millpond.kernel.space import ReadTransaction
from millpond.maps.alerts.after_load import AfterLoad
from millpond.maps.alerts.crossings import Addresses, Groups, GroupsOf, crossed
from millpond.maps.alerts.limits import Limit, limits_of, within
from millpond.maps.alerts.rules import AlertRule, rules_of
from millpond.maps.layered.differences import differences
from millpond.maps.layered.head import Layers
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.predicates.predicate import Predicate
from millpond.maps.snapshots.combined_groups import GroupRows
from millpond.maps.snapshots.manifest import Layer, SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import keys_of_groups
from millpond.stores.objects import Objects
from millpond.times.instants import instant_text

__all__ = ("CROSSINGS_MAX", "Crossing", "Judge", "Judged", "Touched", "crossings", "judged", "meet", "plain_values")

MOST = 0.8
"""The share of the groups of a load beyond which all are looked up: to leave some out would cost more."""
CROSSINGS_MAX = 10_000
"""The crossings of one rule that one change tells; it says how many more there were."""
TEXT_CHARS_MAX = 200
"""Longer text is cut where a crossing shows values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A rule came to be on: in which bucket of a key, and the values there before and after; None for no row."""

    rule: str
    when: str
    key: str
    bucket: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(slots=True)
class Judged:
    """The rules of a map as they were, the crossings that a change makes, and how many more of each rule."""

    map: str
    rules: tuple[AlertRule, ...]
    crossings: list[Crossing] = field(default_factory=list)
    omitted: dict[str, int] = field(default_factory=dict)

    def check(self, tx: ReadTransaction) -> None:
        """See that the rules are those that it was judged by.

        Raises: `Conflict`, kind `head_moved`.
        """
        if rules_of(tx, self.map) != self.rules:
            raise Conflict("the rules of the map changed meanwhile", kind="head_moved", hint="judge it anew")


def judged(
    layers: Layers, before: SnapshotManifest | None, after: SnapshotManifest, brought: Layer | None = None
) -> Judged | None:
    """Judge a change between two states by the rules of the map; None for a map of another kind.

    `brought` is the layer with all rows that the change combined with those before.

    Raises: `Corrupt`, `NotFound`, naming the file.
    """
    if layers.definition.aggregation is None:
        return None
    with layers.space.read() as tx:
        outcome = Judged(layers.definition.name, rules_of(tx, layers.definition.name))
    if outcome.rules:
        crossings(layers.objects, before, after, outcome, brought)
    return outcome


def crossings(
    objects: Objects, before: SnapshotManifest | None, after: SnapshotManifest, outcome: Judged, brought: Layer | None
) -> None:
    """Add the crossings of all rules of an outcome.

    Raises: as `judged`.
    """
    definition = after.definition  # rolled up as its rows are
    judges = [Judge(rule, rule.condition(definition)) for rule in outcome.rules]
    if brought is not None:
        judges = [replace(judge, limits=limits_of(definition, judge.condition, before, brought)) for judge in judges]
        judges = [judge for judge in judges if all(limit.of_load() for limit in judge.limits)]
    with closing(GroupsOf(objects, definition, before)) as old, closing(GroupsOf(objects, definition, after)) as new:
        changed = _touched(objects, definition, before, after, brought) if judges else ()
        meet(definition, judges, ((touched, old, new) for touched in changed), outcome)


@dataclass(frozen=True, slots=True)
class Judge:
    """A rule, ready to use, and the limits that a load sets to its condition."""

    rule: AlertRule
    condition: Predicate
    limits: Sequence[Limit] = ()


def meet(
    definition: MapDefinition, judges: Sequence[Judge], changed: Iterable[tuple[Touched, Groups, Groups]],
    outcome: Judged,
) -> None:  # fmt: skip
    """Add the crossings of rules to an outcome: of groups that changed, with the states before and after.

    Raises: as `Groups.holds`.
    """
    counts = dict.fromkeys((judge.rule.name for judge in judges), 0)
    for touched, old, new in changed:
        rows = touched.within([judge.limits for judge in judges])  # together, so they are looked up once
        if rows is None:
            continue
        brought = Addresses(rows.column("key"), rows.column("time").to_numpy())
        addresses = brought.shown(definition)
        if touched.values is not None and addresses is brought and isinstance(old, GroupsOf):
            new = AfterLoad(definition, old.looked(addresses), new, addresses, rows)
        for judge in judges:
            rule = judge.rule
            made = crossed(definition, judge.condition, rule.buckets, old, new, addresses)
            room = max(CROSSINGS_MAX - counts[rule.name], 0)
            counts[rule.name] += len(made)
            outcome.crossings += _shown(rule, old, new, Addresses(made.keys[:room], made.times[:room]))
    outcome.omitted |= {name: count - CROSSINGS_MAX for name, count in counts.items() if count > CROSSINGS_MAX}


@dataclass(frozen=True)
class Touched:
    """Groups that a change touched, all of a key together; `values` are those of a load."""

    rows: Callable[[], pa.RecordBatch]
    values: pa.StructArray | None = None

    def within(self, limits: Sequence[Sequence[Limit]]) -> pa.RecordBatch | None:
        """The rows of the groups within the limits of one rule or another; None: there are none."""
        if self.values is None or not all(limits):
            return self.rows()
        positions = np.flatnonzero(np.logical_or.reduce([within(those, self.values) for those in limits]))
        if len(positions) > MOST * len(self.values):
            return self.rows()
        return self.rows().take(pa.array(positions)) if len(positions) else None


def _touched(
    objects: Objects, definition: MapDefinition, before: SnapshotManifest | None, after: SnapshotManifest,
    brought: Layer | None,
) -> Iterator[Touched]:  # fmt: skip
    if brought is None:
        yield from (Touched(difference.address_rows) for difference in differences(objects, before, after))
        return
    for entry in ranges.load_index(objects, brought.index).entries:
        groups = ranges.open_range(objects, entry)
        within = GroupRows.of(groups)
        yield Touched(partial(_rows_brought, definition, groups, within), within.rows.field("value"))


def _rows_brought(definition: MapDefinition, groups: pa.RecordBatch, within: GroupRows) -> pa.RecordBatch:
    """The rows of groups, whose keys are a dictionary: each is there once, in order."""
    codes = np.repeat(np.arange(len(groups), dtype=np.int32), np.diff(within.offsets))
    keys = pa.DictionaryArray.from_arrays(pa.array(codes), keys_of_groups(groups))
    values = {name: within.rows.field(name) for name in canonical_schema(definition).names if name != "key"}
    return pa.RecordBatch.from_arrays([keys, *values.values()], names=["key", *values])


def _shown(rule: AlertRule, old: Groups, new: Groups, made: Addresses) -> Iterator[Crossing]:
    if not len(made):
        return
    positions = zip(made.keys.to_pylist(), made.times.tolist(), old.values(made), new.values(made), strict=True)
    for key, time, before, after in positions:
        yield Crossing(
            rule=rule.name, when=rule.when, key=key.decode(), before=plain_values(before), after=plain_values(after),
            bucket=instant_text(time),
        )  # fmt: skip


def plain_values(values: dict[str, Any] | None) -> dict[str, Any] | None:
    """Values of a row as JSON has them."""
    return None if values is None else {name: _json(value) for name, value in values.items()}


def _json(value: Any) -> Any:
    """A value as JSON has it: times as text, and long text cut."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        return f"{value[:TEXT_CHARS_MAX]}…"
    return value
