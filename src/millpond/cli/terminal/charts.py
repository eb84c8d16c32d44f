"""Charts of text: numbers as steps, everything else as bars, over an axis of times or of whole numbers.

    JFK temp                                        bars
    35┤        ⡤⠤⠤⠤⠤⠤⠤⠄                             active  ████████────────
    33┤⠉⠉⠉⠉⠉⠉⠉⠉⠃                                    closed  ────────████████
      └┬───────────────┬                                    17:00       19:00

A value holds until the next one, so a line between two points would show values that never were. Charts have no
colours: they read the same on every terminal.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

__all__ = ("Axis", "Bar", "bar_chart", "step_chart")

_STEP_ROWS = 11
_TICK_COLUMNS = 22
_LABEL_COLUMNS_MAX = 32
_SECOND, _DAY = 1_000, 86_400_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Axis:
    """The places from `start` to `stop`: UTC milliseconds, or whole numbers where it is not `timed`."""

    start: int
    stop: int
    timed: bool = True

    def __post_init__(self) -> None:
        assert self.start < self.stop, "an axis has a length"

    def ticks(self, columns: int) -> list[tuple[int, str]]:
        """Places and their labels, as many as fit beside each other."""
        count = max(1, columns // _TICK_COLUMNS)
        span = self.stop - self.start
        positions = [self.start + span * number // count for number in range(count + 1)]
        return [(position, self._label(position)) for position in dict.fromkeys(positions)]

    def _label(self, position: int) -> str:
        if not self.timed:
            return str(position)
        moment, span = _EPOCH + datetime.timedelta(milliseconds=position), self.stop - self.start
        if span >= 3 * _DAY:
            return f"{moment:%Y-%m-%d}"
        if span >= 180 * _SECOND:
            return f"{moment:%m-%d %H:%M}"
        return f"{moment:%H:%M:%S}" if span >= 5 * _SECOND else f"{moment:%H:%M:%S}.{position % _SECOND:03d}"


@dataclass(frozen=True, slots=True)
class Bar:
    """A value that holds from `start` to `stop`, on the line of its label."""

    label: str
    start: int
    stop: int


def step_chart(title: str, points: Sequence[tuple[int, float | None]], axis: Axis, columns: int) -> str:
    """Numbers that hold until the next point; None, NaN and the infinities are gaps.

    `points` are in the order of their places, which lie on the axis.
    """
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.plot_size(columns, _STEP_ROWS)
    figure.title(title)
    for xs, ys in _runs(points, axis.stop):
        figure.draw(figure.signal(xs, ys, marker="braille").lines(True))
    ruler, ticks = figure.ruler("x"), axis.ticks(columns)
    ruler.lim(axis.start, axis.stop)
    ruler.ticks([position for position, _ in ticks], [label for _, label in ticks])
    return "\n".join(line.rstrip() for line in plotext.uncolorize(str(figure.build())).rstrip().splitlines())


def _runs(points: Sequence[tuple[int, float | None]], stop: int) -> Iterator[tuple[list[int], list[float]]]:
    """The corners of the steps, a list for each run of numbers without a gap."""
    ends = [*(position for position, _ in points[1:]), stop]
    spans = [(position, value, end) for (position, value), end in zip(points, ends, strict=False)]
    for is_number, run in groupby(spans, key=lambda step: step[1] is not None and math.isfinite(step[1])):
        if is_number:
            corners = [(x, float(value)) for position, value, end in run if value is not None for x in (position, end)]
            yield [x for x, _ in corners], [y for _, y in corners]


def bar_chart(title: str, bars: Sequence[Bar], axis: Axis, columns: int) -> str:
    """Bars over the axis, a line for each label, in the order in which labels first come."""
    labels = list(dict.fromkeys(bar.label for bar in bars))
    width = min(max(map(len, labels), default=0), _LABEL_COLUMNS_MAX)
    room = max(columns - width - 2, 10)
    lines = [title.center(columns).rstrip()]
    for label in labels:
        cells = ["─"] * room
        for bar in bars:
            if bar.label == label:
                first, last = _cell(bar.start, axis, room), max(_cell(bar.stop, axis, room), 1)
                cells[min(first, room - 1) : max(last, first + 1)] = "█" * max(last - first, 1)
        lines.append(f"{_short(label, width):<{width}}  {''.join(cells[:room])}")
    return "\n".join([*lines, " " * (width + 2) + _tick_line(axis, room)])


def _cell(position: int, axis: Axis, room: int) -> int:
    return min(max((position - axis.start) * room // (axis.stop - axis.start), 0), room)


def _short(label: str, width: int) -> str:
    return label if len(label) <= width else label[: width - 1] + "…"


def _tick_line(axis: Axis, room: int) -> str:
    """Labels under their places; the last one ends where the axis does."""
    line = ""
    for position, label in axis.ticks(room):
        at = min(_cell(position, axis, room), room - len(label))
        if at >= len(line) + bool(line):
            line = line.ljust(at) + label
    return line
