"""The repository `pond`: as any other, but that its maps are merged by key, and `main` is recorded before it is read.

Whoever works with repositories works with maps by this: the API of lakeFS, the commands, `pond.repository("pond")`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.refs.face import MAIN, names_main
from millpond.refs.map_entries import MAPS, counting_object
from millpond.refs.named import release
from millpond.versions.branch import Branch, Staging
from millpond.versions.collect import GRACE_MS, Garbage
from millpond.versions.merges import Resolutions, Strategy
from millpond.versions.reference import Reference
from millpond.versions.repository import Repository

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.refs.refs import Refs
    from millpond.versions.diffs import Change
    from millpond.versions.graph.commits import Commit
    from millpond.versions.objects.entries import Entry
    from millpond.versions.paging import Page
    from millpond.versions.repository_context import RepositoryContext, RepositoryRecord

__all__ = ("MapsBranch", "MapsReference", "MapsRepository", "MapsStaging", "reset_main")


class MapsRepository(Repository):
    """The repository that maps are in; `refs` gives what knows them."""

    def __init__(self, context: RepositoryContext, record: RepositoryRecord, refs: Callable[[], Refs]) -> None:
        super().__init__(replace(context, composed=MAPS), record)
        self.refs = refs

    def branch(self, name: str) -> Branch:
        """A branch to read and to change."""
        return MapsBranch(self.context, name, self.refs)

    def ref(self, expression: str) -> Reference:
        """A state to read; of `main` as it is by then."""
        return MapsReference(self.context, expression, self.refs)

    def create_branch(self, name: str, source: str, *, hidden: bool = False, force: bool = False) -> Branch:
        """A new branch at the commit of a ref, of `main` as it is now."""
        self._record(source)
        return super().create_branch(name, source, hidden=hidden, force=force)

    def create_tag(self, name: str, ref: str, *, force: bool = False) -> Commit:
        """Name the commit of a ref, of `main` as it is now."""
        self._record(ref)
        return super().create_tag(name, ref, force=force)

    def diff(
        self, left: str, right: str, prefix: str = "", *, three_dots: bool = True, delimiter: str = "",
        after: str = "", amount: int = 100,
    ) -> Page[Change]:  # fmt: skip
        """One page of differences of objects: a map is one. `Refs.diff` tells of keys."""
        self._record(left, right)
        return super().diff(left, right, prefix, three_dots=three_dots, delimiter=delimiter, after=after, amount=amount)

    def diff_rows(
        self, left: str, right: str, prefix: str = "", *, three_dots: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """All differences of objects of two commits."""
        self._record(left, right)
        return super().diff_rows(left, right, prefix, three_dots=three_dots)

    def collect(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> Garbage:
        """Delete what nothing needs, or count it; let go of the files of maps that no commit or branch needs either.

        Raises: `Conflict` when another collection deletes. `Invalid` for a grace time below a minute.
        """
        garbage = super().collect(grace_ms=grace_ms, dry_run=dry_run)
        if not dry_run:
            release(self.context)
        return garbage

    def _record(self, *expressions: str) -> None:
        if any(map(names_main, expressions)):
            self.refs().states.record()


class MapsReference(Reference):
    """A state of the repository that maps are in; `main` is recorded before each read."""

    def __init__(self, context: RepositoryContext, expression: str, refs: Callable[[], Refs]) -> None:
        super().__init__(context, expression)
        self._refs = refs

    def head(self) -> Commit:
        """The commit; of a branch its head."""
        self._record()
        return super().head()

    def stat(self, path: str) -> Entry:
        """The entry at a path; of a map with the manifest that counts."""
        self._record()
        entry = super().stat(path)
        return counting_object(self.context, entry) if path.startswith(MAPS) else entry

    def list(
        self, prefix: str = "", *, delimiter: str = "", after: str = "", amount: int = 100, reverse: bool = False
    ) -> Page[Entry]:
        """One page of entries."""
        self._record()
        return super().list(prefix, delimiter=delimiter, after=after, amount=amount, reverse=reverse)

    def entries(self, prefix: str = "", *, after: str = "") -> Iterator[pa.RecordBatch]:
        """All entries as batches."""
        self._record()
        return super().entries(prefix, after=after)

    def _record(self) -> None:
        if names_main(self.expression):
            self._refs().states.record()


class MapsBranch(MapsReference, Branch):
    """A branch of the repository that maps are in."""

    def __init__(self, context: RepositoryContext, name: str, refs: Callable[[], Refs]) -> None:
        Branch.__init__(self, context, name)
        self._refs = refs
        self.staging = MapsStaging(context, name)

    def commit(
        self, message: str = "", *, committer: str = "", metadata: Mapping[str, str] | None = None,
        created: int | None = None, allow_empty: bool = False, prefixes: Sequence[str] | None = None,
        source_tree: str | None = None, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Commit what is staged; on `main`, what loads changed as well.

        Raises: `Invalid`, kind `maps_tree`, for a tree that is given.
        """
        if source_tree is not None:
            raise Invalid("maps are not set by a tree", kind="maps_tree", branch=self.name, hint="merge, or restore")
        before = None
        if self.name == MAIN:
            with self.context.space.read() as tx:
                before = self.context.graph.commit(tx, f"{MAIN}@")
        recorded = None if before is None else self._refs().states.record()
        try:
            return super().commit(
                message, committer=committer, metadata=metadata, created=created, allow_empty=allow_empty,
                prefixes=prefixes, force=force,
            )  # fmt: skip
        except Invalid as error:
            if error.kind != "no_changes" or recorded is None or recorded == before:
                raise
            return recorded

    def merge(
        self, source: str, message: str = "", *, committer: str = "", metadata: Mapping[str, str] | None = None,
        strategy: str | Strategy = Strategy.DEFAULT, resolutions: Resolutions = (), squash: bool = False,
        allow_empty: bool = False, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Merge a ref into this branch: maps by key, files by path; the merge commit."""
        with self._reported("merge") as job:
            commit = self._refs().merge(
                source, self.name, message=message, committer=committer, metadata=metadata, strategy=strategy,
                resolutions=resolutions, squash=squash, allow_empty=allow_empty,
            )  # fmt: skip
            job.note(commit=commit.id)
        return commit

    def revert(
        self, ref: str, *, parent_number: int | None = None, committer: str = "", message: str = "",
        metadata: Mapping[str, str] | None = None, allow_empty: bool = False, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Undo a commit by a new one, maps by key."""
        return self._refs().revert(
            ref, self.name, message=message, parent_number=parent_number, committer=committer, metadata=metadata
        )

    def cherry_pick(
        self, ref: str, *, parent_number: int | None = None, committer: str = "", message: str | None = None,
        metadata: Mapping[str, str] | None = None, force: bool = False,
    ) -> Commit:  # fmt: skip
        """Make the changes of a commit again here, maps by key."""
        return self._refs().cherry_pick(
            ref, self.name, message=message, parent_number=parent_number, committer=committer, metadata=metadata
        )


class MapsStaging(Staging):
    """The staged entries of a branch that maps are on."""

    def reset_hard(self, ref: str, *, force: bool = False) -> Commit:
        """Move the head to another commit; never that of `main`, which the heads of maps follow.

        Raises: `Invalid`, kind `reset_main`.
        """
        if self.name == MAIN:
            raise reset_main(ref)
        return super().reset_hard(ref, force=force)


def reset_main(ref: str) -> Invalid:
    """The error for a head of `main` that is to be moved back."""
    return Invalid(
        "the head of main is not moved back", kind="reset_main", ref=ref,
        hint="revert the commits, or restore maps from a ref: each is a new commit",
    )  # fmt: skip
