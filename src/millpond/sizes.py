"""Sizes in words: `2GiB`, `500 MB`; a bare number counts bytes. Counts, sizes and times as people read them."""

from __future__ import annotations

import re

from millpond.errors import Invalid

__all__ = ("human_bytes", "human_count", "human_span", "human_time", "parse_size", "size_in_words")

_SHORT_MS = 10_000

_UNITS = {
    "": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip


def parse_size(text: str) -> int:
    """The bytes of a size.

    >>> parse_size("2GiB"), parse_size("500 MB"), parse_size("7")
    (2147483648, 500000000, 7)

    Raises: `Invalid`.
    """
    match = re.fullmatch(r"(\d{1,18})\s*([a-z]*)", text.strip().lower())
    if not match or match.group(2) not in _UNITS:
        raise Invalid(
            "the size is not understood", kind="size", value=text,
            hint="write a whole number and a unit (B, KiB, MiB, GiB, KB, MB, GB), such as 2GiB",
        )  # fmt: skip
    return int(match.group(1)) * _UNITS[match.group(2)]


def size_in_words(size: int) -> str:
    """A size in the largest unit that divides it.

    >>> size_in_words(2 << 30)
    '2GiB'
    """
    unit = next(unit for unit in ("TiB", "GiB", "MiB", "KiB", "B") if size % _UNITS[unit.lower()] == 0)
    return f"{size // _UNITS[unit.lower()]}{unit}"


def human_count(count: int, noun: str = "") -> str:
    """A count with its thousands apart, and what is counted.

    >>> human_count(336776), human_count(1, "row"), human_count(2, "branch"), human_count(0, "entry")
    ('336,776', '1 row', '2 branches', '0 entries')
    """
    if not noun:
        return f"{count:,}"
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def human_bytes(size: int) -> str:
    """A size in the largest unit that leaves a number to read.

    >>> human_bytes(3_250_000)
    '3.1 MiB'
    """
    scaled = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if scaled < 1024:
            return f"{scaled:.0f} {unit}" if unit == "B" else f"{scaled:.1f} {unit}"
        scaled /= 1024
    return f"{scaled:.1f} TiB"


def human_time(milliseconds: int) -> str:
    """The time that something took: as `human_span`, to the millisecond while it is short.

    >>> human_time(1_500), human_time(90_000)
    ('1500 ms', '90 s')
    """
    return f"{milliseconds} ms" if milliseconds < _SHORT_MS else human_span(milliseconds)


def human_span(milliseconds: int) -> str:
    """A span of time in the largest unit that leaves a number to read; what is less than nothing is nothing.

    >>> human_span(90_000), human_span(7_200_000), human_span(-5)
    ('90 s', '2 h', '0 s')
    """
    seconds = max(milliseconds, 0) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{(seconds + size // 2) // size} {unit}"
    return f"{seconds} s"
