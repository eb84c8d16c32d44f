"""The rows of a partition whose commands come from a log: what an entry does to them.

Invariants:
* an entry is applied once: its position is in the write of its rows, and what is not behind it is passed over;
* rows are a function of the entries up to the position, whoever applies them, in writes of any size;
* what commands cause on other partitions is put out in the same write, numbered for each of them; a partition applies
  the numbers of another one in their order, each once, however often and in whatever order they are sent;
* a command of metadata that was applied is put out for every other partition;
* what commands tell of runs is noted if that is turned on, by each process for itself: it alone is no function of the
  log. An entry says up to where it is told, so it is gone everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from millpond.errors import Corrupt
from millpond.kernel.keys import decode, encode
from millpond.kernel.log import Head
from millpond.kernel.scans import delete_rows
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.workflows.keyspaces import CURSOR, OUTBOX, RECEIVED, SENDING
from millpond.workflows.logs import Entry
from millpond.workflows.outputs import delete_outputs
from millpond.workflows.partitions.entries import (
    CausedEntry,
    ClockEntry,
    CommandEntry,
    OutputEntry,
    SentEntry,
    StoryEntry,
    TimerEntry,
    decode_entry,
    encode_entry,
)
from millpond.workflows.partitions.routing import METADATA, partition_of_key
from millpond.workflows.processor import Applied, Partition
from millpond.workflows.processor.batch import Batch, batched
from millpond.workflows.processor.codec import LoggedCommand
from millpond.workflows.processor.partition import instant_after, note_failed
from millpond.workflows.processor.timers import TIMERS_PULLED_PER_WRITE, DueTimer, pull_back
from millpond.workflows.store import Initialization, RunStore
from millpond.workflows.store.addresses import RunPath
from millpond.workflows.store.run_slices import SLICE_ROWS_MAX
from millpond.workflows.stories import delete_stories, drop_stories

__all__ = ("Ended", "FollowedPartition", "Cursor", "put_out", "read_cursor")

_Other = CommandEntry | TimerEntry | CausedEntry | SentEntry | StoryEntry | OutputEntry
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last entry that was applied, the time of the last command, and the latest one that timers may be set by."""

    position: int = 0
    ms: int = 0
    latest_ms: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an entry: that of its command, and the timer that it was; a timer may have been none any more."""

    applied: Applied | None
    timer: DueTimer | None = None


def read_cursor(tx: ReadTransaction) -> Cursor:
    """The place of a store in its log."""
    row = tx.get(CURSOR.pack())
    return Cursor() if row is None else Cursor(*cast("tuple[int, ...]", decode(row)))


def put_out(tx: ReadTransaction, after: tuple[int, int], limit: int) -> list[tuple[tuple[int, int], int, bytes]]:
    """The entries that were put out behind a place, at most `limit`: place, partition and entry."""
    entries = []
    for key, row in tx.scan(OUTBOX.range((after[0], after[1] + 1), None)):
        target, entry = cast("tuple[int, bytes]", decode(row))
        entries.append((cast("tuple[int, int]", OUTBOX.unpack(key)), target, entry))
        if len(entries) == limit:
            break
    return entries


class FollowedPartition(Partition):
    """A partition whose positions are those of a log outside of its space."""

    def __init__(self, initialization: Initialization, number: int, partitions: int, *, stories: bool = False) -> None:
        super().__init__(initialization, stories=stories, outputs=True)
        self.number, self._partitions = number, partitions
        self.share = number, partitions - 1
        self._position, self._out = 0, 0
        self.cursor = Cursor()
        """The place behind the entries that were applied last."""
        self.has_put_out = False

    def last_ms(self, tx: ReadTransaction) -> int:
        """The instant of the last command."""
        return read_cursor(tx).ms

    def latest_ms(self, tx: ReadTransaction) -> int:
        """The latest instant by which timers may have been set."""
        return read_cursor(tx).latest_ms

    def apply_entries(self, tx: Transaction, entries: Sequence[Entry]) -> list[Ended]:
        """Apply entries in their order; the end of each that was no mere note."""
        cursor = read_cursor(tx)
        ends: list[Ended] = []
        with batched(tx) as rows:
            for entry in entries:
                if entry.position > cursor.position:
                    self._position, self._out = entry.position, 0
                    cursor, ended = self._apply_entry(rows, entry, cursor)
                    ends += ended
        self.cursor = cursor
        tx.put(CURSOR.pack(), encode((cursor.position, cursor.ms, cursor.latest_ms)))
        return ends

    def _apply_entry(self, tx: Batch, data: Entry, last: Cursor) -> tuple[Cursor, list[Ended]]:
        try:
            entry = decode_entry(data.data)
        except Corrupt as error:
            # Everybody passes over it alike; to stop for it would stop the partition for ever.
            _LOG.error("entry %s of partition %s is no command: %s", self._position, self.number, error)
            return replace(last, position=data.position), []
        if isinstance(entry, ClockEntry):
            whole = pull_back(tx, entry.ms, TIMERS_PULLED_PER_WRITE) < TIMERS_PULLED_PER_WRITE
            return Cursor(data.position, last.ms, entry.ms if whole else last.latest_ms), []
        ms, ends = self._apply_command(tx, entry, last.ms)
        return Cursor(data.position, ms, max(last.latest_ms, ms)), ends

    def _apply_command(self, tx: Batch, entry: _Other, last: int) -> tuple[int, list[Ended]]:
        match entry:
            case CommandEntry(command, ms):
                now = instant_after(last, ms)
                return now, [self._command(tx, command, now)]
            case TimerEntry():
                now = instant_after(last, entry.ms)
                timer = DueTimer(entry.tenant, entry.name, entry.at)
                return now, [Ended(self._fire(tx, timer, now, Head(self._position - 1))[0], timer)]
            case CausedEntry():
                # A definition is the same everywhere, also in its times.
                now = entry.ms if entry.source == METADATA else instant_after(last, entry.ms)
                return instant_after(last, now), self._caused(tx, entry, now)
            case SentEntry(position, number):
                delete_rows(tx, list(tx.keys(OUTBOX.range((), (position, number + 1)))))
                return last, []
            case StoryEntry(position, number, dropped):
                (drop_stories if dropped else delete_stories)(tx, (position, number))
                return last, []
            case OutputEntry(position, number):
                delete_outputs(tx, (position, number))
                return last, []

    def _command(self, tx: Batch, command: LoggedCommand, now: int) -> Ended:
        applied = self._applied(tx, command, now)
        if self.number == METADATA and applied.error is None:
            for target in range(METADATA + 1, self._partitions):
                self._put_out(tx, target, command, now)
        return Ended(applied)

    def _caused(self, tx: Batch, entry: CausedEntry, now: int) -> list[Ended]:
        received = RECEIVED.pack(entry.source)
        if entry.number != _number(tx, received) + 1:
            return []
        tx.put(received, encode((entry.number,)))
        applied = self._applied(tx, entry.command, now)
        if applied.error is not None:
            _LOG.warning("command %s of partition %s failed: %s", entry.command.id, entry.source, applied.error)
            note_failed(tx, entry.command, (self._position, 0), applied.error)
        # Its caller waits for the command itself, until all copies are in their logs: the end of a copy has no id.
        return [Ended(replace(applied, command=replace(entry.command, id="")))]

    def _applied(self, tx: Batch, command: LoggedCommand, now: int) -> Applied:
        """Apply a command, with what it causes here."""
        return self._apply_chain(tx, command, now, Head(self._position - 1))[0]

    # -- what differs from a partition that has its own log -----------------------------------------------

    @property
    def _has_metadata(self) -> bool:
        return self.number == METADATA

    def _sent_away(self, tx: Transaction, key: str | None, command: LoggedCommand, now: int) -> bool:
        target = METADATA if key is None else partition_of_key(command.tenant, key, self._partitions)
        if target == self.number:
            return False
        self._put_out(tx, target, command, now)
        return True

    def _put_out(self, tx: Transaction, target: int, command: LoggedCommand, now: int) -> None:
        counter = SENDING.pack(target)
        number = _number(tx, counter) + 1
        tx.put(counter, encode((number,)))
        entry = encode_entry(CausedEntry(self.number, number, command, now))
        tx.put(OUTBOX.pack(self._position, self._out), encode((target, entry)))
        self._out, self.has_put_out = self._out + 1, True

    def _delete_run(self, tx: Transaction, store: RunStore, run: RunPath) -> None:
        """Delete a run whole: a run that is half gone would be no function of the log."""
        while not store.delete_slice(tx, run, SLICE_ROWS_MAX):
            pass

    def _log(self, tx: Transaction, command: LoggedCommand, now: int, last: Head) -> Head:
        del tx, command, now
        return Head(last.position + 1)


def _number(tx: ReadTransaction, key: bytes) -> int:
    row = tx.get(key)
    return 0 if row is None else cast("int", decode(row)[0])
