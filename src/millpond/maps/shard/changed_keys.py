"""The keys that each change of a shard touched: the next freeze must read them again.

    touched/<version, 12 digits>.arrow    one column `key`: keys, or 16-byte ordered ranges; schema metadata `all=1`
                                          says that too much changed to list

Files are written before the change they speak of is committed, so a crash may leave one too many (its version is
written anew by the next change) but never one too few.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from millpond.stores.files import write_file_atomically

__all__ = ("ChangedKeys",)

KEYS_MAX = 5_000_000
_SCHEMA = pa.schema([pa.field("key", pa.binary())])
_EVERYTHING = _SCHEMA.with_metadata({"all": "1"})


class ChangedKeys:
    """The touched-key files of one shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _file(self, version: int) -> Path:
        return self.folder / f"{version:012d}.arrow"

    def write(self, version: int, keys: pa.Array | None) -> None:
        """Note the keys that the change to `version` touches; None: everything."""
        self.folder.mkdir(parents=True, exist_ok=True)
        schema = _SCHEMA if keys is not None else _EVERYTHING
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            if keys is not None:
                if isinstance(keys, pa.ChunkedArray):
                    keys = keys.combine_chunks()
                writer.write_batch(pa.record_batch([keys.cast(pa.binary())], schema=schema))
        write_file_atomically(self._file(version), sink.getvalue())

    def since(self, version: int, current: int) -> pa.Array | None:
        """The keys touched after `version` up to `current`; None when a file is missing or says everything."""
        found: list[pa.Array] = []
        for number in range(version + 1, current + 1):
            try:
                table = pa.ipc.open_file(self._file(number).read_bytes()).read_all()
            except FileNotFoundError:
                return None
            if table.schema.metadata and table.schema.metadata.get(b"all"):
                return None
            found += table.column("key").chunks
            if sum(map(len, found)) > KEYS_MAX:
                return None
        joined = pa.concat_arrays(found) if found else pa.array([], pa.binary())
        return joined.unique()

    def forget(self, version: int) -> None:
        """Remove the files up to `version`: a snapshot holds what they speak of."""
        if not self.folder.exists():
            return
        for file in self.folder.glob("*.arrow"):
            if int(file.stem) <= version:
                file.unlink(missing_ok=True)
