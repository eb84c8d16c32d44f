"""Rows of a map as charts on a terminal: `get --history` and `scan --plot`.

| values | drawn as |
|---|---|
| numbers, each numeric field of a struct | steps: a value holds until the next one |
| other values with few different ones | a bar for the time that each one holds |
| sessions | a bar from start to end, a line for each key |
| ranges of a map without times | a bar from first to last number, a line for each value |

What cannot be drawn (a `state` has no times; too many different values) is printed as rows, and a note says so. In a
pipe and with `--json` nothing is drawn: the rows are the answer.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.cli import rows
from millpond.cli.terminal import console
from millpond.cli.terminal.charts import Axis, Bar, bar_chart, step_chart
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.times.instants import parse_instant

if TYPE_CHECKING:
    from millpond.maps.inputs.key_columns import Key
    from millpond.maps.protocols import MapLike

__all__ = ("Chartable", "charts", "history_of", "show_history")

PANELS_MAX = 6
BARS_MAX = 12
ROWS_MAX = 200_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chartable:
    """Rows of a map, in memory: at most `ROWS_MAX`."""

    definition: MapDefinition
    rows: list[Row]


def history_of(map_: MapLike, key: Key, until: str | None) -> pa.Table:
    """The values that one key has had, oldest first; of a ranged map those that `get` gives for a number.

    Raises: `Invalid` for a key or time that the map cannot have.
    """
    kind = map_.kind
    conditions: list[tuple[str, str, Any]] = [("key", "=", key)]
    if not kind.keyed:
        conditions = [("key_start", "<=", key), ("key_end", ">=", key)]
    if until is not None and kind.timed:
        column = "start" if kind is Kind.SESSION else kind.address[-1]
        conditions.append((column, "<=", _EPOCH + parse_instant(until) * _MILLISECOND))
    table = map_.scan(conditions).read_all()
    return table if kind.keyed else pa.Table.from_pylist(_answers(table.to_pylist()), schema=table.schema)


def _answers(holding: Sequence[Row]) -> list[Row]:
    """The row that answers at each time, of rows that all hold one number: not each of them ever does.

    A row can only lose to rows that come later, so the best row so far is all that need be remembered.
    """
    answers: list[Row] = []
    for row in sorted(holding, key=_time):
        best = row
        if answers and _rank(answers[-1]) < _rank(row):
            best = {**answers[-1], **_timed(row)}
        if answers and _time(answers[-1]) == _time(row):
            answers.pop()
        answers.append(best)
    return answers


def _time(row: Row) -> int:
    return _instant(row["effective_time"]) if "effective_time" in row else 0


def _timed(row: Row) -> Row:
    return {name: row[name] for name in ("effective_time",) if name in row}


def _rank(row: Row) -> tuple[int, int, int]:
    """The order of `get` among ranges that hold a number: narrowest first, then the latest start, then the latest."""
    return row["key_end"] - row["key_start"], -row["key_start"], -_time(row)


def show_history(
    definition: MapDefinition, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, as_json: bool
) -> int:
    """Draw rows on a terminal, print them elsewhere; answers how many there were."""
    if as_json or not sys.stdout.isatty():
        return rows.show(schema, batches, as_json=as_json)
    taken = _taken(batches)
    if not taken.num_rows:
        console.note("no rows")
        return 0
    drawn, notes = charts(Chartable(definition, taken.to_pylist()), console.console().width)
    for panel in drawn:
        console.say(panel)
    if not drawn:
        rows.show(schema, taken.to_batches(), as_json=False)
    if taken.num_rows == ROWS_MAX:
        notes = [*notes, f"the first {ROWS_MAX:,} rows"]
    for text in notes:
        console.note(text)
    return taken.num_rows


def _taken(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    batches_read = list(rows.limited(batches, ROWS_MAX))
    return pa.Table.from_batches(batches_read) if batches_read else pa.table({})


# -- panels -------------------------------------------------------------------------------------------


def charts(history: Chartable, columns: int) -> tuple[list[str], list[str]]:
    """The panels of rows, and notes about what is left out; no panel where nothing can be drawn."""
    kind = history.definition.kind
    missing = [name for name in kind.address if name not in history.rows[0]]
    if kind is Kind.STATE or missing:
        reason = f"a chart needs the column {missing[0]}" if missing else "the map has no times"
        return [], [f"{reason}: its rows are listed"]
    if kind.keyed:  # each store has an order of its own
        history = replace(history, rows=sorted(history.rows, key=itemgetter("key")))
    axis = _axis(history.rows, kind)
    panels = _panels(history, axis, columns)
    drawn = list(_first(panels))
    more = sum(1 for _ in panels)
    notes = [f"{more} more are not drawn: choose a key or columns"] if more else []
    if None in drawn:
        notes.append(f"text with more than {BARS_MAX} different values is not drawn")
    return [panel for panel in drawn if panel is not None], notes


def _first(panels: Iterator[str | None]) -> Iterator[str | None]:
    for _, panel in zip(range(PANELS_MAX), panels, strict=False):
        yield panel


def _panels(history: Chartable, axis: Axis, columns: int) -> Iterator[str | None]:
    kind, name = history.definition.kind, history.definition.name
    if kind is Kind.SESSION:
        yield _bars(
            name,
            [Bar(str(row["key"]), _instant(row["start"]), _instant(row["end"])) for row in history.rows],
            axis,
            columns,
        )
        return
    fields = [field for field in history.rows[0] if field not in (*kind.address, "value_type")]
    if kind is Kind.RANGED_STATE:
        for field in fields:
            bars = [Bar(_text(row[field]), row["key_start"], row["key_end"] + 1) for row in history.rows]
            yield _bars(f"{name} {field}", bars, axis, columns)
        return
    for key, series in _by_key(history).items():
        for field in fields:
            title = f"{key} {field}" if fields != ["value"] else key
            points = [(_instant(row[kind.address[-1]]), row[field]) for row in series]
            yield _panel(title, points, axis, columns)


def _by_key(history: Chartable) -> dict[str, list[Row]]:
    series: dict[str, list[Row]] = {}
    for row in history.rows:
        key = row["key"] if history.definition.kind.keyed else f"{row['key_start']} to {row['key_end']}"
        series.setdefault(str(key), []).append(row)
    for series_rows in series.values():
        series_rows.sort(key=itemgetter(history.definition.kind.address[-1]))
    return series


def _panel(title: str, points: Sequence[tuple[int, Any]], axis: Axis, columns: int) -> str | None:
    values = [value for _, value in points if value is not None]
    if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return step_chart(title, points, axis, columns)
    ends = [start for start, _ in points[1:]] + [axis.stop]
    return _bars(
        title, [Bar(_text(value), start, end) for (start, value), end in zip(points, ends, strict=True)], axis, columns
    )


def _bars(title: str, bars: Sequence[Bar], axis: Axis, columns: int) -> str | None:
    if len({bar.label for bar in bars}) > BARS_MAX:
        return None
    return bar_chart(title, bars, axis, columns)


def _axis(rows: Sequence[Row], kind: Kind) -> Axis:
    """From the first place to the last, and a little more: the last value goes on."""
    if kind is Kind.RANGED_STATE:
        return Axis(min(row["key_start"] for row in rows), max(row["key_end"] for row in rows) + 1, timed=False)
    first, last = ("start", "end") if kind is Kind.SESSION else (kind.address[-1], kind.address[-1])
    start, stop = min(_instant(row[first]) for row in rows), max(_instant(row[last]) for row in rows)
    if kind is Kind.SESSION:
        return Axis(start, max(stop, start + 1))
    return Axis(start, stop + max((stop - start) // 20, 1000))


def _instant(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def _text(value: Any) -> str:
    return "no value" if value is None else str(rows.plain(value))
