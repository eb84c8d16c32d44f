"""The history of a key as drawings: when each value held, ranges, sessions; and a line of the first number in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from markupsafe import Markup

from millpond.console import Span, bars, captioned, moment, steps, strip
from millpond.sizes import human_count

__all__ = ("TIMES", "drawn_history", "time_span")

_SPANS: Final = {("start", "end"): "session", ("key_start", "key_end"): "range"}
"""The columns of the beginning and the end of sessions and of ranges."""
_TAIL, _TAIL_MS_MIN = 10, 60_000
_TIME: Final = "effective_time"
_BUCKET: Final = "time"
"""The column of the beginning of buckets."""
TIMES: Final = (_TIME, "start", _BUCKET)
"""The columns of times by which rows of a key come one after another."""
_PARTS: Final = ("key", _TIME, _BUCKET, "value_type", *(name for pair in _SPANS for name in pair))


def drawn_history(history: Mapping[str, Any] | None, now_ms: int) -> list[Markup]:
    """The drawings of rows in the form of `shown_rows`; none of rows without times and ranges."""
    if history is None or not history["rows"]:
        return []
    columns, rows = list(history["columns"]), history["rows"]
    for names, noun in _SPANS.items():
        if set(names) <= set(columns) and _TIME not in columns:  # ranges with times are drawn by these
            spans = [_span(columns, row, *(_instant(row[columns.index(name)]) for name in names)) for row in rows]
            spans = sorted(spans, key=lambda span: span.start)
            words, first, last = human_count(len(spans), noun), spans[0].start, max(span.stop for span in spans)
            shown = _at if noun == "session" else "{:.0f}".format
            return [captioned(strip(spans, first, last, words), words, shown(first), shown(last))]
    if _BUCKET in columns:
        return _drawn_buckets(columns, rows)
    if _TIME not in columns:
        return []
    at = columns.index(_TIME)
    rows = sorted(rows, key=lambda row: _instant(row[at]))
    starts = [_instant(row[at]) for row in rows]
    # The newest value holds until now; what lies far behind it would take all the room.
    end = max(min(float(now_ms), starts[-1] + max((starts[-1] - starts[0]) / _TAIL, _TAIL_MS_MIN)), starts[-1] + 1)
    spans = [
        _span(columns, row, *held) for row, held in zip(rows, zip(starts, [*starts[1:], end], strict=True), strict=True)
    ]
    words, ends = f"{human_count(len(rows), 'value')}, the times for which each held", (_at(starts[0]), _at(end))
    drawings = [captioned(strip(spans, starts[0], end, words), words, *ends)]
    number = next((name for name in columns if name not in _PARTS and _is_number(rows, columns.index(name))), None)
    if number is not None and len(rows) > 1:
        points = [(start, row[columns.index(number)]) for start, row in zip(starts, rows, strict=True)]
        points = [point for point in points if point[1] is not None]
        low, high = min(value for _, value in points), max(value for _, value in points)
        words = f"{number}, from {low:,.10g} to {high:,.10g}"
        drawings.append(captioned(steps(points, end, f"{number} over time"), words, *ends))
    return drawings


def _drawn_buckets(columns: list[str], rows: list[list[Any]]) -> list[Markup]:
    """Bars of the first number of an aggregate, a bar for each of its buckets."""
    rows = sorted(rows, key=lambda row: _instant(row[columns.index(_BUCKET)]))
    number = next((name for name in columns if name not in _PARTS and _is_number(rows, columns.index(name))), None)
    if number is None or len(rows) < 2:
        return []
    titles = [_span(columns, row, 0, 0).words for row in rows]
    values = [row[columns.index(number)] or 0 for row in rows]
    words, ends = f"{number} by bucket, at most {max(values):,.10g}", (rows[0], rows[-1])
    drawing = bars(values, f"{number} by bucket", titles)
    return [captioned(drawing, words, *(_at(_instant(row[columns.index(_BUCKET)])) for row in ends))]


def time_span(history: Mapping[str, Any] | None, now_ms: int) -> tuple[int, int] | None:
    """The times between which the answer about a key changes, for a slider; None of a key without times."""
    columns = [] if history is None else list(history["columns"])
    column = next((columns.index(name) for name in TIMES if name in columns), None)
    if history is None or column is None or not history["rows"]:
        return None
    return int(min(_instant(row[column]) for row in history["rows"])), now_ms


def _at(millis: float) -> str:
    return moment(int(millis))


def _is_number(rows: Sequence[Sequence[Any]], column: int) -> bool:
    values = [row[column] for row in rows if row[column] is not None]
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _instant(cell: Any) -> float:
    """A time or a number as a number."""
    return datetime.fromisoformat(cell).timestamp() * 1000 if isinstance(cell, str) else float(cell)


def _span(columns: Sequence[str], row: Sequence[Any], start: float, stop: float) -> Span:
    words = ", ".join(f"{name}: {cell}" for name, cell in zip(columns, row, strict=True) if name != "key")
    return Span(start, stop, words[:300])
