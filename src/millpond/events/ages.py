"""The ages at which days are compressed and dropped: those of a job set, else of its queue, else the pond's own.

    rule of the job set ─ has no such age ─▶ rule of the queue ─ has none ─▶ the pond's own

Each of the two ages is looked for by itself. All is pure; `age_settings.py` holds the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from millpond.errors import Invalid
from millpond.events.days import DAY_MS, latest_due_day
from millpond.events.names import StreamName
from millpond.events.protocol import HIDDEN_DAY, Due, Work
from millpond.times.durations import format_duration, is_off, parse_duration

__all__ = ("OFF", "Age", "AgeRule", "Ages", "age_of", "is_hidden")

OFF = 0
"""In milliseconds: never."""
Age: TypeAlias = "str | int | None"
"""A duration, such as `30d` or milliseconds; `off` for never; None: the age of what is less specific."""


@dataclass(frozen=True, slots=True)
class AgeRule:
    """The ages of a queue, or of one job set of it; None: that of what is less specific. `OFF` is never."""

    queue: str
    job_set: str | None = None
    compress_after_ms: int | None = None
    retention_ms: int | None = None

    def check(self) -> AgeRule:
        """The rule itself.

        Raises:
            Invalid: it has no age, or compresses days that are dropped by then.
        """
        if self.compress_after_ms is None and self.retention_ms is None:
            raise Invalid(
                "a rule has an age at least", kind="event_ages_none", hint="give compress_after=…, retention=…, or both"
            )
        if self.compress_after_ms and self.retention_ms and self.compress_after_ms >= self.retention_ms:
            raise Invalid(
                "days would be compressed when they are dropped already", kind="event_ages_order",
                compress_after=format_duration(self.compress_after_ms), retention=format_duration(self.retention_ms),
                hint="compress earlier, or turn compression off",
            )  # fmt: skip
        return self

    def shown(self) -> dict[str, Any]:
        """The rule as an object of JSON, with its ages as `age_of` reads them."""
        return {
            "queue": self.queue, "job_set": self.job_set, "compress_after": _shown(self.compress_after_ms),
            "retention": _shown(self.retention_ms),
        }  # fmt: skip

    def over(self, other: AgeRule | None) -> AgeRule:
        """The rule, with the ages of a less specific one where it has none.

        >>> AgeRule("etl", "nightly", None, 5).over(AgeRule("etl", None, 3, 9))
        AgeRule(queue='etl', job_set='nightly', compress_after_ms=3, retention_ms=5)
        """
        if other is None:
            return self
        pack, drop = self.compress_after_ms, self.retention_ms
        return replace(
            self, compress_after_ms=other.compress_after_ms if pack is None else pack,
            retention_ms=other.retention_ms if drop is None else drop,
        )  # fmt: skip


def age_of(age: Age) -> int | None:
    """The milliseconds of an age.

    >>> age_of("1d"), age_of("off"), age_of(None)
    (86400000, 0, None)

    Raises:
        Invalid: kind `duration`: it is not understood, or negative; kind `event_age_zero`: it is no time at all.
    """
    if age is None or is_off(age):
        return None if age is None else OFF
    milliseconds = parse_duration(age)
    if not milliseconds:
        raise Invalid("an age of zero is not meant", kind="event_age_zero", hint="say off for never, else a duration")
    return milliseconds


def _shown(age_ms: int | None) -> str | None:
    return None if age_ms is None else format_duration(age_ms) if age_ms else "off"


@dataclass(frozen=True, slots=True)
class Ages:
    """The ages of all streams of a place, in milliseconds: its own, and its rules by queue and job set."""

    compress_after_ms: int
    retention_ms: int
    rules: Mapping[tuple[str, str | None], AgeRule] = field(default_factory=dict)

    def of(self, stream: StreamName) -> AgeRule:
        """The ages that hold for a stream."""
        own = AgeRule(*stream, self.compress_after_ms, self.retention_ms)
        if not self.rules:
            return own
        rule = AgeRule(*stream).over(self.rules.get((stream.queue, stream.job_set)))
        return rule.over(self.rules.get((stream.queue, None))).over(own)

    def after_ms(self, work: Work, stream: StreamName) -> int:
        """The age of a kind of work on a stream, or `OFF`."""
        return _of_work(self.of(stream), work) or OFF

    def shortest_ms(self, work: Work) -> int:
        """The shortest age of any stream, or `OFF` when all are off."""
        own = AgeRule("", None, self.compress_after_ms, self.retention_ms)
        return min(filter(None, (_of_work(rule, work) for rule in (own, *self.rules.values()))), default=OFF)

    def latest_day(self, work: Work, stream: StreamName, now_ms: int) -> int:
        """The latest day of a stream that is due; -1 when none is."""
        return _latest(now_ms, self.after_ms(work, stream))

    def latest_day_of_any(self, work: Work, now_ms: int) -> int:
        """The latest day that is due of any stream."""
        return _latest(now_ms, self.shortest_ms(work))

    def due_ms(self, work: Work, due: Due) -> int | None:
        """The moment at which work listed in the registry is due; None: never."""
        after_ms = self.after_ms(work, due.stream)
        return (due.day + 1) * DAY_MS + after_ms if after_ms and not is_hidden(work, due.day) else None


def is_hidden(work: Work, day: int) -> bool:
    """True for the day under which the registry lists what a deletion left: it is dropped whatever its age."""
    return work is Work.EXPIRE and day == HIDDEN_DAY


def _of_work(rule: AgeRule, work: Work) -> int | None:
    return rule.compress_after_ms if work is Work.COMPRESS else rule.retention_ms


def _latest(now_ms: int, after_ms: int) -> int:
    return latest_due_day(now_ms, after_ms) if after_ms else -1
