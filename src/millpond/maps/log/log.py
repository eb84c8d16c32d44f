"""The log of a pond: every change of what its maps hold, one entry after another, on the kernel's log.

    ("maps", "log", …)           the log, see `kernel/log.py`; an entry is JSON `{"body", "kind", "maps"}`
    ("maps", "load", load id)    what a load entered, for repeated requests, as JSON
    ("maps", "stream", query)    the last epoch of a stream that was entered, and what it entered, as JSON; it goes with
                                 the last of the maps that the stream brought rows to

| kind | what it is about | body |
|---|---|---|
| `create`, `alter` | one map | `definition` |
| `drop` | one map | `incarnation` |
| `load` | the maps it brings rows to | `load, source, rejected, stream, number, rows, duplicates, parts[, layers]` |
| `condense`, `retain` | one map | `incarnation, before` (UTC milliseconds) |
| `alert` | one map | `incarnation`, and `add`, a rule, or `remove`, the name of one |
| `alerted` | the maps whose alerts were stored | `marks`: for each up to where, see `alerts/alerted.py` |
| `nodes` | no map | the list of nodes, `node_list.py` |

Invariants, besides those of the kernel's log:
* an entry is appended in the same write of the space as its effect on catalogue and queue (`apply.py`);
* **the rows of a map at a position, and when each was put, are a function of the log up to there alone**: not of when
  or how entries were merged, nor of what clock a node has;
* what a load remembers is trimmed with its entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from millpond.errors import Corrupt
from millpond.json_forms import FormError, JsonForm, stable_json
from millpond.kernel.log import Head, Log, Record
from millpond.kernel.space import ReadTransaction, Space, Transaction
from millpond.maps.log.node_list import check_not_handed_over
from millpond.maps.model.keyspaces import LOADS, LOG

__all__ = (
    "ENTRIES", "KINDS", "TRIMMED_AT_ONCE",
    "Change", "Entry", "accept", "append", "entries_after", "entry_at", "first_position", "follows",
    "head_of", "newest_first", "trim", "trim_whole",
)  # fmt: skip

TRIMMED_AT_ONCE = 20_000
"""So many entries are dropped in one write: it holds the pages that they lie on in memory."""
KINDS = ("create", "alter", "drop", "load", "condense", "retain", "delete", "nodes", "alert", "alerted")


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of the log without its place: which maps it is about, and what happens to them."""

    kind: str
    maps: tuple[str, ...]
    body: dict[str, Any]

    def encode(self) -> bytes:
        """The bytes that are stored and hashed: JSON with sorted names."""
        return stable_json({"body": self.body, "kind": self.kind, "maps": self.maps})

    @classmethod
    def decode(cls, row: bytes) -> Change:
        """Parse the bytes of `encode`.

        Raises: `Corrupt` when they are not understood.
        """
        try:
            return _checked(_CHANGE.decode(row))
        except FormError as error:
            raise _unreadable(error) from error


_CHANGE = JsonForm(Change)


def _checked(change: Change) -> Change:
    """A change of a kind that this version knows.

    Raises: `Corrupt` for another kind.
    """
    if change.kind not in KINDS:
        raise Corrupt("an entry of the log is not understood", kind="log_entry", entry=change.kind)
    return change


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change. `stamp_ms` is the clock of who appended it: when rows of this entry count as put, on every node."""

    position: int
    kind: str
    stamp_ms: int
    maps: tuple[str, ...]
    body: dict[str, Any]
    chain: str

    @classmethod
    def of(cls, record: Record[Change]) -> Self:
        change = record.entry
        return cls(
            position=record.position, kind=change.kind, stamp_ms=record.stamp_ms, maps=change.maps, body=change.body,
            chain=record.chain,
        )  # fmt: skip

    @property
    def record(self) -> Record[Change]:
        """The record of the log that the entry is made of."""
        return Record(self.position, self.stamp_ms, self.chain, Change(self.kind, self.maps, self.body))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form, read back by `from_dict`."""
        payload: dict[str, Any] = _ENTRY.plain(self)
        return payload

    @classmethod
    def from_dict(cls, payload: object) -> Entry:
        """Parse the dict written by `to_dict`.

        Raises: `Corrupt` when it is not understood.
        """
        try:
            entry = _ENTRY.build(payload)
            sound = len(bytes.fromhex(entry.chain)) == 16
        except ValueError as error:
            raise _unreadable(error) from error
        _checked(entry.record.entry)
        if not sound or entry.position < 1:
            raise Corrupt("an entry of the log is not understood", kind="log_entry", position=entry.position)
        return entry


_ENTRY = JsonForm(Entry)


def _unreadable(reason: Exception) -> Corrupt:
    return Corrupt("an entry of the log cannot be read", kind="log_entry", reason=reason)


ENTRIES: Log[Change] = Log(LOG, Change.encode, Change.decode)


def head_of(tx: ReadTransaction) -> Head:
    """The end of the log."""
    return ENTRIES.head(tx)


def append(tx: Transaction, kind: str, maps: tuple[str, ...], body: dict[str, Any], now_ms: int) -> Entry:
    """Put the next entry. Its effect belongs into the same write: see `apply.record`.

    Raises: `Conflict`, kind `not_primary`, when this folder handed over to another primary.
    """
    check_not_handed_over(tx)
    return Entry.of(ENTRIES.append(tx, Change(kind, maps, body), now_ms))


def accept(tx: Transaction, entry: Entry) -> bool:
    """Put an entry of another's log as the next; False when it is here already.

    Raises: `Conflict`, see `follows`.
    """
    return ENTRIES.accept(tx, entry.record)


def follows(tx: ReadTransaction, entry: Entry) -> bool:
    """True when an entry of another's log is the next of this one; False when it is here already.

    Raises: `Conflict`, kind `log_gap` when entries before it are missing, `log_forked` when it follows another past.
    """
    return ENTRIES.follows(tx, entry.record)


def entry_at(tx: ReadTransaction, position: int) -> Entry | None:
    """The entry at a position; None when there is none, or none any more."""
    record = ENTRIES.at(tx, position)
    return None if record is None else Entry.of(record)


def first_position(tx: ReadTransaction) -> int:
    """The oldest position the log still has; the one to come when it has none."""
    return ENTRIES.first(tx)


def entries_after(tx: ReadTransaction, after: int, limit: int) -> list[Entry]:
    """The entries that follow a position, at most `limit`.

    Raises: `NotFound`, kind `log_trimmed`, when the next one is gone.
    """
    return [Entry.of(record) for record in ENTRIES.read(tx, after, limit)]


def newest_first(tx: ReadTransaction) -> Iterator[Entry]:
    """All entries that the log still has, the last one first."""
    return map(Entry.of, ENTRIES.newest_first(tx))


def trim(tx: Transaction, first: int, limit: int | None = None) -> int:
    """Drop the entries before a position, the oldest ones up to a `limit`, and what their loads remember; how many."""
    last = first_position(tx) - 1
    for record in islice(ENTRIES.records(tx, first), limit):
        last = record.position
        if record.entry.kind == "load":
            tx.delete(LOADS.pack(record.entry.body["load"]))
    return ENTRIES.trim(tx, last + 1)


def trim_whole(space: Space, first: int) -> int:
    """Drop the entries before a position, in as many writes as it takes; how many."""
    count = 0
    while some := space.write(lambda tx: trim(tx, first, TRIMMED_AT_ONCE)):
        count += some
    return count
