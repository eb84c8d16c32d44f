"""Epochs of streams on a branch: the commit of each says which one it is.

So an epoch was entered where the branch comes from its commit, or from that of a later one: a branch that is made anew
under its name, or moved back, takes again what it does not have, and one that is made of a merge knows what came by it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from millpond.kernel.space import ReadTransaction
from millpond.maps.log.deduplication import check_epoch, scoped_query
from millpond.versions.graph.commits import Commit
from millpond.versions.graph.history import ancestors
from millpond.versions.graph.resolve import Graph

__all__ = ("StreamEpoch", "epoch_entered")

_QUERY, _EPOCH = "stream", "epoch"


class StreamEpoch(NamedTuple):
    """An epoch of a query into some maps."""

    query: str
    number: int

    @classmethod
    def of(cls, stream: tuple[str, int], maps: Collection[str]) -> StreamEpoch:
        """The epoch of a stream, named as on nodes: who may not write to a map has no part in the streams into it."""
        return cls(scoped_query(stream[0], maps), stream[1])

    @property
    def words(self) -> dict[str, str]:
        """The metadata of its commit."""
        return {_QUERY: self.query, _EPOCH: str(self.number)}


def epoch_entered(tx: ReadTransaction, graph: Graph, head: str, epoch: StreamEpoch) -> Commit | None:
    """The commit of an epoch, or of a later one, that a head comes from; None when there is none.

    The last commit of a stream is soon found from the head; before its first one, all are looked at.

    Raises: `Invalid`, kind `stream_epoch`.
    """
    last = next(
        (commit for commit in ancestors(graph.load(tx), head)
         if commit.metadata.get(_QUERY) == epoch.query and commit.metadata.get(_EPOCH, "").isdecimal()), None,
    )  # fmt: skip
    number = -1 if last is None else int(last.metadata[_EPOCH])
    if number >= epoch.number:
        return last
    check_epoch(epoch.number, max(number, 0))
    return None
