"""One request, as its handler sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from millpond.errors import Denied
from millpond.kernel.space import WouldBlock
from millpond.nodes.node import Node
from millpond.nodes.tokens import ANYBODY
from millpond.server.access import caller_in, note_change
from millpond.server.dispatch import is_at_once
from millpond.server.lakefs.access import need, pair_of
from millpond.server.lakefs.batcher import Batcher
from millpond.server.lakefs.errors import is_native_client
from millpond.server.repositories import opened_repository
from millpond.server.routes.table import RouteNeeds
from millpond.server.thread_limits import in_thread_of
from millpond.versions.branch import Branch
from millpond.versions.entry_lookups import EntryName
from millpond.versions.graph.names import check_branch
from millpond.versions.objects.entries import Entry
from millpond.versions.repository import Repository
from millpond.versions.repository_context import RepositoryContext

__all__ = ("Call",)

Params = ParamSpec("Params")
Answer = TypeVar("Answer")


class Call:
    """A request that was admitted. `names` are those of its path."""

    def __init__(self, request: Request) -> None:
        self.request, self.caller, self.at_once = request, caller_in(request), is_at_once(request)
        self._repository: Repository | None = None
        self.node: Node = request.app.state.node
        self.names: Mapping[str, str] = request.path_params

    @property
    def repository(self) -> Repository:
        """The repository that the path names, looked up once.

        Raises: `NotFound`; `WouldBlock` where nothing may wait.
        """
        # No `cached_property`: in Python 3.11 it has one lock for all calls, and they would look up one by one.
        if self._repository is None:
            name = self.names["repository"]
            self._repository = opened_repository(self.node, self.caller, name, wait=not self.at_once)
        return self._repository

    async def entry(self, path: str) -> tuple[RepositoryContext, Entry]:
        """The entry at a path of the ref that the request names, and the context of its repository: at once, or
        looked up together with those of other requests, or in a thread.

        Raises: as `Reference.stat`; `WouldBlock` where nothing may wait.
        """
        repositories, name, ref = self.node.pond.repositories, self.names["repository"], self.names["ref"]
        try:
            reference = repositories.get_at_once(name).ref(ref)
            return reference.context, reference.stat(path)
        except WouldBlock:
            if self.at_once:
                raise
        if repositories.lookups is None:
            return await self.in_thread(self._entry, path)
        lookups: Batcher[EntryName, tuple[RepositoryContext, Entry]] = self.request.app.state.lookups
        try:
            return await lookups.act(EntryName(name, ref, path))
        except WouldBlock:
            return await self.in_thread(repositories.lookups.find, EntryName(name, ref, path))

    def _entry(self, path: str) -> tuple[RepositoryContext, Entry]:
        reference = self.repository.ref(self.names["ref"])
        return reference.context, reference.stat(path)

    @property
    def own(self) -> bool:
        """True for a client of Millpond: its answers hold more."""
        return is_native_client(self.request)

    def check_repository(self) -> None:
        """Insist that the repository of the path is there.

        Raises: `NotFound`.
        """
        _ = self.repository

    def check_writable(self) -> None:
        """Refuse a client of lakeFS that changes what is set for a read-only repository, or prepares its collection.

        Raises: `NotFound`; `Denied`, kind `repository_read_only`.
        """
        record = self.repository.record
        if record.read_only and not self.own:
            raise Denied("read-only repository", kind="repository_read_only", repository=record.name)

    @property
    def branch(self) -> Branch:
        """The branch that the path names; it is looked up when it is used.

        Raises: `NotFound` for the repository; `Invalid` for a name that no branch has.
        """
        return self.repository.branch(check_branch(self.names["branch"]))

    def committer(self, named: str | None = None) -> str:
        """The name that a commit of this caller has: that of the pair; on a node without any, the one that is named,
        or its access key."""
        if self.caller is not ANYBODY:
            return self.caller.name
        pair = pair_of(self.request)
        return named if named is not None else self.caller.name if pair is None else pair[0]

    def need(self, right: str, repository: str, branch: str | None = None) -> None:
        """Insist on a right that only the body could tell.

        Raises: `Denied`.
        """
        need(self.caller, right, repository, branch)

    def note(self, **values: object) -> None:
        """Say more in the line of the audit log."""
        note_change(self.request, **values)

    async def in_thread(self, act: Callable[Params, Answer], *args: Params.args, **options: Params.kwargs) -> Answer:
        """Do what may block, in a thread of the route's class of work."""
        needs: RouteNeeds = self.request.scope["route"].needs
        return await in_thread_of(self.request, needs, lambda: act(*args, **options))
