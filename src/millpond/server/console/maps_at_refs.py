"""The pond that a page of maps is about: at `main`, or, with `ref` in its query, as it is there.

| ref | pond |
|---|---|
| none, `main` | the pond |
| a branch | the branch, with what is staged on it; whoever may write it may change its maps |
| a tag, a commit, `main~1`, a time | as it was, to read and to restore from |
"""

from __future__ import annotations

from starlette.requests import Request

from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.pond import Pond
from millpond.refs.face import MAIN, POND
from millpond.refs.pond import BranchPond, RefPond
from millpond.server.console.actions import Form
from millpond.server.lakefs.access import may as may_repository
from millpond.server.map_refs import branch_of, pond_of
from millpond.versions.repository import Repository

__all__ = ("actions_at", "branch_in", "is_branch", "pond_at", "pond_changed", "ref_shown")

_AT_REFS = ("restore",)
"""The actions on a map at a ref that is no branch."""
_OF_MAIN = ("publish", "discard", "alert", "unalert")
"""The actions on what a page loaded from `main`, and on alerts, which are about `main`."""


def is_branch(repository: Repository, ref: str) -> bool:
    """True for the name of a branch."""
    return any(item.name == ref for item in repository.branches(ref, amount=1, hidden=True).items)


def pond_at(request: Request, ref: str) -> tuple[Pond | RefPond, bool]:
    """The pond at the ref of a page; True with a branch, `main` too.

    Raises: `Denied`; as `pond_of`.
    """
    if ref_shown(ref) is None:
        return pond_of(request, None), True
    opened = pond_of(request, None, ref)
    node: Node = request.app.state.node
    if not is_branch(node.pond.repository(POND), ref):
        return opened, False
    return pond_of(request, ref), True


def ref_shown(ref: str) -> str | None:
    """The ref that a page names; None for `main`."""
    return None if ref in ("", MAIN) else ref


def actions_at(caller: Caller, actions: list[str], ref: str, *, branch: bool) -> list[str]:
    """The actions, of those on a map, that a caller may press on the page of a ref."""
    if ref_shown(ref) is None:
        return [name for name in actions if name not in _AT_REFS]
    if not branch:
        return [name for name in actions if name in _AT_REFS]
    writes = may_repository(caller, "write", POND, ref)
    return [name for name in actions if name in _AT_REFS or (writes and name not in _OF_MAIN)]


def branch_in(form: Form) -> str | None:
    """The branch that a form changes; None for `main`."""
    branch = form.get("branch", MAIN)
    return None if branch == MAIN else branch


def pond_changed(request: Request, form: Form) -> Pond | BranchPond:
    """The pond that a form changes.

    Raises: `Denied`; as `pond_of`; of `main`, as `Node.need_primary`.
    """
    node: Node = request.app.state.node
    branch = branch_in(form)
    if branch is not None:
        return branch_of(request, branch)
    node.need_primary()
    return node.pond
