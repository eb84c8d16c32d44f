"""A log: entries at dense positions, each chained to the one before by a hash, appended with their effect.

    (log…, position)    16 bytes of chain, 8 bytes of time, then the entry as its part encodes it
    (log…, "head")      JSON `{"position", "chain", "stamp_ms"}` of the last entry; no row before the first

A part says what its entries are, and how they become bytes: the same bytes on every machine, for they are what is
hashed. It appends an entry in the same transaction as the entry's effect, so state at a position is a function of the
log up to there.

Invariants:
* positions are dense: 1, 2, 3 …; times never fall;
* the chain of an entry is the hash of the chain before it, its position, its time and its bytes, so two logs that
  differ anywhere differ in every chain from there on: a fork is found at the first entry that is copied across it;
* the oldest entries may be trimmed, and nothing else: what is left ends at the head, and whoever reads from before its
  beginning is told so, and never skips an entry;
* the head outlives its entry: a log whose entries are all gone goes on where it stopped.

The hash (XXH3, 128 bits) finds mistakes and damage. It is no proof against somebody who may choose the entries.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import xxhash

from millpond.errors import Conflict, Corrupt, NotFound
from millpond.json_forms import JsonForm
from millpond.kernel.keys import KeyRange, Prefix
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.verify import Report, checked, problem

__all__ = ("Head", "Log", "Record", "head_row")

E = TypeVar("E")
# Of fixed width, for there are many; the head is a single row, and JSON.
_ROW = struct.Struct(">16sq")
# Of fixed width in what is hashed, so that no two places and entries, joined, are the same bytes.
_PLACE = struct.Struct(">qq")
_PAGE_ENTRIES = 1000


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a log: its last position, that entry's chain (32 hexadecimal digits) and time (UTC milliseconds)."""

    position: int = 0
    chain: str = ""
    stamp_ms: int = 0


_HEAD = JsonForm(Head)


def head_row(prefix: Prefix, head: Head) -> tuple[bytes, bytes]:
    """The row of the head of the log under a prefix."""
    return prefix.pack("head"), _HEAD.encode(head)


@dataclass(frozen=True, slots=True)
class Record(Generic[E]):
    """An entry in its place."""

    position: int
    stamp_ms: int
    chain: str
    entry: E


@dataclass(frozen=True, slots=True)
class Log(Generic[E]):
    """The log under a prefix of a space. `decode` reads what `encode` made, or raises `Corrupt`.

    `encode(decode(encode(entry))) == encode(entry)`, on every machine: a copied entry is hashed anew where it comes.
    """

    prefix: Prefix
    encode: Callable[[E], bytes]
    decode: Callable[[bytes], E]

    # -- writing --------------------------------------------------------------------------------------

    def append(self, tx: Transaction, entry: E, now_ms: int, last: Head | None = None) -> Record[E]:
        """Put the next entry; its time is `now_ms`, or the time of the entry before when clocks went backwards.

        With `last`, the head as it is before, the new one is not stored: `head_row` is put behind several.
        """
        before = last or self.head(tx)
        row, position, stamp_ms = self.encode(entry), before.position + 1, max(now_ms, before.stamp_ms)
        head = Head(position, _chain(before.chain, position, stamp_ms, row), stamp_ms)
        self._put(tx, head, row)
        if last is None:
            tx.put(*head_row(self.prefix, head))
        return Record(position, stamp_ms, head.chain, entry)

    def accept(self, tx: Transaction, record: Record[E]) -> bool:
        """Put an entry of another log as the next; False when it is here already.

        Raises:
            Conflict: as `follows`.
        """
        if not self.follows(tx, record):
            return False
        # Encoded here, and not copied: what is stored is what was hashed when it was checked.
        head = Head(record.position, record.chain, record.stamp_ms)
        assert head.position == self.head(tx).position + 1, "positions are dense"
        self._put(tx, head, self.encode(record.entry))
        tx.put(*head_row(self.prefix, head))
        return True

    def trim(self, tx: Transaction, before: int) -> int:
        """Drop the entries before a position; how many there were."""
        return tx.delete_range(self._positions(0, before))

    def _put(self, tx: Transaction, head: Head, row: bytes) -> None:
        tx.put(self.prefix.pack(head.position), _ROW.pack(bytes.fromhex(head.chain), head.stamp_ms) + row)

    # -- reading --------------------------------------------------------------------------------------

    def head(self, tx: ReadTransaction) -> Head:
        """The end of the log.

        Raises:
            Corrupt: the row is not what a log writes.
        """
        row = tx.get(self.prefix.pack("head"))
        if row is None:
            return Head()
        try:
            head = _HEAD.decode(row)
            sound = len(bytes.fromhex(head.chain)) == 16
        except ValueError as error:
            raise self._damaged("its head cannot be read", error) from error
        if not sound or head.position < 1:
            raise self._damaged("its head is not understood", row)
        return head

    def at(self, tx: ReadTransaction, position: int) -> Record[E] | None:
        """The entry at a position; None when there is none, or none any more."""
        row = tx.get(self.prefix.pack(position))
        return None if row is None else self._parse(position, row)

    def first(self, tx: ReadTransaction) -> int:
        """The oldest position the log still has; the one to come when it has none."""
        key = next(tx.keys(self._positions(0)), None)
        return self.head(tx).position + 1 if key is None else self._position_of(key)

    def read(self, tx: ReadTransaction, after: int, limit: int) -> list[Record[E]]:
        """The entries that follow a position, at most `limit`.

        Raises:
            NotFound: kind `log_trimmed`: the next one is gone.
            Corrupt: a row is not what a log writes.
        """
        # In the same transaction as the scan: what is not trimmed here cannot be trimmed before it is read.
        first = self.first(tx)
        if after + 1 < first:
            raise NotFound(
                "the log no longer reaches back so far", kind="log_trimmed", after=after, first=first,
                hint="begin with a copy of what it led to",
            )  # fmt: skip
        rows = itertools.islice(tx.scan(self._positions(after + 1)), limit)
        return [self._parse(self._position_of(key), row) for key, row in rows]

    def records(self, tx: ReadTransaction, before: int | None = None) -> Iterator[Record[E]]:
        """All entries that the log still has, or those before a position, in order."""
        for key, row in tx.scan(self._positions(0, before)):
            yield self._parse(self._position_of(key), row)

    def newest_first(self, tx: ReadTransaction) -> Iterator[Record[E]]:
        """All entries that the log still has, the last one first."""
        for key, row in tx.scan(self._positions(0), reverse=True):
            yield self._parse(self._position_of(key), row)

    def follows(self, tx: ReadTransaction, record: Record[E]) -> bool:
        """True when an entry of another log is the next of this one; False when it is here already.

        Raises:
            Conflict: kind `log_gap` when entries before it are missing, `log_forked` when the logs differ up to it.
        """
        last = self.head(tx)
        if record.position <= last.position:
            # An entry that was trimmed cannot be compared. If the logs differ in it they differ in every chain behind
            # it, and the next new entry shows that.
            stored = self.at(tx, record.position)
            if stored is not None and stored.chain != record.chain:
                raise _forked(record, stored.chain)
            return False
        if record.position > last.position + 1:
            raise Conflict(
                "entries before this one are missing", kind="log_gap", position=record.position, last=last.position,
                hint="enter the entries in between first",
            )  # fmt: skip
        # Hashed anew, on our own chain: an entry that was changed on its way differs here as one of another past does.
        if record.chain != self.chain_after(last.chain, record):
            raise _forked(record, last.chain)
        return True

    def chain_after(self, before: str, record: Record[E]) -> str:
        """The chain of an entry that follows one with the chain `before` (`""`: the first)."""
        return _chain(before, record.position, record.stamp_ms, self.encode(record.entry))

    def check(self, tx: ReadTransaction, remedy: str) -> Iterator[Report]:
        """Check the log from its oldest entry to its head: dense, chained, in order of time.

        Raises:
            Corrupt: a row is not what a log writes.
        """
        head, before = self.head(tx), None
        after = self.first(tx) - 1
        while records := self.read(tx, after, _PAGE_ENTRIES):
            for record in records:
                yield checked("log entry")
                yield from (problem("log", record.position, fault, remedy, counted=False)
                            for fault in self._faults(before, after, record))  # fmt: skip
                # From where the entry is: one gap is one problem, not one for each entry behind it.
                before, after = record, record.position
        # Without an entry there is no chain to compare: a log that was trimmed to its end goes on from its head alone.
        if after != head.position or (before is not None and before.chain != head.chain):
            fault = f"the log ends at {after}, its head says {head.position}"
            yield problem("log", head.position, fault, remedy, counted=False)

    def _faults(self, before: Record[E] | None, after: int, record: Record[E]) -> Iterator[str]:
        if record.position != after + 1:
            yield f"the next entry is {record.position}, not {after + 1}"
        # Of the oldest entry of a trimmed log nobody knows the chain before it.
        chain = "" if record.position == 1 else None if before is None else before.chain
        if chain is not None and record.chain != self.chain_after(chain, record):
            yield "it does not follow from the entry before it"
        if before is not None and record.stamp_ms < before.stamp_ms:
            yield "it is older than the entry before it"

    # -- rows -----------------------------------------------------------------------------------------

    def _positions(self, start: int, stop: int | None = None) -> KeyRange:
        """The keys of entries: whole numbers come before every text, so the head is not among them."""
        return self.prefix.range((start,), ("",) if stop is None else (stop,))

    def _position_of(self, key: bytes) -> int:
        parts = self.prefix.unpack(key)
        # Not `isinstance`: True is an int to Python, and another key here.
        if len(parts) != 1 or type(parts[0]) is not int:
            raise self._damaged("a row has no position", key.hex())
        return parts[0]

    def _parse(self, position: int, row: bytes) -> Record[E]:
        if len(row) < _ROW.size:
            raise self._damaged("an entry is too short", position)
        chain, stamp_ms = _ROW.unpack_from(row)
        return Record(position, stamp_ms, chain.hex(), self.decode(row[_ROW.size :]))

    def _damaged(self, message: str, evidence: object) -> Corrupt:
        return Corrupt(
            f"the log is damaged: {message}", kind="log_damaged", key=self.prefix.packed.hex(), found=evidence
        )


def _chain(before: str, position: int, stamp_ms: int, row: bytes) -> str:
    hashed = xxhash.xxh3_128(bytes.fromhex(before))
    hashed.update(_PLACE.pack(position, stamp_ms))
    hashed.update(row)
    return hashed.hexdigest()


def _forked(record: Record[E], chain: str) -> Conflict:
    return Conflict(
        "the logs have different pasts", kind="log_forked", position=record.position, found=record.chain, ours=chain,
        hint="decide which log is right, and replace the other by a copy of it",
    )  # fmt: skip
