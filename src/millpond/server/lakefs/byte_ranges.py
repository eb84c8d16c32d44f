"""Ranges of bytes that a request asks for.

>>> parse_range("bytes=1-2", 5), parse_range("bytes=3-", 5), parse_range("bytes=-2", 5), parse_range("bytes=4-99", 5)
((1, 3), (3, 5), (3, 5), (4, 5))
"""

from __future__ import annotations

import re

from millpond.server.lakefs.errors import ApiError

__all__ = ("parse_range",)

_FORM = r"^bytes=((\d*-\d*,? ?)+)$"
_RANGES = re.compile(r"bytes=[0-9, -]*-[0-9, -]*", re.ASCII)
_SINGLE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The bytes `[start, stop)` that a header asks for; None for all.

    Raises: `ApiError` 400 for what is no range, 416 for one outside of the bytes, and for several.
    """
    if not header:
        return None
    if not _RANGES.fullmatch(header):
        raise ApiError(
            400, f'parameter "Range" in header has an error: string doesn\'t match the regular expression "{_FORM}"'
        )
    match = _SINGLE.fullmatch(header)
    if match is None or not (match[1] or match[2]):
        raise ApiError(416, "Requested Range Not Satisfiable")  # several, or one that names no byte
    if match[1]:
        start, stop = int(match[1]), min(int(match[2]) + 1 if match[2] else size, size)
    else:
        start, stop = max(0, size - int(match[2])), size
    if start >= stop:
        raise ApiError(416, "Requested Range Not Satisfiable", headers={"Content-Range": f"bytes */{size}"})
    return start, stop
