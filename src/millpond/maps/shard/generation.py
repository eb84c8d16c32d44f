"""One generation of a shard, open: its environment, and the handles of its tables.

A handle belongs to one environment. So whoever reads takes the generation along with the transaction: when the shard
is switched to another generation meanwhile, the reader goes on with the tables it began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lmdb

from millpond.arrays.longs import unpack_long
from millpond.errors import Invalid
from millpond.maps.model.aggregation import RolledUp
from millpond.maps.model.definition import Kind, MapDefinition, Scheme
from millpond.maps.shard.changed_keys import ChangedKeys
from millpond.maps.shard.interned_tables import InternedStore
from millpond.maps.shard.plain_tables import PlainStore
from millpond.maps.shard.range_widths import WIDTHS, ranges_holding
from millpond.maps.shard.update_times import UpdateTimes
from millpond.stores.lmdb.environment import Environment

__all__ = ("SHARD_FORMAT", "Generation")

INFO = b"info"
SHARD_FORMAT = 1
ROLLED_UP_FORMAT = 2
"""The tables of a shard, and the files beside them; those of one whose older rows are in wider buckets."""
_ROLLED_UP = b"rolled_up"


class Generation:
    """The tables of a generation; without an environment, those of a map that has none yet."""

    __slots__ = ("_shown", "env", "info", "kind", "store", "touched", "updates")

    def __init__(self, definition: MapDefinition, env: Environment | None) -> None:
        self.env = env
        self.kind = definition.kind
        self.info: Any = None
        self.store: PlainStore | InternedStore
        if definition.kind is Kind.AGGREGATE:
            from millpond.maps.shard.bucket_tables import BucketStore  # other kinds do without

            self.store = BucketStore(definition)
        else:
            self.store = (InternedStore if definition.scheme is Scheme.LOOKUP else PlainStore)(definition)
        self.updates = UpdateTimes(definition)
        self.touched = ChangedKeys()
        self._shown: tuple[bytes | None, MapDefinition] = None, definition

    def open_tables(self, tx: lmdb.Transaction | None = None) -> None:
        """Open the tables; in a write transaction, make those that are missing."""
        assert self.env is not None
        handle = self.env.handle
        if tx is not None:
            self._open(handle, tx, create=True)
            return
        with self.env.read() as reading:
            committed = reading.get(INFO) is not None
        if committed:
            # The binding keeps handles only of transactions that may write. Nothing is written, but a process that
            # opens a map waits for a merge of another one to end; in this process handles are there by then.
            self.env.write(lambda writing: self._open(handle, writing, create=False))

    def _open(self, handle: lmdb.Environment, tx: lmdb.Transaction, *, create: bool) -> None:
        try:
            self.info = handle.open_db(INFO, txn=tx, create=create)
        except lmdb.NotFoundError:
            self.info = None
        self._check_format(handle, tx, create)
        self.store.open_tables(handle, tx, create)
        self.updates.open_tables(handle, tx, create)
        self.touched.open_tables(handle, tx, create)

    def _check_format(self, handle: lmdb.Environment, tx: lmdb.Transaction, create: bool) -> None:
        """Write the format into a table `info` that was just made, compare it in every other.

        Raises: `Invalid` when the shard has another format.
        """
        if self.info is None:
            return
        if create and not tx.stat(self.info)["entries"]:
            self.put_number(tx, "format", SHARD_FORMAT)
        version = self.number(tx, "format")
        if version not in (SHARD_FORMAT, ROLLED_UP_FORMAT):
            raise Invalid(
                "the shard has a format this version does not know", kind="shard_format", file=handle.path(),
                found=version, known=ROLLED_UP_FORMAT,
                hint="open its pond with the version of Millpond that wrote it, or drop the map and load it again",
            )  # fmt: skip

    def number(self, tx: lmdb.Transaction, name: str) -> int:
        """A number of table `info`; 0 when it was never put."""
        row = tx.get(name.encode(), db=self.info)
        return 0 if row is None else unpack_long(row, plain=True)

    def put_number(self, tx: lmdb.Transaction, name: str, number: int) -> None:
        """Put a number into table `info`."""
        tx.put(name.encode(), number.to_bytes(8, "big"), db=self.info)

    def definition(self, tx: lmdb.Transaction) -> MapDefinition:
        """The map's definition; that of an aggregate rolled up as the rows are that a transaction sees.

        Raises: `Corrupt`.
        """
        row: bytes | None = None
        if self.kind is Kind.AGGREGATE and (stored := tx.get(_ROLLED_UP, db=self.info)) is not None:
            row = bytes(stored)
        shown = self._shown  # other threads may read an older state
        if shown[0] != row:
            from millpond.maps.shard.bucket_tables import shown_as

            shown = self._shown = row, shown_as(self.store.definition, row)
        return shown[1]

    def put_rolled_up(self, tx: lmdb.Transaction, parts: Sequence[RolledUp]) -> None:
        """Note how far the rows of an aggregate are rolled up, in the transaction that does it."""
        from millpond.json_forms import to_json

        tx.put(_ROLLED_UP, to_json(list(parts)), db=self.info)
        self.put_number(tx, "format", ROLLED_UP_FORMAT)

    # -- one question ---------------------------------------------------------------------------------

    def get(self, tx: lmdb.Transaction, address: bytes | int, at: int | None) -> bytes | tuple[int, int] | None:
        """As `Shard.get`, in a transaction."""
        if isinstance(address, int):
            return self._get_ranged(tx, address, at)
        if self.kind is Kind.STATE:
            return self.store.value_of(tx, address)
        assert at is not None, "a question to a temporal map carries a time"
        if self.kind is Kind.TEMPORAL_STATE:
            return self.store.latest(tx, address, at)
        if self.kind is Kind.AGGREGATE:
            return self._get_bucket(tx, address, at)
        return self._get_session(tx, address, at)

    def _get_ranged(self, tx: lmdb.Transaction, number: int, at: int | None) -> bytes | None:
        temporal = self.kind is Kind.TEMPORAL_RANGED_STATE
        for start, end in ranges_holding(tx, self.store.dbs[WIDTHS], number):
            value = self.store.range_value(tx, start, end, at if temporal else None)
            if value is not None:
                return value
        return None

    def _get_bucket(self, tx: lmdb.Transaction, key: bytes, at: int) -> bytes | None:
        from millpond.maps.model.rolled_up import shown_start
        from millpond.maps.shard.bucket_tables import BucketStore, value_at  # other kinds need no calendar

        assert isinstance(self.store, BucketStore), "it is an aggregate"
        aggregation = self.definition(tx).aggregation
        assert aggregation is not None, "an aggregate has one"
        return value_at(self.store, tx, key, shown_start(aggregation, at))

    def _get_session(self, tx: lmdb.Transaction, key: bytes, at: int) -> tuple[int, int] | None:
        # A session that holds `at` cannot start before this: none lasts longer than the longest.
        earliest = at - self.number(tx, "longest")
        plain = isinstance(self.store, PlainStore) and self.store.plain
        session: tuple[int, int] | None = None
        for walk in self.store.walks(tx, key, at):
            for start, rest, _ in walk:
                if start < earliest or (session is not None and start < session[0]):
                    break
                end = unpack_long(rest[:8], plain)
                if end >= at and (session is None or (-start, end) < (-session[0], session[1])):
                    session = (start, end)
        return session
