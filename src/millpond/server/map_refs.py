"""The map that a request is about: on `main`, or, with `branch` or `ref` in its query, as it is there.

Whoever asks of a branch or a ref needs a right on the repository `pond` besides: to read it, or to write to the branch.
"""

from __future__ import annotations

from typing import Annotated, cast
from urllib.parse import parse_qsl

from msgspec import Meta
from starlette.requests import Request
from starlette.types import Scope

from millpond.maps.map import Map
from millpond.maps.model.catalogue import dropped_map
from millpond.nodes.node import Node
from millpond.pond import Pond
from millpond.refs.face import POND, ref_twice
from millpond.refs.pond import BranchPond, RefPond
from millpond.server.access import caller_in, note_change
from millpond.server.incarnation_guard import incarnation_of
from millpond.server.lakefs.access import need as need_repository
from millpond.server.routes.table import RouteNeeds
from millpond.stores.objects import Objects

__all__ = ("Branch", "Commits", "Ref", "branch_of", "files_of", "map_of", "names_ref", "pond_of")

Branch = Annotated[str | None, Meta(description="as it is on this branch of the repository `pond`")]
Ref = Annotated[str | None, Meta(description="as it was at this ref: a commit, a tag, `main~1`, a time")]
Commits = Annotated[bool, Meta(description="false: what changes on a branch is staged")]
_REFS = frozenset(("branch", "ref"))


def pond_of(request: Request, branch: str | None, ref: str | None = None) -> Pond | RefPond:
    """The pond that a request is about.

    Raises: `Denied`; `Invalid`, kinds `ref_twice` and `refs_place`; as `Pond.branch` and `Pond.at`.
    """
    node: Node = request.app.state.node
    if branch is None and ref is None:
        return node.pond
    if branch is not None and ref is not None:
        raise ref_twice(branch, ref)
    needs: RouteNeeds = request.scope["route"].needs
    need_repository(caller_in(request), "read" if needs.right == "read" else "write", POND, branch)
    return node.at_refs.at(ref) if branch is None else node.at_refs.branch(branch)  # type: ignore[arg-type]


def branch_of(request: Request, branch: str) -> BranchPond:
    """The pond of the branch that a request changes.

    Raises: as `pond_of`.
    """
    note_change(request, branch=branch)
    return cast("BranchPond", pond_of(request, branch))


def map_of(request: Request, name: str, branch: str | None, ref: str | None = None) -> Map:
    """The map that a request is about; at a ref it may be another than that of its name on `main`.

    Raises: as `pond_of`; `NotFound`, kind `map_dropped`, for another one than the request names.
    """
    pond_map = pond_of(request, branch, ref).map(name)
    if branch is not None or ref is not None:
        incarnation = incarnation_of(request.scope["headers"])
        if incarnation is not None and incarnation != pond_map.definition.incarnation:
            raise dropped_map(name)
    return pond_map


def files_of(
    request: Request, name: str, branch: str | None, ref: str | None, incarnation: str | None
) -> Objects:  # fmt: skip
    """The files of the snapshots of a map; of an `incarnation` also where only commits and branches have it.

    Raises: as `map_of`.
    """
    if incarnation is None:
        return map_of(request, name, branch, ref).objects
    node: Node = request.app.state.node
    need_repository(caller_in(request), "read", POND, None)
    return node.pond.loading.map_files(f"{name.lower()}.{incarnation}")


def names_ref(scope: Scope) -> bool:
    """True for a request that names a branch or a ref in its query."""
    query: bytes = scope["query_string"]
    if b"branch" not in query and b"ref" not in query and b"%" not in query:
        return False
    return not _REFS.isdisjoint(name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
