"""Entries: what a path of a repository holds, as a value and as columns.

| column | type | |
|---|---|---|
| `key` | binary | the path, UTF-8 |
| `address` | string | a name below the namespace, or a whole URL |
| `size` | int64 | bytes |
| `mtime` | int64 | seconds since 1970 |
| `checksum` | string | the MD5 of the bytes, or what a client said of bytes that it linked |
| `content_type` | string | |
| `metadata` | string | a JSON object with sorted names; empty for none |

Invariants:
* An entry's *identity* is its size, checksum, content type and metadata. Where it lies and when it was put is no part
  of it: the same bytes put twice are no change.
* No column holds a null.
* The columns of changes end with `deleted`: such a row is a tombstone, its other columns are empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from millpond.argument_types import need_list, need_type
from millpond.error_values import ShownAsTable, shown
from millpond.errors import Invalid
from millpond.json_forms import FormError, parse_object, stable_json

__all__ = (
    "CHANGES", "DEFAULT_CONTENT_TYPE", "ENTRIES", "IDENTITY", "PATH_BYTES_MAX", "Entry", "batch_of",
    "canonical_metadata", "check_path", "entries_of", "entry_at", "frozen_rows", "metadata_text", "path_list",
    "read_metadata",
)  # fmt: skip

T = TypeVar("T")
PATH_BYTES_MAX = 1_024
METADATA_BYTES_MAX = 64 * 1024
DEFAULT_CONTENT_TYPE = "application/octet-stream"

ENTRIES = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("mtime", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("content_type", pa.string(), nullable=False),
        pa.field("metadata", pa.string(), nullable=False),
    ]
)
CHANGES = ENTRIES.append(pa.field("deleted", pa.bool_(), nullable=False))
IDENTITY = ("size", "checksum", "content_type", "metadata")


@dataclass(frozen=True, slots=True)
class Entry(ShownAsTable):
    """An object of a repository: its path, where its bytes lie, and what is said about them."""

    path: str
    address: str
    size: int = 0
    mtime: int = 0
    checksum: str = ""
    content_type: str = DEFAULT_CONTENT_TYPE
    metadata: Mapping[str, str] = field(default_factory=dict)

    def same(self, other: Entry) -> bool:
        """True when both have one identity."""
        return (self.size, self.checksum, self.content_type, dict(self.metadata)) == (
            other.size, other.checksum, other.content_type, dict(other.metadata),
        )  # fmt: skip


def check_path(path: str) -> bytes:
    """The bytes of a path.

    Raises: `Invalid` for an empty path, one longer than `PATH_BYTES_MAX`, or text that is no Unicode.
    """
    try:
        raw = path.encode()
    except (UnicodeEncodeError, AttributeError) as error:
        raise Invalid("a path must be Unicode", kind="path_invalid", path=repr(path)) from error
    if not 0 < len(raw) <= PATH_BYTES_MAX:
        raise Invalid(
            "a path has 1 to 1,024 bytes", kind="path_invalid", bytes=len(raw), path=repr(path[:64]),
        )  # fmt: skip
    return raw


def path_list(paths: Iterable[str]) -> tuple[str, ...]:
    """Paths, or prefixes, as they are named; one text would be as many as it has letters.

    Raises: `Invalid`.
    """
    if isinstance(paths, str):
        raise Invalid("paths stand in a list", kind="path_invalid", path=shown(paths), hint="[path]")
    need_type("paths", paths, Iterable)
    listed = tuple(paths)
    need_list("paths", listed, str)
    return listed


def metadata_text(metadata: Mapping[str, str]) -> str:
    """User metadata as the column holds it.

    Raises: `Invalid` when it is too long, or no texts by name.
    """
    if not metadata:
        return ""
    try:
        "".join((*metadata, *metadata.values())).encode()
        text = stable_json(dict(metadata), compact=True).decode()
    except (TypeError, AttributeError, UnicodeEncodeError) as error:
        raise Invalid("user metadata are texts by name", kind="metadata_form", given=shown(metadata)) from error
    if len(text) > METADATA_BYTES_MAX:
        raise Invalid(
            "user metadata is too long", kind="metadata_length", bytes=len(text), bytes_max=METADATA_BYTES_MAX
        )
    return text


def read_metadata(text: str) -> dict[str, str]:
    """User metadata that `metadata_text` wrote."""
    return parse_object(text) if text else {}


def canonical_metadata(texts: pa.Array) -> pa.Array:
    """A column of user metadata, each a JSON object of texts or empty, as `metadata_text` writes them.

    Raises: `Invalid`.
    """
    coded = texts.dictionary_encode()
    return pa.array([_canonical_text(text) for text in coded.dictionary.to_pylist()], pa.string()).take(coded.indices)


def _canonical_text(text: str) -> str:
    try:
        return metadata_text(read_metadata(text))
    except FormError as error:
        raise Invalid("user metadata are texts by name", kind="metadata_form", given=shown(text)) from error


def entry_at(batch: pa.RecordBatch, row: int) -> Entry:
    """One row as a value."""
    key, address, size, mtime, checksum, content_type, metadata = (
        batch.column(name)[row].as_py() for name in ENTRIES.names
    )
    return Entry(key.decode(), address, size, mtime, checksum, content_type, read_metadata(metadata))


def entries_of(batch: pa.RecordBatch) -> list[Entry]:
    """The rows as values; those with the same metadata share them."""
    columns = [batch.column(name) for name in ENTRIES.names]
    columns[0] = columns[0].cast(pa.string())
    *values, texts = (column.to_pylist() for column in columns)
    metadata = {text: read_metadata(text) for text in set(texts)}
    return frozen_rows(Entry, *values, [metadata[text] for text in texts])


def frozen_rows(kind: type[T], *columns: Sequence[object]) -> list[T]:
    """Values of a frozen class with slots, one for each row of its columns.

    Pages are made of thousands of them. The `__init__` of a frozen class assigns through `object.__setattr__`, which
    takes twice as long as to fill the slots, a column at a time.
    """
    rows = [object.__new__(kind) for _ in columns[0]]
    for name, column in zip(kind.__slots__, columns, strict=True):  # type: ignore[attr-defined]
        deque(map(getattr(kind, name).__set__, rows, column), maxlen=0)
    return rows


def batch_of(entries: list[Entry]) -> pa.RecordBatch:
    """Values as rows, in their order."""
    columns = [
        pa.array([entry.path.encode() for entry in entries], pa.binary()),
        pa.array([entry.address for entry in entries], pa.string()),
        pa.array([entry.size for entry in entries], pa.int64()),
        pa.array([entry.mtime for entry in entries], pa.int64()),
        pa.array([entry.checksum for entry in entries], pa.string()),
        pa.array([entry.content_type for entry in entries], pa.string()),
        pa.array([metadata_text(entry.metadata) for entry in entries], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ENTRIES)
