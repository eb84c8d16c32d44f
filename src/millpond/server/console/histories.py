"""The history of a key as drawings: when each value held, ranges, sessions; and a line of the first number in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from millpond.console import Span, steps, strip

if TYPE_CHECKING:
    from markupsafe import Markup

__all__ = ("drawn_history", "time_span")

_SPANS: Final = (("start", "end"), ("key_start", "key_end"))
"""The columns of the beginning and the end of sessions and of ranges."""
_TAIL, _TAIL_MS_MIN = 10, 60_000
_TIME: Final = "effective_time"
_PARTS: Final = ("key", _TIME, "value_type", *(name for pair in _SPANS for name in pair))


def drawn_history(history: Mapping[str, Any] | None, now_ms: int) -> list[Markup]:
    """The drawings of rows in the form of `shown_rows`; none of rows without times and ranges."""
    if history is None or not history["rows"]:
        return []
    columns, rows = list(history["columns"]), history["rows"]
    for names in _SPANS:
        if set(names) <= set(columns):
            spans = [_span(columns, row, *(_place(row[columns.index(name)]) for name in names)) for row in rows]
            spans = sorted(spans, key=lambda span: span.start)
            return [strip(spans, spans[0].start, max(span.stop for span in spans), f"{len(spans)} spans")]
    if _TIME not in columns:
        return []
    at = columns.index(_TIME)
    rows = sorted(rows, key=lambda row: _place(row[at]))
    starts = [_place(row[at]) for row in rows]
    # The newest value holds until now; what lies far behind it would take all the room.
    end = max(min(float(now_ms), starts[-1] + max((starts[-1] - starts[0]) / _TAIL, _TAIL_MS_MIN)), starts[-1] + 1)
    spans = [
        _span(columns, row, *held) for row, held in zip(rows, zip(starts, [*starts[1:], end], strict=True), strict=True)
    ]
    drawings = [strip(spans, starts[0], end, f"{len(rows)} values, the times for which each held")]
    number = next((name for name in columns if name not in _PARTS and _is_number(rows, columns.index(name))), None)
    if number is not None and len(rows) > 1:
        points = [(start, row[columns.index(number)]) for start, row in zip(starts, rows, strict=True)]
        drawings.append(steps([point for point in points if point[1] is not None], end, f"{number} over time"))
    return drawings


def time_span(history: Mapping[str, Any] | None, now_ms: int) -> tuple[int, int] | None:
    """The times between which the answer about a key changes, for a slider; None of a key without times."""
    columns = [] if history is None else list(history["columns"])
    column = next((columns.index(name) for name in (_TIME, "start") if name in columns), None)
    if history is None or column is None or not history["rows"]:
        return None
    return int(min(_place(row[column]) for row in history["rows"])), now_ms


def _is_number(rows: Sequence[Sequence[Any]], column: int) -> bool:
    values = [row[column] for row in rows if row[column] is not None]
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _place(cell: Any) -> float:
    """A time or a number as a number."""
    return datetime.fromisoformat(cell).timestamp() * 1000 if isinstance(cell, str) else float(cell)


def _span(columns: Sequence[str], row: Sequence[Any], start: float, stop: float) -> Span:
    words = ", ".join(f"{name}: {cell}" for name, cell in zip(columns, row, strict=True) if name != "key")
    return Span(start, stop, words[:300])
