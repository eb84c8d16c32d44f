"""Figures and ratios as text, with three digits that count."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench._results import Unit

__all__ = ("text_of", "times")

SCALES: dict[Unit, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "/s": ((1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "blocks": ((1.0, "blocks"),),
    "requests": ((1.0, "requests"),),
}  # fmt: skip


def text_of(value: float, unit: Unit) -> str:
    """A figure with three digits that count, and a space that does not break.

    >>> text_of(0.1104, "s"), text_of(23_040, "/s"), text_of(681, "/s")
    ('110\\xa0ms', '23\\xa0k/s', '681/s')
    """
    scale, name = next(((scale, name) for scale, name in SCALES[unit] if value >= scale), SCALES[unit][-1])
    number = value / scale
    text = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    return f"{text}{name}" if name == "/s" else f"{text}\xa0{name}"


def times(value: float) -> str:
    """A ratio.

    >>> times(10.71), times(0.284), times(481.2)
    ('11×', '0.28×', '481×')
    """
    return f"{value:.0f}×" if value >= 10 else f"{value:.2g}×"
