"""Objects, read: their bytes, what is known of them, and listings."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from starlette.responses import Response, StreamingResponse

from millpond.errors import NotFound
from millpond.json_forms import to_json
from millpond.server.lakefs.byte_ranges import parse_range
from millpond.server.lakefs.errors import HEADERS, ApiError, json_answer
from millpond.server.lakefs.models import written_page
from millpond.server.lakefs.stats import byte_headers, listed_model, listed_rows, stats_model
from millpond.server.lakefs.urls import Urls
from millpond.server.transfers import can_be_continued
from millpond.stores.objects import read_at_once
from millpond.versions.objects.entries import entries_of
from millpond.versions.objects.uploads import physical_addresses, read_bytes
from millpond.versions.paging import Listing
from millpond.versions.reference import page_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from millpond.server.lakefs.call import Call
    from millpond.versions.objects.entries import Entry
    from millpond.versions.repository_context import Site

__all__ = ("ARROW", "HANDLERS", "OF_ENTRY", "bytes_answer")

_OBJECTS = "/repositories/{repository}/refs/{ref}/objects"
ARROW = "application/vnd.apache.arrow.stream"


def bytes_answer(call: Call, site: Site, entry: Entry) -> Response:
    """The bytes of an entry, or the range of them that the request asks for.

    Raises: `ApiError` 416 for the range; 410 when the bytes are gone.
    """
    request, headers = call.request, byte_headers(entry)
    if _has(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers={"ETag": headers["ETag"]})
    try:
        span = parse_range(request.headers.get("range"), entry.size)
        start, stop = span or (0, entry.size)
        place, name = site.place(entry.address)
        if call.at_once:
            chunks = iter((read_at_once(place, name, start, stop),))
        else:
            chunks = read_bytes(place, name, start, stop)
        first = next(chunks, b"")
        gone = not first and (start < stop or place.size(name) < 0)
    except Exception as error:
        raise _described(error, headers) from error
    if gone:
        raise ApiError(410, "No data", headers=headers)
    headers |= {"Content-Type": entry.content_type, "Content-Length": str(stop - start)}
    if span is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{entry.size}"
    status = 200 if span is None else 206
    if stop - start <= len(first):
        return Response(first, status, headers)
    can_be_continued(request)
    return StreamingResponse(_chain(first, chunks), status, headers)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _has(header: str, tag: str) -> bool:
    """True when a list of tags holds one of them; a weak tag counts as its strong one."""
    return any(value.strip().removeprefix("W/") in (tag, "*") for value in header.split(","))


def _described(error: Exception, headers: dict[str, str]) -> Exception:
    """An error with the headers of the object that it is about; a request that cannot be read is about none."""
    if isinstance(error, ApiError) and error.status != 400:
        return ApiError(error.status, error.message, headers={**headers, **error.headers})
    if getattr(error, "kind", "") in ("data_missing", "object_not_found", "bucket_not_found"):
        return ApiError(410, "No data", headers=headers)
    return error


def _get(call: Call) -> Response:
    site, entry = call.entry(call.query.needed("path"))
    if call.query.flag("presign"):
        location, _ = Urls(call.request, site).reading(entry)
        return Response(status_code=302, headers={"Location": location})
    return bytes_answer(call, site, entry)


def _head(call: Call) -> Response:
    """The headers of an object. An error has no body."""
    _, entry = call.entry(call.query.needed("path"))
    byte_fields = byte_headers(entry)
    headers = {
        "ETag": byte_fields["ETag"], "Last-Modified": byte_fields["Last-Modified"], "Accept-Ranges": "bytes",
        "Content-Type": entry.content_type,
    }  # fmt: skip
    span = parse_range(call.request.headers.get("range"), entry.size)
    if span is not None:
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{entry.size}"
    start, stop = span or (0, entry.size)
    return Response(status_code=200 if span is None else 206, headers={**headers, "Content-Length": str(stop - start)})


def _stat(call: Call) -> Response:
    query = call.query
    path, with_metadata = query.needed("path"), query.flag("user_metadata", True)
    presign = query.flag("presign")
    site, entry = call.entry(path)
    return json_answer(
        stats_model(site, entry, metadata=with_metadata, urls=Urls(call.request, site) if presign else None)
    )


def _properties(call: Call) -> Response:
    """The properties that the store keeps beside the bytes: none, for a place has one class of storage."""
    site, entry = call.entry(call.query.needed("path"))
    place, name = site.place(entry.address)
    try:
        place.size(name)
    except NotFound:
        raise ApiError(410, "No data") from None
    return json_answer({})


def _list(call: Call) -> Response:
    query = call.query
    if ARROW in call.request.headers.get("accept", ""):
        return _list_columns(call)
    prefix, delimiter, after = query.text("prefix"), query.text("delimiter"), query.text("after")
    with_metadata, amount = query.flag("user_metadata", True), query.amount()
    reference = call.repository.ref(call.names["ref"])
    site = reference.site
    urls = Urls(call.request, site) if query.flag("presign") else None
    listing = Listing(prefix, delimiter, after, amount, query.flag("reverse"))

    def decode(rows: pa.RecordBatch) -> list[str]:
        if urls is None:
            return listed_rows(site, rows, metadata=with_metadata)
        models = (listed_model(site, entry, metadata=with_metadata, urls=urls) for entry in entries_of(rows))
        return [to_json(model).decode() for model in models]

    return written_page(page_of(reference, listing, decode), partial(listed_model, site))


# -- columns ------------------------------------------------------------------------------------------


def _list_columns(call: Call) -> Response:
    """All entries behind `after` as a stream of Arrow: pages are for those who read page by page."""
    reference = call.repository.ref(call.names["ref"])
    batches = reference.entries(call.query.text("prefix"), after=call.query.text("after"))
    first = next(batches, None)
    reference.head()  # of a ref that names nothing there is no empty stream
    rows = (_shown(batch, reference.site.namespace) for batch in ([] if first is None else _ahead(first, batches)))
    return StreamingResponse(_stream(rows), headers={**HEADERS, "Content-Type": ARROW})


def _ahead(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


_SCHEMA = pa.schema([
    ("path", pa.string()), ("physical_address", pa.string()), ("size_bytes", pa.int64()), ("mtime", pa.int64()),
    ("checksum", pa.string()), ("content_type", pa.string()), ("metadata", pa.string()),
])  # fmt: skip


def _shown(batch: pa.RecordBatch, namespace: str) -> pa.RecordBatch:
    columns = [
        batch.column("key").cast(pa.string()), physical_addresses(namespace, batch.column("address")),
        batch.column("size"), batch.column("mtime"), batch.column("checksum"), batch.column("content_type"),
        batch.column("metadata"),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _stream(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Batches as Arrow's stream format."""
    sink = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), _SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield sink.taken()
    yield sink.taken()


class _Pieces(io.RawIOBase):
    """A file that gives away what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        """Take a piece."""
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def taken(self) -> bytes:
        """All that was written since the last call."""
        joined = b"".join(self._pieces)
        self._pieces.clear()
        return joined


OF_ENTRY = frozenset((_get, _head, _stat))
"""Handlers about one entry: they read rows, held ranges, and bytes that the system holds."""
HANDLERS = {
    ("GET", _OBJECTS): _get,
    ("HEAD", _OBJECTS): _head,
    ("GET", f"{_OBJECTS}/stat"): _stat,
    ("GET", f"{_OBJECTS}/ls"): _list,
    ("GET", f"{_OBJECTS}/underlyingProperties"): _properties,
}
