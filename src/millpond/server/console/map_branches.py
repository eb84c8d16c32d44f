"""The branches on which maps differ from `main`: by what was committed there since both parted, or is staged there.

Invariant: a page of branches is compared, each by the parts of two commits that differ; nothing is recorded of `main`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millpond.errors import NotFound
from millpond.refs.face import MAIN, POND
from millpond.refs.map_entries import MAPS
from millpond.server.console.pages import PAGE_ROWS
from millpond.server.lakefs.access import may as may_repository
from millpond.stores.objects import at_once

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.nodes.tokens import Caller
    from millpond.versions.repository import Named, Repository

__all__ = ("branches_of_maps",)

_MAPS_MAX = 1_000
"""The maps of one branch that are looked at, of those that it changed."""


def branches_of_maps(node: Node, caller: Caller, after: str = "") -> tuple[dict[str, list[str]], str]:
    """The branches that maps differ on, of a page of branches; and the place of the page behind it, if there is one.

    There are none for a caller that may not read them.
    """
    if not may_repository(caller, "read", POND):
        return {}, ""
    try:
        opened = node.pond.repository(POND)
        page = opened.branches(after=after, amount=PAGE_ROWS)
    except NotFound:  # no map was ever branched
        return {}, ""
    differing: dict[str, list[str]] = {}
    main = opened.branches(MAIN, amount=1).items[0].commit_id
    branches = [branch for branch in page.items if branch.name != MAIN]
    # In a bucket each comparison waits for objects that no other one needs.
    compared = at_once(opened.site.ranges.inner, [partial(_changed, opened, main, branch) for branch in branches])
    for branch, names in zip(branches, compared, strict=True):
        for name in names:
            differing.setdefault(name, []).append(branch.name)
    return differing, page.next_offset if page.has_more else ""


def _changed(opened: Repository, main: str, branch: Named) -> set[str]:
    """The maps that were changed on a branch; none on one that was deleted meanwhile."""
    try:
        committed = opened.diff(main, branch.commit_id, MAPS, amount=_MAPS_MAX)
        staged = opened.branch(branch.name).diff(MAPS, amount=_MAPS_MAX)
    except NotFound:
        return set()
    return {change.path.removeprefix(MAPS) for page in (committed, staged) for change in page.items}
