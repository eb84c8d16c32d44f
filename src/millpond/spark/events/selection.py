"""The events that a read wants: streams, days, ids, kinds and headers; from options, and from Spark's filters.

Every filter that is taken is taken exactly: what is not understood stays with Spark.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from millpond.errors import Invalid
from millpond.events.days import DAY_MAX
from millpond.events.filters import ALL, EventFilter, filter_of, filter_of_query
from millpond.events.ids import ID_MAX, parse_id, position_before
from millpond.events.index import Day
from millpond.events.names import StreamName
from millpond.kernel.page import all_behind
from millpond.spark.events.locations import Streams
from millpond.times.instants import parse_instant

__all__ = ("FollowSettings", "Selection", "selection_of", "starting_position")

_EPOCH = datetime.date(1970, 1, 1)
_PAGE = 1_000
Names = frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowSettings:
    """The start of a new query, the events of a micro-batch, and the treatment of events that have expired.

    A query begins after the id `start`, or at the end of a stream that ends before it: `ID_MAX` is the newest event.
    """

    start: int = 0
    events_max: int | None = None
    fail_on_expired: bool = True


@dataclass(frozen=True, slots=True)
class Selection:
    """Streams by queue and job set (None: all), days from `first_day` to `last_day`, ids after one up to another,
    and of those events the ones that match.
    """

    queues: Names = None
    job_sets: Names = None
    first_day: int = 0
    last_day: int = DAY_MAX
    after: int = 0
    until: int = ID_MAX
    matching: EventFilter = ALL

    def streams(self, store: Streams) -> Iterator[StreamName]:
        """The streams that are wanted; some of them may not be there."""
        if self.queues is not None and self.job_sets is not None:
            yield from (
                StreamName(queue, job_set) for queue in sorted(self.queues) for job_set in sorted(self.job_sets)
            )
            return
        for queue in (None,) if self.queues is None else sorted(self.queues):
            names = all_behind(lambda after, queue=queue: store.streams(queue, after, limit=_PAGE))  # type: ignore[misc]
            yield from (name for name in names if self.job_sets is None or name.job_set in self.job_sets)

    def wants(self, day: Day) -> bool:
        """True when events of a day may be wanted."""
        return self.first_day <= day.day <= self.last_day and day.last_id > self.after and day.first_id <= self.until

    def pushed(self, filters: Iterable[Filter]) -> tuple[Selection, list[Filter]]:
        """The selection that also obeys those of the filters that it can, and the others."""
        selection, rest = self, []
        for filter_ in filters:
            subset = selection._obeying(filter_)
            if subset is None:
                rest.append(filter_)
            else:
                selection = subset
        return selection, rest

    def _obeying(self, filter_: Filter) -> Selection | None:
        column, values = _compared(filter_)
        if column == "queue" and _are(values, str) and isinstance(filter_, EqualTo | In):
            return replace(self, queues=_both(self.queues, values))
        if column == "job_set" and _are(values, str) and isinstance(filter_, EqualTo | In):
            return replace(self, job_sets=_both(self.job_sets, values))
        if column == "kind" and _are(values, str) and isinstance(filter_, EqualTo | In):
            return self._of_kinds(values)
        if column == "day" and _are(values, datetime.date) and not isinstance(filter_, In):
            return self._in_days(filter_, (values[0] - _EPOCH).days)  # type: ignore[operator]
        if column == "id" and _are(values, str) and not isinstance(filter_, In):
            return self._in_ids(filter_, str(values[0]))
        return None

    def _of_kinds(self, values: tuple[object, ...]) -> Selection | None:
        query = self.matching.query
        kinds = _both(frozenset(query["kind"]) if "kind" in query else None, values)
        try:
            return replace(self, matching=filter_of(query | {"kind": sorted(kinds or ())}))
        except Invalid:
            return None  # none is left, or they are too many: Spark does it

    def _in_days(self, filter_: Filter, day: int) -> Selection:
        first = {EqualTo: day, GreaterThan: day + 1, GreaterThanOrEqual: day}.get(type(filter_), 0)
        last = {EqualTo: day, LessThan: day - 1, LessThanOrEqual: day}.get(type(filter_), DAY_MAX)
        return replace(self, first_day=max(self.first_day, first), last_day=min(self.last_day, last))

    def _in_ids(self, filter_: Filter, text: str) -> Selection | None:
        try:
            id_ = parse_id(text)
        except Invalid:
            return None  # texts are compared: Spark does it
        if not text:
            return None
        after = {EqualTo: id_ - 1, GreaterThan: id_, GreaterThanOrEqual: id_ - 1}.get(type(filter_), 0)
        until = {EqualTo: id_, LessThan: id_ - 1, LessThanOrEqual: id_}.get(type(filter_), ID_MAX)
        return replace(self, after=max(self.after, after), until=min(self.until, until))


def _compared(filter_: Filter) -> tuple[str | None, tuple[object, ...]]:
    """The column and the values of a comparison; no column where it is something else."""
    if isinstance(filter_, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return (filter_.attribute[0], (filter_.value,)) if len(filter_.attribute) == 1 else (None, ())
    if isinstance(filter_, In):
        return (filter_.attribute[0], tuple(filter_.value)) if len(filter_.attribute) == 1 else (None, ())
    return None, ()


def _are(values: tuple[object, ...], kind: type) -> bool:
    return bool(values) and all(type(value) is kind for value in values)


def _both(names: Names, values: tuple[object, ...]) -> Names:
    texts = frozenset(str(value) for value in values)
    return texts if names is None else names & texts


def selection_of(options: Mapping[str, str]) -> Selection:
    """The selection that options describe.

    Raises: `Invalid` for a day or an id that is none, and for filters that are not understood.
    """
    queue, job_set, day = options.get("queue"), options.get("job_set"), options.get("day")
    return Selection(
        queues=None if queue is None else frozenset((queue,)),
        job_sets=None if job_set is None else frozenset((job_set,)),
        first_day=_day("from_day", options.get("from_day") or day, 0),
        last_day=_day("to_day", options.get("to_day") or day, DAY_MAX),
        after=parse_id(options.get("after", "")),
        until=parse_id(options["until"]) if options.get("until") else ID_MAX,
        matching=filter_of_query(options.get("filters", "")),
    )


def starting_position(options: Mapping[str, str]) -> int:
    """The place before all events that were appended at `startingTimestamp` or later; without it, the start.

    Raises: `Invalid` for a time that is none, or has no zone.
    """
    text = options.get("startingTimestamp", "").strip()
    try:
        return position_before(parse_instant(text)) if text else 0
    except Invalid as error:
        raise Invalid(
            "an option is no time", kind="option_value", option="startingTimestamp", value=repr(text),
            hint="a time with a zone, such as 2026-11-24T10:00:00Z",
        ) from error  # fmt: skip


def _day(option: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        return (datetime.date.fromisoformat(text.strip()) - _EPOCH).days
    except ValueError as error:
        raise Invalid(
            "an option is no day", kind="option_value", option=option, value=repr(text), hint="such as 2026-11-22"
        ) from error
