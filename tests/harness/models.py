"""A map as a plain dictionary: what every reader of every scheme must answer, by brute force.

`MapModel` is the one place where the rules of meaning are written as code that nobody needs to trust twice.
It holds `address -> value` in a dictionary, looks at every row for every question and has never heard of bytes,
hashes, parts, snapshots or numba. An address is a tuple in the order of `kind.address`; keys are text, numbers and
times are Python integers (UTC milliseconds), so nothing overflows. Sessions have the value None.

The rules, each stated at the method that obeys it:
* `put`      later part wins, within a part the later row; `overwrite=False` keeps the first.
* `load`     a part counts once, in the place where its rows would.
* `answer`   exact key, as-of, narrowest range, innermost session.
* `condense` drop confirmations, join sessions, both only below a watermark.
* `retain`   delete what is strictly older.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from millpond.maps.model.definition import Kind

__all__ = ("Address", "MapModel", "Row", "bits_of", "same_value")

Address = tuple[str | int, ...]
Row = tuple[Address, object]


def same_value(value: object, other: object) -> bool:
    """True when two values are stored alike: of one type and the same bits.

    >>> same_value(1, 1.0), same_value(True, 1), same_value("", None), same_value(float("nan"), float("nan"))
    (False, False, False, True)
    """
    return bits_of(value) == bits_of(other)


def bits_of(value: object) -> object:
    """The value in a form whose `==` compares what is stored, also within rows and lists."""
    if isinstance(value, list | tuple):
        return tuple(bits_of(item) for item in value)
    if isinstance(value, float):
        return float, "nan" if value != value else struct.pack(">d", value)
    if isinstance(value, Mapping):
        return dict, tuple((name, bits_of(value[name])) for name in sorted(value))
    return type(value), value


@dataclass(slots=True)
class MapModel:
    """The rows of one map, and every rule about them.

    `rows` and `updated` share their keys: the value of each address, and when that value was merged. `parts` are those
    that came in loads.
    """

    kind: Kind
    overwrite: bool = True
    rows: dict[Address, object] = field(default_factory=dict)
    updated: dict[Address, int] = field(default_factory=dict)
    parts: set[Hashable] = field(default_factory=set)

    def load(self, parts: Iterable[tuple[Hashable, Iterable[Row]]], *, now: int = 0) -> None:
        """Merge a load: parts in staging order, each with what tells its content from others'.

        A part that came in a load before changes nothing. One that is in this load twice counts in its last place, as a
        row would, or in its first with `overwrite=False`.
        """
        fresh: dict[Hashable, Iterable[Row]] = {}
        for content, part in parts:
            if self.overwrite:
                fresh.pop(content, None)
            fresh.setdefault(content, part)
        for content, part in fresh.items():
            if content not in self.parts:
                self.parts.add(content)
                self.put(part, now=now)

    def put(self, part: Iterable[Row], *, now: int = 0) -> None:
        """Merge one part's rows, in staging order.

        Of two rows with one address the later part wins, and within a part the later row.
        With `overwrite=False` the first that ever came is kept.
        """
        for address, value in part:
            assert len(address) == len(self.kind.address), (self.kind, address)
            if self.overwrite or address not in self.rows:
                self.rows[address] = value
                self.updated[address] = now

    def holds(self, key: str | int, at: int = 0) -> bool:
        """True when a row answers; tells a row that holds null from no row at all."""
        return self.address(key, at) is not None

    def answer(self, key: str | int, at: int = 0) -> object:
        """The value for `key` (a number, for ranged kinds) at `at`; (start, end) for sessions; None for none."""
        address = self.address(key, at)
        if address is None:
            return None
        return address[1:] if self.kind is Kind.SESSION else self.rows[address]

    def address(self, key: str | int, at: int = 0) -> Address | None:
        """The address of the row that answers, or None."""
        find = {
            Kind.STATE: self._exact,
            Kind.TEMPORAL_STATE: self._as_of,
            Kind.RANGED_STATE: self._narrowest,
            Kind.TEMPORAL_RANGED_STATE: self._narrowest_as_of,
            Kind.SESSION: self._innermost,
        }[self.kind]
        return find(key, at)

    def _exact(self, key: str | int, _at: int) -> Address | None:
        """The row of exactly this key: never of a key it is a prefix of, nor of one with the same hash."""
        return (key,) if (key,) in self.rows else None

    def _as_of(self, key: str | int, at: int) -> Address | None:
        """The key's latest row with effective_time <= at; before the key's first row there is no answer."""
        return max((row for row in self.rows if row[0] == key and _int(row[1]) <= at), default=None)

    def _narrowest(self, number: str | int, _at: int) -> Address | None:
        """The narrowest range that holds the number, both ends held; among equals the latest start."""
        return min((row for row in self.rows if _holds(row, number)), key=_width_then_latest_start, default=None)

    def _narrowest_as_of(self, number: str | int, at: int) -> Address | None:
        """Among rows with effective_time <= at: the narrowest range first, then the latest start, then time."""
        rows = (row for row in self.rows if _holds(row, number) and _int(row[2]) <= at)
        return min(rows, key=lambda row: (*_width_then_latest_start(row), -_int(row[2])), default=None)

    def _innermost(self, key: str | int, at: int) -> Address | None:
        """The session that holds the time, both ends held: of several the latest start, then the earliest end."""
        held = (row for row in self.rows if row[0] == key and _int(row[1]) <= at <= _int(row[2]))
        return min(held, key=lambda row: (-_int(row[1]), row[2]), default=None)

    def condense(self, before: int, *, by: str = "effective_time") -> int:
        """Drop what repeats below the watermark `before`; returns how many rows fewer there are.

        A row is settled when its own effective_time (a session's start) < before, by update time when its present
        value was merged before.
        Temporal kinds: a settled row is absorbed when the row before it of the same key (or range) holds an equal
        value, so a run is left with its earliest row.
        Sessions: in order of start, a settled session of the same key is absorbed by the one before it, settled too,
        when its start is not after the end so far; the joined session ends at the greatest end.
        """
        rows = len(self.rows)
        settled = {row for row in self.rows if self._condenses_at(row, by) < before}
        if self.kind.temporal:
            self._drop_confirmations(settled)
        elif self.kind is Kind.SESSION:
            self._join_sessions(settled)
        return rows - len(self.rows)

    def _condenses_at(self, row: Address, by: str) -> int:
        if by == "update_time" or not self.kind.timed:
            return self.updated[row]
        return _int(row[1] if self.kind is Kind.SESSION else row[-1])

    def _drop_confirmations(self, settled: set[Address]) -> None:
        for _, run in groupby(sorted(self.rows), key=lambda row: row[:-1]):
            earlier: Address | None = None
            for row in run:
                if earlier and row in settled and same_value(self.rows[row], self.rows[earlier]):
                    self._delete(row)
                else:
                    earlier = row

    def _join_sessions(self, settled: set[Address]) -> None:
        for key, run in groupby(sorted(self.rows), key=lambda row: row[0]):
            joined: list[tuple[int, int, int]] = []
            earlier: Address | None = None
            for row in run:
                start, end, updated = _int(row[1]), _int(row[2]), self.updated[row]
                if joined and start <= joined[-1][1] and {earlier, row} <= settled:
                    first, last, last_update = joined.pop()
                    joined.append((first, max(last, end), max(last_update, updated)))
                else:
                    joined.append((start, end, updated))
                self._delete(row)
                earlier = row
            self.rows |= {(key, start, end): None for start, end, _ in joined}
            self.updated |= {(key, start, end): updated for start, end, updated in joined}

    def retain(self, before: int, *, by: str = "effective_time") -> int:
        """Delete rows strictly before `before`; returns how many.

        By effective time, or a session's end; a kind without a time then keeps everything.
        By update time: when the row's present value was merged.
        """
        old = [row for row in self.rows if (age := self._age(row, by)) is not None and age < before]
        for row in old:
            self._delete(row)
        return len(old)

    def _age(self, row: Address, by: str) -> int | None:
        if by == "update_time":
            return self.updated[row]
        return _int(row[-1]) if self.kind.timed else None

    def _delete(self, row: Address) -> None:
        del self.rows[row], self.updated[row]

    def scan(self) -> list[Row]:
        """Every row, in order of address."""
        return sorted(self.rows.items(), key=lambda row: row[0])


def _int(part: str | int) -> int:
    assert isinstance(part, int)
    return part


def _holds(row: Address, number: str | int) -> bool:
    return _int(row[0]) <= _int(number) <= _int(row[1])


def _width_then_latest_start(row: Address) -> tuple[int, int]:
    return _int(row[1]) - _int(row[0]), -_int(row[0])
