"""Crossings that are to be told as events: rows that a change leaves, in the write that enters it.

    load ─▶ one write: log, heads of maps, what is to be told ─▶ events, with the position as their source ─▶ rows go

    ("maps", "alerted", position, number)    some crossings of the change at a position of the log, as JSON

    load into a shard ─▶ its transaction: rows, what is to be told ─▶ one write: its parts wait no more, and as above

    table `alerted` of a shard: number of the load · position · number    the same

    node that replicates: each leaves what it judges; the primary tells, and enters the entry `alerted` of the log
    ("maps", "alert_mark", map)              position · number, 8 bytes each: what is before was told

Invariants:
* a change is entered with all that it is to tell, or not at all; so nothing is lost, whenever a process is killed;
* what is left in a shard stays until its map tells of a later position: who finishes a merge that was cut off finds it;
* rows are told in the order of the log, and go after their events are stored: an event that is told again has the
  position that it had, and streams leave it out;
* nodes merge the same loads in the same order, so they leave the same. One that becomes the primary goes on behind what
  the one before entered as told; where nodes share streams, what that one told and did not enter is left out there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from struct import Struct
from typing import TYPE_CHECKING

from millpond.json_forms import JsonForm
from millpond.kernel.scans import first_rows
from millpond.kernel.steps import step
from millpond.maps.alerts.judging import Crossing, Judged
from millpond.maps.log.apply import alert_mark, record
from millpond.maps.model.catalogue import known_map
from millpond.maps.model.keyspaces import ALERT_MARK, ALERTED
from millpond.maps.shard.tables import ALERTED as SHARD_ALERTED

if TYPE_CHECKING:
    import lmdb

    from millpond.kernel.space import Space, Transaction
    from millpond.maps.log.log import Entry
    from millpond.maps.shard.bucket_tables import BucketStore
    from millpond.maps.shard.shard import ShardView

__all__ = (
    "Alerted", "LoadOfShard", "leave_alerted", "left_alerted", "next_alerted", "put_alerted", "remove_alerted",
    "remove_marked", "take_over",
)  # fmt: skip

CROSSINGS_AT_ONCE = 100
ROWS_AT_ONCE = 10
"""The rows that are told together, by one append: in a bucket it is a request."""


@dataclass(frozen=True, slots=True)
class LoadOfShard:
    """A load that is merged: its number, its time, and the position that it tells of."""

    number: int
    stamp_ms: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerted:
    """Some crossings of a map by a change, and of each rule how many more are not told.

    `first` is the number of the first among all crossings of the change. A part that comes late, from quarantine, tells
    as the last load before it does: positions rise in a stream.
    """

    map: str
    position: int
    stamp_ms: int
    first: int
    crossings: tuple[Crossing, ...]
    omitted: dict[str, int]

    @property
    def end(self) -> int:
        """The first number behind these."""
        return self.first + len(self.crossings) + len(self.omitted)


_FORM = JsonForm(Alerted, format=1)
_KEY = Struct(">QQI")


def put_alerted(tx: Transaction, entry: Entry, outcomes: Iterable[Judged]) -> None:
    """Let what was judged be told, in the write that enters the change.

    Raises: `Conflict`, kind `head_moved`, when rules changed since it was judged.
    """
    first, numbers = 0, count()
    for outcome in outcomes:
        outcome.check(tx)
        for alerted in _pieces(outcome, entry.position, entry.stamp_ms, first):
            tx.put(ALERTED.pack(entry.position, next(numbers)), _FORM.encode(alerted))
            first = alerted.end


def _pieces(outcome: Judged, position: int, stamp_ms: int, first: int) -> Iterator[Alerted]:
    starts = range(0, len(outcome.crossings), CROSSINGS_AT_ONCE)
    for start in starts:
        alerted = Alerted(
            map=outcome.map, position=position, stamp_ms=stamp_ms, first=first,
            crossings=tuple(outcome.crossings[start : start + CROSSINGS_AT_ONCE]),
            omitted=outcome.omitted if start == starts[-1] else {},
        )  # fmt: skip
        yield alerted
        first = alerted.end


# -- of shards ----------------------------------------------------------------------------------------


def leave_alerted(store: BucketStore, tx: lmdb.Transaction, outcome: Judged, at: LoadOfShard) -> None:
    """Let what was judged be told, in the transaction that merges a load; what was told of earlier positions goes.

    Raises: `Corrupt`.
    """
    first, table = 0, store.dbs[SHARD_ALERTED]
    for key, row in list(tx.cursor(db=table)):
        earlier = _read(bytes(row))
        if earlier.position < at.position:
            tx.delete(key, db=table)
        first = max(first, earlier.end if earlier.position == at.position else 0)
    for alerted in _pieces(outcome, at.position, at.stamp_ms, first):
        tx.put(_KEY.pack(at.number, at.position, alerted.first), _FORM.encode(alerted), db=table)


def left_alerted(view: ShardView, loads: Collection[int]) -> list[Alerted]:
    """The rows that the merges of loads left in a shard, by the numbers of these loads.

    Raises: `Corrupt`.
    """
    store = view.store
    if view.tx is None or SHARD_ALERTED not in store.dbs:
        return []
    rows = list(view.tx.cursor(db=store.dbs[SHARD_ALERTED]))
    return [_read(bytes(row)) for key, row in rows if _KEY.unpack(key)[0] in loads]


def take_over(tx: Transaction, rows: Iterable[Alerted]) -> None:
    """Let rows of a shard be told, in the write by which its parts wait no more."""
    for alerted in rows:
        last = next(tx.keys(ALERTED[alerted.position].range(), reverse=True), None)
        number = -1 if last is None else ALERTED.unpack(last)[1]  # other maps have loads there, too
        assert isinstance(number, int), "rows are numbered"
        tx.put(ALERTED.pack(alerted.position, number + 1), _FORM.encode(alerted))


# -- telling ------------------------------------------------------------------------------------------


def next_alerted(space: Space) -> dict[bytes, Alerted]:
    """The first rows that are to be told, by their keys; none when all is.

    Raises: `Corrupt`.
    """
    with space.read() as tx:
        rows = first_rows(tx, ALERTED.range(), ROWS_AT_ONCE)
    return {key: _read(row) for key, row in rows}


def _read(row: bytes) -> Alerted:
    return _FORM.stored(
        row, "an alert that is to be told cannot be read", kind="alert_damaged",
        hint="open the pond with the version that wrote it, or a newer one",
    )  # fmt: skip


def remove_alerted(space: Space, rows: Mapping[bytes, Alerted], entered_ms: int | None = None) -> None:
    """Let rows go whose events are stored. `entered_ms`: the time at which others learn of it, by the log."""

    def remove(tx: Transaction) -> None:
        for key in rows:
            tx.delete(key)
        if entered_ms is not None:
            ends = {alerted.map: [alerted.position, alerted.end] for alerted in rows.values()}
            marks = {name: end for name, end in ends.items() if known_map(tx, name) is not None}
            if marks:
                record(tx, "alerted", sorted(marks), {"marks": marks}, entered_ms)

    space.write(remove)
    step("alerts.told")


def remove_marked(space: Space) -> bool:
    """Let rows go that another node told; True when others are left.

    Raises: `Corrupt`.
    """
    with space.read() as tx:
        rows = {key: _read(row) for key, row in tx.scan(ALERTED.range())}
        marks = {name: tx.get(ALERT_MARK.pack(name)) or b"" for name in {alerted.map for alerted in rows.values()}}
    gone = [key for key, alerted in rows.items() if alert_mark(alerted.position, alerted.first) < marks[alerted.map]]
    if gone:
        space.write(lambda tx: [tx.delete(key) for key in gone])
    return len(gone) < len(rows)
