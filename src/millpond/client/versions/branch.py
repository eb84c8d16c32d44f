"""A branch on a node: objects are put, read and deleted on it, and what was staged is committed, merged, reset."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.client.versions.differences import difference_batches
from millpond.client.versions.imports import RemoteImports
from millpond.client.versions.models import change_of, commit_of, entry_of
from millpond.client.versions.reference import RemoteReference
from millpond.json_forms import JsonForm, plain, stable_json
from millpond.versions.compaction import Compacted
from millpond.versions.merges import Resolution, Strategy
from millpond.versions.objects.entries import DEFAULT_CONTENT_TYPE, Entry, check_path
from millpond.versions.objects.uploads import physical_address
from millpond.versions.paging import Listing, Page
from millpond.versions.staging.branches import BranchState

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from millpond.client.versions.api import VersionsApi
    from millpond.versions.diffs import Change
    from millpond.versions.graph.commits import Commit
    from millpond.versions.repository_context import RepositoryRecord
    from millpond.versions.staging.bulk import Rows

__all__ = ("RemoteBranch", "RemoteStaging")

_ARROW = "application/vnd.apache.arrow.stream"
_COMPACTED = JsonForm(Compacted)
_STATE = JsonForm(BranchState)


class RemoteBranch(RemoteReference):
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
        whole = isinstance(body, bytes | memoryview)
        if not whole:  # before anything is uploaded in vain
            self._api.get(self._branch("objects", "stage_allowed"), {"path": path, "force": force})
        found = self._api.change(
            "POST", self._branch("objects"), query={"path": path, "force": force}, headers=headers,
            body=bytes(body) if isinstance(body, bytes | memoryview) else map(bytes, body),
            repeatable=whole and not if_absent and if_match is None,
        )  # fmt: skip
        return entry_of(self._record.namespace, found.json())

    def delete(self, path: str, *, force: bool = False) -> bool:
        """Delete a path; False when nothing was there, which is no error."""
        return self.staging.delete_many([path], force=force) > 0

    def copy(self, path: str, target: str, *, ref: str | None = None, force: bool = False) -> Entry:
        """Put the entry at a path, of this branch or of a ref, at another one; the bytes are shared.

        Raises: `NotFound` for the path.
        """
        body = {"src_path": path, "src_ref": ref, "force": force}
        found = self._api.change(
            "POST", self._branch("objects", "copy"), body, query={"dest_path": target}, repeatable=True
        )
        return entry_of(self._record.namespace, found.json())

    def commit(
        self, message: str = "", *, committer: str = "", metadata: Mapping[str, str] | None = None,
        created: int | None = None, allow_empty: bool = False, prefixes: Sequence[str] | None = None,
        source_tree: str | None = None, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Commit what is staged; with `prefixes` only what lies below them. `created` counts seconds.

        Commits of one branch wait for one another. `source_tree`: an index that becomes the state of a clean branch.

        Raises: `Invalid`, kind `no_changes` (`values["commit"]` is the head, which has what was staged before).
        """
        body = {
            "message": message, "committer": committer, "metadata": dict(metadata or {}), "date": created,
            "allow_empty": allow_empty, "prefixes": None if prefixes is None else list(prefixes), "force": force,
        }  # fmt: skip
        query = {"source_metarange": source_tree} if source_tree else None
        return commit_of(self._api.change("POST", self._branch("commits"), body, query=query).json())

    def merge(
        self, source: str, message: str = "", *, committer: str = "", metadata: Mapping[str, str] | None = None,
        strategy: str | Strategy = Strategy.DEFAULT, resolutions: Sequence[Resolution] = (), squash: bool = False,
        allow_empty: bool = False, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Merge a ref into this branch, on which nothing may be staged; the merge commit.

        Raises: `MergeConflict` with the `paths`; `Invalid`, kinds `branch_dirty`, `no_changes`, `merge_strategy`.
        """
        body = {
            "message": message, "committer": committer, "metadata": dict(metadata or {}), "strategy": str(strategy),
            "resolutions": [plain(rule) for rule in resolutions], "squash_merge": squash, "allow_empty": allow_empty,
            "force": force,
        }  # fmt: skip
        path = self._api.at("repositories", self._record.name, "refs", source, "merge", self.name)
        return commit_of(self._api.change("POST", path, body).json())

    def diff(self, prefix: str = "", *, delimiter: str = "", after: str = "", amount: int = 100) -> Page[Change]:
        """One page of what is staged: the changes from the head."""
        listing = Listing(prefix, delimiter, after, amount)
        decode = partial(change_of, self._record.namespace)
        return self._api.page(self._branch("diff"), listing, decode)

    def reset(self, *, path: str | None = None, prefix: str | None = None, force: bool = False) -> None:
        """Take back what is staged: at a path, below a prefix, or all of it."""
        kind = "object" if path is not None else "common_prefix" if prefix else "reset"
        body = {"type": kind, "path": path if path is not None else prefix, "force": force}
        self._api.change("PUT", self._branch(), body, repeatable=True)

    def revert(
        self, ref: str, *, parent_number: int | None = None, committer: str = "", message: str = "",
        metadata: Mapping[str, str] | None = None, allow_empty: bool = False, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Undo a commit by a new one; of a merge, what it brought to the parent of that number, counted from 1.

        Raises: `MergeConflict`; `Invalid`, kinds `branch_dirty`, `no_changes`, `parent_number`; `Conflict`, kind
        `revert_parent`.
        """
        body = _picking(ref, parent_number, committer, message, metadata, force) | {"allow_empty": allow_empty}
        return commit_of(self._api.change("POST", self._branch("revert"), body).json())

    def cherry_pick(
        self, ref: str, *, parent_number: int | None = None, committer: str = "", message: str | None = None,
        metadata: Mapping[str, str] | None = None, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Make the changes of a commit again here.

        Raises: `MergeConflict`; `Invalid`, kinds `branch_dirty`, `parent_number`, `cherry_pick_parent`.
        """
        body = _picking(ref, parent_number, committer, message, metadata, force)
        return commit_of(self._api.change("POST", self._branch("cherry-pick"), body).json())


def _picking(
    ref: str, parent_number: int | None, committer: str, message: str | None, metadata: Mapping[str, str] | None,
    force: bool,
) -> dict[str, Any]:  # fmt: skip
    """The body of a revert or a cherry-pick."""
    return {
        "ref": ref, "parent_number": parent_number or 0, "committer": committer, "force": force,
        "commit_overrides": {"message": message, "metadata": None if metadata is None else dict(metadata)},
    }  # fmt: skip


def _conditions(if_absent: bool, if_match: str | None) -> dict[str, str]:
    absent = {"If-None-Match": "*"} if if_absent else {}
    return absent if if_match is None else absent | {"If-Match": f'"{if_match}"'}


class RemoteStaging:
    """Staged entries of a branch, in bulk; and their maintenance."""

    def __init__(self, api: VersionsApi, record: RepositoryRecord, name: str) -> None:
        self._api, self._record = api, record
        self.name = name
        self._branch = partial(api.at, "repositories", record.name, "branches", name)

    def state(self) -> BranchState:
        """The head, and the layers of what is staged."""
        return self._api.get(self._branch("staging")).read(_STATE)

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
        found = self._api.change(
            "PUT", self._branch("objects"), body, query={"path": entry.path}, headers=headers, repeatable=not headers
        )
        return entry_of(self._record.namespace, found.json())

    def stage(self, rows: Rows, *, force: bool = False) -> int:
        """Stage the rows of a table, or of a stream of batches, all or none; how many. See `Staging.stage`.

        Raises: `Invalid` for columns or paths; `Denied` for an address at a place that the node does not allow.
        """
        batches = iter([rows] if isinstance(rows, pa.Table | pa.RecordBatch) else rows)
        first = next(batches, None)
        if first is None:
            return 0
        found = self._api.change(
            "POST", self._branch("stage"), query={"force": force}, headers={"Content-Type": _ARROW},
            body=_stream(first, batches),
        )  # fmt: skip
        return int(found.json()["staged"])

    def push(self, batches: Iterable[pa.RecordBatch], *, force: bool = False) -> int:
        """Stage batches that are sorted by path over all of them: for a node the same as `stage`."""
        return self.stage(batches, force=force)

    def delete_many(self, paths: Sequence[str], *, force: bool = False) -> int:
        """Delete paths, all or none; how many of them were there."""
        found = self._api.change(
            "POST", self._branch("objects", "delete"), {"paths": list(paths)}, query={"force": force}
        )
        return int(found.json()["deleted"])

    def delete_prefix(self, prefix: str, *, force: bool = False) -> None:
        """Delete all paths that begin with a prefix, by one range tombstone."""
        body = {"prefix": prefix}
        self._api.change("POST", self._branch("objects", "delete"), body, query={"force": force}, repeatable=True)

    def copy_prefix(self, prefix: str, target: str, *, ref: str | None = None, force: bool = False) -> int:
        """Stage the entries below a prefix, of this branch or of a ref, below another one, all or none; how many.

        The bytes are shared.

        Raises: `Invalid` for a path that becomes too long.
        """
        body = {"prefix": prefix, "target": target, "ref": ref, "force": force}
        return int(self._api.change("POST", self._branch("objects", "copy_prefix"), body).json()["copied"])

    def set_metadata(self, path: str, metadata: Mapping[str, str], *, force: bool = False) -> Entry:
        """Replace the user metadata of an entry.

        Raises: `NotFound` for the path.
        """
        self._api.change(
            "PUT", self._branch("objects", "stat", "user_metadata"), {"set": dict(metadata)},
            query={"path": path, "force": force}, repeatable=True,
        )  # fmt: skip
        return RemoteReference(self._api, self._record, self.name).stat(path)

    def restore(self, prefix: str, ref: str, *, force: bool = False) -> int:
        """Stage what makes the paths below a prefix what they are at a ref; how many changed. No bytes are copied."""
        body = {"prefix": prefix, "ref": ref, "force": force}
        return int(self._api.change("POST", self._branch("restore"), body).json()["changes"])

    def reset_hard(self, ref: str, *, force: bool = False) -> Commit:
        """Move the head to another commit; nothing may be staged.

        Raises: `Invalid`, kind `branch_dirty`.
        """
        return commit_of(
            self._api.change("PUT", self._branch("hard_reset"), query={"ref": ref, "force": force}).json()
        )  # fmt: skip

    def compact(self) -> Compacted:
        """Fold what is staged into a compacted index."""
        return self._api.change("POST", self._branch("compact"), {}).read(_COMPACTED)

    def uncommitted(self, prefix: str = "") -> Iterator[pa.RecordBatch]:
        """The changes that are staged, as batches with the columns of `diffs.DIFFERENCES`, each of one moment."""
        branch = RemoteBranch(self._api, self._record, self.name)
        return difference_batches(lambda after: branch.diff(prefix, after=after, amount=1_000))


def _stream(first: pa.RecordBatch | pa.Table, rest: Iterator[pa.RecordBatch | pa.Table]) -> Iterator[bytes]:
    """Batches as Arrow's stream format, piece by piece."""
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), first.schema) as writer:
        writer.write(first)
        yield sink.taken()
        for batch in rest:
            writer.write(batch)
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
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
