"""Rules about the ages of events, set, read and removed: one for a queue, one for a job set of it.

They lie beside the streams, so that every process and every node that shares these applies the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from millpond.error_values import shown
from millpond.errors import Invalid, NotFound, Unavailable
from millpond.events.ages import Age, AgeRule, Ages, age_of
from millpond.events.deletion import note_name
from millpond.events.names import StreamName
from millpond.events.protocol import NoteKind, StreamStore
from millpond.json_forms import JsonForm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.events.maintenance import MaintenanceRules

__all__ = ("RULES_MAX", "AgeSettings", "StoredAges", "ages_in")

RULES_MAX = 10_000
"""Rules of a place: maintenance reads all of them."""
_FORM = JsonForm(AgeRule)


class AgeSettings(ABC):
    """The rules of a pond: for a queue, or with a job set for that alone."""

    def set(
        self, queue: str, job_set: str | None = None, *, compress_after: Age = None, retention: Age = None
    ) -> AgeRule:
        """Put a rule in the place of the one that was there. An age that is left out is that of what is less specific.

        Raises:
            Invalid: a name or an age is not acceptable, or a name is a pattern. Unavailable: there are too many rules.
        """
        StreamName(queue, "" if job_set is None else job_set).check()
        rule = AgeRule(queue, job_set, age_of(compress_after), age_of(retention)).check()
        self._put(rule)
        return rule

    def get(self, queue: str, job_set: str | None = None) -> AgeRule:
        """The rule for just this queue, or this job set.

        Raises:
            NotFound: there is none.
        """
        for rule in self.rules(queue):
            if rule.job_set == job_set:
                return rule
        raise _no_rule(queue, job_set)

    def remove(self, queue: str, job_set: str | None = None) -> None:
        """Remove a rule.

        Raises: as `get`.
        """
        self.get(queue, job_set)
        self._drop(queue, job_set)

    def holding(self, queue: str, job_set: str) -> AgeRule:
        """The ages that hold for a job set by rules; None where the pond's own do.

        Raises:
            Invalid: a name is not acceptable.
        """
        StreamName(queue, job_set).check()
        rules = {rule.job_set: rule for rule in self.rules(queue)}
        return AgeRule(queue, job_set).over(rules.get(job_set)).over(rules.get(None))

    @abstractmethod
    def rules(self, queue: str | None = None) -> list[AgeRule]:
        """The rules of a queue, or all, ordered by queue and job set."""

    @abstractmethod
    def _put(self, rule: AgeRule) -> None: ...

    @abstractmethod
    def _drop(self, queue: str, job_set: str | None) -> None: ...


class StoredAges(AgeSettings):
    """The rules beside the streams of a store."""

    def __init__(self, store: StreamStore) -> None:
        self._store = store

    def rules(self, queue: str | None = None) -> list[AgeRule]:
        """See `AgeSettings.rules`.

        Raises:
            Corrupt: a rule cannot be read.
        """
        rules = [
            _FORM.stored(row, "a rule about the ages of events cannot be read", kind="events_damaged")
            for row in self._store.notes.read(NoteKind.AGES).values()
        ]
        matching = [rule for rule in rules if queue in (None, rule.queue)]
        return sorted(matching, key=lambda rule: (rule.queue, rule.job_set is not None, rule.job_set or ""))

    def _put(self, rule: AgeRule) -> None:
        self._check_named(rule)
        name, notes = note_name(rule.queue, rule.job_set), self._store.notes.read(NoteKind.AGES)
        if name not in notes and len(notes) >= RULES_MAX:
            raise Unavailable(
                "there are as many rules about the ages of events as there may be", kind="event_ages_full",
                rules_max=RULES_MAX, hint="set one for a queue instead of its job sets",
            )  # fmt: skip
        self._store.notes.put(NoteKind.AGES, name, _FORM.encode(rule))

    def _check_named(self, rule: AgeRule) -> None:
        """Refuse a rule for `nightly-*`, which would hold for nothing else, unless there is one of just that name."""
        names = (rule.queue, rule.job_set or "")
        if not any(sign in name for name in names for sign in "*?"):
            return
        there = self._store.index(StreamName(*names)) if rule.job_set else self._store.streams(rule.queue, limit=1)
        if not there:
            raise Invalid(
                "ages are those of a queue or of one job set, not of a pattern", kind="event_ages_pattern",
                queue=shown(rule.queue), job_set=rule.job_set and shown(rule.job_set),
                hint="set them for the queue, or for each job set",
            )  # fmt: skip

    def _drop(self, queue: str, job_set: str | None) -> None:
        self._store.notes.remove(NoteKind.AGES, note_name(queue, job_set))


def ages_in(store: StreamStore, own: MaintenanceRules) -> Ages:
    """The ages of a store, beside its own."""
    return Ages(own.compress_after_ms, own.retention_ms, _by_names(StoredAges(store).rules()))


def _by_names(rules: Iterable[AgeRule]) -> dict[tuple[str, str | None], AgeRule]:
    return {(rule.queue, rule.job_set): rule for rule in rules}


def _no_rule(queue: str, job_set: str | None) -> NotFound:
    return NotFound(
        "there is no such rule about the ages of events", kind="event_ages_not_found", queue=shown(queue),
        job_set=None if job_set is None else shown(job_set), hint="millpond events settings list shows all",
    )  # fmt: skip
