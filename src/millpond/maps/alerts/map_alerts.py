"""The alerts of one map, `map.alerts`: its rules, and a trial of one on the map's history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

from millpond.errors import AlreadyExists, Invalid, NotFound
from millpond.kernel.steps import step
from millpond.maps.alerts.judging import CROSSINGS_MAX, Crossing, Judged, crossings
from millpond.maps.alerts.rules import RULES_MAX, AlertRule, checked_rule, put_rule, rules_of
from millpond.maps.layered.history import changes_of
from millpond.maps.model.catalogue import same_map
from millpond.maps.model.keyspaces import ALERTS
from millpond.maps.snapshots.leases import Lease
from millpond.maps.snapshots.manifest import SnapshotManifest, load_manifest
from millpond.times.durations import parse_duration

if TYPE_CHECKING:
    from millpond.kernel.space import ReadTransaction, Transaction
    from millpond.maps.layered.head import Layers
    from millpond.maps.layered.history import Change
    from millpond.maps.model.definition import MapDefinition

__all__ = ("AlertTrial", "MapAlerts", "TrialCrossing")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRIAL = "trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCrossing:
    """A crossing that a rule would have told, and the time of the change that made it."""

    time: str
    key: str
    bucket: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTrial:
    """The result of a trial: the changes that were judged, from the first at `since` on, and what they would have told;
    `omitted` counts more of the same.
    """

    map: str
    when: str
    buckets: int
    since: str
    changes: int
    alerts: tuple[TrialCrossing, ...]
    omitted: int


@dataclass(frozen=True, slots=True)
class MapAlerts:
    """The alerts of an aggregate. `writing` is entered by whoever changes the pond."""

    layers: Layers
    writing: Callable[[], AbstractContextManager[None]]

    @property
    def _definition(self) -> MapDefinition:
        return self.layers.definition

    def list(self) -> Sequence[AlertRule]:
        """The rules of the map, by name.

        Raises: `NotFound`, kind `map_dropped`.
        """
        with self.layers.space.read() as tx:
            return self._rules(tx)

    def add(self, when: str, *, name: str = "", buckets: int | str = 1) -> AlertRule:
        """Add a rule: an alert is told when a load, or a merge into `main`, lets the condition `when` hold in so many
        buckets of a key, one after another. Without a `name` it is `alert_1`, `alert_2`, ….

        Raises: `Invalid` for a condition that is not understood, naming a column that the map does not have, and for
        more than 100 rules; `AlreadyExists`.
        """
        now = self.layers.clock.now_ms()
        checked_rule(self._definition, name or "alert_1", when, buckets)

        def enter(tx: Transaction) -> AlertRule:
            names = {rule.name for rule in self._rules(tx)}
            free = name or next(free for number in count(1) if (free := f"alert_{number}") not in names)
            rule = checked_rule(self._definition, free, when, buckets, now)
            if rule.name in names:
                raise AlreadyExists("the map has an alert of that name", kind="alert_exists", map=self._definition.name,
                                    alert=rule.name, hint="remove it first, or choose another name")  # fmt: skip
            if len(names) >= RULES_MAX:
                raise Invalid("the map has too many alerts", kind="alerts_max", map=self._definition.name,
                              alerts_max=RULES_MAX, hint="remove one, or join conditions by or")  # fmt: skip
            put_rule(tx, self._definition.name, rule)
            return rule

        with self.writing():
            rule = self.layers.space.write(enter)
        step("alerts.added")
        return rule

    def remove(self, name: str) -> None:
        """Remove a rule; what it has to tell already is told.

        Raises: `NotFound`, naming the rules of the map.
        """

        def leave(tx: Transaction) -> None:
            names = [rule.name for rule in self._rules(tx)]
            if name not in names:
                raise NotFound("the map has no such alert", kind="alert_not_found", map=self._definition.name,
                               alert=name, hint=f"there is: {', '.join(names) or 'none'}")  # fmt: skip
            tx.delete(ALERTS.pack(self._definition.name, name))

        with self.writing():
            self.layers.space.write(leave)

    def try_(self, when: str, *, buckets: int | str = 1, since: str | int | None = None) -> AlertTrial:
        """Judge the history of the map by a rule, and tell what it would have told `since` an age such as `30d`;
        without one, as far back as changes are kept.

        Raises: as `add`; `Corrupt`, naming a file that is damaged.
        """
        layers, rule = self.layers, checked_rule(self._definition, _TRIAL, when, buckets)
        first_ms = 0 if since is None else layers.clock.now_ms() - parse_duration(since)
        with layers.space.read() as tx:
            self._rules(tx)
            history = changes_of(tx, self._definition.name)
        first = changes = omitted = 0
        alerts: tuple[TrialCrossing, ...] = ()
        for before, change in _steps(history, first_ms):
            outcome = Judged(self._definition.name, (rule,))
            try:
                self._judge(before, change, outcome)
            except NotFound:
                continue  # it aged out meanwhile
            first, changes, room = first or change.moment_ms, changes + 1, CROSSINGS_MAX - len(alerts)
            alerts += tuple(_of_trial(change, crossing) for crossing in outcome.crossings[:room])
            omitted += max(len(outcome.crossings) - room, 0) + outcome.omitted.get(rule.name, 0)
        return AlertTrial(
            map=self._definition.name, when=when, buckets=rule.buckets, since=_text(first) if changes else "",
            changes=changes, alerts=alerts, omitted=omitted,
        )  # fmt: skip

    def _rules(self, tx: ReadTransaction) -> tuple[AlertRule, ...]:
        same_map(tx, self._definition)
        return rules_of(tx, self._definition.name)

    def _judge(self, before: Change | None, change: Change, outcome: Judged) -> None:
        objects = self.layers.objects
        names = [
            change.manifest,
            *([] if before is None else [before.manifest]),
            *([change.loaded] * bool(change.loaded)),
        ]
        leases = [Lease(objects, name) for name in names]
        try:
            after, *rest = (load_manifest(objects, name) for name in names)
            old: SnapshotManifest | None = None if before is None else rest[0]
            brought = rest[-1].layers[0] if change.loaded else None
            crossings(objects, self._definition, old, after, outcome, brought)
        finally:
            for lease in leases:
                lease.release()


def _steps(history: list[Change], first_ms: int) -> Iterator[tuple[Change | None, Change]]:
    """The loads of a history from a time on, each with the change before it."""
    before: Change | None = None
    for change in history:
        whole = before is not None or change.version == 1
        if whole and change.kind == "load" and change.moment_ms >= first_ms:
            yield before, change
        before = change


def _of_trial(change: Change, crossing: Crossing) -> TrialCrossing:
    return TrialCrossing(time=_text(change.moment_ms), key=crossing.key, bucket=crossing.bucket,
                         before=crossing.before, after=crossing.after)  # fmt: skip


def _text(moment_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=moment_ms)).isoformat()
