"""The headers of an object's bytes: what its writer said of them, on one line."""

from __future__ import annotations

from email.utils import formatdate

from millpond.times.instants import INSTANT_MAX
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry

__all__ = ("byte_headers", "header_text", "media_type")

_INLINE = frozenset((
    "application/json", "application/pdf", "audio/mpeg", "audio/ogg", "image/avif", "image/bmp", "image/gif",
    "image/jpeg", "image/png", "image/webp", "text/csv", "text/plain", "video/mp4", "video/webm",
))  # fmt: skip
"""Media types that a browser may show where it found them: none of them runs a script."""
_MTIME_MAX = INSTANT_MAX // 1000
"""The last second of the year 9999: a header has no later one."""


def byte_headers(entry: Entry) -> dict[str, str]:
    """The headers of an object's bytes."""
    media, mtime = media_type(entry).partition(";")[0].strip().lower(), min(max(0, entry.mtime), _MTIME_MAX)
    return {
        "ETag": f'"{header_text(entry.checksum)}"', "Last-Modified": formatdate(mtime, usegmt=True),
        "X-Content-Type-Options": "nosniff", "Content-Disposition": "inline" if media in _INLINE else "attachment",
        "Cache-Control": "no-store, must-revalidate",
    }  # fmt: skip


def media_type(entry: Entry) -> str:
    """The media type of an object as a header may have it: one that its writer made of other letters says nothing."""
    said = entry.content_type
    return said if said.isascii() and said.isprintable() else DEFAULT_CONTENT_TYPE


def header_text(text: str) -> str:
    """Text of a client as a header may have it."""
    if text.isalnum() and text.isascii():  # as sums are
        return text
    return "".join(letter for letter in text if " " <= letter <= "~" and letter not in '"\\')
