"""Commits of what is staged: all of it, or the changes under some paths.

The sealed layers are folded onto the compacted index, or the head's; ranges that they leave alone are taken over.
A commit that changes nothing is refused, and names the head: what its caller wrote before is in there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from millpond.error_values import shown
from millpond.errors import Invalid
from millpond.kernel.keys import KeyRange, starting
from millpond.ranges import Index, diff, fold
from millpond.ranges.fold import Folded
from millpond.ranges.spans import Spans
from millpond.versions.graph.commits import Commit
from millpond.versions.objects.entries import IDENTITY, path_list
from millpond.versions.repository_context import COMPRESSION, RepositoryContext
from millpond.versions.staging.branch_head import Built, Moving, branch_dirty, move_head
from millpond.versions.staging.branches import Layer
from millpond.versions.staging.layers import difference_blocks
from millpond.versions.staging.reads import View, changes_of, is_dirty, uncommitted
from millpond.versions.staging.segments import write_segment

__all__ = ("Message", "commit_staged", "fold_view", "no_changes", "same_state")


@dataclass(frozen=True, slots=True)
class Message:
    """The words of a commit. `created` counts seconds; None is now.

    Raises: `Invalid` for what is no text.
    """

    text: str = ""
    committer: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    created: int | None = None

    def __post_init__(self) -> None:
        try:
            "".join((self.text, self.committer, *self.metadata, *self.metadata.values())).encode()
            sound = self.created is None or (type(self.created) is int and abs(self.created) < 1 << 63)
        except (TypeError, AttributeError, UnicodeEncodeError):
            sound = False
        if not sound:
            raise Invalid(
                "the words of a commit are texts, and its date counts seconds", kind="commit_words",
                words=shown((self.text, self.committer, self.metadata, self.created)),
            )  # fmt: skip

    def commit(self, context: RepositoryContext, tree: str, parents: Sequence[Commit]) -> Commit:
        """The commit with these words."""
        created = context.seconds() if self.created is None else self.created
        return Commit.make(
            tree, tuple(parents), committer=self.committer, message=self.text, created=created, metadata=self.metadata
        )


def no_changes(branch: str, head: str) -> Invalid:
    """The error for a commit or merge that would change nothing; `head` is the commit that has what was written."""
    return Invalid("no changes", kind="no_changes", branch=branch, commit=head)


def commit_staged(
    context: RepositoryContext, branch: str, message: Message, *, allow_empty: bool = False, force: bool = False,
    prefixes: Sequence[str] | None = None, source_tree: str | None = None,
) -> Commit:  # fmt: skip
    """Commit what is staged; with `prefixes` only what lies below them, the rest stays staged.

    `source_tree`: make this index the new state, of a branch on which nothing is staged.

    Raises: `NotFound`; `Denied` for a protected branch; `Invalid`, kind `no_changes`.
    """

    def build(moving: Moving) -> Built:
        if source_tree is not None:
            if is_dirty(context, context.space.read, moving.view):
                raise branch_dirty(branch)
            context.index(source_tree)
            return Built(message.commit(context, source_tree, [moving.head]))
        if prefixes is not None:
            return _build_some(context, branch, moving, message, path_list(prefixes), allow_empty=allow_empty)
        tree = fold_view(context, moving.view).index.id
        if not allow_empty and same_state(context, moving.head.tree, tree):
            raise no_changes(branch, moving.head.id)
        return Built(message.commit(context, tree, [moving.head]))

    return move_head(context, branch, "commit to", build, force=force)


def fold_view(context: RepositoryContext, view: View) -> Folded:
    """The index that a state of sealed layers comes to."""
    base = context.index(view.base)
    if not view.layers:
        return Folded(base, 0, 0, 0)
    if len(view.layers) == 1 and view.layers[0].index is not None and not base.entries:
        segment = context.index(view.layers[0].index)
        if segment.schema.equals(base.schema) and segment.boundaries == base.boundaries:
            return Folded(segment, segment.count, 0, 0)  # what it would be written as: nothing is deleted in it
    changes, spans = changes_of(context, context.space.read, view.layers)
    return fold(context.ranges, base, changes, spans, same=IDENTITY, compression=COMPRESSION)


def same_state(context: RepositoryContext, old: str, new: str) -> bool:
    """True when two indexes hold entries of the same identities."""
    if old == new:
        return True
    return next(diff(context.ranges, context.index(old), context.index(new), same=IDENTITY, limit=1), None) is None


def _build_some(
    context: RepositoryContext, branch: str, moving: Moving, message: Message, prefixes: Sequence[str], *,
    allow_empty: bool,
) -> Built:  # fmt: skip
    """Commit the changes below some prefixes; what is left becomes one segment over the new head."""
    chosen = Spans.of(starting(prefix) for prefix in prefixes)
    head = context.index(moving.head.tree)
    taken = (
        block
        for keys in chosen.ranges
        for difference in uncommitted(context, context.space.read, moving.view, keys)
        for block in difference_blocks(difference)
    )
    folded = fold(context.ranges, head, taken, same=IDENTITY, compression=COMPRESSION)
    if not folded.total and not allow_empty:
        raise no_changes(branch, moving.head.id)
    left = _segment_of(context, moving.view, _outside(chosen))
    commit = message.commit(context, folded.index.id, [moving.head])
    return Built(commit, layers=left)


def _segment_of(context: RepositoryContext, view: View, stretches: Sequence[KeyRange]) -> tuple[Layer, ...]:
    """The uncommitted changes in some stretches of keys as one segment; nothing when there are none."""

    def blocks() -> Iterator[pa.RecordBatch]:
        for keys in stretches:
            for difference in uncommitted(context, context.space.read, view, keys):
                yield from difference_blocks(difference)

    index: Index = write_segment(context, blocks())
    return (Layer(context.clock.random_id(), index.id),) if index.count else ()


def _outside(spans: Spans) -> list[KeyRange]:
    """The stretches of keys between spans."""
    blocks, start = [], b""
    for low, high in spans.ranges:
        if start < low:
            blocks.append(KeyRange(start, low))
        if high is None:
            return blocks
        start = high
    return [*blocks, KeyRange(start, None)]
