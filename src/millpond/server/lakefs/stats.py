"""Objects as clients read them."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, UnsetType

from millpond.json_forms import to_json
from millpond.server.lakefs.urls import Urls
from millpond.versions.objects.entries import Entry, read_metadata
from millpond.versions.objects.uploads import physical_address, physical_addresses
from millpond.versions.paging import CommonPrefix
from millpond.versions.repository_context import RepositoryContext

__all__ = ("ObjectStats", "listed_model", "listed_rows", "stats_model")


class ObjectStats(msgspec.Struct):
    """An object, or a common prefix of a listing."""

    path: str
    path_type: Literal["object", "common_prefix"]
    physical_address: str
    checksum: str
    mtime: int
    size_bytes: int | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    physical_address_expiry: int | UnsetType = UNSET


def stats_model(
    context: RepositoryContext, entry: Entry, *, metadata: bool = True, urls: Urls | None = None
) -> ObjectStats:
    """An object."""
    address, expires = (
        (physical_address(context.namespace, entry.address), UNSET) if urls is None else urls.reading(entry)
    )
    about = dict(entry.metadata) if metadata else {}
    return ObjectStats(
        entry.path, "object", address, entry.checksum, entry.mtime, entry.size, about, entry.content_type, expires
    )


def listed_model(
    context: RepositoryContext, item: Entry | CommonPrefix, *, metadata: bool = True, urls: Urls | None = None
) -> ObjectStats:
    """An object, or a common prefix, of a listing."""
    if isinstance(item, CommonPrefix):
        return ObjectStats(item.path, "common_prefix", "", "", 0)
    model = stats_model(context, item, metadata=metadata, urls=urls)
    model.metadata = model.metadata or UNSET
    return model


def listed_rows(context: RepositoryContext, rows: pa.RecordBatch, *, metadata: bool = True) -> list[str]:
    """The JSON of rows of entries, each as `listed_model` writes it: of a page there are a thousand."""
    names = ("key", "address", "checksum", "content_type")
    paths, addresses, checksums, types = (_escaped(rows.column(name).cast(pa.string())) for name in names)
    below = _in_json(physical_address(context.namespace, "/")).removesuffix("//")
    pieces = [
        '{"path":"', paths, '","path_type":"object","physical_address":"', physical_addresses(below, addresses),
        '","checksum":"', checksums, '","mtime":', rows.column("mtime").cast(pa.string()),
        ',"size_bytes":', rows.column("size").cast(pa.string()),
    ]  # fmt: skip
    texts = rows.column("metadata").to_pylist() if metadata else []
    if any(texts):
        abouts = [f',"metadata":{to_json(read_metadata(text)).decode()}' if text else "" for text in texts]
        pieces.append(pa.array(abouts, pa.string()))
    return _joined([*pieces, ',"content_type":"', types, '"}'], rows.num_rows)


def _joined(pieces: list[str | pa.Array], count: int) -> list[str]:
    """Texts of pieces, each of which is the same in all or that of a column: joined by one gather, not row by row."""
    constants = [piece for piece in pieces if isinstance(piece, str)]
    columns = [piece for piece in pieces if not isinstance(piece, str)]
    rows = np.empty((count, len(pieces)), np.int64)
    constant, start = 0, len(constants)
    for column, piece in enumerate(pieces):
        if isinstance(piece, str):
            rows[:, column] = constant
            constant += 1
        else:
            rows[:, column] = np.arange(start, start + count)
            start += count
    taken = pa.concat_arrays([pa.array(constants, pa.string()), *columns]).take(pa.array(rows.reshape(-1)))
    _, ends, data = taken.buffers()
    bounds = np.frombuffer(ends, np.int32)[: rows.size + 1 : len(pieces)].copy()
    return list(pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), data]).to_pylist())


def _escaped(column: pa.Array) -> pa.Array:
    """The texts of a column as they stand between the quotation marks of JSON: but for few, as they are."""
    return pa.array(map(_in_json, column.to_pylist()), pa.string()) if _has_escapes(column) else column


def _in_json(text: str) -> str:
    return to_json(text)[1:-1].decode()


def _has_escapes(column: pa.Array) -> bool:
    """True when a text of a column holds a quotation mark, a backslash or a control character."""
    _, offsets, data = column.buffers()
    if data is None:
        return False
    ends = np.frombuffer(offsets, np.int32)
    content = np.frombuffer(data, np.uint8)[ends[column.offset] : ends[column.offset + len(column)]]
    return bool(((content < ord(" ")) | (content == ord('"')) | (content == ord("\\"))).any())
