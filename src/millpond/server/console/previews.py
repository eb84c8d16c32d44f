"""Previews of objects: their first rows, their text, or the picture that they are.

    bytes ─▶ ends in .parquet, .csv, .json … ─▶ first rows      begins as a picture does ─▶ `<img>`, sent with that type
                                                                 is text ─▶ its beginning      else: nothing is shown

Invariants:
* so many bytes of an object are read at most: of a large one of Parquet its end, and the first pages of its columns;
* what is sent with a type of its own begins with the signature of that type: no object is ever sent as a page.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from millpond.console import link, segment
from millpond.errors import NotFound
from millpond.nodes.node import Node
from millpond.server.console.object_rows import ENDINGS, MEMORY_BYTES, first_rows, first_rows_of_ranges
from millpond.server.console.pages import HEADERS, PAGE_ROWS, answered, pages
from millpond.server.dispatch import Routes
from millpond.server.routes.table import On, read
from millpond.versions.objects.entries import Entry
from millpond.versions.objects.uploads import read_bytes
from millpond.versions.reference import Reference

__all__ = ("routes",)

TEXT_BYTES: Final = 64 << 10
ROWS_BYTES: Final = 1 << 20
WHOLE_BYTES_MAX: Final = 16 << 20
"""The largest object of Parquet that is read as a whole, and the largest picture."""
_SIGNATURES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp",
}  # fmt: skip


_OBJECT: Final = read(On.REPOSITORY, memory_bytes=MEMORY_BYTES, confined=True)


def routes(node: Node) -> Routes:
    """The routes of objects."""
    router = pages("/console/versions")

    @router.get("/{repository}/object", _OBJECT, summary="An object")
    def show_object(request: Request, repository: str, ref: str, path: str) -> Response:
        """The facts about it, and the beginning of it."""
        at = node.pond.repository(repository).ref(ref)
        entry = at.stat(path)
        values: dict[str, Any] = {
            "repository": repository, "ref": ref, "path": path, "size": entry.size, "mtime": entry.mtime,
            "content_type": entry.content_type, "checksum": entry.checksum, "metadata": dict(entry.metadata),
            "rows": None, "text": None, "image": None,
        }  # fmt: skip
        begin = _begin(at, path, TEXT_BYTES)
        if _image_type(begin) is not None and entry.size <= WHOLE_BYTES_MAX:
            values["image"] = link(f"/console/versions/{segment(repository)}/image", ref=ref, path=path)
        elif (rows := _rows(at, entry)) is not None:
            values["rows"] = rows
        else:
            values["text"] = _text(begin)
        return answered(request, "object", values)

    @router.get("/{repository}/image", read(On.REPOSITORY, memory_bytes=WHOLE_BYTES_MAX), summary="A picture")
    def show_image(repository: str, ref: str, path: str) -> Response:
        """The bytes of an object that is a picture; of no other."""
        at = node.pond.repository(repository).ref(ref)
        kind = _image_type(_begin(at, path, 16))
        if kind is None or at.stat(path).size > WHOLE_BYTES_MAX:
            raise NotFound("the object is no picture that a page shows", kind="entry_not_found", path=path[:80])
        return Response(at.get(path), 200, HEADERS, kind)

    return router


def _begin(at: Reference, path: str, size: int) -> bytes:
    return b"".join(at.read(path, 0, size))


def _image_type(begin: bytes) -> str | None:
    kind = next((kind for signature, kind in _SIGNATURES.items() if begin.startswith(signature)), None)
    return None if kind == "image/webp" and begin[8:12] != b"WEBP" else kind


def _text(begin: bytes) -> str | None:
    """The text that bytes are, but for a character that is cut at their end; None for other bytes."""
    with suppress(UnicodeDecodeError):
        whole = begin[:-3].decode() + begin[-3:].decode(errors="ignore")
        return None if "\0" in whole else whole
    return None


def _rows(at: Reference, entry: Entry) -> dict[str, Any] | None:
    """The first rows of an object of a known format; None of another, or of one that is damaged or too large."""
    ending, path, size = entry.path.rpartition(".")[2].lower(), entry.path, entry.size
    if ending not in ENDINGS:
        return None
    if ending == "parquet" and size > WHOLE_BYTES_MAX:
        store, name = at.context.locate(entry.address)
        return first_rows_of_ranges(
            lambda start, stop: b"".join(read_bytes(store, name, start, stop)), size, PAGE_ROWS
        )  # fmt: skip
    data = _begin(at, path, size if ending == "parquet" else min(size, ROWS_BYTES))
    return first_rows(ending, data if ending == "parquet" else _whole_lines(data), PAGE_ROWS)


def _whole_lines(data: bytes) -> bytes:
    return data if len(data) < ROWS_BYTES else data[: data.rfind(b"\n") + 1]
