"""The store of a tenant's runs: one group of rows for each run, and tags over them.

Readers hold a `RunReads`, which changes no byte; a partition's processor holds a `RunStore`.

Invariants:
* An object has one row: in its run's group, or, until the processor touches it, in the legacy layout. Where both are
  found, as in a run that is half migrated, the grouped one counts.
* A run that is younger than the upgrade has no legacy rows, and a store without legacy rows is never read twice.
* The tags of an object in a group are those of its row, and are listed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet
from heapq import merge
from typing import TypeAlias, cast

from littlehorse.model import ExternalEvent, Variable, WfRun

from millpond.errors import Conflict
from millpond.kernel.keys import decode, encode
from millpond.kernel.page import Page, behind
from millpond.kernel.scans import delete_rows
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.workflows.keyspaces import DELETION
from millpond.workflows.store.addresses import TAGS, UNCLAIMED, Address, Id, Kind, RunPath, address_of, group_of, run_id
from millpond.workflows.store.initialization import Initialization
from millpond.workflows.store.legacy import LegacyRow, inventory_key, key_of, legacy_address, legacy_range, unwrap
from millpond.workflows.store.messages import Stored, pack, pack_id, unpack
from millpond.workflows.store.search import TagQuery, address_page, search_keys
from millpond.workflows.store.tags import list_tags, listed_tags, tag_keys, tags_of

__all__ = ("RunReads", "RunStore", "Searchable")

Searchable: TypeAlias = Callable[[Variable], Collection[str]]
"""The paths in a variable that its spec lets be searched for: the empty one is the whole, of a list each item."""

_TAGGED = frozenset(Kind) - {Kind.CHECKPOINT, Kind.INACTIVE_THREAD_RUN}


class RunReads:
    """The runs of a tenant, read only: both layouts where the initialization log leaves room for both."""

    def __init__(self, tenant: str, initialization: Initialization) -> None:
        self.tenant = tenant
        self.initialization = initialization

    def get(self, tx: ReadTransaction, of: Id | Address) -> Stored | None:
        """The object with this id; None when there is none.

        Raises:
            Corrupt: its row is damaged.
        """
        address = of if isinstance(of, Address) else address_of(of)
        row = tx.get(address.key(self.tenant))
        if row is not None:
            return unpack(address, row)
        legacy = self._legacy(tx, address)
        return None if legacy is None else legacy.message

    def objects(
        self, tx: ReadTransaction, run: RunPath, kind: Kind, *rest: int | str, after: Address | None = None
    ) -> Iterator[Stored]:
        """The objects of a run of one kind, each once, in the order of their addresses, numbers as numbers.

        `rest` are the first parts of their ids: a thread, for one. With `after` those behind that address.

        Raises:
            Corrupt: a row is damaged.
        """
        of_kind = group_of(self.tenant, run)[int(kind)]
        place = None if after is None else encode(after.parts)
        keys = of_kind[rest].range()
        grouped = (
            (key[len(of_kind.packed) :], unpack(Address.from_parts(run, int(kind), of_kind.unpack(key)), value))
            for key, value in tx.scan(keys if place is None else behind(keys, of_kind.packed + place))
        )
        if not self.may_be_legacy(tx, run):
            return (message for _, message in grouped)
        return _both(grouped, self._legacy_rows(tx, run, kind, rest), place)

    def count(self, tx: ReadTransaction, run: RunPath, kind: Kind) -> int:
        """The number of a run's objects of one kind. Their rows are not read, unless some may be legacy."""
        if self.may_be_legacy(tx, run):
            return sum(1 for _ in self.objects(tx, run, kind))
        return sum(1 for _ in tx.keys(group_of(self.tenant, run)[int(kind)].range()))

    def search(
        self, tx: ReadTransaction, query: TagQuery, *, limit: int = 100, bookmark: bytes | None = None
    ) -> Page[Address]:
        """One page of a search, by time; objects in the legacy layout are found once they have moved.

        Raises:
            Invalid: the limit or the bookmark is none.
        """
        upgraded_ms = self.initialization.upgraded_ms
        keys = search_keys(tx, self.tenant, query, limit=limit, bookmark=bookmark, upgraded_ms=upgraded_ms)
        return address_page(self.tenant, query, keys, limit)

    def may_be_legacy(self, tx: ReadTransaction, run: RunPath) -> bool:
        """True when a run may have legacy rows: it is older than the upgrade, or its events came before it."""
        if not self.initialization.legacy:
            return False
        run_row = self.get(tx, run_id(run))
        upgraded = self.initialization.upgraded_ms
        assert upgraded is not None
        return not isinstance(run_row, WfRun) or run_row.start_time.ToMilliseconds() < upgraded

    def _legacy(self, tx: ReadTransaction, address: Address) -> LegacyRow | None:
        if not self.initialization.legacy:
            return None
        row = tx.get(key_of(self.tenant, address))
        return None if row is None else unwrap(self.tenant, address, row)

    def _legacy_rows(
        self, tx: ReadTransaction, run: RunPath, kind: Kind, rest: tuple[int | str, ...]
    ) -> list[LegacyRow]:
        """The rows of one kind, in the order of their texts."""
        rows = []
        for key, value in tx.scan(legacy_range(self.tenant, run, kind)):
            address = legacy_address(key)
            if address is not None and address[1].parts[: len(rest)] == rest:
                rows.append(unwrap(self.tenant, address[1], value))
        return rows


def _both(grouped: Iterator[tuple[bytes, Stored]], legacy: list[LegacyRow], after: bytes | None) -> Iterator[Stored]:
    """Rows of both layouts behind a place, by address; of one that is in both, the grouped row."""
    rows = ((encode(row.address.parts), row.message) for row in legacy)
    old = sorted((row for row in rows if after is None or row[0] > after), key=_place)
    last: bytes | None = None
    for place, message in merge(grouped, old, key=_place):  # of equals, those of the first come first
        if place != last:
            yield message
        last = place


def _place(row: tuple[bytes, Stored]) -> bytes:
    return row[0]


class RunStore(RunReads):
    """The runs of a tenant, for their processor: it writes, and moves what it reads out of the legacy layout."""

    def __init__(self, tenant: str, initialization: Initialization, searchable: Searchable) -> None:
        super().__init__(tenant, initialization)
        self._searchable = searchable

    def put(self, tx: Transaction, message: Stored) -> None:
        """Store an object over what is there, with its tags.

        Raises:
            Conflict: it is a run, and one of its id is still being deleted.
            Invalid: an id is too long for a key.
        """
        address = address_of(message.id)
        if address.kind is Kind.RUN:
            self.check_deleted(tx, address.run)
        self.replace(tx, address, message)

    def replace(self, tx: Transaction, address: Address, message: Stored) -> None:
        """As `put`, at the address of the object, after `check_deleted` for a run."""
        legacy = self._legacy(tx, address)
        if legacy is not None:
            self._drop_legacy(tx, legacy)
        elif address.kind is Kind.RUN and self.initialization.legacy and tx.get(address.key(self.tenant)) is None:
            # Events that came before their run are looked for in both layouts until it is there.
            for row in self._legacy_rows(tx, address.run, Kind.EXTERNAL_EVENT, ()):
                self.take(tx, row.address)
        self._put(tx, address, message)

    def take(self, tx: Transaction, of: Id | Address) -> Stored | None:
        """The object with this id, moved out of the legacy layout if it is there: how a processor reads.

        Raises:
            Corrupt: its row is damaged.
        """
        address = of if isinstance(of, Address) else address_of(of)
        row = tx.get(address.key(self.tenant))
        legacy = self._legacy(tx, address) if row is None else None
        if legacy is None:
            return None if row is None else unpack(address, row)
        self._drop_legacy(tx, legacy)
        self._put(tx, address, legacy.message)
        if isinstance(legacy.message, ExternalEvent) and not legacy.message.claimed:
            self._note_unclaimed(tx, address, legacy.message)
        return legacy.message

    def delete(self, tx: Transaction, of: Id | Address) -> bool:
        """Delete one object with its tags; True if it was there."""
        address = of if isinstance(of, Address) else address_of(of)
        legacy = self._legacy(tx, address)
        if legacy is not None:
            self._drop_legacy(tx, legacy)
        key, tags_key = address.keys(self.tenant)
        self._retag(tx, address, tags_key, frozenset())
        return tx.delete(key) or legacy is not None

    def delete_slice(self, tx: Transaction, run: RunPath, rows_max: int) -> bool:
        """Delete some rows of a run, the run itself first; True when none is left. Its children stay.

        Called again until it says so, also after a crash: `deletions` lists runs that are not gone yet. The tags of
        one object go in one slice.
        """
        group, own = group_of(self.tenant, run), Address(run, Kind.RUN)
        legacy = self._legacy(tx, own)
        if legacy is not None:
            self._drop_legacy(tx, legacy)
        rest = self._delete_tags(tx, run, rows_max)
        if rest > 0 and self.may_be_legacy(tx, run):
            rest = self._delete_legacy(tx, run, rest)
        if rest > 0:
            rest -= tx.delete_range(group.range(), rest)
        if rest > 0:
            delete_rows(tx, [self._deletion(run)])
            return True
        delete_rows(tx, [own.key(self.tenant)])
        tx.put(self._deletion(run), b"")
        return False

    def deletions(self, tx: ReadTransaction) -> Iterator[RunPath]:
        """The runs whose deletion was begun and is not over."""
        here = DELETION[self.tenant]
        for key in tx.keys(here.range()):
            root, children = here.unpack(key)
            assert isinstance(root, str)
            assert isinstance(children, bytes)
            yield (root, *cast("RunPath", decode(children)))

    def check_deleted(self, tx: ReadTransaction, run: RunPath) -> None:
        """Refuse to write a run of whose rows some are still there, though its own is gone.

        Raises: `Conflict`.
        """
        # The run itself goes first, so one that is there is not being deleted: its row is in memory more often.
        if tx.get(Address(run, Kind.RUN).key(self.tenant)) is None and tx.get(self._deletion(run)) is not None:
            raise Conflict("the run is being deleted", kind="run_deleting", run="_".join(run), hint="try again soon")

    def _put(self, tx: Transaction, address: Address, message: Stored) -> None:
        key, tags_key = address.keys(self.tenant)
        if address.kind in _TAGGED:
            paths = self._searchable(message) if isinstance(message, Variable) else ()
            self._retag(tx, address, tags_key, tags_of(message, paths=paths))
        tx.put(key, pack(message))

    def _note_unclaimed(self, tx: Transaction, address: Address, event: ExternalEvent) -> None:
        """Note an event that a node may take; the legacy layout has no such rows."""
        name, guid = address.rest
        key = group_of(self.tenant, address.run).pack(UNCLAIMED, name, event.created_at.ToMilliseconds(), guid)
        tx.put(key, pack_id(event))

    def _retag(self, tx: Transaction, address: Address, place: bytes, tags: AbstractSet[bytes]) -> None:
        """Replace the tags of an object, which are listed at a place: only those that differ are written."""
        listed, row = tx.get(place) or b"", list_tags(tags) if tags else b""
        if listed == row:
            return
        old = listed_tags(listed)
        if old:
            delete_rows(tx, tag_keys(self.tenant, address, old - tags))
        for key in tag_keys(self.tenant, address, tags - old):
            tx.put(key, b"")
        if row:
            tx.put(place, row)
        else:
            delete_rows(tx, [place])

    def _delete_tags(self, tx: Transaction, run: RunPath, rows: int) -> int:
        """Delete tags by their lists; the number of rows that may still be deleted."""
        lists = group_of(self.tenant, run)[TAGS]
        for key, value in tx.scan(lists.range()):
            if rows <= 0:
                break
            kind, *parts = lists.unpack(key)
            assert isinstance(kind, int)
            address = Address.from_parts(run, kind, parts)
            gone = [key, *tag_keys(self.tenant, address, listed_tags(value))]
            delete_rows(tx, gone)
            rows -= len(gone)
        return rows

    def _delete_legacy(self, tx: Transaction, run: RunPath, rows: int) -> int:
        for kind in Kind:
            for key, value in tx.scan(legacy_range(self.tenant, run, kind)):
                if rows <= 0:
                    return rows
                address = legacy_address(key)
                if address is not None:
                    rows -= self._drop_legacy(tx, unwrap(self.tenant, address[1], value))
        delete_rows(tx, [inventory_key(self.tenant, run)])
        return rows

    def _drop_legacy(self, tx: Transaction, row: LegacyRow) -> int:
        """Delete a legacy row with its tags; the number of rows."""
        delete_rows(tx, [key_of(self.tenant, row.address), *row.tag_keys])
        return 1 + len(row.tag_keys)

    def _deletion(self, run: RunPath) -> bytes:
        return DELETION.pack(self.tenant, run[0], encode(run[1:]))
