"""Data for which schedules wait, looked for: loads in the log of a pond, alerts in its streams, commits of a branch.

    schedule (cursor) ─▶ marks behind it ─▶ its policy ─▶ `DataArrived`, which the engine takes once

| data | mark | is new when |
|---|---|---|
| `loaded:weather` | a position of the log | a load, or a merge into `main`, brought rows to the map |
| `alerted:sales/late` | the id of an event | it tells a crossing of the rule, or without one of any rule of the map |
| `committed:repository/branch` | the id of a commit | it is on the branch, by first parents, and was not before |

Invariants:
* what is found is a function of cursor and pond: nothing is lost with this process, and two that look do no harm;
* a branch that was put back to a commit that it had begins no run: its cursor follows;
* policies: `all` marks have a run, one after another; or the `last`; or `none` but that of the last minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from littlehorse.model import ScheduledWfRun, Tenant, WfRun, WfRunId

from millpond.errors import NotFound
from millpond.events.ids import START, format_id, parse_id
from millpond.reports.alerts import alert_stream
from millpond.versions.graph.history import Window, is_ancestor
from millpond.workflows.engine.commands import DataArrived
from millpond.workflows.engine.cron import Cron, parse_cron
from millpond.workflows.engine.keys import key_of
from millpond.workflows.engine.metadata.tenancy import CLUSTER
from millpond.workflows.engine.scheduled_runs import is_open, run_name
from millpond.workflows.processor import Processor, ReadRows, read_rows

if TYPE_CHECKING:
    from millpond.maps.log.log import Entry
    from millpond.pond import Pond
    from millpond.versions.reference import Reference

__all__ = ("DataStarts", "newest_mark")

LOADS_READ: Final = 10_000
"""Entries of the log, or events, that one look reads for a schedule; the next look goes on behind them."""
COMMITS_READ: Final = 1_000
"""Commits that a look goes back; a branch with more of them since has a run for its head alone."""
_PAGE = 1_000
_NONE = "0"
_MINUTE_MS = 60_000
_LOOKS_APART_MAX = 64


@dataclass(frozen=True, slots=True)
class _Mark:
    """A load, an alert or a commit, and its time."""

    text: str
    time_ms: int
    begins: bool = True


@dataclass(slots=True)
class _Cursor:
    """The place where a schedule was last seen: its cursor, up to where the log, or the stream, was read, the `last`
    mark there, and the looks to leave out.
    """

    after: str
    position: int
    last: _Mark | None = None
    retries: int = 0
    pause: int = 0


class DataStarts:
    """Looks for what schedules of a processor wait for; `schedules` counts them. Used by one thread at a time."""

    def __init__(self, pond: Pond) -> None:
        self._pond, self.schedules = pond, 0
        self._cursors: dict[tuple[str, str], _Cursor] = {}

    def look(self, processor: Processor) -> list[tuple[str, DataArrived]]:
        """News for the schedules of a processor: a tenant and a request each, at most one a schedule."""
        arrived = []
        for tenant in _tenants(processor):
            for schedule in read_rows(processor, tenant, _schedules):
                self.schedules += 1
                request = self._arrived(processor, tenant, schedule)
                if request is not None:
                    arrived.append((tenant, request))
        return arrived

    def _arrived(self, processor: Processor, tenant: str, schedule: ScheduledWfRun) -> DataArrived | None:
        cron, key = parse_cron(schedule.cron_expression), (tenant, schedule.id.id)
        cursor = self._cursors.get(key)
        if cursor is None or cursor.after != cron.after:
            cursor = self._cursors[key] = _Cursor(cron.after, _position_of(cron))
        if cursor.pause:
            cursor.pause -= 1
            return None
        if not cron.overlap and cron.last and _is_open(processor, tenant, schedule, cron.last):
            return None
        mark = self._chosen(cron, cursor)
        if mark is None:
            return None
        # The run before may be open on another partition: then this is in vain, and is tried ever more seldom.
        cursor.pause, cursor.retries = cursor.retries, min(2 * cursor.retries + 1, _LOOKS_APART_MAX)
        return DataArrived(
            schedule.id, WfRunId(), schedule.created_at.ToMilliseconds(), cron.after, mark.text, int(mark.begins)
        )

    def _chosen(self, cron: Cron, cursor: _Cursor) -> _Mark | None:
        """The mark to which the cursor moves next."""
        if not cron.after:  # whoever put it could not see this pond
            return _Mark(newest_mark(self._pond, cron.on), 0, begins=False)
        kind, _, where = cron.on.partition(":")
        is_all = cron.missed == "all"
        if kind == "committed":
            marks = _commits(self._pond, where, cron.after)
        else:
            news = _loads if kind == "loaded" else _alerts
            marks = _news(news(self._pond, where, cursor.position), cursor, first=is_all)
        if not marks:
            return None
        mark = marks[0] if is_all else marks[-1]
        if cron.missed == "none" and self._pond.clock.now_ms() - mark.time_ms >= _MINUTE_MS:
            return _Mark(mark.text, mark.time_ms, begins=False)
        return mark


def _position_of(cron: Cron) -> int:
    """The place of a cursor in the log, or in the stream."""
    if cron.on.startswith("alerted:"):
        return parse_id(cron.after)
    return int(cron.after) if cron.after.isdigit() else 0


def _news(marks: Iterator[tuple[int, _Mark | None]], cursor: _Cursor, *, first: bool) -> list[_Mark]:
    """The first mark behind a place, or the last one, when all are read; till then the place moves on."""
    chosen, end, count = cursor.last, cursor.position, 0
    for position, mark in islice(marks, LOADS_READ):
        end, chosen, count = position, mark or chosen, count + 1
        if chosen is not None and first:
            break
    if chosen is not None and (first or count < LOADS_READ):
        return [chosen]
    cursor.position, cursor.last = end, chosen
    return []


def _loads(pond: Pond, names: str, after: int) -> Iterator[tuple[int, _Mark | None]]:
    """The entries of the log behind a position; those are marks that brought rows to some maps."""
    maps = set(names.split(","))
    for entry in _entries(pond, after):
        brings = entry.kind == "load" and any(entry.body["rows"].get(name) for name in maps.intersection(entry.maps))
        yield entry.position, _Mark(str(entry.position), entry.stamp_ms) if brings else None


def _alerts(pond: Pond, where: str, after: int) -> Iterator[tuple[int, _Mark | None]]:
    """The events of a map's alerts behind one; those are marks that tell a crossing of a rule."""
    name, _, rule = where.partition("/")
    for event in pond.events.read(*alert_stream(name), format_id(after)):
        crossing = event.kind == "alert" and rule in ("", event.headers["rule"])
        yield event.number, _Mark(event.id, event.time_ms) if crossing else None


def newest_mark(pond: Pond, data: str) -> str:
    """The mark behind which a schedule looks that is put now."""
    kind, _, where = data.partition(":")
    if kind == "loaded":
        return str(pond.log.position()[0])
    if kind == "alerted":
        index = pond.events.index(*alert_stream(where.partition("/")[0]))
        return format_id(START if index is None else index.last_id)
    with suppress(NotFound):
        return _branch(pond, where).head().id
    return _NONE


def _entries(pond: Pond, after: int) -> Iterator[Entry]:
    """The entries of the log behind a position, or of those the ones that are retained."""
    try:
        while page := pond.log.entries(after, _PAGE):
            yield from page
            after = page[-1].position
    except NotFound:  # trimmed
        yield from (entry for entry in reversed(pond.log.newest(LOADS_READ)) if entry.position > after)


def _commits(pond: Pond, where: str, after: str) -> list[_Mark]:
    """The commits of a branch since one, the oldest first."""
    try:
        branch = _branch(pond, where)
        head = branch.head()
    except NotFound:
        return []
    commits: deque[_Mark] = deque()
    for commit in islice(branch.log(Window(first_parent=True)), COMMITS_READ):
        if commit.id == after:
            return list(commits)
        commits.appendleft(_Mark(commit.id, commit.created * 1000))
    if after == _NONE:
        return list(commits)
    return [_Mark(head.id, head.created * 1000, begins=not _was_there(branch, head.id, after))]


def _was_there(branch: Reference, head: str, after: str) -> bool:
    """True when a branch was put back: its head is a commit that it had."""
    context = branch.context
    with suppress(NotFound), context.space.read() as tx:
        return is_ancestor(lambda id_: context.graph.commit(tx, id_), head, after)
    return False


def _branch(pond: Pond, where: str) -> Reference:
    repository, _, branch = where.partition("/")
    return pond.repositories.get(repository).branch(branch)


def _tenants(processor: Processor) -> list[str]:
    tenants = read_rows(processor, CLUSTER, lambda rows: [row.id.id for _, row in rows.list(Tenant, ())])
    return sorted({"default", *tenants})


def _schedules(rows: ReadRows) -> list[ScheduledWfRun]:
    """The schedules of a tenant that wait for data and are on."""
    rows_of_data = [row for _, row in rows.list(ScheduledWfRun, ()) if "ON=" in row.cron_expression]
    return [row for row in rows_of_data if not parse_cron(row.cron_expression).paused]


def _is_open(processor: Processor, tenant: str, schedule: ScheduledWfRun, run: str) -> bool:
    """True when this process knows that a run is open; the engine asks where the run is."""
    key = key_of(run_name(schedule, run))
    return is_open(read_rows(processor, tenant, lambda rows: rows.get(WfRun, key)))
