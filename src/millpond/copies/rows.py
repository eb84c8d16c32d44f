"""The rows of a whole pond, in a copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain, islice

from millpond.copies.files import Secured, Sent, copy_objects
from millpond.copies.runs import CopiedRuns
from millpond.copies.streams import Streams, state_of_streams
from millpond.errors import Conflict, MillpondError
from millpond.kernel.keyspace import REGISTRY, Scope
from millpond.kernel.scans import put_rows
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.worker import repeating
from millpond.maps.layered.history import named_manifests
from millpond.maps.log.log import head_of
from millpond.maps.model.keyspaces import (
    ALERTS,
    CATALOGUE,
    COPIED,
    COPY_BEGUN,
    HISTORY,
    HISTORY_AGE,
    LOG,
    NAMED,
    NODE_LIST,
    POND_ID,
    SNAPSHOT,
    STAND_IN,
)
from millpond.pond import Pond
from millpond.versions.copying import COPYING_SECONDS, begin_copying, end_copying, is_copying
from millpond.versions.keyspaces import (
    BRANCH,
    CLEARED,
    COMMIT,
    DELETED,
    DROPPED,
    REPOSITORY,
    SETTING,
    SIGNING_KEY,
    STAGED,
    TAG,
)
from millpond.workflows.keyspaces import COMMANDS, INITIALIZED, OWNER

__all__ = ("WholePond", "check_target", "is_copy_of", "mark_copied")

_VERSIONS = (BRANCH, CLEARED, COMMIT, DELETED, DROPPED, REPOSITORY, SETTING, SIGNING_KEY, STAGED, TAG)
_TAKEN = (
    *(keyspace for keyspace in REGISTRY.of(Scope.SHARED) if keyspace is not NODE_LIST),
    HISTORY, HISTORY_AGE, NAMED, SNAPSHOT, STAND_IN, *_VERSIONS,
)  # fmt: skip
_STATE = (ALERTS, CATALOGUE, LOG, BRANCH, REPOSITORY, STAGED, TAG, COMMANDS, OWNER)
"""The rows of which every change of a pond by its users changes some; what maintenance does changes others."""
_ROWS_AT_ONCE = 8192


def _state(tx: ReadTransaction) -> bytes:
    """A digest of what a pond says."""
    digest = blake2b(digest_size=20)
    for key, value in chain.from_iterable(tx.scan(keyspace.range()) for keyspace in _STATE):
        digest.update(b"%d %d " % (len(key), len(value)) + key + value)
    for said in state_of_streams(tx):
        digest.update(said)
    return digest.hexdigest().encode()


def mark_copied(tx: Transaction) -> None:
    """Note that the pond is a copy, and what it says."""
    tx.put(COPIED.packed, _state(tx))


def is_copy_of(tx: ReadTransaction, pond_id: bytes | None) -> bool:
    """True when the pond is a copy of the one of this id, and was not changed since."""
    return tx.get(POND_ID.packed) == pond_id and tx.get(COPIED.packed) == _state(tx)


def check_target(tx: ReadTransaction, where: str, pond_id: bytes | None) -> None:
    """Refuse a target that is not empty, and no unchanged copy of the pond of this id.

    Raises: `Conflict`, kinds `copy_target` and `copy_target_changed`.
    """
    if tx.get(COPIED.packed) in (None, COPY_BEGUN):
        others = chain.from_iterable(tx.keys(rows.range()) for rows in (REPOSITORY, INITIALIZED, OWNER))
        if head_of(tx).position or next(chain(others, state_of_streams(tx)), None) is not None:
            raise Conflict("there is another pond", kind="copy_target", pond=where,
                           hint="name an empty place, or copy maps by name: maps=['NAME']")  # fmt: skip
    elif not is_copy_of(tx, pond_id):
        raise Conflict("the target was changed since it was copied", kind="copy_target_changed", pond=where,
                       hint="copy to another place, or copy maps by name: maps=['NAME']")  # fmt: skip


@dataclass(frozen=True)
class WholePond:
    """A whole pond as a transaction sees it."""

    tx: ReadTransaction
    source: Pond
    runs: CopiedRuns | None = None

    @cached_property
    def _holder(self) -> str:
        return self.source.clock.random_id()

    @cached_property
    def _streams(self) -> Streams:
        return Streams(self.tx, self.source)

    def check(self, target: Pond) -> None:
        """Refuse a target that is not empty and no earlier copy.

        Raises: `Conflict`, kinds `copy_target` and `copy_target_changed`.
        """
        with target.space.read() as tx:
            self._check(tx, target)

    def _check(self, tx: ReadTransaction, target: Pond) -> None:
        check_target(tx, target.location.address, self.tx.get(POND_ID.packed))

    @contextmanager
    def begin(self, target: Pond) -> Iterator[None]:
        """Mark a target that is empty, so that no files of it are taken for those of dropped maps; and keep its
        repositories from being collected as long as this lasts.
        """

        def act(tx: Transaction) -> None:
            if tx.get(COPIED.packed) is None:
                tx.put(COPIED.packed, COPY_BEGUN)

        target.space.write(act)
        with repeating("the lease of a copy", lambda: self._renew(target), COPYING_SECONDS / 6, target.clock):
            try:
                yield
            finally:
                with suppress(MillpondError):  # it ends by itself
                    target.space.write(lambda tx: end_copying(tx, self._holder))

    def _renew(self, target: Pond) -> None:
        def act(tx: Transaction) -> None:
            if is_copying(tx, self._holder):
                begin_copying(tx, self._holder, target.clock)

        target.space.write(act)

    def manifests(self) -> dict[str, set[str]]:
        """The manifests to bring, by the folder of their map."""
        return named_manifests(self.tx)

    def bring(self, target: Pond, sent: Sent) -> None:
        """Bring what the rows name beside the files of maps: objects of repositories, and of events."""
        # Before it is listed what is there.
        target.space.write(lambda tx: begin_copying(tx, self._holder, target.clock))
        if next(self.tx.keys(REPOSITORY.range()), None) is not None:
            copy_objects(self.source, target, sent)
        self._streams.bring(target, sent)
        if self.runs is not None:
            self.runs.bring(target, sent)

    def enter(self, target: Pond, secured: Secured) -> bool:
        """Put all rows in place of those of the target, in one write; False when files may have gone meanwhile.

        Raises: as `check`, when the target was changed meanwhile.
        """

        def act(tx: Transaction) -> bool:
            self._check(tx, target)
            if not (secured.stay(tx) and self._streams.are_there(tx) and is_copying(tx, self._holder)):
                return False
            for keyspace in _TAKEN:
                tx.delete_range(keyspace.range())
                rows = self.tx.scan(keyspace.range())
                while block := list(islice(rows, _ROWS_AT_ONCE)):
                    put_rows(tx, block)
            self._streams.enter(tx)
            if self.runs is not None:
                self.runs.enter(tx, target)
            mark_copied(tx)
            return True

        return target.space.write(act)
