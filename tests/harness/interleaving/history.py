"""Every state that the branches of a repository ever had, and the operation that made each.

A state is what a reader sees: paths with the checksums of their bytes. After each commit to the space the states are
read again, by a process that nobody disturbs; when one changed, the operation at work must be allowed to change it so.

Invariants that are checked:
* An operation changes a branch once at most, and only in the way that is its own; one that fails or dies, at most so.
* What was acknowledged was there at some moment of the operation. As nothing else changes a state, it is there until
  an operation is meant to take it away: no acknowledged write is lost.
* A reader gets a state that the branch had at some moment while it read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millpond.versions.objects.entries import Entry

if TYPE_CHECKING:
    from millpond.versions.repository import Repository

__all__ = ("History", "Moment", "Operation", "State", "state_of", "three_way")

State = dict[str, str]
"""Paths, and the checksums of their bytes."""
LISTED_MAX = 1000


def state_of(repository: Repository, ref: str) -> State:
    """The paths and checksums that a reader sees of a ref."""
    found = repository.ref(ref).list(amount=LISTED_MAX).results
    return {entry.path: entry.checksum for entry in found if isinstance(entry, Entry)}


def three_way(base: State, ours: State, theirs: State) -> State:
    """The outcome of a merge of three states, key by key; theirs wins where both changed."""
    merged = {}
    for path in {*base, *ours, *theirs}:
        ours_only = base.get(path) == theirs.get(path)
        value = ours.get(path) if ours_only else theirs.get(path)
        if value is not None:
            merged[path] = value
    return merged


@dataclass(frozen=True, slots=True)
class Moment:
    """The states of all branches at one moment: with what is staged, of the head, and the head's id."""

    staged: dict[str, State]
    head: dict[str, State]
    commit: dict[str, str]


Allowed = Callable[[Moment, Moment], bool]


@dataclass(slots=True)
class Operation:
    """Something that a process does: what it may change of one branch, and what must have been true when it ends."""

    name: str
    branch: str
    allowed: Allowed
    started: int = 0
    effects: int = 0


@dataclass(slots=True)
class History:
    """The moments of a repository, oldest first; each differs from the one before."""

    repository: Repository
    branches: tuple[str, ...]
    moments: list[Moment] = field(default_factory=list)

    def begin(self) -> None:
        """Take the first moment."""
        self.moments.append(self._now())

    def since(self, operation: Operation) -> list[Moment]:
        """The moments since an operation began, with the one at which it did."""
        return self.moments[operation.started :]

    def start(self, operation: Operation) -> Operation:
        """An operation that begins now."""
        operation.started = len(self.moments) - 1
        return operation

    def follow(self, operation: Operation | None) -> None:
        """Look at the states after a commit that an operation made; None for what may change nothing."""
        before, after = self.moments[-1], self._now()
        if after == before:
            return
        assert operation is not None, "a state changed, and nothing was to change it"
        others = [name for name in self.branches if name != operation.branch]
        for name in others:
            assert _of(after, name) == _of(before, name), f"{operation.name} changed {name}"
        assert operation.effects == 0, f"{operation.name} changed {operation.branch} twice"
        assert operation.allowed(before, after), (
            f"{operation.name}: staged {before.staged[operation.branch]} became {after.staged[operation.branch]}, "
            f"head {before.head[operation.branch]} became {after.head[operation.branch]}"
        )
        operation.effects += 1
        self.moments.append(after)

    def base(self, ours: str, theirs: str) -> State:
        """The state of the merge base of two commits."""
        return state_of(self.repository, self.repository.merge_base(ours, theirs).id)

    def _now(self) -> Moment:
        records = {name: self.repository.branch(name).head().id for name in self.branches}
        return Moment(
            {name: state_of(self.repository, name) for name in self.branches},
            {name: state_of(self.repository, f"{name}@") for name in self.branches},
            records,
        )


def _of(moment: Moment, name: str) -> tuple[State, State, str]:
    return moment.staged[name], moment.head[name], moment.commit[name]
