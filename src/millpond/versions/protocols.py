"""The interface of repositories, the same for those of a folder and those of a node.

`Repositories`, `Repository`, `Reference`, `Branch` and `Staging` keep these promises in this process, the classes of
`client/versions/` over the network; one suite runs over both. What is one request is declared here, in the classes
named `…Operations`; every other method is described where it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from millpond.deferred import DeferredModule
from millpond.kernel.operations import declared, operation

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.versions import collect, compaction, diffs, merges, paging, repository, repository_context
    from millpond.versions.graph import commits
    from millpond.versions.graph.history import Window
    from millpond.versions.imports.importing import Imported
    from millpond.versions.imports.locations import Location
    from millpond.versions.objects import entries
    from millpond.versions.restores import Restored
    from millpond.versions.staging import branches
    from millpond.versions.staging.bulk import Rows
else:  # help names the arguments of commands, and no results
    collect, compaction, diffs, merges, paging, repository, repository_context, commits, entries, branches = (
        DeferredModule(f"millpond.versions.{name}")
        for name in (
            "collect", "compaction", "diffs", "merges", "paging", "repository", "repository_context", "graph.commits",
            "objects.entries", "staging.branches",
        )
    )  # fmt: skip

__all__ = (
    "GRACE_MS", "BranchLike", "BranchOperations", "ImportsLike", "ReferenceLike", "ReferenceOperations",
    "RepositoriesLike", "RepositoriesOperations", "RepositoryLike", "RepositoryOperations", "StagingLike",
    "StagingOperations",
)  # fmt: skip

T = TypeVar("T")
GRACE_MS = 24 * 3_600_000
"""The time for which what nothing names is kept."""
_REPOSITORY = "/repositories/{repository}"
_BRANCH = f"{_REPOSITORY}/branches/{{branch}}"
_REF = f"{_REPOSITORY}/refs/{{expression}}"
_OVERRIDES = {name: f"commit_overrides.{name}" for name in ("message", "metadata")}


class ReferenceOperations(Protocol):
    """A state to read, as requests."""

    @operation("GET", f"{_REPOSITORY}/commits/{{expression}}")
    def head(self) -> commits.Commit:
        """The commit; of a branch its head."""
        declared()

    @operation("GET", f"{_REF}/objects/stat")
    def stat(self, path: str) -> entries.Entry:
        """The entry at a path.

        Raises: `NotFound`, kind `entry_not_found`.
        """
        declared()

    @operation("GET", f"{_REF}/objects/ls")
    def list(
        self, prefix: str = "", *, delimiter: str = "", after: str = "", amount: int = 100, reverse: bool = False
    ) -> paging.Page[entries.Entry]:
        """One page of entries, in the order of the paths' bytes."""
        declared()


class ReferenceLike(ReferenceOperations, Protocol):
    """A state to read: see `versions.reference.Reference`."""

    @property
    def expression(self) -> str: ...

    def get(self, path: str) -> bytes: ...
    def read(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]: ...
    def entries(self, prefix: str = "", *, after: str = "") -> Iterator[pa.RecordBatch]: ...

    def log(
        self, window: Window | None = None, *, paths: Iterable[str] = (), prefixes: Iterable[str] = (),
        limit: int | None = None,
    ) -> Iterator[commits.Commit]: ...  # fmt: skip


class StagingOperations(Protocol):
    """Staged entries in bulk, as requests."""

    @operation("GET", f"{_BRANCH}/staging", right="read")
    def state(self) -> branches.BranchState:
        """The head, and the layers of what is staged."""
        declared()

    @operation("POST", f"{_BRANCH}/objects/delete", query=("force",), answer="deleted")
    def delete_many(self, paths: Sequence[str], *, force: bool = False) -> int:
        """Delete paths, all or none; how many of them were there."""
        declared()

    @operation("POST", f"{_BRANCH}/objects/delete", query=("force",), repeatable=True)
    def delete_prefix(self, prefix: str, *, force: bool = False) -> None:
        """Delete all paths that begin with a prefix, by one range tombstone."""
        declared()

    @operation("POST", f"{_BRANCH}/objects/copy_prefix", right="write", answer="copied")
    def copy_prefix(self, prefix: str, target: str, *, ref: str | None = None, force: bool = False) -> int:
        """Stage the entries below a prefix, of this branch or of a ref, below another one, all or none; how many.

        The bytes are shared.

        Raises: `Invalid` for a path that becomes too long.
        """
        declared()

    @operation("POST", f"{_BRANCH}/objects/move")
    def move(self, path: str, target: str, *, force: bool = False) -> entries.Entry:
        """Let the entry at a path be at another one, in one write; whatever is there goes.

        Raises: `NotFound` for the path.
        """
        declared()

    @operation("POST", f"{_BRANCH}/restore", answer="changes")
    def restore(self, prefix: str, ref: str, *, force: bool = False) -> int:
        """Stage what makes the paths below a prefix what they are at a ref; how many changed. No bytes are copied."""
        declared()

    @operation("PUT", f"{_BRANCH}/hard_reset", query=("ref", "force"))
    def reset_hard(self, ref: str, *, force: bool = False) -> commits.Commit:
        """Move the head to another commit; nothing may be staged, or with `force` it is forgotten.

        Raises: `Invalid`, kind `branch_dirty`.
        """
        declared()

    @operation("POST", f"{_BRANCH}/compact", right="write")
    def compact(self) -> compaction.Compacted:
        """Fold what is staged into a compacted index."""
        declared()


class StagingLike(StagingOperations, Protocol):
    """Staged entries in bulk, and their maintenance: see `versions.branch.Staging`."""

    def link(
        self, entry: entries.Entry, *, if_absent: bool = False, if_match: str | None = None, force: bool = False
    ) -> entries.Entry: ...

    def stage(self, rows: Rows, *, force: bool = False) -> int: ...
    def push(self, batches: Iterable[pa.RecordBatch], *, force: bool = False) -> int: ...
    def set_metadata(self, path: str, metadata: Mapping[str, str], *, force: bool = False) -> entries.Entry: ...
    def uncommitted(self, prefix: str = "") -> Iterator[pa.RecordBatch]: ...


class ImportsLike(Protocol):
    """Imports into a branch: see `versions.imports.importing.Imports`."""

    def commit(
        self, locations: Sequence[Location], message: str = "", *, metadata: Mapping[str, str] | None = None,
        created: int | None = None, force: bool = False,
    ) -> Imported: ...  # fmt: skip

    def stage(self, locations: Sequence[Location], *, force: bool = False) -> Imported: ...


class BranchOperations(ReferenceOperations, Protocol):
    """A branch, as requests."""

    @operation(
        "POST", f"{_BRANCH}/objects/copy", sent={"path": "src_path", "ref": "src_ref", "target": "dest_path"},
        query=("target",), repeatable=True,
    )  # fmt: skip
    def copy(self, path: str, target: str, *, ref: str | None = None, force: bool = False) -> entries.Entry:
        """Put the entry at a path, of this branch or of a ref, at another one; the bytes are shared.

        Raises: `NotFound` for the path.
        """
        declared()

    @operation(
        "POST", f"{_BRANCH}/commits", sent={"created": "date", "source_tree": "source_metarange"},
        query=("source_tree",),
    )  # fmt: skip
    def commit(
        self, message: str = "", *, committer: str = "", metadata: Mapping[str, str] | None = None,
        created: int | None = None, allow_empty: bool = False, prefixes: Sequence[str] | None = None,
        source_tree: str | None = None, force: bool = False,
    ) -> commits.Commit:  # fmt: skip
        """commits.Commit what is staged; with `prefixes` only what lies below them. `created` counts seconds.

        Commits of one branch wait for one another. `source_tree`: an index that becomes the state of a clean branch.

        Raises: `Invalid`, kind `no_changes` (`values["commit"]` is the head, which has what was staged before).
        """
        declared()

    @operation("POST", f"{_REPOSITORY}/refs/{{source}}/merge/{{branch}}", sent={"squash": "squash_merge"})
    def merge(
        self, source: str, message: str = "", *, committer: str = "", metadata: Mapping[str, str] | None = None,
        strategy: str | merges.Strategy = "default", resolutions: merges.Resolutions = (), squash: bool = False,
        allow_empty: bool = False, force: bool = False,
    ) -> commits.Commit:  # fmt: skip
        """Merge a ref into this branch, on which nothing may be staged; the merge commit.

        Raises: `MergeConflict` with the `paths`; `Invalid`, kinds `branch_dirty`, `no_changes`, `merge_strategy`.
        """
        declared()

    @operation("POST", f"{_BRANCH}/revert", sent=_OVERRIDES, absent={"parent_number": 0})
    def revert(
        self, ref: str, *, parent_number: int | None = None, committer: str = "", message: str = "",
        metadata: Mapping[str, str] | None = None, allow_empty: bool = False, force: bool = False,
    ) -> commits.Commit:  # fmt: skip
        """Undo a commit by a new one; of a merge, what it brought to the parent of that number, counted from 1.

        Raises: `MergeConflict`; `Invalid`, kinds `branch_dirty`, `no_changes`, `parent_number`; `Conflict`, kind
        `revert_parent`.
        """
        declared()

    @operation("POST", f"{_BRANCH}/cherry-pick", sent=_OVERRIDES)
    def cherry_pick(
        self, ref: str, *, parent_number: int | None = None, committer: str = "", message: str | None = None,
        metadata: Mapping[str, str] | None = None, force: bool = False,
    ) -> commits.Commit:  # fmt: skip
        """Make the changes of a commit again here.

        Raises: `MergeConflict`; `Invalid`, kinds `branch_dirty`, `parent_number`, `cherry_pick_parent`.
        """
        declared()

    @operation("GET", f"{_BRANCH}/diff")
    def diff(
        self, prefix: str = "", *, delimiter: str = "", after: str = "", amount: int = 100
    ) -> paging.Page[diffs.Change]:
        """One page of what is staged: the changes from the head."""
        declared()


class BranchLike(ReferenceLike, BranchOperations, Protocol):
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
    ) -> entries.Entry: ...  # fmt: skip

    def delete(self, path: str, *, force: bool = False) -> bool: ...
    def reset(self, *, path: str | None = None, prefix: str | None = None, force: bool = False) -> None: ...


class RepositoryOperations(Protocol):
    """A repository, as requests."""

    @operation("GET", f"{_REPOSITORY}/branches", sent={"hidden": "show_hidden"})
    def branches(
        self, prefix: str = "", *, after: str = "", amount: int = 100, hidden: bool = False
    ) -> paging.Page[repository.Named]:
        """One page of branches; hidden ones only on request."""
        declared()

    @operation("GET", f"{_REPOSITORY}/tags")
    def tags(self, prefix: str = "", *, after: str = "", amount: int = 100) -> paging.Page[repository.Named]:
        """One page of tags."""
        declared()

    @operation("DELETE", _BRANCH, right="write", sent={"name": "branch"})
    def delete_branch(self, name: str, *, force: bool = False) -> None:
        """Delete a branch with what is staged on it. Its commits stay.

        Raises: `NotFound`; `Denied` for the default branch and for a protected one.
        """
        declared()

    @operation("POST", f"{_REPOSITORY}/tags", sent={"name": "id"})
    def create_tag(self, name: str, ref: str, *, force: bool = False) -> commits.Commit:
        """Name the commit of a ref.

        Raises: `AlreadyExists`; `Invalid` for a name, or a ref with `$`; `NotFound`.
        """
        declared()

    @operation("DELETE", f"{_REPOSITORY}/tags/{{tag}}", right="write", sent={"name": "tag"})
    def delete_tag(self, name: str, *, force: bool = False) -> None:
        """Delete a tag; its commit stays.

        Raises: `NotFound`.
        """
        declared()

    @operation("GET", f"{_REPOSITORY}/tags/{{name}}", answer="commit_id")
    def tag(self, name: str) -> str:
        """The id of the commit that a tag names.

        Raises: `NotFound`.
        """
        declared()

    @operation("POST", f"{_REPOSITORY}/gc/collect")
    def collect(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> collect.Garbage:
        """Delete objects, ranges and indexes that nothing needs, or count them. A node's grace time is a day or more.

        Raises: `Conflict` when another collection deletes. `Invalid` for a grace time below a minute.
        """
        declared()


class RepositoryLike(RepositoryOperations, Protocol):
    """A repository: see `versions.repository.Repository`."""

    @property
    def name(self) -> str: ...
    @property
    def record(self) -> repository_context.RepositoryRecord: ...

    def branch(self, name: str) -> BranchLike: ...
    def ref(self, expression: str) -> ReferenceLike: ...
    def create_branch(self, name: str, source: str, *, hidden: bool = False, force: bool = False) -> BranchLike: ...

    def diff(
        self, left: str, right: str, prefix: str = "", *, three_dots: bool = True, delimiter: str = "",
        after: str = "", amount: int = 100,
    ) -> paging.Page[diffs.Change]: ...  # fmt: skip

    def diff_rows(
        self, left: str, right: str, prefix: str = "", *, three_dots: bool = True
    ) -> Iterator[pa.RecordBatch]: ...

    def merge_base(self, left: str, right: str) -> commits.Commit: ...
    def dump(self) -> Iterator[bytes]: ...
    def setting(self, kind: type[T]) -> tuple[T | None, str]: ...
    def set(self, value: object, *, expected: str | None = None) -> str: ...
    def clear(self, kind: type) -> None: ...

    def alter(
        self, *, metadata: Mapping[str, str] | None = None, read_only: bool | None = None
    ) -> repository_context.RepositoryRecord: ...


class RepositoriesOperations(Protocol):
    """The repositories of a pond, as requests."""

    @operation("GET", "/repositories")
    def list(
        self, prefix: str = "", *, after: str = "", amount: int = 100
    ) -> paging.Page[repository_context.RepositoryRecord]:
        """One page of repositories, by name."""
        declared()


class RepositoriesLike(RepositoriesOperations, Protocol):
    """The repositories of a pond: see `versions.repositories.Repositories`."""

    def create(
        self, name: str, namespace: str | None = None, *, default_branch: str = "main", read_only: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> RepositoryLike: ...  # fmt: skip

    def get(self, name: str) -> RepositoryLike: ...
    def restore(self, name: str, chunks: Iterable[bytes], *, force: bool = False) -> Restored: ...
    def delete(self, name: str) -> None: ...
