"""Entries of any branches, staged by one write: their bytes first, then all their rows in one transaction.

    bodies ─▶ files of one store, their syncs side by side ─┐
    entries whose bytes lie somewhere already ──────────────┴─▶ rows, one sync

Invariants:
* Every entry stands for itself: of one that its branch does not take, nothing is stored.
* The bytes of an entry are durable before its row is written.
* When the place of some bytes fails, exactly the entries whose bytes were to go there fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from millpond.errors import Denied, MillpondError, NotFound
from millpond.kernel.keys import Prefix
from millpond.kernel.scans import put_rows
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.kernel.steps import step
from millpond.stores.objects import FolderObjects, ObjectStore, put_all
from millpond.versions.keyspaces import STAGED
from millpond.versions.objects.entries import Entry, check_path
from millpond.versions.objects.staged_rows import encode_entry
from millpond.versions.repository_context import RepositoryContext
from millpond.versions.staging.writes import writable_branch

__all__ = ("BODY_BYTES_MAX", "StagedEntry", "put_together", "takes_bodies")

BODY_BYTES_MAX = 64 << 10
"""The largest body that is written together with others: writing a larger one takes longer than its sync."""
_Target: TypeAlias = "tuple[str, str, bool]"


@dataclass(frozen=True, slots=True)
class StagedEntry:
    """An entry that is to be staged on a branch, without a condition: its path, and the value of its row.

    `body`: the bytes that are to be stored at its address; None when they are there already.
    """

    context: RepositoryContext
    branch: str
    path: str
    value: bytes
    force: bool = False
    address: str = ""
    body: bytes | None = None

    @classmethod
    def of(
        cls, context: RepositoryContext, branch: str, entry: Entry, *, force: bool = False, body: bytes | None = None
    ) -> StagedEntry:
        """An entry that can be stored.

        Raises: `Invalid` for one that cannot.
        """
        check_path(entry.path)
        context.check_paths([entry.path])
        return cls(context, branch, entry.path, encode_entry(entry), force, entry.address, body)

    @property
    def target(self) -> _Target:
        """The branch, and the way in which it is written: what admits one entry there admits the next."""
        return self.context.uid, self.branch, self.force


def takes_bodies(context: RepositoryContext) -> bool:
    """True when bytes of a repository gain by being written together: below a folder they share syncs."""
    return isinstance(context.data, FolderObjects)


def put_together(staged: Sequence[StagedEntry]) -> list[MillpondError | None]:
    """Stage entries of any repositories of one space by one write, every entry for itself.

    The errors, in the order of the entries; None for success.

    Raises: as `Space.write`; then none of them is staged.
    """
    space = staged[0].context.space
    failed = _stored(space, staged)

    def write(tx: Transaction) -> list[MillpondError | None]:
        # Other threads run between two steps of LMDB, and the writer waits for its turn again: so there are few steps.
        tokens = _Tokens(tx)
        outcomes: list[MillpondError | None] = []
        rows: list[tuple[bytes, bytes]] = []
        for at, entry in enumerate(staged):
            prefix = failed.get(at) or tokens.of(entry)
            if isinstance(prefix, MillpondError):
                outcomes.append(prefix)
            else:
                rows.append((prefix.pack(entry.path), entry.value))
                outcomes.append(None)
        put_rows(tx, rows)
        return outcomes

    return space.write(write)


class _Tokens:
    """The staging tokens of branches as one transaction sees them."""

    def __init__(self, tx: ReadTransaction) -> None:
        self._tx = tx
        self._prefixes: dict[_Target, Prefix | MillpondError] = {}

    def of(self, entry: StagedEntry) -> Prefix | MillpondError:
        """The token that an entry goes to, or the reason why its branch does not take it."""
        target = entry.target
        prefix = self._prefixes.get(target)
        if prefix is None:
            try:
                record = writable_branch(entry.context, self._tx, entry.branch, force=entry.force)
            except (NotFound, Denied) as error:  # nothing of it was written
                prefix = error
            else:
                prefix = STAGED[record.staging_token]
            self._prefixes[target] = prefix
        return prefix


def _stored(space: Space, staged: Sequence[StagedEntry]) -> dict[int, MillpondError]:
    """Store the bodies of entries that their branches take; the errors of the others, by their places."""
    bodies = [at for at, entry in enumerate(staged) if entry.body is not None]
    if not bodies:
        return {}
    with space.read() as tx:  # before anything is stored in vain
        tokens = _Tokens(tx)
        prefixes = {at: tokens.of(staged[at]) for at in bodies}
    failed = {at: error for at, error in prefixes.items() if isinstance(error, MillpondError)}
    by_store: dict[ObjectStore, list[int]] = {}
    for at in bodies:
        if at not in failed:
            by_store.setdefault(staged[at].context.data, []).append(at)
    for store, positions in by_store.items():
        try:
            put_all(store, [(staged[at].address, staged[at].body or b"") for at in positions])
        except MillpondError as error:
            failed |= dict.fromkeys(positions, error)
    step("versions.uploaded_together")
    return failed
