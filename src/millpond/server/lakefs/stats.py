"""Objects as clients read them, and the headers of their bytes."""

from __future__ import annotations

from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from fastapi import Response

from millpond.server.lakefs.errors import json_answer
from millpond.versions.objects.entries import ENTRIES, read_metadata
from millpond.versions.objects.uploads import is_full_address, physical_address
from millpond.versions.paging import CommonPrefix

if TYPE_CHECKING:
    from millpond.server.lakefs.urls import Urls
    from millpond.versions.objects.entries import Entry
    from millpond.versions.site import Site

__all__ = ("byte_headers", "listed_model", "listed_rows", "stats_answer", "stats_model")

_INLINE = frozenset((
    "application/json", "application/pdf", "audio/mpeg", "audio/ogg", "image/avif", "image/bmp", "image/gif",
    "image/jpeg", "image/png", "image/webp", "text/csv", "text/plain", "video/mp4", "video/webm",
))  # fmt: skip
"""Media types that a browser may show where it found them: none of them runs a script."""


def stats_model(site: Site, entry: Entry, *, metadata: bool = True, urls: Urls | None = None) -> dict[str, Any]:
    """An object."""
    found = {
        "path": entry.path, "path_type": "object", "physical_address": physical_address(site.namespace, entry.address),
        "checksum": entry.checksum, "size_bytes": entry.size, "mtime": entry.mtime,
        "metadata": dict(entry.metadata) if metadata else {}, "content_type": entry.content_type,
    }  # fmt: skip
    if urls is not None:
        found["physical_address"], found["physical_address_expiry"] = urls.reading(entry)
    return found


def listed_model(
    site: Site, found: Entry | CommonPrefix, *, metadata: bool = True, urls: Urls | None = None
) -> dict[str, Any]:
    """An object, or a common prefix, of a listing."""
    if isinstance(found, CommonPrefix):
        return {
            "path": found.path, "path_type": "common_prefix", "physical_address": "", "checksum": "", "mtime": 0,
        }  # fmt: skip
    model = stats_model(site, found, metadata=metadata, urls=urls)
    if not model["metadata"]:
        del model["metadata"]
    return model


def listed_rows(site: Site, rows: pa.RecordBatch, *, metadata: bool = True) -> list[dict[str, Any]]:
    """Rows of entries as `listed_model` writes each of them: of a page there are a thousand."""
    paths, *columns = (rows.column(name) for name in ENTRIES.names)
    columns = [paths.cast(pa.string()), *columns]
    below = physical_address(site.namespace, "")
    models = []
    for path, address, size, mtime, checksum, content_type, text in zip(
        *(column.to_pylist() for column in columns), strict=True
    ):
        whole = address if is_full_address(address) else below + address
        model = {
            "path": path, "path_type": "object", "physical_address": whole, "checksum": checksum, "size_bytes": size,
            "mtime": mtime, "content_type": content_type,
        }  # fmt: skip
        if text and metadata:
            del model["content_type"]
            model |= {"metadata": read_metadata(text), "content_type": content_type}
        models.append(model)
    return models


def stats_answer(site: Site, entry: Entry, status: int = 201) -> Response:
    """An object that was made or changed."""
    return json_answer(stats_model(site, entry), status)


def byte_headers(entry: Entry) -> dict[str, str]:
    """The headers of an object's bytes."""
    media = entry.content_type.partition(";")[0].strip().lower()
    return {
        "ETag": f'"{_header_text(entry.checksum)}"', "Last-Modified": formatdate(max(0, entry.mtime), usegmt=True),
        "X-Content-Type-Options": "nosniff", "Content-Disposition": "inline" if media in _INLINE else "attachment",
    }  # fmt: skip


def _header_text(text: str) -> str:
    """Text of a client as a header may have it."""
    return "".join(letter for letter in text if " " <= letter <= "~" and letter not in '"\\')
