"""History: the log of a commit, and the merge base of two.

    log          from a commit back, newest first: by date, then by generation, then as they are found, each commit once
    merge base   the commit that both reach, found from both sides at once by generation
    apart        the commits that one of two reaches and the other does not

Invariants:
* each commit is shown once, and after a commit that leads to it;
* a merge base is an ancestor of both (or one of them), and no other common ancestor descends from it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from millpond.versions.graph.commits import Commit

__all__ = ("Load", "Window", "ancestors", "apart", "is_ancestor", "log", "merge_base")

Load: TypeAlias = Callable[[str], Commit]
"""Finds a commit by its id."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a log that is wanted. `since`: not older, in seconds; `stop_at`: the last commit shown."""

    first_parent: bool = False
    since: int | None = None
    stop_at: str | None = None


def log(load: Load, start: str, window: Window | None = None) -> Iterator[Commit]:
    """The commits from `start` back, the newest first; of one second, children before parents, first parents first."""
    window = window or Window()
    counter = count()
    ready = [_in_log(load(start), next(counter))]
    seen = {start}
    while ready:
        commit = heapq.heappop(ready)[-1]
        if window.since is None or commit.created >= window.since:
            yield commit
        if commit.id == window.stop_at:
            return
        for parent in commit.parents[:1] if window.first_parent else commit.parents:
            if parent not in seen:
                seen.add(parent)
                heapq.heappush(ready, _in_log(load(parent), next(counter)))


def _in_log(commit: Commit, number: int) -> tuple[int, int, int, Commit]:
    """A commit behind its place in a log; `number` is how many were found before it."""
    return -commit.created, -commit.generation, number, commit


def ancestors(load: Load, start: str) -> Iterator[Commit]:
    """A commit and everything that it descends from, by falling generation."""
    first = load(start)
    heap = [(-first.generation, first.id)]
    seen = {first.id}
    while heap:
        commit = load(heapq.heappop(heap)[1])
        yield commit
        for parent in commit.parents:
            if parent not in seen:
                seen.add(parent)
                heapq.heappush(heap, (-load(parent).generation, parent))


def is_ancestor(load: Load, older: str, newer: str) -> bool:
    """True when `older` is `newer`, or is reached from it."""
    floor = load(older).generation
    for commit in ancestors(load, newer):
        if commit.id == older:
            return True
        if commit.generation < floor:
            return False
    return False


_LEFT, _RIGHT = 1, 2


def merge_base(load: Load, left: str, right: str) -> Commit | None:
    """The best common ancestor; of several, the one of the greatest generation, then of the greatest id.

    Commits are taken by falling generation, so all descendants of a commit were taken before it: the first that both
    sides reach has no common descendant.
    """
    sides = {left: _LEFT}
    sides[right] = sides.get(right, 0) | _RIGHT
    heap = [(-load(id_).generation, _Reversed(id_)) for id_ in sides]
    heapq.heapify(heap)
    while heap:
        id_ = heapq.heappop(heap)[1].text
        commit, side = load(id_), sides[id_]
        if side == _LEFT | _RIGHT:
            return commit
        for parent in commit.parents:
            if parent not in sides:
                heapq.heappush(heap, (-load(parent).generation, _Reversed(parent)))
            sides[parent] = sides.get(parent, 0) | side
    return None


def apart(load: Load, left: str, right: str) -> tuple[list[Commit], list[Commit]]:
    """The commits that `left` reaches and `right` does not, and the reverse, by falling generation."""
    sides = {left: _LEFT}
    sides[right] = sides.get(right, 0) | _RIGHT
    heap = [(-load(id_).generation, id_) for id_ in sides]
    heapq.heapify(heap)
    commits: dict[int, list[Commit]] = {_LEFT: [], _RIGHT: [], _LEFT | _RIGHT: []}
    # Descendants are taken first, so all sides of a commit are known when it is taken.
    while any(sides[id_] != _LEFT | _RIGHT for _, id_ in heap):
        commit = load(heapq.heappop(heap)[1])
        commits[sides[commit.id]].append(commit)
        for parent in commit.parents:
            if parent not in sides:
                heapq.heappush(heap, (-load(parent).generation, parent))
            sides[parent] = sides.get(parent, 0) | sides[commit.id]
    return commits[_LEFT], commits[_RIGHT]


class _Reversed:
    """A text whose order is reversed."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __lt__(self, other: _Reversed) -> bool:
        return self.text > other.text
