"""The keys of a part, each once: an Arrow file within its own, of one batch, one column `key`, not compressed.

    "ARROW1\\0\\0" ─ schema ─ batch ─ end of the stream ─ footer ─ "ARROW1"

A part comes from a writer, and a few kilobytes of Arrow can declare gigabytes. So the file is read as the stream that
it holds, in the order of its bytes, and only after the declared sizes were: a footer could name other places, at which
nobody has looked.

Invariants:
* nothing is decompressed: a file with a compressed buffer is damaged;
* nothing is allocated for more than `KEYS_MAX` keys.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from millpond.arrays.arrow_sizes import declared_sizes
from millpond.errors import MillpondError
from millpond.maps.parts.tail import TOUCHED, damaged, parse_tail

__all__ = ("KEYS_MAX", "read_touched", "touched_bytes")

KEYS_MAX = 8_000_000
"""As many as a part may have rows."""
_MAGIC = b"ARROW1\0\0"
_SCHEMA = pa.schema([pa.field("key", pa.binary())])


def touched_bytes(keys: pa.Array) -> memoryview:
    """The file of the keys of a part."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch([keys], schema=_SCHEMA))
    return memoryview(sink.getvalue())


def read_touched(file: Path) -> pa.Array:
    """The keys of a part, none of them null; they lie where the file is mapped.

    Raises: `Corrupt`, kind `part_damaged`.
    """
    try:
        with pa.memory_map(str(file)) as source:
            mapped = source.read_buffer()
        tail = parse_tail(memoryview(mapped), mapped.size, file)
        return _keys(mapped[tail.data_bytes : tail.manifest_start])
    except (pa.ArrowException, OSError, ValueError, IndexError, KeyError, MillpondError) as error:
        reason = error.values.get("reason", error.message) if isinstance(error, MillpondError) else error
        raise damaged(file, TOUCHED, reason=str(reason)) from error


def _keys(data: pa.Buffer) -> pa.Array:
    if data.size < len(_MAGIC) or data[: len(_MAGIC)].to_pybytes() != _MAGIC:
        raise ValueError("it is no Arrow file")
    stream = data[len(_MAGIC) :]
    sizes = declared_sizes(stream)
    if sizes.decoded:
        raise ValueError("it is compressed")
    if sizes.batches != 1 or max(sizes.rows, sizes.elements) > KEYS_MAX:
        raise ValueError(f"it is not one batch of at most {KEYS_MAX:,} keys")
    with pa.ipc.open_stream(stream) as reader:
        if reader.schema != _SCHEMA:
            raise ValueError("it has not the one column key")
        batch = reader.read_next_batch()
    batch.validate(full=True)
    if batch.column(0).null_count:
        raise ValueError("a key is null")
    return batch.column(0)
