"""Merges, reverts and cherry-picks: three-way, per path, right or refused.

| | base | ours | theirs |
|---|---|---|---|
| merge | the merge base | the destination's head | the source |
| revert | the commit | the head | its parent |
| cherry-pick | its parent | the head | the commit |

Of each path: equal sides, or one side equal to base; else a conflict, which a resolution or the strategy decides.
Entries are compared by identity, of one path at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Integral
from types import NoneType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from millpond.argument_types import need_type
from millpond.errors import Conflict, Invalid
from millpond.ranges import Choice, Conflicts, merge_three_way
from millpond.versions.commits import Message, no_changes, same_state
from millpond.versions.graph.commits import Commit, get_commit
from millpond.versions.graph.history import merge_base
from millpond.versions.objects.entries import IDENTITY
from millpond.versions.repository_context import COMPRESSION, RepositoryContext
from millpond.versions.staging.branch_head import Built, Moving, move_head

__all__ = (
    "CONFLICTS_MAX", "STRATEGY_NAME", "MergeConflict", "Merging", "Picked", "Resolution", "Resolutions", "Strategy",
    "Take", "cherry_pick", "common_base", "merge_into", "merge_trees", "pick", "resolutions_of", "revert",
)  # fmt: skip

CONFLICTS_MAX = 1_000
STRATEGY_NAME = ".lakefs.merge.strategy"
"""The item of a merge commit's metadata that says its strategy, as clients know it."""


class MergeConflict(Conflict):
    """Both sides changed the same paths, and not to the same. `paths` are the first of them.

    Resolve them on one side, or choose a strategy or resolutions.
    """

    kind = "merge_conflict"
    paths: tuple[str, ...] = ()


class Strategy(StrEnum):
    """The side that counts where both changed a path differently; by default neither, and the merge is refused."""

    DEFAULT = "default"
    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """The strategy of a name; an empty one is the default.

        Raises: `Invalid`.
        """
        try:
            return cls(text or cls.DEFAULT)
        except ValueError:
            raise Invalid(
                "invalid merge strategy", kind="merge_strategy", strategy=text, hint="source-wins or dest-wins"
            ) from None


class Take(StrEnum):
    """The side that a resolution takes."""

    SOURCE = "source"
    DESTINATION = "destination"
    BASE = "base"
    DELETE = "delete"


_CHOICES = {
    Take.SOURCE: Choice.THEIRS, Take.DESTINATION: Choice.OURS, Take.BASE: Choice.BASE, Take.DELETE: Choice.NONE,
}  # fmt: skip
_STRATEGIES = {
    Strategy.DEFAULT: Choice.CONFLICT, Strategy.SOURCE_WINS: Choice.THEIRS, Strategy.DEST_WINS: Choice.OURS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resolution:
    """The side to take at a path, or below a prefix, where both sides changed it; the first that fits counts."""

    take: Take
    path: str | None = None
    prefix: str | None = None

    @classmethod
    def of(cls, path: object, side: object) -> Resolution:
        """The resolution of a path, or of a prefix if it ends with `/`.

        >>> Resolution.of("2013/", "source")
        Resolution(take=<Take.SOURCE: 'source'>, path=None, prefix='2013/')

        Raises: `Invalid`, kind `merge_take`.
        """
        if not (isinstance(path, str) and path and side in list(Take)):
            raise Invalid(
                "no side to take at a path", kind="merge_take", given=f"{path!r}: {side!r}",
                hint='source, destination, base or delete, such as resolutions={"2013/01.csv": "source"}',
            )  # fmt: skip
        chosen = Take(str(side))
        return cls(chosen, prefix=path) if path.endswith("/") else cls(chosen, path=path)

    def fits(self, path: str) -> bool:
        """True when it is about a path."""
        return path == self.path or (self.prefix is not None and path.startswith(self.prefix))


Resolutions: TypeAlias = Sequence[Resolution] | Mapping[str, str]
"""Resolutions, or the side to take by path, or by prefix: `{"maps/weather/JFK": "source", "2013/": "base"}`."""


def resolutions_of(stated: Resolutions) -> Sequence[Resolution]:
    """Resolutions from either form.

    Raises: as `Resolution.of`.
    """
    if isinstance(stated, Mapping):
        return [Resolution.of(path, side) for path, side in stated.items()]
    need_type("resolutions", stated, Iterable)
    rules: Sequence[object] = stated
    return [rule if isinstance(rule, Resolution) else Resolution.of(rule, None) for rule in rules]


@dataclass(frozen=True, slots=True)
class Merging:
    """The options of a merge. `squash`: the commit has the destination as its only parent."""

    strategy: Strategy = Strategy.DEFAULT
    resolutions: Sequence[Resolution] = ()
    squash: bool = False
    allow_empty: bool = False

    @classmethod
    def of(cls, strategy: str | Strategy, resolutions: Resolutions, **options: bool) -> Merging:
        """The options as they are stated.

        Raises: `Invalid`, kinds `merge_strategy`, `merge_take`.
        """
        return cls(Strategy.parse(strategy), resolutions_of(resolutions), **options)

    def resolve(self) -> Callable[[Conflicts], npt.ArrayLike] | Choice:
        """The choice for conflicts."""
        otherwise = _STRATEGIES[self.strategy]
        if not self.resolutions:
            return otherwise

        def choose(conflicts: Conflicts) -> npt.ArrayLike:
            return np.array([self._choice(key.decode(), otherwise) for key in conflicts.keys.to_pylist()])

        return choose

    def _choice(self, path: str, otherwise: Choice) -> Choice:
        return next((_CHOICES[rule.take] for rule in self.resolutions if rule.fits(path)), otherwise)


_NO_OPTIONS = Merging()


def merge_trees(context: RepositoryContext, base: str, ours: str, theirs: str, merging: Merging = _NO_OPTIONS) -> str:
    """The index that two indexes made of a common one come to.

    Raises: `MergeConflict`; `NotFound`, `Corrupt` for ranges.
    """
    if ours == theirs or theirs == base:
        return ours
    if ours == base:
        return theirs
    merged = merge_three_way(
        context.ranges, context.index(base), context.index(ours), context.index(theirs), merging.resolve(),
        conflicts_max=CONFLICTS_MAX, same=IDENTITY, compression=COMPRESSION,
    )  # fmt: skip
    if merged.index is None:
        paths = [key.decode() for conflicts in merged.conflicts for key in conflicts.keys.to_pylist()]
        error = MergeConflict(
            "conflict found", conflicts=len(paths), first=paths[0],
            hint="change one side, or merge with a strategy or resolutions",
        )  # fmt: skip
        error.paths = tuple(paths)
        raise error
    return merged.index.id


def common_base(context: RepositoryContext, left: str, right: str) -> Commit:
    """The merge base of two commits.

    Raises: `Invalid` when they have none.
    """
    with context.space.read() as tx:
        base = merge_base(context.graph.load(tx), left, right)
    if base is None:
        raise Invalid("no merge base", kind="no_merge_base", left=left, right=right)
    return base


def merge_into(
    context: RepositoryContext, branch: str, source: str, message: Message, merging: Merging = _NO_OPTIONS, *,
    force: bool = False,
) -> Commit:  # fmt: skip
    """Merge a ref into a branch on which nothing is staged; the merge commit.

    A protected branch may be merged into: that is how it changes. Commits that the branch lacks are a merge commit also
    where they change no path.

    Raises: `MergeConflict`; `Invalid`, kinds `branch_dirty`, `no_changes`, `no_merge_base`; `NotFound`; `Denied`.
    """
    text = message.text or f"Merge '{source}' into '{branch}'"
    words = replace(message, text=text, metadata={**message.metadata, STRATEGY_NAME: merging.strategy.value})

    def build(moving: Moving) -> Built:
        with context.space.read() as tx:
            theirs = context.graph.commit(tx, source)
        base = common_base(context, theirs.id, moving.head.id)
        if theirs.id == base.id and not merging.allow_empty:
            raise no_changes(branch, moving.head.id)
        tree = merge_trees(context, base.tree, moving.head.tree, theirs.tree, merging)
        parents = [moving.head] if merging.squash or theirs.id == moving.head.id else [moving.head, theirs]
        return Built(words.commit(context, tree, parents))

    with context.space.read() as tx:
        context.graph.commit(tx, source)
    return move_head(context, branch, None, build, clean=True, force=force)


# -- revert, cherry-pick ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Picked:
    """A commit and the parent that it is compared with, None for the first of all."""

    commit: Commit
    parent: Commit | None = field(default=None)


def pick(context: RepositoryContext, ref: str, parent_number: int | None, refused: Callable[[], Exception]) -> Picked:
    """A commit, and the parent of that number; `refused` is raised for a merge without one.

    Raises: `Invalid`, kind `parent_number`; `NotFound`.
    """
    need_type("parent_number", parent_number, Integral, NoneType)
    with context.space.read() as tx:
        commit = context.graph.commit(tx, ref)
        if parent_number is not None and not 0 < parent_number <= max(1, len(commit.parents)):
            raise Invalid(
                "given commit does not have the given parent number", kind="parent_number", commit=commit.id,
                parent=parent_number, parents=len(commit.parents),
            )  # fmt: skip
        if commit.merge and parent_number is None:
            raise refused()
        if not commit.parents:
            return Picked(commit)
        return Picked(commit, get_commit(tx, context.graph.commits, commit.parents[(parent_number or 1) - 1]))


def revert(
    context: RepositoryContext, branch: str, ref: str, message: Message, *, parent_number: int | None = None,
    allow_empty: bool = False, force: bool = False,
) -> Commit:  # fmt: skip
    """Undo a commit by a new one; of a merge, what it brought to the parent of that number, counted from 1.

    Raises: `MergeConflict`; `Invalid`, kinds `branch_dirty`, `no_changes`, `parent_number`; `Conflict` for a merge
    without a parent number; `NotFound`; `Denied`.
    """
    picked = pick(context, ref, parent_number, lambda: Conflict(
        "must specify 1-based parent number for reverting merge commit", kind="revert_parent", ref=ref
    ))  # fmt: skip
    words = replace(message, text=message.text or f"Revert {picked.commit.id}")

    def build(moving: Moving) -> Built:
        theirs = context.empty_index().id if picked.parent is None else picked.parent.tree
        tree = merge_trees(context, picked.commit.tree, moving.head.tree, theirs)
        if not allow_empty and same_state(context, moving.head.tree, tree):
            raise no_changes(branch, moving.head.id)
        return Built(words.commit(context, tree, [moving.head]))

    return move_head(context, branch, "commit to", build, clean=True, force=force)


def cherry_pick(
    context: RepositoryContext, branch: str, ref: str, committer: str = "", *, parent_number: int | None = None,
    text: str | None = None, metadata: Mapping[str, str] | None = None, force: bool = False,
) -> Commit:  # fmt: skip
    """Make the changes of a commit again on a branch; message and metadata are the commit's unless others are given.

    Raises: `MergeConflict`; `Invalid`, kinds `branch_dirty`, `parent_number`, `cherry_pick_parent`; `NotFound`;
    `Denied`.
    """
    picked = pick(context, ref, parent_number, lambda: Invalid(
        "must specify 1-based parent number for cherry-picking merge commit", kind="cherry_pick_parent", ref=ref
    ))  # fmt: skip
    commit = picked.commit
    need_type("metadata", metadata, Mapping, NoneType)
    origin = {"cherry-pick-origin": commit.id, "cherry-pick-committer": commit.committer}
    about = {**(commit.metadata if metadata is None else metadata), **origin}
    words = Message(commit.message if text is None else text, committer, about)

    def build(moving: Moving) -> Built:
        base = context.empty_index().id if picked.parent is None else picked.parent.tree
        return Built(words.commit(context, merge_trees(context, base, moving.head.tree, commit.tree), [moving.head]))

    return move_head(context, branch, "commit to", build, clean=True, force=force)
