"""Branch records, and the layers they list.

    commit_id         the head
    staging_token     the token that writes go to
    sealed            layers that are not written any more, newest first: tokens, and segments made in bulk
    compacted_index   the index that stands for the head and all that was compacted onto it; None: the head's own

Invariants:
* A write goes to the token that is the staging token in the transaction that writes it.
* The rows of a token that is sealed do not change until no branch lists it; a token is listed by one branch once.
* Of a layer, rows count over range tombstones; both count over the layers below.
* Every change of a record raises its `revision`, so that "as it was" is one comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter

from millpond.errors import Corrupt, NotFound
from millpond.json_forms import JsonForm
from millpond.kernel.head import Heads
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.versions.keyspaces import BRANCH, CLEARED, DROPPED, STAGED

__all__ = (
    "BRANCHES_COUNTED_MAX", "BranchRecord", "BranchState", "Layer", "LayerCount", "all_branches", "count_layers",
    "drop_tokens", "find_branch", "get_branch", "is_empty", "parse_branch", "put_branch", "sealed", "without",
)  # fmt: skip

BRANCHES_COUNTED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Layer:
    """A sealed layer: a token, or a segment, which is an index of changes."""

    id: str
    index: str | None = None
    """The id of a segment's index; None for a token."""


@dataclass(frozen=True, slots=True)
class BranchRecord:
    """The state of a branch."""

    commit_id: str
    staging_token: str
    sealed: tuple[Layer, ...] = ()
    compacted_index: str | None = None
    compaction_start_time: int | None = None
    """The time of the last compaction's start, in milliseconds since 1970."""
    hidden: bool = False
    revision: int = 1

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers above the index, newest first."""
        return (Layer(self.staging_token), *self.sealed)

    @property
    def sealed_tokens(self) -> tuple[str, ...]:
        """The sealed tokens, newest first."""
        return tuple(layer.id for layer in self.sealed if layer.index is None)


@dataclass(frozen=True, slots=True)
class BranchState:
    """A branch as its users see it: its head, and the layers of what is staged; `staged`: it differs from its head."""

    commit_id: str
    hidden: bool
    staged: bool
    sealed_layers: int
    compacted_index: str | None
    compaction_start_time: int | None
    """The time of the last compaction's start, in milliseconds since 1970."""


def _damaged(name: str, reason: object) -> Corrupt:
    return Corrupt("a branch cannot be read", kind="branch_damaged", branch=name, reason=reason)


_FORM = JsonForm(BranchRecord)
_HEADS: Heads[BranchRecord] = Heads(_FORM.decode, _FORM.encode, attrgetter("revision"), _damaged)


def find_branch(tx: ReadTransaction, uid: str, name: str) -> BranchRecord | None:
    """The record of a branch, None when there is none.

    Raises: `Corrupt`.
    """
    return _HEADS.read(tx, BRANCH[uid].pack(name), name)


def parse_branch(row: bytes, name: str) -> BranchRecord:
    """The record in a row.

    Raises: `Corrupt`.
    """
    return _HEADS.parse(row, name)


def all_branches(tx: ReadTransaction, uid: str) -> Iterator[tuple[str, BranchRecord]]:
    """The branches of a repository by their names, hidden ones, too.

    Raises: `Corrupt`.
    """
    for key, row in tx.scan(BRANCH[uid].range()):
        name = str(BRANCH[uid].unpack(key)[0])
        yield name, parse_branch(row, name)


def get_branch(tx: ReadTransaction, uid: str, name: str) -> BranchRecord:
    """The record of a branch.

    Raises: `NotFound`, `Corrupt`.
    """
    record = find_branch(tx, uid, name)
    if record is None:
        raise NotFound("branch not found", kind="branch_not_found", branch=name,
                       hint="it may have been deleted: name one that is there, or make it anew")  # fmt: skip
    return record


def put_branch(tx: Transaction, uid: str, name: str, record: BranchRecord) -> BranchRecord:
    """Store a record in place of the one that was read; with the revision it now has."""
    ids = [layer.id for layer in record.layers]
    assert len(set(ids)) == len(ids), "a layer is listed once"
    newer = replace(record, revision=record.revision + 1)
    return _HEADS.put(tx, BRANCH[uid].pack(name), newer, record if record.revision else None)


def is_empty(tx: ReadTransaction, token: str) -> bool:
    """True when a token holds neither rows nor range tombstones."""
    return all(next(tx.keys(space[token].range()), None) is None for space in (STAGED, CLEARED))


def sealed(tx: ReadTransaction, record: BranchRecord, fresh_token: str) -> BranchRecord:
    """The record with its staging token sealed and another in its place; as it is when nothing was staged."""
    if is_empty(tx, record.staging_token):
        return record
    return replace(record, staging_token=fresh_token, sealed=record.layers)


def drop_tokens(tx: Transaction, tokens: Iterable[str]) -> None:
    """Note that no branch lists these tokens any more; their rows go with `collect_tokens`."""
    for token in tokens:
        tx.put(DROPPED.pack(token), b"")


def without(record: BranchRecord, consumed: Sequence[Layer]) -> BranchRecord:
    """The record without its oldest layers, which are `consumed`."""
    assert record.sealed[len(record.sealed) - len(consumed) :] == tuple(consumed), "the oldest layers are consumed"
    return replace(record, sealed=record.sealed[: len(record.sealed) - len(consumed)])


@dataclass(frozen=True, slots=True)
class LayerCount:
    """The branches of all repositories, their sealed layers, and the most of one; of `BRANCHES_COUNTED_MAX` at most."""

    branches: int
    sealed: int
    sealed_max: int


def count_layers(tx: ReadTransaction) -> LayerCount:
    """Count the sealed layers of branches; of deleted repositories too, until their rows are gone.

    Raises: `Corrupt`.
    """
    rows = (row for _, row in islice(tx.scan(BRANCH.range()), BRANCHES_COUNTED_MAX))
    counts = [len(parse_branch(row, "").sealed) for row in rows]
    return LayerCount(len(counts), sum(counts), max(counts, default=0))
