"""Rows in bulk: a stream of entries and deletions, staged all together or not at all.

Content-Type: application/vnd.apache.arrow.stream     columns as in `docs/versions.md`, §What is staged
Content-Type: application/x-ndjson                    {"path": "a", "address": "s3://…", "size": 1, …} a line
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millpond.arrays.arrow_sizes import bounded_stream
from millpond.errors import Invalid
from millpond.server.lakefs.addresses import checked_column
from millpond.server.lakefs.call import Call
from millpond.server.lakefs.dialect import operations
from millpond.server.lakefs.errors import ApiError
from millpond.server.lakefs.needs import BRANCH, change
from millpond.server.lakefs.routes.objects import ARROW
from millpond.server.lakefs.streaming import BodyFile, BodyStream, read_to_its_end
from millpond.server.routes.table import On
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, metadata_text
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.segments import typed_column

__all__ = ("Staged", "routes")

LINES = ("application/x-ndjson", "application/jsonl", "application/json-lines")
LINES_BATCH = 1 << 14
LINE_BYTES_MAX = 256 << 10
_BUFFER_BYTES = 1 << 20
_NOWHERE = "data/none"


routes = operations("bulk")


class Staged(msgspec.Struct):
    """The number of rows that were staged."""

    staged: int


@routes.post(
    f"{BRANCH}/stage", change("write", On.BRANCH, None),
    body={media: {"schema": {"type": "string", "format": "binary"}} for media in (ARROW, *LINES)},
)  # fmt: skip
async def _stage(call: Call, *, force: bool = False) -> Staged:
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != ARROW and kind not in LINES:
        raise ApiError(400, f'header Content-Type has unexpected value "{kind}": send {ARROW} or {LINES[0]}')
    stream = BodyStream(call.request)
    whole = await stream.start()

    def stage() -> Staged:
        chunks = stream.chunks() if whole is None else iter([whole])
        file: io.BufferedIOBase = io.BufferedReader(BodyFile(chunks), _BUFFER_BYTES)
        branch = call.branch
        sources = call.node.settings.versions.sources
        batches = _arrow_batches(file) if kind == ARROW else _line_batches(file)
        with read_to_its_end(chunks):
            count = branch.staging.stage((_checked(branch.context, sources, batch) for batch in batches), force=force)
        call.note(staged=count)
        return Staged(count)

    return await call.in_thread(stage)


def _arrow_batches(file: io.BufferedIOBase) -> Iterator[pa.RecordBatch]:
    try:
        yield from bounded_stream(file)
    except (pa.ArrowException, OSError) as error:
        raise Invalid(
            "the stream is not Arrow", kind="stage_stream", reason=str(error).partition("\n")[0],
            hint="write it with Arrow's stream format, and send all of it",
        ) from error  # fmt: skip


_Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Time = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    address: str = ""
    size: _Size = 0
    mtime: _Time | None = None
    checksum: str = ""
    content_type: str = DEFAULT_CONTENT_TYPE
    metadata: dict[str, str] = {}
    deleted: bool = False


_LINE = msgspec.json.Decoder(_Line)
_SCHEMA = pa.schema([
    ("path", pa.string()), ("address", pa.string()), ("size", pa.int64()), ("mtime", pa.int64()),
    ("checksum", pa.string()), ("content_type", pa.string()), ("metadata", pa.string()), ("deleted", pa.bool_()),
])  # fmt: skip


def _line_batches(file: io.BufferedIOBase) -> Iterator[pa.RecordBatch]:
    number = 0
    while raw := _lines(file, LINES_BATCH):
        rows: list[_Line] = []
        for line in raw:
            number += 1
            if line.strip():
                rows.append(_decoded(line, number))
        columns: list[list[Any]] = [
            [row.path for row in rows], [row.address for row in rows], [row.size for row in rows],
            [row.mtime for row in rows], [row.checksum for row in rows], [row.content_type for row in rows],
            [metadata_text(row.metadata) for row in rows], [row.deleted for row in rows],
        ]  # fmt: skip
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _lines(file: io.BufferedIOBase, count: int) -> list[bytes]:
    return list(islice(iter(lambda: file.readline(LINE_BYTES_MAX + 1), b""), count))


def _decoded(line: bytes, number: int) -> _Line:
    if len(line) > LINE_BYTES_MAX:
        raise Invalid("a line is too long", kind="stage_line", line=number, bytes_max=LINE_BYTES_MAX)
    try:
        return _LINE.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(
            "a line is no entry", kind="stage_line", line=number, reason=str(error),
            hint=f"an object with path, and any of: {', '.join(_SCHEMA.names[1:])}",
        ) from error  # fmt: skip


def _checked(context: RepositoryContext, sources: tuple[str, ...], batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with addresses that entries may have.

    Raises: `Invalid`, `Denied`.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if len(columns) < batch.num_columns:
        return batch  # two of one name, which nobody stages
    deleted = pc.fill_null(typed_column(columns["deleted"], "deleted"), False) if "deleted" in columns else None
    if "address" in columns:
        address = pc.fill_null(typed_column(columns["address"], "address"), "")
        if deleted is not None:
            address = pc.if_else(deleted, _NOWHERE, address)  # of a deletion it is not looked at
        columns["address"] = checked_column(context, sources, address)
    elif deleted is None or not pc.all(deleted).as_py():
        raise Invalid("entries need addresses", kind="stage_columns", column="address", columns=list(columns))
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
