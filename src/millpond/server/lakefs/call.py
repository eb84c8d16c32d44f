"""One request, as its handler sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from millpond.kernel.space import WouldBlock
from millpond.nodes.tokens import ANYBODY, Caller
from millpond.server.access import note_change
from millpond.server.lakefs.access import need, pair_of
from millpond.server.lakefs.bodies import parse_body, parse_items
from millpond.server.lakefs.errors import speaks_own
from millpond.server.lakefs.query import Query
from millpond.server.routes.table import Work
from millpond.server.thread_limits import in_large_thread, in_short_thread, in_thread
from millpond.versions.entry_lookups import EntryName

if TYPE_CHECKING:
    from starlette.requests import Request

    from millpond.nodes.node import Node
    from millpond.server.lakefs.together import Together
    from millpond.server.routes.table import RouteNeeds
    from millpond.versions.branch import Branch
    from millpond.versions.objects.entries import Entry
    from millpond.versions.repository import Repository
    from millpond.versions.repository_context import Site

__all__ = ("Call",)

T = TypeVar("T")
Params = ParamSpec("Params")
Answer = TypeVar("Answer")


class Call:
    """A request that was admitted. `names` are those of its path; `body` is all of it, for a plain handler."""

    def __init__(
        self, request: Request, needs: RouteNeeds, caller: Caller, body: bytes = b"", *, at_once: bool = False,
        entry: tuple[Site, Entry] | None = None,
    ) -> None:  # fmt: skip
        """`at_once`: the handler runs where nothing may wait, and reads of the repository raise `WouldBlock`.

        `entry`: the one that the request names, with its site, if it was looked up before.
        """
        self.request, self.caller, self.body, self.at_once = request, caller, body, at_once
        self._work, self._found = needs.work, entry
        self._repository: Repository | None = None
        self.node: Node = request.app.state.node
        self.names: Mapping[str, str] = request.path_params
        self.query = Query(request.scope["query_string"])

    @property
    def repository(self) -> Repository:
        """The repository that the path names, looked up once.

        Raises: `NotFound`.
        """
        # No `cached_property`: in Python 3.11 it has one lock for all calls, and they would look up one by one.
        if self._repository is None:
            repositories, name = self.node.pond.repositories, self.names["repository"]
            self._repository = repositories.get_at_once(name) if self.at_once else repositories.get(name)
        return self._repository

    def entry(self, path: str) -> tuple[Site, Entry]:
        """The entry at a path of the ref that the request names, and the site of its repository.

        Raises: as `Reference.stat`; `WouldBlock` where nothing may wait.
        """
        lookups = self.node.pond.repositories.lookups
        if self._found is not None:
            return self._found
        if lookups is not None and not self.at_once:
            return lookups.find(self._entry_name(path))
        reference = self.repository.ref(self.names["ref"])
        return reference.site, reference.stat(path)

    async def looked_up(self) -> tuple[Site, Entry]:
        """The entry of the query's path, looked up together with those of other requests.

        Raises: as `entry`; `WouldBlock` where that is not possible.
        """
        lookups: Together[EntryName, tuple[Site, Entry]] = self.request.app.state.lookups
        if self.node.pond.repositories.lookups is None:
            raise WouldBlock("the space reads entries one by one")
        return await lookups.act(self._entry_name(self.query.needed("path")))

    def _entry_name(self, path: str) -> EntryName:
        return EntryName(self.names["repository"], self.names["ref"], path)

    @property
    def own(self) -> bool:
        """True for a client of Millpond: its answers hold more."""
        return speaks_own(self.request)

    def check_repository(self) -> None:
        """Insist that the repository of the path is there.

        Raises: `NotFound`.
        """
        _ = self.repository

    @property
    def branch(self) -> Branch:
        """The branch that the path names; it is looked up when it is used.

        Raises: `NotFound` for the repository.
        """
        return self.repository.branch(self.names["branch"])

    def committer(self, named: str | None = None) -> str:
        """The name that a commit of this caller has: that of the pair; on a node without any, the one that is named,
        or its access key."""
        if self.caller is not ANYBODY:
            return self.caller.name
        pair = pair_of(self.request)
        return named if named is not None else self.caller.name if pair is None else pair[0]

    def json(self, type_: type[T]) -> T:
        """The body, as a dataclass.

        Raises: `ApiError`.
        """
        return parse_body(type_, self.body)

    def json_items(self, type_: type[T]) -> list[T]:
        """The body, as a list of dataclasses.

        Raises: `ApiError`.
        """
        return parse_items(type_, self.body)

    def need(self, right: str, repository: str, branch: str | None = None) -> None:
        """Insist on a right that only the body could tell.

        Raises: `Denied`.
        """
        need(self.caller, right, repository, branch)

    def note(self, **values: object) -> None:
        """Say more in the line of the audit log."""
        note_change(self.request, **values)

    async def in_thread(self, act: Callable[Params, Answer], *args: Params.args, **options: Params.kwargs) -> Answer:
        """Do what may block, in a thread of the class of work: changes may wait long, large questions take turns."""
        if self._work is Work.UPLOAD:
            return await in_thread(self.request, act, *args, **options)
        if self._work is Work.LARGE:
            return await in_large_thread(self.request, act, *args, **options)
        return await in_short_thread(self.request, lambda: act(*args, **options))
