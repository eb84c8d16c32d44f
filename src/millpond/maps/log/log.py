"""The log of a pond: every change of its content, one entry after another.

    ("maps", "log", position)    an entry, as JSON; positions are dense: 1, 2, 3 …
    ("maps", "log", "head")      the head: last position, its chain, its time, as JSON
    ("maps", "load", load id)    what a load entered, for repeated requests, as JSON
    ("maps", "stream", query)    the last epoch of a stream that was entered, and what it entered, as JSON; it goes with
                                 the last of the maps that the stream brought rows to

| kind | what it is about | body |
|---|---|---|
| `create`, `alter` | one map | `definition` |
| `drop` | one map | `incarnation` |
| `load` | the maps it brings rows to | `load, source, rejected, stream, number, rows, duplicates, parts` |
| `condense`, `retain` | one map | `incarnation, before` (UTC milliseconds) |

Invariants:
* an entry is appended in the same write of the space as its effect on catalogue and queue (`entering.py`);
* positions are dense, times never fall, and each entry's `chain` is the hash of the chain before it and of itself, so
  two logs that differ anywhere differ in every chain from there on;
* **the rows of a map at a position, and when each was put, are a function of the log up to there alone**: not of when
  or how entries were merged, nor of what clock a node has;
* of the oldest entries some may be gone (`trim`): a log that begins after a position says so, and never skips one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import xxhash

from millpond.errors import Conflict, Corrupt, NotFound
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.maps.model.keyspaces import LOADS, LOG

__all__ = (
    "ENTRIES", "HEAD", "KINDS", "Entry", "Head", "accept", "append", "begin_trimmed", "chain_after", "entries_after",
    "entry_at", "first_position", "follows", "head_of", "trim",
)  # fmt: skip

HEAD = LOG.pack("head")
ENTRIES = LOG.range((0,), ("",))
"""The keys of all positions: whole numbers come before every text."""
KINDS = ("create", "alter", "drop", "load", "condense", "retain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change. `stamp_ms` is the clock of who appended it: when rows of this entry count as put, on every node."""

    position: int
    kind: str
    stamp_ms: int
    maps: tuple[str, ...]
    body: dict[str, Any]
    chain: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able form, read back by `from_dict`."""
        return {
            "position": self.position, "kind": self.kind, "stamp_ms": self.stamp_ms, "maps": list(self.maps),
            "body": self.body, "chain": self.chain,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, payload: dict[str, Any]) -> Entry:
        """Parse the dict written by `to_dict`.

        Raises: `Corrupt` when it is not understood.
        """
        try:
            entry = cls(**{**payload, "maps": tuple(payload["maps"])})
        except (TypeError, KeyError) as error:
            raise Corrupt("an entry of the log cannot be read", kind="log_entry", reason=error) from error
        if entry.kind not in KINDS or entry.position < 1 or not isinstance(entry.body, dict):
            raise Corrupt("an entry of the log is not understood", kind="log_entry", entry=entry.kind)
        return entry


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a log: its last position, that entry's chain and time."""

    position: int = 0
    chain: str = ""
    stamp_ms: int = 0


def chain_after(before: str, entry: Entry) -> str:
    """The chain of an entry that follows one with the chain `before`."""
    text = json.dumps({**entry.to_dict(), "chain": before}, sort_keys=True)
    return xxhash.xxh3_128_hexdigest(text.encode())


def head_of(tx: ReadTransaction) -> Head:
    """The end of the log."""
    row = tx.get(HEAD)
    return Head() if row is None else Head(**json.loads(row))


def _put_head(tx: Transaction, head: Head) -> None:
    tx.put(HEAD, json.dumps(asdict(head)).encode())


def append(tx: Transaction, kind: str, maps: tuple[str, ...], body: dict[str, Any], now_ms: int) -> Entry:
    """Put the next entry. Its effect belongs into the same write: see `entering.record`."""
    last = head_of(tx)
    entry = Entry(
        position=last.position + 1, kind=kind, stamp_ms=max(now_ms, last.stamp_ms), maps=maps, body=body, chain=""
    )
    chained = replace(entry, chain=chain_after(last.chain, entry))
    _put(tx, chained)
    return chained


def _put(tx: Transaction, entry: Entry) -> None:
    tx.put(LOG.pack(entry.position), json.dumps(entry.to_dict()).encode())
    _put_head(tx, Head(entry.position, entry.chain, entry.stamp_ms))


def accept(tx: Transaction, entry: Entry) -> bool:
    """Put an entry of another's log as the next; False when it is here already.

    Raises: `Conflict`, see `follows`.
    """
    if not follows(tx, entry):
        return False
    _put(tx, entry)
    return True


def follows(tx: ReadTransaction, entry: Entry) -> bool:
    """True when an entry of another's log is the next of this one; False when it is here already.

    Raises: `Conflict`, kind `log_gap` when entries before it are missing, `log_forked` when it follows another past.
    """
    last = head_of(tx)
    if entry.position <= last.position:
        known = entry_at(tx, entry.position)
        if known is not None and known.chain != entry.chain:
            raise _forked(entry, known.chain)
        return False
    if entry.position > last.position + 1:
        raise Conflict(
            "entries before this one are missing", kind="log_gap", position=entry.position, last=last.position,
            hint="enter the entries in between first",
        )  # fmt: skip
    if entry.chain != chain_after(last.chain, entry):
        raise _forked(entry, last.chain)
    return True


def _forked(entry: Entry, chain: str) -> Conflict:
    return Conflict(
        "the logs have different pasts", kind="log_forked", position=entry.position, found=entry.chain, ours=chain,
        hint="decide which node is right, and make the other a copy of it: millpond repair --from URL",
    )  # fmt: skip


def entry_at(tx: ReadTransaction, position: int) -> Entry | None:
    """The entry at a position; None when there is none, or none any more."""
    row = tx.get(LOG.pack(position))
    return None if row is None else Entry.from_dict(json.loads(row))


def first_position(tx: ReadTransaction) -> int:
    """The oldest position the log still has; the one to come when it has none."""
    for key in tx.keys(ENTRIES):
        (position,) = LOG.unpack(key)
        assert isinstance(position, int)
        return position
    return head_of(tx).position + 1


def entries_after(tx: ReadTransaction, after: int, limit: int) -> list[Entry]:
    """The entries that follow a position, at most `limit`.

    Raises: `NotFound`, kind `log_trimmed`, when the next one is gone.
    """
    first = first_position(tx)
    if after + 1 < first:
        raise NotFound(
            "the log no longer reaches back so far", kind="log_trimmed", after=after, first=first,
            hint="begin with a copy of the maps as they are now",
        )  # fmt: skip
    found: list[Entry] = []
    for _, value in tx.scan(LOG.range((after + 1,), ("",))):
        if len(found) >= limit:
            break
        found.append(Entry.from_dict(json.loads(value)))
    return found


def begin_trimmed(tx: Transaction, pond: str, now_ms: int) -> None:
    """Give a pond that has content but no log a head: whoever follows it must begin with a copy."""
    _put_head(tx, Head(1, xxhash.xxh3_128_hexdigest(pond.encode()), now_ms))


def trim(tx: Transaction, first: int) -> int:
    """Drop the entries before a position, and what their loads remember; how many."""
    old = LOG.range((0,), (first,))
    for _, value in tx.scan(old):
        entry = Entry.from_dict(json.loads(value))
        if entry.kind == "load":
            tx.delete(LOADS.pack(entry.body["load"]))
    return tx.delete_range(old)
