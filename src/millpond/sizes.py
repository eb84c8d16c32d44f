"""Sizes in words: `2GiB`, `500 MB`; a bare number counts bytes."""

from __future__ import annotations

import re

from millpond.errors import Invalid

__all__ = ("parse_size", "size_in_words")

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
