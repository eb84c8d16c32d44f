"""Branches, commits and merges of the maps of a pond on nodes: the doors, and `pond.refs`.

What is about commits is asked of the repository `pond` of the nodes (`client/versions/`), what is about keys of routes
of its own (`server/routes/refs.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from millpond.argument_types import need_list
from millpond.client.differences import about_sides, difference_pages, table_of
from millpond.client.operations import LARGE_SECONDS_MAX, ask_primary
from millpond.deferred import opened_once
from millpond.errors import Invalid
from millpond.refs.face import MAIN, POND, check_no_main, is_instant

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.client.pond import RemotePond
    from millpond.client.ref_ponds import RemoteBranchPond, RemoteRefPond
    from millpond.client.response import Response
    from millpond.client.transport import Body, Connection, Nodes
    from millpond.client.versions.repository import RemoteRepository
    from millpond.versions.graph.commits import Commit
    from millpond.versions.merges import Resolutions, Strategy

__all__ = ("RemoteRefs", "RemoteRefsFace")


class RemoteRefsFace:
    """The doors of a pond on nodes to its refs."""

    _is_interface = True

    @opened_once
    def refs(self: RemotePond) -> RemoteRefs:
        """Branches, commits and tags of layered maps."""
        return RemoteRefs(self)

    def branch(self: RemotePond, name: str, *, source: str | None = None) -> RemoteBranchPond:  # type: ignore[misc]
        """A pond of a branch, to read and to load, see `Pond.branch`.

        Raises: as `Pond.branch`; `Invalid`, kind `refs_place`, where nodes replicate the pond.
        """
        from millpond.client.ref_ponds import RemoteBranchPond

        check_no_main(name)
        if source is None:
            self.refs.repository.branch(name).staging.state()
        else:
            self.refs.create_branch(name, source)
        return RemoteBranchPond(self, name)

    def history(self: RemotePond, map: str, ref: str = MAIN) -> pa.Table:  # type: ignore[misc]
        """The commits that changed a map, see `Pond.history`.

        Raises: `NotFound` for the ref.
        """
        return self.refs.history(map, ref)

    def at(self: RemotePond, ref: str) -> RemoteRefPond:  # type: ignore[misc]
        """A pond as it was at a ref, to read, see `Pond.at`.

        Raises: `NotFound`; `Invalid` for text that is no ref.
        """
        from millpond.client.ref_ponds import RemoteRefPond

        return RemoteRefPond(self, self.refs.resolve(ref))


class _AnyNode:
    """The nodes of a pond as one that is asked about repositories."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes, self.settings, self.clock, self.url = nodes, nodes.settings, nodes.clock, nodes.where

    def request(self, method: str, path: str, **options: Any) -> Response:
        return ask_primary(self._nodes, method, path, **options)

    def stream(self, method: str, path: str, **options: Any) -> Body:
        return self._nodes.on_primary(lambda node: node.stream(method, path, **options), repeatable=True)


class RemoteRefs:
    """Branches, commits and tags of the layered maps of a pond on nodes; see `Refs` for what each does.

    Methods raise `NotFound` for a ref that is not there, `Invalid` for text that is no ref; `Uncertain` when the answer
    to a change was lost.
    """

    def __init__(self, pond: RemotePond) -> None:
        self._pond, self._nodes = pond, pond.nodes

    @opened_once
    def repository(self) -> RemoteRepository:
        """The repository `pond` of the nodes.

        Raises: `Invalid`, kind `refs_place`, where nodes replicate the pond.
        """
        from millpond.client.versions.repositories import RemoteRepositories

        self.resolve(MAIN)  # says why there are no branches
        return RemoteRepositories(cast("Connection", _AnyNode(self._nodes))).get(POND)

    def resolve(self, ref: str) -> str:
        """The id of the commit of a ref: `main~3`, a tag, a commit; or a time: the last commit of `main` by then."""
        query = {"ref": ref}
        answer = self._nodes.first(lambda node: node.request("GET", "/v1/refs/commit", query=query))
        id_: str = answer.json()["id"]
        return id_

    def _timeless(self, ref: str) -> str:
        """A ref as repositories know it: they have no times."""
        return self.resolve(ref) if is_instant(ref) else ref

    def log(self, ref: str = MAIN, *, first_parent: bool = False) -> Iterator[Commit]:
        """The commits from a ref back, the newest first."""
        from millpond.versions.graph.history import Window

        return self.repository.ref(self._timeless(ref)).log(Window(first_parent=first_parent))

    def create_branch(self, name: str, source: str = MAIN) -> None:
        """A new branch at the commit of a ref. Nothing is copied.

        Raises: `AlreadyExists`; `Invalid` for a name.
        """
        self.repository.create_branch(name, self._timeless(source))

    def delete_branch(self, name: str) -> None:
        """Delete a branch with what is staged on it.

        Raises: `Denied` for `main`.
        """
        self.repository.delete_branch(name)
        self._changed()

    def commit(self, branch: str, message: str = "", *, allow_empty: bool = False) -> Commit:
        """Commit what is staged on a branch; on `main`, what loads changed.

        Raises: `Invalid`, kind `no_changes`.
        """
        try:
            return self.repository.branch(branch).commit(message or "Commit", allow_empty=allow_empty)
        except Invalid as error:
            if branch != MAIN or error.kind != "no_changes":
                raise
            return self.repository.branch(branch).head()

    def merge(
        self, source: str, into: str = MAIN, *, message: str = "", strategy: str | Strategy = "",
        resolutions: Resolutions = (), metadata: Mapping[str, str] | None = None,
        committer: str = "", squash: bool = False, allow_empty: bool = False,
    ) -> Commit:  # fmt: skip
        """Merge the commits of a ref into a branch, each map by key, files by path; the merge commit.

        Raises: as `Refs.merge`.
        """
        commit = self.repository.branch(into).merge(
            self._timeless(source), message or f"Merge '{source}' into '{into}'", strategy=strategy,
            resolutions=resolutions, metadata=metadata, committer=committer, squash=squash,
            allow_empty=allow_empty,
        )  # fmt: skip
        self._changed()
        return commit

    def revert(
        self, ref: str, branch: str = MAIN, *, message: str = "", parent_number: int | None = None,
        metadata: Mapping[str, str] | None = None, committer: str = "",
    ) -> Commit:  # fmt: skip
        """Undo a commit by a new one, by key.

        Raises: as `Refs.revert`.
        """
        commit = self.repository.branch(branch).revert(
            self._timeless(ref), message=message, parent_number=parent_number, metadata=metadata, committer=committer
        )
        self._changed()
        return commit

    def cherry_pick(
        self, ref: str, branch: str = MAIN, *, message: str | None = None, parent_number: int | None = None,
        metadata: Mapping[str, str] | None = None, committer: str = "",
    ) -> Commit:  # fmt: skip
        """Make the changes of a commit again on a branch.

        Raises: as `revert`.
        """
        commit = self.repository.branch(branch).cherry_pick(
            self._timeless(ref), message=message, parent_number=parent_number, metadata=metadata, committer=committer
        )
        self._changed()
        return commit

    def restore(self, ref: str, branch: str = MAIN, *, maps: Sequence[str] = (), message: str = "") -> Commit:
        """Let maps, all of the ref or some, be on a branch what they are at a ref, by a new commit.

        Raises: as `Refs.restore`.
        """
        from millpond.client.versions.models import commit_of

        need_list("maps", maps, str)
        body = {"ref": ref, "branch": branch, "maps": list(maps), "message": message}
        answer = ask_primary(self._nodes, "POST", "/v1/refs/restore", json=body, timeout=LARGE_SECONDS_MAX)
        self._changed()
        return commit_of(answer.json())

    def reset(self, branch: str, ref: str | None = None) -> None:
        """Take back what is staged on a branch; with a `ref`, also move its head there: `main` is restored instead.

        Raises: `Invalid`, kind `reset_main`.
        """
        if ref is None:
            self.repository.branch(branch).reset(force=True)
        else:
            self.repository.branch(branch).staging.reset_hard(self.resolve(ref), force=True)
        self._changed()

    def diff(
        self, left: str, right: str | None = None, *, map: str | None = None, three_dots: bool = False,
        limit: int | None = None,
    ) -> pa.Table:  # fmt: skip
        """The addresses that differ between two refs, see `Refs.diff`; they come by pages of these two states.

        Raises: as `Refs.diff`; `Invalid`, kind `search_bookmark`, when more was staged meanwhile.
        """
        # Imported here: most questions are not about differences, which need compiled kernels.
        from millpond.refs.diffs import joined_pages

        about = about_sides(left, right, map, three_dots=three_dots)
        tables: list[pa.Table] = []
        for page, _ in difference_pages(self._nodes, about, {}, limit):
            if page.num_rows or not tables:
                tables.append(page)
        return tables[0] if len(tables) == 1 else joined_pages(tables, limit)

    def history(self, map: str, ref: str = MAIN, *, limit: int | None = None) -> pa.Table:
        """The commits that changed a map, back from a ref along first parents, the newest first; see `Refs.history`."""
        return table_of(self._nodes, "/v1/refs/history", map=map, ref=ref, limit=limit)

    def _changed(self) -> None:
        self._pond.questions.changed(None)
