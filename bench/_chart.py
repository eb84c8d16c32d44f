"""Bar charts as SVG: horizontal bars in groups, ours in colour, the figure beside each bar.

A chart has paper of its own, for a page may be dark where the reader's system is light. Its text is text, its layout is
arithmetic on the values, so the same values always make the same file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape

__all__ = ("Bar", "Group", "bar_chart")

WIDTH, MARGIN = 760, 16
LABEL_WIDTH, VALUE_WIDTH = 250, 130
BAR_HEIGHT, ROW_HEIGHT, HEADING_HEIGHT, GROUP_GAP = 14, 21, 24, 8
TITLE_HEIGHT = 56
ROOM = WIDTH - 2 * MARGIN - LABEL_WIDTH - VALUE_WIDTH

STYLE = """\
text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: #24292f; }
.title { font-size: 16px; font-weight: 600; }
.note, .label { fill: #57606a; }
.heading { font-weight: 600; }
.ours { fill: #0969da; }
.rival { fill: #b6bdc5; }
.axis { stroke: #d0d7de; }
.paper { fill: #ffffff; }
text.ours { font-weight: 600; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.note, .label { fill: #9198a1; }
.ours { fill: #4493f8; }
.rival { fill: #59616b; }
.axis { stroke: #3d444d; }
.paper { fill: #0d1117; }
}"""


@dataclass(frozen=True)
class Bar:
    """One way to do a task: its figure, and the text that says it."""

    label: str
    value: float
    text: str
    ours: bool = False


@dataclass(frozen=True)
class Group:
    """One task; without a heading where a chart has only one."""

    heading: str
    bars: Sequence[Bar]


def bar_chart(title: str, note: str, groups: Sequence[Group], *, scales: Literal["one", "each"] = "one") -> str:
    """The chart. Scales begin at zero; there is one for all bars, or each group has its own."""
    largest = max(bar.value for group in groups for bar in group.bars)
    body, top = [_text(MARGIN, 28, title, "title"), _text(MARGIN, 46, note, "note")], TITLE_HEIGHT
    start = MARGIN + LABEL_WIDTH
    for group in groups:
        top += GROUP_GAP
        if group.heading:
            body.append(_text(MARGIN, top + 15, group.heading, "heading"))
            top += HEADING_HEIGHT
        bottom = top + ROW_HEIGHT * len(group.bars)
        body.append(f'<line class="axis" x1="{start}" y1="{top - 2}" x2="{start}" y2="{bottom}"/>')
        whole = largest if scales == "one" else max(bar.value for bar in group.bars)
        for bar in group.bars:
            body += _bar(bar, start, top, bar.value * ROOM / whole)
            top += ROW_HEIGHT
    height = top + MARGIN
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    )
    lines = [
        f'{opening} role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="6"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bar(bar: Bar, start: int, top: int, length: float) -> list[str]:
    kind = "ours" if bar.ours else "rival"
    middle = top + BAR_HEIGHT - 2
    return [
        _text(start - 8, middle, bar.label, "label", "end"),
        f'<rect class="{kind}" x="{start}" y="{top}" width="{max(length, 1):.1f}" height="{BAR_HEIGHT}" rx="2"/>',
        _text(start + length + 7, middle, bar.text, "ours" if bar.ours else "label"),
    ]


def _text(x: float, y: int, text: str, kind: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
