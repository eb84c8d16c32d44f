"""A reference on a node: a state of a repository to read, named by an expression.

Invariants:
* A listing goes on behind the last path that came, and bytes behind the last byte: a lost connection is no end.
* Bytes that are read on are of the same object as before, or it is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from types import NoneType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.argument_types import need_count, need_type
from millpond.client.arrow_body import read_batches
from millpond.client.transport import Body
from millpond.client.versions.api import VersionsApi
from millpond.client.versions.models import commit_of
from millpond.client.versions.operations import perform
from millpond.errors import Conflict, Invalid, Unavailable
from millpond.kernel.listed import Listed
from millpond.kernel.operations import Operation
from millpond.versions.faces import ReferenceFace
from millpond.versions.graph.commits import Commit
from millpond.versions.graph.history import Window
from millpond.versions.objects.entries import ENTRIES, Entry, path_list
from millpond.versions.objects.uploads import CHUNK_BYTES
from millpond.versions.protocols import ReferenceOperations
from millpond.versions.repository_context import RepositoryRecord

__all__ = ("RemoteReference",)

ATTEMPTS = 4
"""The times that a connection may be lost without anything that came since."""
_ARROW = "application/vnd.apache.arrow.stream"
_SHORTER = 416
_LOST = ("node_unreachable", "answer_cut")


class RemoteReference(ReferenceFace, ReferenceOperations):
    """A state to read. Nothing is looked up before it is read, and every read looks again.

    Each method raises `NotFound` for a ref that names nothing, `Invalid` for text that is no ref.
    """

    def __init__(self, api: VersionsApi, record: RepositoryRecord, expression: str) -> None:
        self._api, self._record = api, record
        self.expression = expression

    def _perform(self, operation: Operation, arguments: Mapping[str, Any]) -> Any:
        names = {"repository": self._record.name, "expression": self.expression, "branch": self.expression}
        return perform(self._api, operation, names, arguments, self._record.namespace)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._record.name!r}, {self.expression!r})"

    def _at(self, *names: str) -> str:
        return self._api.at("repositories", self._record.name, "refs", self.expression, *names)

    def get(self, path: str) -> bytes:
        """All bytes at a path.

        Raises: `NotFound`; kind `data_missing` when the entry is there and its bytes are not.
        """
        return b"".join(self.read(path))

    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes `[start, stop)` at a path, in chunks; all by default.

        Raises: as `get`; `Conflict`, kind `object_changed`, when another object takes its place meanwhile.
        """
        return self._chunks(self.stat(path), start, stop)

    def _chunks(self, entry: Entry, start: int, end: int | None) -> Iterator[bytes]:
        at, failures, tag = start, 0, ""
        while at < (stop := entry.size if end is None else min(end, entry.size)):
            try:
                with self._bytes(entry, at, stop) as body:
                    version = body.headers.get("ETag", "")
                    if tag and version != tag:
                        raise _changed(entry.path)
                    tag = version
                    while chunk := body.read(CHUNK_BYTES):
                        at, failures = at + len(chunk), 0
                        yield chunk
            except Unavailable as error:
                failures += 1
                if error.kind not in _LOST or failures == ATTEMPTS:
                    raise
            except Conflict:
                failures += 1
                if tag or failures == ATTEMPTS:
                    raise
                entry = self.stat(entry.path)  # none of the other one was given
            else:
                if at != stop:
                    raise _changed(entry.path)

    def _bytes(self, entry: Entry, start: int, stop: int) -> Body:
        """Bytes of an object, if the one at the path is as long.

        Raises: `Conflict`.
        """
        try:
            body = self._api.stream(self._at("objects"), {"path": entry.path}, {"Range": f"bytes={start}-{stop - 1}"})
        except Invalid as error:
            if error.values.get("status") != _SHORTER:
                raise
            raise _changed(entry.path) from error
        if not body.headers.get("Content-Range", "").endswith(f"/{entry.size}"):
            body.close()
            raise _changed(entry.path)
        return body

    def entries(self, prefix: str = "", *, after: str = "") -> Iterator[pa.RecordBatch]:
        """All entries as batches with the columns of `versions/objects/entries.py`, in order.

        Of a commit they are of one state; of a branch every batch is of one moment, and the next may be of a later one.
        """
        need_type("prefix", prefix, str)
        need_type("after", after, str)
        failures = 0
        while True:
            query = {"prefix": prefix, "after": after}
            try:
                for batch in read_batches(
                    self._api.stream(self._at("objects", "ls"), query, {"Accept": self._api.accepting(_ARROW)})
                ):
                    if batch.num_rows:
                        after, failures = batch.column("path")[-1].as_py(), 0
                        yield _entries(batch, self._record.namespace)
            except Unavailable as error:
                failures += 1
                if error.kind not in _LOST or failures == ATTEMPTS:
                    raise
            else:
                return

    def log(
        self, window: Window | None = None, *, paths: Iterable[str] = (), prefixes: Iterable[str] = (),
        limit: int | None = None,
    ) -> Iterator[Commit]:  # fmt: skip
        """The commits from here back; with paths or prefixes only those that changed one of them, no merges."""
        need_type("window", window, Window, NoneType)
        need_count("limit", limit, NoneType)
        head = self.head().id  # the branch may move between two pages
        since = None if window is None or window.since is None else window.since
        commits = self._api.pages(
            self._api.at("repositories", self._record.name, "refs", head, "commits"), commit_of,
            objects=path_list(paths), prefixes=path_list(prefixes),
            first_parent=window is not None and window.first_parent,
            since=None if since is None else datetime.fromtimestamp(since, UTC).isoformat(),
            stop_at=None if window is None else window.stop_at,
        )  # fmt: skip
        return Listed(f"the log of {self.expression}", islice(commits, limit))


def _entries(batch: pa.RecordBatch, namespace: str) -> pa.RecordBatch:
    """A batch of a listing as entries have them."""
    below = f"{namespace.rstrip('/')}/"
    address = batch.column("physical_address")
    name = pc.if_else(pc.starts_with(address, below), pc.utf8_slice_codeunits(address, len(below)), address)
    columns = [batch.column("path").cast(pa.binary()), name, batch.column("size_bytes")]
    columns += [batch.column(name) for name in ENTRIES.names[3:]]
    return pa.RecordBatch.from_arrays(columns, schema=ENTRIES)


def _changed(path: str) -> Conflict:
    return Conflict(
        "another object took its place while it was read", kind="object_changed", path=path,
        hint="read it again, or read it at a commit",
    )  # fmt: skip
