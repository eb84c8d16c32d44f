"""Checking rows of a part against the layouts of their map (`shard/layouts.py`), without decoding them into columns.

Every row has one form only: a row that passes here is the row that Millpond's own writer makes of what it decodes to.

Invariants checked, of rows in the order of their table:
* a key is text in UTF-8 of at most `KEY_BYTES_MAX` bytes, escaped as `address.py` says, in the table where its length
  puts it; in `hashed` and `overflow` its hash is that of the key beside the value;
* rows with one hash and one time are of different keys, in order; in `overflow` they are numbered from 0;
* times are those that every reader can show; no range and no session ends before it starts;
* a value has the type of its map, or one that an undeclared map takes, its length is its type's, text is UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millpond.arrays.byte_columns import Bytes, ordered_long
from millpond.arrays.compiled import kernel
from millpond.arrays.key_hash import fold32
from millpond.arrays.memory import load_u64, same_bytes
from millpond.arrays.xxh3 import hash_spans
from millpond.errors import Corrupt
from millpond.maps.inputs.keys import KEY_BYTES_MAX
from millpond.maps.model.address import unescape
from millpond.maps.model.definition import Kind, MapDefinition, ScalarType
from millpond.maps.model.one_value import CODES, STRUCT, WIDTHS, XML
from millpond.maps.shard.layouts import long_at
from millpond.maps.shard.tables import (
    CLASH_BYTES,
    DIRECT,
    HASHED,
    LMDB_BYTES_MAX,
    OVERFLOW,
    RANGES,
    direct_bytes_max,
    plain_longs,
)
from millpond.times.instants import INSTANT_MAX, INSTANT_MIN

__all__ = ("CheckedRows", "RowCheck")

I64 = npt.NDArray[np.int64]
_TEXTS = (ScalarType.STRING, ScalarType.JSON)
_ANY, _ONE_BYTE, _MOMENT, _TEXT, _NONE = 0, 1, 2, 3, -1
"""The content that a type of values may have: any, 0 or 1, microseconds of a year that can be shown, UTF-8."""


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Facts of checked rows: hashes of their keys, one for a run of equal ones, and the bounds of their longs."""

    key_hashes: npt.NDArray[np.uint64]
    least: list[int]
    greatest: list[int]
    longest: int


@dataclass(frozen=True, slots=True)
class _Spans:
    """Keys as stretches `[start, stop)` of bytes that hold more than keys."""

    data: npt.NDArray[np.uint8]
    starts: I64
    stops: I64


def _ranges_of(keys: Bytes) -> _Spans:
    return _Spans(keys.data, keys.offsets[:-1], keys.offsets[:-1] + 16)


def _ordered_ranges(longs: list[I64]) -> _Spans:
    """Ranges in the form in which `touched` names them, where the table has another."""
    data = np.stack([ordered_long(column) for column in longs[:2]], axis=1).astype(">u8").reshape(-1).view(np.uint8)
    starts = np.arange(len(longs[0])) * 16
    return _Spans(data, starts, starts + 16)


class RowCheck:
    """Checks the rows of one table of a map."""

    def __init__(self, definition: MapDefinition, table: str) -> None:
        self.definition, self.table = definition, table
        self.kind = definition.kind
        self.longs = len(self.kind.address) - self.kind.keyed
        self.plain = plain_longs(definition)
        self.sizes, self.contents = _types(definition)
        fields = () if definition.value is None else definition.value.fields
        self.field_codes = np.array([CODES[scalar] for _, scalar in fields], np.int64)
        self.declared = _NONE if definition.value is None else STRUCT if fields else CODES[definition.value.scalar]  # type: ignore[index]

    def check(self, keys: Bytes, values: Bytes, repeated: int) -> CheckedRows:
        """Check rows; the first, when it is `repeated` from the rows before, counts for what follows it alone.

        Raises: `Corrupt`, kind `part_rows`, naming the fault.
        """
        tail = self._check_lengths(keys)
        longs = [long_at(keys, tail - 8 * index, self.plain) for index in range(self.longs)]
        self._check_longs(longs)
        value_starts = values.offsets[:-1]
        if self.table == DIRECT:
            key = self._check_escaped(keys, tail)
        elif self.table == RANGES:
            key = _ranges_of(keys) if not self.plain else _ordered_ranges(longs)
        else:
            key = self._check_stored(keys, values, repeated)
            value_starts = key.stops
        self._check_values(values, value_starts)
        return CheckedRows(
            self._distinct(key, repeated), [int(column.min()) for column in longs],
            [int(column.max()) for column in longs],
            int((longs[1] - longs[0]).max()) if self.kind is Kind.SESSION else 0,
        )  # fmt: skip

    def _distinct(self, key: _Spans, repeated: int) -> npt.NDArray[np.uint64]:
        """The hashes of keys, one for a run of equal ones."""
        if self.table in (DIRECT, RANGES) and self.kind in (Kind.STATE, Kind.RANGED_STATE):
            fresh = np.arange(repeated, len(key.starts))  # the keys of the table ascend
        else:
            fresh = np.flatnonzero(_fresh(key.data.ctypes.data, key.starts, key.stops, repeated))
        return hash_spans(key.data, key.starts[fresh], key.stops[fresh])

    def _wrong(self, fault: str) -> Corrupt:
        return Corrupt(
            "the part holds rows that its map cannot have", kind="part_rows", map=self.definition.name,
            table=self.table, reason=fault,
        )  # fmt: skip

    def _check_lengths(self, keys: Bytes) -> int:
        """Check the lengths of the tables' keys; the number of bytes behind the key, or its hash."""
        tail = 8 * self.longs + (CLASH_BYTES if self.table == OVERFLOW else 0)
        head = {DIRECT: 1, RANGES: 0, HASHED: self.definition.hash_bytes, OVERFLOW: 8}[self.table]
        lengths = keys.lengths
        if int(lengths.min()) < head + tail or (self.table != DIRECT and int(lengths.max()) > head + tail):
            raise self._wrong("a key has another length than its table's")
        return tail

    def _check_longs(self, longs: list[I64]) -> None:
        ranged = self.table == RANGES
        for column in longs[2:] if ranged else longs:
            if int(column.min()) < INSTANT_MIN or int(column.max()) > INSTANT_MAX:
                raise self._wrong("a time is not in the years 1 to 9999")
        if (ranged or self.kind is Kind.SESSION) and bool(np.any(longs[0] > longs[1])):
            raise self._wrong("a range or session ends before it starts")

    def _check_escaped(self, keys: Bytes, tail: int) -> _Spans:
        fault, escapes = _escaped(
            keys.offsets, keys.data, keys.data.ctypes.data, tail, direct_bytes_max(self.definition)
        )
        if fault:
            raise self._wrong(_KEY_FAULTS[fault])
        if not escapes:
            return _Spans(keys.data, keys.offsets[:-1], keys.offsets[1:] - tail - 1)
        key = unescape(keys, tail)
        return _Spans(key.data, key.offsets[:-1], key.offsets[1:])

    # -- a key beside its value -----------------------------------------------------------------------

    def _check_stored(self, keys: Bytes, values: Bytes, repeated: int) -> _Spans:
        """Check keys of `hashed` and `overflow`, which lie beside their values."""
        starts, stops = values.offsets[:-1], values.offsets[1:]
        if self.kind is not Kind.SESSION:
            if int(values.lengths.min()) < 5:
                raise self._wrong("a row is cut short")
            starts = starts + 4
            stops = starts + _big_endian(values.data, values.offsets)
            if bool(np.any(stops >= values.offsets[1:])):
                raise self._wrong("a row is cut short")
        fault = _texts(values.data, values.data.ctypes.data, starts, stops, KEY_BYTES_MAX)
        if fault:
            raise self._wrong(_KEY_FAULTS[fault])
        key = _Spans(values.data, starts, stops)
        self._check_table(key, values)
        self._check_hashes(keys, key)
        if not _clashes(keys.offsets, keys.data, starts, stops, values.data, self.table == OVERFLOW, repeated):
            raise self._wrong("rows with one hash and time are not of different keys, in order")
        return key

    def _check_table(self, key: _Spans, values: Bytes) -> None:
        if plain_longs(self.definition):
            fits = (values.lengths >= 1) & (values.lengths <= LMDB_BYTES_MAX)
            wrong = ~fits if self.table == HASHED else fits
        else:
            wrong = _escaped_lengths(key.data, key.starts, key.stops) <= direct_bytes_max(self.definition)
        if bool(np.any(wrong)):
            raise self._wrong("a row belongs into another table")

    def _check_hashes(self, keys: Bytes, key: _Spans) -> None:
        hashes = hash_spans(key.data, key.starts, key.stops, bits=self.definition.hash_bits)
        width = self.definition.hash_bytes if self.table == HASHED else 8
        if width == 4:
            hashes = fold32(hashes) << np.uint64(32)
        if not _hashes_agree(keys.offsets, keys.data, hashes, width):
            raise self._wrong("a row's hash is not its key's")

    # -- values ---------------------------------------------------------------------------------------

    def _check_values(self, values: Bytes, starts: I64) -> None:
        if not self.kind.valued:
            if self.table == DIRECT and len(values.data):
                raise self._wrong("a session has a value")
            return
        fault = _values(
            values.data, values.data.ctypes.data, starts, values.offsets[1:], self.declared, self.sizes, self.contents,
            self.field_codes, INSTANT_MIN * 1000, INSTANT_MAX * 1000 + 999,
        )  # fmt: skip
        if fault:
            raise self._wrong(_VALUE_FAULTS[fault])


def _types(definition: MapDefinition) -> tuple[I64, I64]:
    """By code: the size of a value, 0 for any, and its content, -1 where the map has no such values."""
    sizes, contents = np.zeros(256, np.int64), np.full(256, _NONE, np.int64)
    for scalar, code in CODES.items():
        sizes[code] = WIDTHS.get(scalar, 0)
        contents[code] = {ScalarType.BOOLEAN: _ONE_BYTE, ScalarType.TIMESTAMP: _MOMENT}.get(
            scalar, _TEXT if scalar in _TEXTS else _ANY
        )
    if definition.value is None:
        contents[XML] = _TEXT
    return sizes, contents


_KEY_FAULTS = ("", "a key is not escaped", "a key is longer than its table takes", "a key is not UTF-8")
_VALUE_FAULTS = (
    "", "a row has no value", "a value has another type than its map", "a value has another size than its type",
    "a value is none of its type", "text is not UTF-8",
)  # fmt: skip


def _big_endian(data: npt.NDArray[np.uint8], offsets: I64) -> I64:
    """The number in the first four bytes of each row."""
    numbers = np.empty(len(offsets) - 1, np.int64)
    _fours(data, offsets, numbers)
    return numbers


@kernel
def _fours(data, offsets, numbers):  # type: ignore[no-untyped-def]
    for i in range(len(numbers)):
        number = np.int64(0)
        for k in range(4):
            number = number << np.int64(8) | np.int64(data[offsets[i] + k])
        numbers[i] = number


@kernel
def _fresh(memory, starts, stops, repeated):  # type: ignore[no-untyped-def]
    """The rows that begin a run of equal keys; of `repeated` rows at the front, none."""
    fresh = np.ones(len(starts), np.bool_)
    for i in range(len(starts)):
        if i < repeated:
            fresh[i] = False
        elif i:
            length = stops[i] - starts[i]
            same = length == stops[i - 1] - starts[i - 1]
            fresh[i] = not (same and same_bytes(memory + starts[i], memory + starts[i - 1], length))
    return fresh


@kernel
def _is_text(data, memory, start, stop):  # type: ignore[no-untyped-def]
    """True when bytes are UTF-8, by the table of well-formed sequences of the Unicode standard."""
    k = start
    while k < stop:
        if k + 8 <= stop and load_u64(memory + k) & np.uint64(0x8080808080808080) == 0:
            k += 8
            continue
        byte = data[k]
        if byte < 0x80:
            k += 1
            continue
        more = 1 if 0xC2 <= byte <= 0xDF else 2 if 0xE0 <= byte <= 0xEF else 3 if 0xF0 <= byte <= 0xF4 else 0
        if not more or k + more >= stop:
            return False
        least = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        most = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if data[k + 1] < least or data[k + 1] > most:
            return False
        for n in range(2, more + 1):
            if data[k + n] & 0xC0 != 0x80:
                return False
        k += more + 1
    return True


@kernel
def _texts(data, memory, starts, stops, bytes_max):  # type: ignore[no-untyped-def]
    for i in range(len(starts)):
        if stops[i] - starts[i] > bytes_max:
            return 2
        if not _is_text(data, memory, starts[i], stops[i]):
            return 3
    return 0


@kernel
def _escaped(offsets, data, memory, tail, bytes_max):  # type: ignore[no-untyped-def]
    """Check escaped keys that end in 00 and `tail` bytes more: the fault, and the number of bytes 00 and 01 in keys."""
    escapes = 0
    for i in range(len(offsets) - 1):
        start, stop = offsets[i], offsets[i + 1] - tail - 1
        if data[stop]:
            return 1, escapes
        if stop - start > bytes_max:
            return 2, escapes
        plain = True
        k = start
        while k < stop:
            if k + 8 <= stop:
                # Eight bytes from 02 to 7f: the borrow of a smaller one would set the highest bit of its byte.
                word = load_u64(memory + k)
                if (word | (word - np.uint64(0x0202020202020202))) & np.uint64(0x8080808080808080) == 0:
                    k += 8
                    continue
            plain = plain and data[k] < 0x80
            if data[k] < 2:
                escapes += 1
                if not data[k] or k + 1 == stop or data[k + 1] < 1 or data[k + 1] > 2:
                    return 1, escapes
                k += 1
            k += 1
        if not plain and not _is_text(data, memory, start, stop):
            return 3, escapes
    return 0, escapes


@kernel
def _escaped_lengths(data, starts, stops):  # type: ignore[no-untyped-def]
    lengths = stops - starts
    for i in range(len(lengths)):
        for k in range(starts[i], stops[i]):
            lengths[i] += data[k] < 2
    return lengths


@kernel
def _hashes_agree(offsets, data, hashes, width):  # type: ignore[no-untyped-def]
    for i in range(len(hashes)):
        for k in range(width):
            if data[offsets[i] + k] != (hashes[i] >> np.uint64(56 - 8 * k)) & np.uint64(0xFF):
                return False
    return True


@kernel
def _clashes(offsets, data, starts, stops, keys, numbered, repeated):  # type: ignore[no-untyped-def]
    """True when neighbours with one hash and time have different keys; where `numbered`, ascending, and numbers."""
    less = 2 if numbered else 0
    number = -1
    for i in range(len(offsets) - 1):
        length = offsets[i + 1] - offsets[i] - less
        clash = np.int64(data[offsets[i] + length]) << np.int64(8) | data[offsets[i] + length + 1] if numbered else 0
        same = i > 0
        k = 0
        while same and k < length:
            same = data[offsets[i] + k] == data[offsets[i - 1] + k]
            k += 1
        if same:
            order = _order(keys, starts, stops, i)
            if order == 0 or (numbered and order > 0):
                return False
        # The number of a row that is repeated from the rows before was checked there.
        number = clash if i < repeated else number + 1 if same else 0
        if numbered and clash != number:
            return False
    return True


@kernel
def _order(keys, starts, stops, i):  # type: ignore[no-untyped-def]
    """Below 0 when key `i - 1` sorts before key `i`, 0 when they are equal."""
    first, second = starts[i - 1], starts[i]
    length, other = stops[i - 1] - first, stops[i] - second
    for k in range(min(length, other)):
        if keys[first + k] != keys[second + k]:
            return np.int64(keys[first + k]) - np.int64(keys[second + k])
    return length - other


@kernel
def _value(data, memory, code, start, stop, sizes, contents, least, most):  # type: ignore[no-untyped-def]
    """The fault of one scalar value, by its number."""
    content = contents[code]
    if sizes[code] and stop - start != sizes[code]:
        return 3
    if content == 1 and data[start] > 1:
        return 4
    if content == 2:
        number = np.int64(0)
        for k in range(8):
            number = number << np.int64(8) | np.int64(data[start + k])
        if number < least or number > most:
            return 4
    if content == 3 and not _is_text(data, memory, start, stop):
        return 5
    return 0


@kernel
def _values(data, memory, starts, stops, declared, sizes, contents, fields, least, most):  # type: ignore[no-untyped-def]
    """The first fault of values, by its number; `declared`: the type of all, -1 for any that has a content."""
    # Numbers of one type are the most common: any bytes are one, so to look at each further costs, and finds nothing.
    sound = sizes[declared] + 1 if declared >= 0 and not len(fields) and not contents[declared] else 0
    for i in range(len(starts)):
        start, stop = starts[i], stops[i]
        if sound > 1 and stop - start == sound and data[start] == declared:
            continue
        if start >= stop:
            return 1
        code = np.int64(data[start])
        if code == 0:
            if stop - start != 1:
                return 3
            continue
        if (declared >= 0 and code != declared) or (declared < 0 and contents[code] < 0):
            return 2
        if len(fields) == 0:
            fault = _value(data, memory, code, start + 1, stop, sizes, contents, least, most)
        else:
            fault = _fields(data, memory, start + 1, stop, sizes, contents, fields, least, most)
        if fault:
            return fault
    return 0


@kernel
def _fields(data, memory, start, stop, sizes, contents, fields, least, most):  # type: ignore[no-untyped-def]
    """The fault of one struct: a byte for each field, then those that are there, one after another, to the end."""
    at = start + len(fields)
    if at > stop:
        return 3
    for n in range(len(fields)):
        if data[start + n] > 1:
            return 4
        if data[start + n] == 0:
            continue
        length = sizes[fields[n]]
        if length == 0:
            if at + 4 > stop:
                return 3
            for k in range(4):
                length = length << np.int64(8) | np.int64(data[at + k])
            at += 4
        if at + length > stop:
            return 3
        fault = _value(data, memory, fields[n], at, at + length, sizes, contents, least, most)
        if fault:
            return fault
        at += length
    return 0 if at == stop else 3
