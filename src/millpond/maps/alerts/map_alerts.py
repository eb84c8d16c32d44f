"""The alerts of one map, `map.alerts`: its rules, and a trial of one on the map's history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

from millpond.clock import Clock
from millpond.errors import AlreadyExists, Invalid, NotFound
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.alerts.judging import CROSSINGS_MAX, Crossing, Judged, crossings
from millpond.maps.alerts.rules import RULES_MAX, AlertRule, checked_rule, enter_removal, enter_rule, rules_of
from millpond.maps.alerts.trial_of_buckets import try_buckets
from millpond.maps.layered.head import Layers
from millpond.maps.layered.history import Change, changes_of
from millpond.maps.model.catalogue import same_map
from millpond.maps.model.definition import MapDefinition
from millpond.maps.snapshots.leased import leased
from millpond.maps.snapshots.leases import LeasedSnapshot
from millpond.stores.objects import Objects
from millpond.times.durations import parse_duration
from millpond.times.instants import INSTANT_MIN, instant_text

__all__ = ("AlertTrial", "MapAlerts", "TrialCrossing")

_TRIAL = "trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCrossing:
    """A crossing that a rule would have told, and the time of its change; of a shard that of its bucket."""

    time: str
    key: str
    bucket: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTrial:
    """The result of a trial: the `changes` that were judged, from the first at `since` on, and what they would have
    told; `omitted` counts more of the same. `of` says what changes are: `load`, or of a shard `bucket`.
    """

    map: str
    when: str
    buckets: int
    since: str
    changes: int
    alerts: tuple[TrialCrossing, ...]
    omitted: int
    of: str = "load"


@dataclass(frozen=True, slots=True)
class MapAlerts:
    """The alerts of an aggregate; `layers` are None of one in a shard, which is `frozen`. `writing` is entered by who
    changes the pond, which is then announced.
    """

    definition: MapDefinition
    space: Space
    clock: Clock
    layers: Layers | None
    writing: Callable[[], AbstractContextManager[None]]
    announce: Callable[[], None]
    objects: Objects
    frozen: Callable[[], LeasedSnapshot]

    def list(self) -> Sequence[AlertRule]:
        """The rules of the map, by name.

        Raises: `NotFound`, kind `map_dropped`.
        """
        with self.space.read() as tx:
            return self._rules(tx)

    def add(self, when: str, *, name: str = "", buckets: int | str = 1) -> AlertRule:
        """Add a rule: an alert is told when a load, or a merge into `main`, lets the condition `when` hold in so many
        buckets of a key, one after another. Without a `name` it is `alert_1`, `alert_2`, ….

        Raises: `Invalid` for a condition that is not understood, naming a column that the map does not have, and for
        more than 100 rules; `AlreadyExists`.
        """
        now = self.clock.now_ms()
        checked_rule(self.definition, name or "alert_1", when, buckets)

        def enter(tx: Transaction) -> AlertRule:
            names = {rule.name for rule in self._rules(tx)}
            free = name or next(free for number in count(1) if (free := f"alert_{number}") not in names)
            rule = checked_rule(self.definition, free, when, buckets, now)
            if rule.name in names:
                raise AlreadyExists("the map has an alert of that name", kind="alert_exists", map=self.definition.name,
                                    alert=rule.name, hint="remove it first, or choose another name")  # fmt: skip
            if len(names) >= RULES_MAX:
                raise Invalid("the map has too many alerts", kind="alerts_max", map=self.definition.name,
                              alerts_max=RULES_MAX, hint="remove one, or join conditions by or")  # fmt: skip
            return enter_rule(tx, self.definition, rule, now)

        with self.writing():
            rule = self.space.write(enter)
        step("alerts.added")
        self.announce()
        return rule

    def remove(self, name: str) -> None:
        """Remove a rule; what it has to tell already is told.

        Raises: `NotFound`, naming the rules of the map.
        """

        def leave(tx: Transaction) -> None:
            names = [rule.name for rule in self._rules(tx)]
            if name not in names:
                raise NotFound("the map has no such alert", kind="alert_not_found", map=self.definition.name,
                               alert=name, hint=f"there is: {', '.join(names) or 'none'}")  # fmt: skip
            enter_removal(tx, self.definition, name, self.clock.now_ms())

        with self.writing():
            self.space.write(leave)
        self.announce()

    def try_(self, when: str, *, buckets: int | str = 1, since: str | int | None = None) -> AlertTrial:
        """Judge the history of the map by a rule, and tell what it would have told `since` an age such as `30d`;
        without one, as far back as changes are kept. Of a map in a shard, the buckets that it holds are judged in their
        order, as if each had come as a whole.

        Raises: as `add`; `Corrupt`, naming a file that is damaged.
        """
        rule = checked_rule(self.definition, _TRIAL, when, buckets)
        first_ms = None if since is None else self.clock.now_ms() - parse_duration(since)
        if self.layers is None:
            return self._try_buckets(rule, INSTANT_MIN - 1 if first_ms is None else first_ms)
        return self._try_loads(self.layers, rule, first_ms or 0)

    def _try_buckets(self, rule: AlertRule, since_ms: int) -> AlertTrial:
        with self.frozen() as snapshot:
            trial = try_buckets(self.objects, snapshot.manifest, rule, since_ms)
        return AlertTrial(
            map=self.definition.name, when=rule.when, buckets=rule.buckets, changes=trial.buckets, of="bucket",
            since="" if trial.first_ms is None else instant_text(trial.first_ms), omitted=trial.omitted,
            alerts=tuple(_of_trial(time, crossing) for time, crossing in trial.crossings),
        )  # fmt: skip

    def _try_loads(self, layers: Layers, rule: AlertRule, first_ms: int) -> AlertTrial:
        with self.space.read() as tx:
            self._rules(tx)
            history = changes_of(tx, self.definition.name)
        first = changes = omitted = 0
        alerts: tuple[TrialCrossing, ...] = ()
        for before, change in _steps(history, first_ms):
            outcome = Judged(self.definition.name, (rule,))
            try:
                self._judge(layers.objects, before, change, outcome)
            except NotFound:
                continue  # it aged out meanwhile
            first, changes, room = first or change.moment_ms, changes + 1, CROSSINGS_MAX - len(alerts)
            alerts += tuple(_of_trial(change.moment_ms, crossing) for crossing in outcome.crossings[:room])
            omitted += max(len(outcome.crossings) - room, 0) + outcome.omitted.get(rule.name, 0)
        return AlertTrial(
            map=self.definition.name, when=rule.when, buckets=rule.buckets,
            since=instant_text(first) if changes else "",
            changes=changes, alerts=alerts, omitted=omitted,
        )  # fmt: skip

    def _rules(self, tx: ReadTransaction) -> tuple[AlertRule, ...]:
        same_map(tx, self.definition)
        return rules_of(tx, self.definition.name)

    def _judge(self, objects: Objects, before: Change | None, change: Change, outcome: Judged) -> None:
        with ExitStack() as stack:
            after, old, loaded = (
                stack.enter_context(leased(objects, name)).manifest if name else None
                for name in (change.manifest, before and before.manifest, change.loaded)
            )
            assert after is not None, "a change has a manifest"
            brought = None if loaded is None else loaded.layers[0]
            crossings(objects, old, after, outcome, brought)


def _steps(history: list[Change], first_ms: int) -> Iterator[tuple[Change | None, Change]]:
    """The loads of a history from a time on, each with the change before it."""
    before: Change | None = None
    for change in history:
        whole = before is not None or change.version == 1
        if whole and change.kind == "load" and change.moment_ms >= first_ms:
            yield before, change
        before = change


def _of_trial(time_ms: int, crossing: Crossing) -> TrialCrossing:
    return TrialCrossing(time=instant_text(time_ms), key=crossing.key, bucket=crossing.bucket,
                         before=crossing.before, after=crossing.after)  # fmt: skip
