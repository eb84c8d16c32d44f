"""Objects, read: their bytes, what is known of them, and listings."""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
from starlette.responses import Response, StreamingResponse

from millpond.arrays.arrow_streams import stream_pieces
from millpond.errors import NotFound
from millpond.kernel.space import WouldBlock
from millpond.server.lakefs.byte_ranges import parse_range
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.downloads import download, piece_bytes
from millpond.server.lakefs.errors import HEADERS, ApiError
from millpond.server.lakefs.models import AMOUNT, Amount, Listing, Text, listed, page_size
from millpond.server.lakefs.needs import REPOSITORY, read
from millpond.server.lakefs.object_headers import byte_headers, media_type
from millpond.server.lakefs.stats import ObjectStats, listed_model, listed_rows, stats_model
from millpond.server.lakefs.urls import Urls
from millpond.stores.objects import read_at_once
from millpond.versions import paging
from millpond.versions.objects.entries import Entry, entries_of
from millpond.versions.objects.uploads import physical_addresses, read_bytes
from millpond.versions.reference import page_of
from millpond.versions.repository_context import RepositoryContext

__all__ = ("ARROW", "BYTES", "bytes_answer", "routes")

_OBJECTS = f"{REPOSITORY}/refs/{{ref}}/objects"
ARROW = "application/vnd.apache.arrow.stream"
_CONTENT = {"content": {"application/octet-stream": {"schema": {"type": "string"}}}}
BYTES: dict[int, Any] = {200: _CONTENT, 206: {"description": "a range of the bytes"} | _CONTENT}
"""The answers with bytes, as OpenAPI has them."""
HEAD_OF_BYTES: dict[int, Any] = {206: {"description": "a range of the bytes"}}
routes = operations("objects")


def bytes_answer(call: Call, context: RepositoryContext, entry: Entry, *, at_once: bool = False) -> Response:
    """The bytes of an entry, or the range of them that the request asks for.

    Raises: `ApiError` 416 for the range; 412 for another object; 410 when the bytes are gone. `WouldBlock`, if they are
        to be read at once.
    """
    request, headers = call.request, byte_headers(entry)
    if _is_known(call, headers["ETag"]):
        return Response(status_code=304, headers={"ETag": headers["ETag"]})
    try:
        span = _span(call, entry, headers["ETag"])
        start, stop = span or (0, entry.size)
        store, name = context.locate(entry.address)
        if at_once:
            chunks = iter((read_at_once(store, name, start, stop),))
        else:
            chunks = read_bytes(store, name, start, stop, piece_bytes(request))
        first = next(chunks, b"")
        if start == stop:
            store.size(name)  # nothing was read, so nothing said whether it is there
    except Exception as error:
        raise _described(error, headers) from error
    headers |= {"Content-Type": media_type(entry), "Content-Length": str(stop - start)}
    if span is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{entry.size}"
    status = 200 if span is None else 206
    if stop - start <= len(first):
        return Response(first, status, headers)
    return download(request, chunks, status, headers, first=first)


def _is_known(call: Call, tag: str) -> bool:
    """True when the caller has the bytes.

    Raises: `ApiError` when he wants those of another object.
    """
    headers = call.request.headers
    if not _has(headers.get("if-match", "*"), tag):
        raise ApiError(412, "Precondition failed")
    return _has(headers.get("if-none-match", ""), tag)


def _span(call: Call, entry: Entry, tag: str) -> tuple[int, int] | None:
    """The range that is asked for; all, where it is the rest of another object.

    Raises: as `parse_range`.
    """
    headers = call.request.headers
    return parse_range(headers.get("range") if _has(headers.get("if-range", tag), tag) else None, entry.size)


def _has(header: str, tag: str) -> bool:
    """True when a list of tags holds one of them; a weak tag counts as its strong one."""
    return any(value.strip().removeprefix("W/") in (tag, "*") for value in header.split(","))


def _described(error: Exception, headers: dict[str, str]) -> Exception:
    """An error with the headers of the object that it is about; a request that cannot be read is about none."""
    if isinstance(error, ApiError) and error.status != 400:
        return ApiError(error.status, error.message, headers={**headers, **error.headers})
    if isinstance(error, NotFound) and error.kind in ("data_missing", "object_not_found", "bucket_not_found"):
        reason = error.message if error.kind == "bucket_not_found" else error.values.get("reason")
        return ApiError(410, f"No data: {reason}" if reason else "No data", headers=headers)
    return error


@routes.get(_OBJECTS, read(), at_once=True, responses=BYTES)
async def _get(call: Call, path: Text, *, presign: bool = False) -> Response:
    context, entry = await call.entry(path)
    if presign:
        location, _ = Urls(call.request, context).reading(entry)
        return Response(status_code=302, headers={"Location": location})
    try:
        return bytes_answer(call, context, entry, at_once=True)
    except WouldBlock:
        if call.at_once:
            raise
    return await call.in_thread(bytes_answer, call, context, entry)


@routes.head(_OBJECTS, read(), at_once=True, responses=HEAD_OF_BYTES)
async def _head(call: Call, path: Text) -> Response:
    """The headers of an object. An error has no body."""
    _, entry = await call.entry(path)
    byte_fields = byte_headers(entry)
    if _is_known(call, byte_fields["ETag"]):
        return Response(status_code=304, headers={"ETag": byte_fields["ETag"]})
    headers = {
        **{name: byte_fields[name] for name in ("ETag", "Last-Modified", "Cache-Control")},
        "Accept-Ranges": "bytes", "Content-Type": media_type(entry),
    }  # fmt: skip
    span = _span(call, entry, byte_fields["ETag"])
    if span is not None:
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{entry.size}"
    start, stop = span or (0, entry.size)
    return Response(status_code=200 if span is None else 206, headers={**headers, "Content-Length": str(stop - start)})


@routes.get(f"{_OBJECTS}/stat", read(), at_once=True)
async def _stat(call: Call, path: Text, *, user_metadata: bool = True, presign: bool = False) -> ObjectStats:
    context, entry = await call.entry(path)
    return stats_model(context, entry, metadata=user_metadata, urls=Urls(call.request, context) if presign else None)


@routes.get(f"{_OBJECTS}/underlyingProperties", read())
async def _get_properties(call: Call, path: Text) -> dict[str, str]:
    """The properties that the store keeps beside the bytes: none, for a place has one class of storage."""
    context, entry = await call.entry(path)
    store, name = context.locate(entry.address)
    try:
        await call.in_thread(store.size, name)
    except NotFound:
        raise NotFound("No data", kind="data_missing") from None
    return {}


@routes.get(f"{_OBJECTS}/ls", read(), answer=Listing[ObjectStats])
def _list_objects(
    call: Call, prefix: str = "", after: str = "", amount: Amount = AMOUNT, delimiter: str = "", *,
    user_metadata: bool = True, presign: bool = False, reverse: bool = False,
) -> Listing[ObjectStats] | Response:  # fmt: skip
    if ARROW in call.request.headers.get("accept", ""):
        return _list_columns(call, prefix, after)
    reference = call.repository.ref(call.names["ref"])
    context = reference.context
    urls = Urls(call.request, context) if presign else None

    def decode(rows: pa.RecordBatch) -> list[Any]:
        if urls is None:
            return list(map(msgspec.Raw, listed_rows(context, rows, metadata=user_metadata)))
        return [listed_model(context, entry, metadata=user_metadata, urls=urls) for entry in entries_of(rows)]

    def write(item: Any) -> Any:
        return listed_model(context, item) if isinstance(item, paging.CommonPrefix) else item

    part = paging.Listing(prefix, delimiter, after, page_size(amount), reverse)
    return listed(page_of(reference, part, decode), write)


# -- columns ------------------------------------------------------------------------------------------


def _list_columns(call: Call, prefix: str, after: str) -> Response:
    """All entries behind `after` as a stream of Arrow: pages are for those who read page by page."""
    reference = call.repository.ref(call.names["ref"])
    batches = reference.entries(prefix, after=after)
    first = next(batches, None)
    reference.head()  # of a ref that names nothing there is no empty stream
    rows = (_shown(batch, reference.context.namespace) for batch in ([] if first is None else chain([first], batches)))
    return StreamingResponse(stream_pieces(_SCHEMA, rows), headers={**HEADERS, "Content-Type": ARROW})


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
