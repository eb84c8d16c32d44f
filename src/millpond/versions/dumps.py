"""Dumps: the commits, tags, branches and settings of a repository as lines of JSON, to be restored from.

    {"format": 1, "repository": {…}}                 the first line
    {"setting": "protected", "value": {…}}
    {"commit": {…}}   {"tag": "v1", "commit": "…"}   {"branch": "main", "commit": "…", "hidden": false}
    {"lines": 1234, "sha256": "…"}                   the last: how many came before, and their digest

Invariants:
* A dump shows one moment: every commit that it names is in it, and the parents of all.
* It names no bytes and no ranges: those stay in the namespace, with what was staged left out.
* Memory: a line. Disk: the dump, while it is read.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from millpond.json_forms import plain, to_json
from millpond.kernel.space import ReadTransaction
from millpond.kernel.steps import step
from millpond.versions.graph.commits import read_commits
from millpond.versions.keyspaces import TAG
from millpond.versions.repository_context import RepositoryContext, setting_rows
from millpond.versions.staging.branches import all_branches

__all__ = ("DUMPS", "FORMAT", "dump_chunks", "dump_name", "store_dump")

FORMAT = 1
DUMPS = "dumps"
_MEMORY_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20


def dump_name(id_: str) -> str:
    """The name of a dump that is stored among the ranges."""
    return f"{DUMPS}/{id_}.jsonl"


def dump_chunks(context: RepositoryContext) -> Iterator[bytes]:
    """A dump, in chunks.

    Raises: `NotFound`.
    """
    with _dumped(context) as (file, _):
        yield from iter(lambda: file.read(_CHUNK_BYTES), b"")


def store_dump(context: RepositoryContext) -> str:
    """Store a dump among the ranges of the repository; its id, the digest of its bytes."""
    with _dumped(context) as (file, id_):
        if not context.ranges.inner.exists(dump_name(id_)):
            context.ranges.inner.put_stream(dump_name(id_), iter(lambda: file.read(_CHUNK_BYTES), b""))  # type: ignore[attr-defined]
        step("dumps.stored")
    return id_


@contextmanager
def _dumped(context: RepositoryContext) -> Iterator[tuple[IO[bytes], str]]:
    """A file with a dump, and its digest. It is written first, for no transaction waits for a reader."""
    with tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES) as file:
        digest, count = hashlib.sha256(), 0
        with context.space.read() as tx:
            for row in _rows(context, tx):
                line = to_json(row) + b"\n"
                digest.update(line)
                count += 1
                file.write(line)
        line = to_json({"lines": count, "sha256": digest.hexdigest()}) + b"\n"
        digest.update(line)
        file.write(line)
        file.seek(0)
        yield file, digest.hexdigest()


def _rows(context: RepositoryContext, tx: ReadTransaction) -> Iterator[dict[str, Any]]:
    yield {"format": FORMAT, "repository": plain(context.record(tx))}
    for name, value in setting_rows(tx, context.uid):
        yield {"setting": name, "value": value}
    for commit in read_commits(tx, context.graph.commits):
        yield {"commit": plain(commit)}
    tags = TAG[context.uid]
    for key, row in tx.scan(tags.range()):
        yield {"tag": str(tags.unpack(key)[0]), "commit": row.decode()}
    for name, record in all_branches(tx, context.uid):
        yield {"branch": name, "commit": record.commit_id, "hidden": record.hidden}
