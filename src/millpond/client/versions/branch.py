"""A branch on a node: objects are put, read and deleted on it, and what was staged is committed, merged, reset."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from millpond.argument_types import need_type
from millpond.arrays.arrow_streams import stream_pieces
from millpond.client.versions.api import VersionsApi
from millpond.client.versions.differences import difference_batches
from millpond.client.versions.models import commit_of, entry_of
from millpond.client.versions.operations import perform
from millpond.client.versions.reference import RemoteReference
from millpond.errors import Invalid
from millpond.json_forms import stable_json
from millpond.kernel.operations import Operation
from millpond.versions.imports.importing import Imported
from millpond.versions.imports.locations import Location, ObjectLocation, PrefixLocation, TableLocation
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry, check_path
from millpond.versions.objects.uploads import chunks_of, physical_address
from millpond.versions.protocols import BranchOperations, StagingOperations
from millpond.versions.repository_context import RepositoryRecord
from millpond.versions.staging.bulk import Rows

__all__ = ("RemoteBranch", "RemoteImports", "RemoteStaging")

_BATCH_ROWS = 1 << 15
_ARROW = "application/vnd.apache.arrow.stream"


class RemoteBranch(RemoteReference, BranchOperations):
    """A branch of a repository, to read and to change. All methods raise `NotFound` when it is not there.

    Each change also raises `Denied` in a read-only repository or, but for a merge, on a protected branch.
    `force` lets it pass in a read-only repository. A node with tokens names the caller as the committer.
    """

    def __init__(self, api: VersionsApi, record: RepositoryRecord, name: str) -> None:
        super().__init__(api, record, name)
        self.name = name
        self._branch = partial(api.at, "repositories", record.name, "branches", name)
        self.staging = RemoteStaging(api, record, name)
        self.imports = RemoteImports(api, record, name)

    def put(
        self, path: str, body: bytes | memoryview | Iterable[bytes | memoryview], *,
        content_type: str = DEFAULT_CONTENT_TYPE, metadata: Mapping[str, str] | None = None,
        if_absent: bool = False, if_match: str | None = None, force: bool = False,
    ) -> Entry:  # fmt: skip
        """Store bytes at a path and stage the entry; an iterable of chunks is streamed.

        `if_absent`: only where nothing is. `if_match`: only over an entry with this checksum.

        Raises: `Conflict`, kind `precondition_failed`; `Invalid` for a path; `Unavailable` when the place is full.
        """
        check_path(path)
        headers = _conditions(if_absent, if_match) | {
            "Content-Type": DEFAULT_CONTENT_TYPE,
            "X-Millpond-Entry": stable_json({"content_type": content_type, "metadata": dict(metadata or {})}).decode(),
        }
        chunks, whole = chunks_of(body), isinstance(body, bytes | bytearray | memoryview)
        if not whole:  # before anything is uploaded in vain
            self._api.get(self._branch("objects", "stage_allowed"), {"path": path, "force": force})
        answer = self._api.change(
            "POST", self._branch("objects"), query={"path": path, "force": force}, headers=headers,
            body=b"".join(chunks) if whole else map(bytes, chunks),
            repeatable=whole and not if_absent and if_match is None,
        )  # fmt: skip
        return entry_of(self._record.namespace, answer.json())

    def delete(self, path: str, *, force: bool = False) -> bool:
        """Delete a path; False when nothing was there, which is no error."""
        return self.staging.delete_many([path], force=force) > 0

    def reset(self, *, path: str | None = None, prefix: str | None = None, force: bool = False) -> None:
        """Take back what is staged: at a path, below a prefix, or all of it."""
        kind = "object" if path is not None else "common_prefix" if prefix else "reset"
        body = {"type": kind, "path": path if path is not None else prefix, "force": force}
        self._api.change("PUT", self._branch(), body, repeatable=True)


def _small(batches: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that a node takes."""
    for batch in batches:
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        yield from table.to_batches(max_chunksize=_BATCH_ROWS)


def _conditions(if_absent: bool, if_match: str | None) -> dict[str, str]:
    absent = {"If-None-Match": "*"} if if_absent else {}
    return absent if if_match is None else absent | {"If-Match": f'"{if_match}"'}


class RemoteStaging(StagingOperations):
    """Staged entries of a branch, in bulk; and their maintenance."""

    def __init__(self, api: VersionsApi, record: RepositoryRecord, name: str) -> None:
        self._api, self._record = api, record
        self.name = name
        self._branch = partial(api.at, "repositories", record.name, "branches", name)

    def _perform(self, operation: Operation, arguments: Mapping[str, Any]) -> Any:
        names = {"repository": self._record.name, "branch": self.name}
        return perform(self._api, operation, names, arguments, self._record.namespace)

    def link(self, entry: Entry, *, if_absent: bool = False, if_match: str | None = None, force: bool = False) -> Entry:
        """Stage an entry whose bytes lie at its address already.

        Raises: `Conflict`, kind `precondition_failed`; `Denied` for a place that the node does not allow.
        """
        body = {
            "physical_address": physical_address(self._record.namespace, entry.address), "checksum": entry.checksum,
            "size_bytes": entry.size, "mtime": entry.mtime, "metadata": dict(entry.metadata),
            "content_type": entry.content_type, "force": force,
        }  # fmt: skip
        headers = _conditions(if_absent, if_match)
        answer = self._api.change(
            "PUT", self._branch("objects"), body, query={"path": entry.path}, headers=headers, repeatable=not headers
        )
        return entry_of(self._record.namespace, answer.json())

    def stage(self, rows: Rows, *, force: bool = False) -> int:
        """Stage the rows of a table, or of a stream of batches, all or none; how many. See `Staging.stage`.

        Raises: `Invalid` for columns or paths; `Denied` for an address at a place that the node does not allow.
        """
        need_type("rows", rows, Iterable, pa.Table, pa.RecordBatch)
        batches = iter([rows] if isinstance(rows, pa.Table | pa.RecordBatch) else rows)
        first = next(batches, None)
        if first is None:
            return 0
        answer = self._api.change(
            "POST", self._branch("stage"), query={"force": force}, headers={"Content-Type": _ARROW},
            body=stream_pieces(first.schema, _small(chain([first], batches))),
        )  # fmt: skip
        return int(answer.json()["staged"])

    def push(self, batches: Iterable[pa.RecordBatch], *, force: bool = False) -> int:
        """Stage batches that are sorted by path over all of them: for a node the same as `stage`."""
        return self.stage(batches, force=force)

    def set_metadata(self, path: str, metadata: Mapping[str, str], *, force: bool = False) -> Entry:
        """Replace the user metadata of an entry.

        Raises: `NotFound` for the path.
        """
        self._api.change(
            "PUT", self._branch("objects", "stat", "user_metadata"), {"set": dict(metadata)},
            query={"path": path, "force": force}, repeatable=True,
        )  # fmt: skip
        return RemoteReference(self._api, self._record, self.name).stat(path)

    def uncommitted(self, prefix: str = "") -> Iterator[pa.RecordBatch]:
        """The changes that are staged, as batches with the columns of `diffs.DIFFERENCES`, each of one moment."""
        need_type("prefix", prefix, str)
        branch = RemoteBranch(self._api, self._record, self.name)
        return difference_batches(lambda after: branch.diff(prefix, after=after, amount=1_000))


_TYPES = {PrefixLocation: "common_prefix", ObjectLocation: "object", TableLocation: "table"}
_LOOK_SECONDS = 0.2


class RemoteImports:
    """Imports into a branch."""

    def __init__(self, api: VersionsApi, record: RepositoryRecord, branch: str) -> None:
        self._api = api
        self._path = partial(api.at, "repositories", record.name, "branches", branch, "import")

    def commit(
        self, locations: Sequence[Location], message: str = "", *, metadata: Mapping[str, str] | None = None,
        created: int | None = None, force: bool = False,
    ) -> Imported:  # fmt: skip
        """Import and commit; on a branch with nothing staged. Returns when it is done.

        Raises: `NotFound`, `Denied`, `Unavailable` for branch or source; `Invalid` for an address or a dirty branch,
        and kind `import_failed` when it fails later.
        """
        words = {"message": message, "metadata": dict(metadata or {}), "date": created}
        return self._run({"paths": list(map(_model, locations)), "commit": words, "force": force})

    def stage(self, locations: Sequence[Location], *, force: bool = False) -> Imported:
        """Import over what is staged, as one segment; nothing is removed.

        Raises: as `commit`.
        """
        return self._run({"paths": list(map(_model, locations)), "force": force})

    def _run(self, body: Mapping[str, Any]) -> Imported:
        id_ = self._api.change("POST", self._path(), body).json()["id"]
        clock, never = self._api.clock, threading.Event()
        while True:
            status = self._api.get(self._path(), {"id": id_}).json()
            if "error" in status:
                raise Invalid("the import failed", kind="import_failed", reason=status["error"]["message"])
            if status["completed"]:
                commit = commit_of(status["commit"]) if "commit" in status else None
                return Imported(status["ingested_objects"], status.get("metarange_id", ""), commit)
            clock.wait(never, clock.monotonic() + _LOOK_SECONDS)


def _model(location: Location) -> dict[str, str]:
    return {"type": _TYPES[type(location)], "path": location.address, "destination": location.destination}
