"""The interface of repositories, the same for those of a folder and those of a node.

`Repositories`, `Repository`, `Reference`, `Branch` and `Staging` keep these promises in this process, the classes of
`client/versions/` over the network; one suite runs over both. Each method is described where it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.versions.collect import Garbage
    from millpond.versions.compaction import Compacted
    from millpond.versions.diffs import Change
    from millpond.versions.graph.commits import Commit
    from millpond.versions.graph.history import Window
    from millpond.versions.imports.importing import Imported
    from millpond.versions.imports.locations import Location
    from millpond.versions.merges import Resolution, Strategy
    from millpond.versions.objects.entries import Entry
    from millpond.versions.paging import Page
    from millpond.versions.repository import Named
    from millpond.versions.repository_context import RepositoryRecord
    from millpond.versions.restores import Restored
    from millpond.versions.staging.branches import BranchState
    from millpond.versions.staging.bulk import Rows

__all__ = ("BranchLike", "ImportsLike", "ReferenceLike", "RepositoriesLike", "RepositoryLike", "StagingLike")

T = TypeVar("T")


class ReferenceLike(Protocol):
    """A state to read: see `versions.reference.Reference`."""

    @property
    def expression(self) -> str: ...

    def head(self) -> Commit: ...
    def stat(self, path: str) -> Entry: ...
    def get(self, path: str) -> bytes: ...
    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]: ...

    def list(
        self, prefix: str = "", *, delimiter: str = "", after: str = "", amount: int = 100, reverse: bool = False
    ) -> Page[Entry]: ...

    def entries(self, prefix: str = "", *, after: str = "") -> Iterator[pa.RecordBatch]: ...

    def log(
        self, window: Window | None = None, *, paths: Iterable[str] = (), prefixes: Iterable[str] = (),
        limit: int | None = None,
    ) -> Iterator[Commit]: ...  # fmt: skip


class StagingLike(Protocol):
    """Staged entries in bulk, and their maintenance: see `versions.branch.Staging`."""

    def state(self) -> BranchState: ...

    def link(
        self, entry: Entry, *, if_absent: bool = False, if_match: str | None = None, force: bool = False
    ) -> Entry: ...

    def stage(self, rows: Rows, *, force: bool = False) -> int: ...
    def push(self, batches: Iterable[pa.RecordBatch], *, force: bool = False) -> int: ...
    def delete_many(self, paths: Sequence[str], *, force: bool = False) -> int: ...
    def delete_prefix(self, prefix: str, *, force: bool = False) -> None: ...
    def copy_prefix(self, prefix: str, target: str, *, ref: str | None = None, force: bool = False) -> int: ...
    def set_metadata(self, path: str, metadata: Mapping[str, str], *, force: bool = False) -> Entry: ...
    def restore(self, prefix: str, ref: str, *, force: bool = False) -> int: ...
    def reset_hard(self, ref: str, *, force: bool = False) -> Commit: ...
    def compact(self) -> Compacted: ...
    def uncommitted(self, prefix: str = "") -> Iterator[pa.RecordBatch]: ...


class ImportsLike(Protocol):
    """Imports into a branch: see `versions.imports.importing.Imports`."""

    def commit(
        self, locations: Sequence[Location], message: str = "", *, metadata: Mapping[str, str] | None = None,
        created: int | None = None, force: bool = False,
    ) -> Imported: ...  # fmt: skip

    def stage(self, locations: Sequence[Location], *, force: bool = False) -> Imported: ...


class BranchLike(ReferenceLike, Protocol):
    """A branch, to read and to change: see `versions.branch.Branch`."""

    @property
    def name(self) -> str: ...
    @property
    def staging(self) -> StagingLike: ...
    @property
    def imports(self) -> ImportsLike: ...

    def put(
        self, path: str, body: bytes | memoryview | Iterable[bytes | memoryview], *, content_type: str = ...,
        metadata: Mapping[str, str] | None = None, if_absent: bool = False, if_match: str | None = None,
        force: bool = False,
    ) -> Entry: ...  # fmt: skip

    def delete(self, path: str, *, force: bool = False) -> bool: ...
    def copy(self, path: str, target: str, *, ref: str | None = None, force: bool = False) -> Entry: ...

    def commit(
        self, message: str = "", *, committer: str = "", metadata: Mapping[str, str] | None = None,
        created: int | None = None, allow_empty: bool = False, prefixes: Sequence[str] | None = None,
        source_tree: str | None = None, force: bool = False,
    ) -> Commit: ...  # fmt: skip

    def merge(
        self, source: str, message: str = "", *, committer: str = "", metadata: Mapping[str, str] | None = None,
        strategy: str | Strategy = ..., resolutions: Sequence[Resolution] = (), squash: bool = False,
        allow_empty: bool = False, force: bool = False,
    ) -> Commit: ...  # fmt: skip

    def diff(self, prefix: str = "", *, delimiter: str = "", after: str = "", amount: int = 100) -> Page[Change]: ...
    def reset(self, *, path: str | None = None, prefix: str | None = None, force: bool = False) -> None: ...

    def revert(
        self, ref: str, *, parent_number: int | None = None, committer: str = "", message: str = "",
        metadata: Mapping[str, str] | None = None, allow_empty: bool = False, force: bool = False,
    ) -> Commit: ...  # fmt: skip

    def cherry_pick(
        self, ref: str, *, parent_number: int | None = None, committer: str = "", message: str | None = None,
        metadata: Mapping[str, str] | None = None, force: bool = False,
    ) -> Commit: ...  # fmt: skip


class RepositoryLike(Protocol):
    """A repository: see `versions.repository.Repository`."""

    @property
    def name(self) -> str: ...
    @property
    def record(self) -> RepositoryRecord: ...

    def branch(self, name: str) -> BranchLike: ...
    def ref(self, expression: str) -> ReferenceLike: ...
    def branches(
        self, prefix: str = "", *, after: str = "", amount: int = 100, hidden: bool = False
    ) -> Page[Named]: ...
    def tags(self, prefix: str = "", *, after: str = "", amount: int = 100) -> Page[Named]: ...
    def create_branch(self, name: str, source: str, *, hidden: bool = False, force: bool = False) -> BranchLike: ...
    def delete_branch(self, name: str, *, force: bool = False) -> None: ...
    def create_tag(self, name: str, ref: str, *, force: bool = False) -> Commit: ...
    def delete_tag(self, name: str, *, force: bool = False) -> None: ...
    def tag(self, name: str) -> str: ...

    def diff(
        self, left: str, right: str, prefix: str = "", *, three_dots: bool = True, delimiter: str = "",
        after: str = "", amount: int = 100,
    ) -> Page[Change]: ...  # fmt: skip

    def diff_rows(
        self, left: str, right: str, prefix: str = "", *, three_dots: bool = True
    ) -> Iterator[pa.RecordBatch]: ...

    def merge_base(self, left: str, right: str) -> Commit: ...
    def collect(self, *, grace_ms: int = ..., dry_run: bool = False) -> Garbage: ...
    def dump(self) -> Iterator[bytes]: ...
    def setting(self, kind: type[T]) -> tuple[T | None, str]: ...
    def set(self, value: object, *, expected: str | None = None) -> str: ...
    def clear(self, kind: type) -> None: ...

    def alter(
        self, *, metadata: Mapping[str, str] | None = None, read_only: bool | None = None
    ) -> RepositoryRecord: ...


class RepositoriesLike(Protocol):
    """The repositories of a pond: see `versions.repositories.Repositories`."""

    def create(
        self, name: str, namespace: str | None = None, *, default_branch: str = "main", read_only: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> RepositoryLike: ...  # fmt: skip

    def get(self, name: str) -> RepositoryLike: ...
    def list(self, prefix: str = "", *, after: str = "", amount: int = 100) -> Page[RepositoryRecord]: ...
    def restore(self, name: str, chunks: Iterable[bytes], *, force: bool = False) -> Restored: ...
    def delete(self, name: str) -> None: ...
