"""The repositories of a node, for the sender of a request.

`pond`, that of the maps, is there for whoever names it, or lists all, on a node whose maps have branches: it is made
then. Whoever merges maps there into `main` needs to write each that changes; but a pair, whose rights are those on
repositories, needs `repo:pond/main` alone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from millpond.errors import Invalid, NotFound
from millpond.kernel.space import WouldBlock
from millpond.refs.face import POND

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.nodes.tokens import Caller
    from millpond.versions.repository import Repository

__all__ = ("make_own", "opened_repository")


def make_own(node: Node) -> None:
    """Let the repository of maps be there, where maps have branches."""
    with suppress(Invalid):
        _ = node.at_refs.refs.refs.states.repository


def opened_repository(node: Node, caller: Caller, name: str, *, wait: bool = True) -> Repository:
    """The repository of that name.

    Raises: `NotFound`; without `wait` also `WouldBlock`.
    """
    repositories = node.pond.repositories
    try:
        repository = repositories.get(name) if wait else repositories.get_at_once(name)
    except NotFound:
        if name != POND:
            raise
        if not wait:
            raise WouldBlock("it may be made", hint="read where waiting is allowed") from None
        make_own(node)
        repository = repositories.get(name)
    if name != POND or caller.of_pair:
        return repository
    from millpond.refs.refs import guarded

    return guarded(repository, caller.need)
