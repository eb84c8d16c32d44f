"""The ponds of a node at refs: where a question names a branch, or a ref, it is asked of one of these.

Invariants:
* what a branch, or a ref such as `main~1`, stands for is found out for each question; what is kept are open files;
* of very many refs, those that were asked of last are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.kernel.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.maps.map import Map
    from millpond.pond import Pond
    from millpond.refs.pond import BranchPond, RefPond

__all__ = ("PONDS_MAX", "PondsAtRefs", "is_at_ref")

PONDS_MAX = 32
"""So many refs have their maps open, each with the snapshots that were asked last."""


def is_at_ref(pond_map: Map) -> bool:
    """True for a map at a ref, which finds its own state at every question."""
    return hasattr(pond_map, "at")


class PondsAtRefs:
    """A pond at its branches and refs; `replicates` is true when it has other nodes. Threads may share it."""

    def __init__(self, pond: Pond, replicates: Callable[[], bool]) -> None:
        self._pond, self._replicates = pond, replicates
        self._open: Cache[tuple[bool, str], RefPond] = Cache(PONDS_MAX)

    @property
    def refs(self) -> Pond:
        """The pond, where it has branches.

        Raises: `Invalid`, kind `refs_place`.
        """
        if self._replicates():
            raise Invalid(
                "maps have branches on a node that is alone, and in a bucket", kind="refs_place",
                hint="let one node serve the pond: what nodes replicate is in shards",
            )  # fmt: skip
        return self._pond

    def branch(self, name: str) -> BranchPond:
        """The pond of a branch.

        Raises: as `refs`, and as `Pond.branch`.
        """
        from millpond.refs.pond import BranchPond
        from millpond.versions.graph.names import check_branch

        opened = self._keep(True, self.refs.branch(check_branch(name)))
        assert isinstance(opened, BranchPond)
        return opened

    def at(self, ref: str) -> RefPond:
        """The pond at a ref.

        Raises: as `refs`, and as `Pond.at`.
        """
        return self._keep(False, self.refs.at(ref))

    def _keep(self, branch: bool, pond: RefPond) -> RefPond:
        return self._open.get_or_make((branch, pond.ref), lambda: pond)

    def release(self) -> None:
        """Let go of all that is open; who reads it reads to the end."""
        self._open.clear()
