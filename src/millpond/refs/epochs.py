"""Epochs of streams on a branch: the commit of each says which one it is.

So an epoch was entered where the branch comes from its commit, or from that of a later one: a branch that is made anew
under its name, or moved back, takes again what it does not have, and one that is made of a merge knows what came by it.

A commit that brings epochs of elsewhere (a merge, a squash, a cherry-pick, a restore) says the newest of each query.

Invariant: of the commits that tell of a query, the first by falling generation tells its newest epoch. On a line epochs
rise, and where another line's come, the newest of both is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from millpond.json_forms import FormError, parse_object, stable_json
from millpond.kernel.space import ReadTransaction
from millpond.maps.log.deduplication import check_epoch, scoped_query
from millpond.versions.graph.commits import Commit
from millpond.versions.graph.history import Load, ancestors, apart
from millpond.versions.graph.resolve import Graph

__all__ = ("StreamEpoch", "epoch_entered", "epochs_brought", "without_epochs")

_QUERY, _EPOCH, _BROUGHT = "stream", "epoch", "epochs"
QUERIES_MAX = 100
"""The queries of which a commit tells that brings their rows; the oldest are forgotten: their epochs are new again."""


class StreamEpoch(NamedTuple):
    """An epoch of a query into some maps."""

    query: str
    number: int

    @classmethod
    def of(cls, stream: tuple[str, int], maps: Collection[str]) -> StreamEpoch:
        """The epoch of a stream, named as on nodes: who may not write to a map has no part in the streams into it."""
        return cls(scoped_query(stream[0], maps), stream[1])

    @classmethod
    def of_commit(cls, commit: Commit) -> StreamEpoch | None:
        """The epoch that a commit is of."""
        query, number = commit.metadata.get(_QUERY), commit.metadata.get(_EPOCH, "")
        return cls(query, int(number)) if query is not None and number.isdecimal() else None

    @property
    def words(self) -> dict[str, str]:
        """The metadata of its commit."""
        return {_QUERY: self.query, _EPOCH: str(self.number)}


def epoch_entered(tx: ReadTransaction, graph: Graph, head: str, epoch: StreamEpoch) -> Commit | None:
    """The commit that a head has an epoch from: its own, else the first that brought it or a later one; None when there
    is none.

    The last commit of a stream is soon found from the head; before its first one, all are looked at.

    Raises: `Invalid`, kind `stream_epoch`.
    """
    load = graph.load(tx)
    number = _newest(load, head, {epoch.query}).get(epoch.query, -1)
    if number < epoch.number:
        check_epoch(epoch.number, max(number, 0))
        return None
    brought = None
    for commit in ancestors(load, head):
        if StreamEpoch.of_commit(commit) == epoch:
            return commit
        if _numbers(commit).get(epoch.query, -1) >= epoch.number:
            brought = commit
    return brought


def epochs_brought(
    load: Load, ours: str, theirs: str, *, since: str | None = None, maps: Collection[str] | None = None
) -> dict[str, str]:  # fmt: skip
    """The metadata of a commit on `ours` with the rows of `theirs`, of some maps or all; `since`: with those alone that
    came after another commit.
    """
    brought = _highest(apart(load, ours if since is None else since, theirs)[1])
    come = {
        query: number for query, number in islice(brought.items(), QUERIES_MAX)
        if maps is None or {*query.partition(" ")[0].split(",")} <= {*maps}
    }  # fmt: skip
    here = _newest(load, ours, come.keys())
    newest = {query: max(number, here.get(query, -1)) for query, number in come.items()}
    return {_BROUGHT: stable_json(newest, compact=True).decode()} if newest else {}


def without_epochs(commit: Commit) -> dict[str, str]:
    """The metadata of a commit, but for what it tells of streams."""
    return {name: text for name, text in commit.metadata.items() if name not in (_QUERY, _EPOCH, _BROUGHT)}


def _newest(load: Load, head: str, queries: Collection[str]) -> dict[str, int]:
    """The newest epoch of each query of which a head has one, in one walk."""
    newest: dict[str, int] = {}
    for commit in ancestors(load, head) if queries else ():
        newest = {query: number for query, number in _numbers(commit).items() if query in queries} | newest
        if len(newest) == len(queries):
            break
    return newest


def _highest(commits: Iterable[Commit]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for commit in commits:
        for query, number in _numbers(commit).items():
            highest[query] = max(number, highest.get(query, number))
    return highest


def _numbers(commit: Commit) -> dict[str, int]:
    """The newest epoch of each query that a commit tells of."""
    own, numbers = StreamEpoch.of_commit(commit), dict[str, int]()
    if _BROUGHT in commit.metadata:
        with suppress(FormError, TypeError, ValueError):  # somebody's own words
            numbers = {query: int(number) for query, number in parse_object(commit.metadata[_BROUGHT]).items()}
    return numbers if own is None else numbers | {own.query: max(own.number, numbers.get(own.query, -1))}
