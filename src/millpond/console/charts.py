"""Drawings: bars, spans and steps over time, and commits with their lanes. SVG whose colours the style sheet gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from millpond.error_values import html_bars

__all__ = ("Dot", "Span", "bars", "captioned", "commit_graph", "lanes", "steps", "strip")

_WIDTH, _HEIGHT = 160, 28
_ROW, _LANE = 36, 14
_LANES_MAX = 12


@dataclass(frozen=True, slots=True)
class Dot:
    """A commit in its lane, and the lanes of its parents, which it is joined to in the row of each."""

    row: int
    lane: int
    parents: tuple[tuple[int, int], ...]
    """The row and the lane of each parent; a row past the last for one that is not shown."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part `[start, stop)` of what a strip shows, and the words about it."""

    start: float
    stop: float
    words: str
    state: str = ""
    """`good`, `bad` or `now` for a part that has a state."""


def strip(spans: Sequence[Span], start: float, stop: float, label: str) -> Markup:
    """Spans beside one another, of what lies from `start` to `stop`; each has its words as its title."""
    scale = _WIDTH / max(stop - start, 1e-9)
    drawn = Markup("").join(
        Markup('<rect class="part{} {}" x="{:.2f}" y="4" width="{:.2f}" height="{}"><title>{}</title></rect>').format(
            position % 2, span.state, scale * (max(span.start, start) - start),
            max(scale * (min(span.stop, stop) - max(span.start, start)), 0.5), _HEIGHT - 8, span.words,
        )
        for position, span in enumerate(spans)
    )  # fmt: skip
    return _drawing("strip", label, drawn)


def steps(points: Sequence[tuple[float, float]], stop: float, label: str) -> Markup:
    """A line of values, each of which holds until the next one; the points are in the order of their times.

    >>> str(steps([(0, 1.0), (5, 3.0)], 10, "two"))[-54:]
    'label="two"><path d="M0.0 26.0H80.0V2.0H160.0"/></svg>'
    """
    start, low, high = points[0][0], min(value for _, value in points), max(value for _, value in points)
    width, height = _WIDTH / max(stop - start, 1e-9), (_HEIGHT - 4) / ((high - low) or 1)
    path = ""
    for at, value in points:
        x, y = width * (at - start), _HEIGHT - 2 - height * (value - low)
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
    return _drawing("steps", label, Markup('<path d="{}"/>').format(f"{path}H{_WIDTH:.1f}"))


def bars(values: Sequence[float], label: str, words: Sequence[str] = ()) -> Markup:
    """Bars of a few numbers, in their order; each has its words, or its number, as its title."""
    return Markup(html_bars(label, values, words))


def captioned(drawing: Markup, words: str, start: str, stop: str) -> Markup:
    """A wide drawing with words below it: what it shows, and from where to where."""
    ends = Markup("<span>{}</span><span>{}</span><span>{}</span>").format(start, words, stop)
    return Markup('<figure class="wide">{}<figcaption>{}</figcaption></figure>').format(drawing, ends)


def _drawing(kind: str, label: str, drawn: Markup) -> Markup:
    return Markup(
        '<svg class="{}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(kind, _WIDTH, _HEIGHT, label, drawn)


def lanes(commits: Sequence[tuple[str, Sequence[str]]]) -> list[Dot]:
    """The places of commits, each with its id and those of its parents, children before parents.

    >>> [dot.lane for dot in lanes([("m", ["a", "b"]), ("a", ["r"]), ("b", ["r"]), ("r", [])])]
    [0, 0, 1, 0]
    """
    rows = {commit: row for row, (commit, _) in enumerate(commits)}
    open_lanes: list[str | None] = []
    lane_of: dict[str, int] = {}
    for commit, parents in commits:
        lane = _lane(open_lanes, commit)
        lane_of[commit] = lane
        # Other lanes that led to this commit end here.
        open_lanes[:] = [None if other == commit else other for other in open_lanes]
        for position, parent in enumerate(parents):
            if parent not in open_lanes:
                open_lanes[lane if position == 0 else _free(open_lanes)] = parent
        for parent in parents:
            lane_of.setdefault(parent, open_lanes.index(parent))
    return [
        Dot(rows[commit], lane_of[commit], tuple((rows.get(parent, len(rows)), lane_of[parent]) for parent in parents))
        for commit, parents in commits
    ]


def _lane(open_lanes: list[str | None], commit: str) -> int:
    return open_lanes.index(commit) if commit in open_lanes else _free(open_lanes)


def _free(open_lanes: list[str | None]) -> int:
    if None in open_lanes:
        return open_lanes.index(None)
    open_lanes.append(None)
    return len(open_lanes) - 1


def commit_graph(commits: Sequence[tuple[str, Sequence[str]]]) -> Markup:
    """The drawing beside a list of commits, whose rows are as high as those of the list."""
    dots = lanes(commits)
    width = _LANE * (min(max((dot.lane for dot in dots), default=0), _LANES_MAX) + 2)
    return Markup('<svg class="graph" width="{}" height="{}" aria-hidden="true">{}</svg>').format(
        width, _ROW * len(dots), Markup("").join(_marks(dots))
    )


def _marks(dots: Sequence[Dot]) -> Iterator[Markup]:
    for dot in dots:
        x, y = _position(dot.row, dot.lane)
        for row, lane in dot.parents:
            below, under = _position(row, lane)
            path = f"M{x} {y}C{x} {y + _ROW // 2} {below} {y + _ROW // 2} {below} {y + _ROW}V{under}"
            yield Markup('<path class="lane{}" d="{}"/>').format(lane % 6, path)
    for dot in dots:
        x, y = _position(dot.row, dot.lane)
        yield Markup('<circle class="lane{}" cx="{}" cy="{}" r="4"/>').format(dot.lane % 6, x, y)


def _position(row: int, lane: int) -> tuple[int, int]:
    return _LANE * (min(lane, _LANES_MAX) + 1), _ROW * row + _ROW // 2
