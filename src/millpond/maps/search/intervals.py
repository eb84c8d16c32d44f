"""The innermost range of every number: derived once from a snapshot's ranges, so that a lookup is one search.

The line of numbers is cut into *sections*, each with an index of its own: what is below is within one.

The ends of all ranges cut the line of numbers into *intervals*; within one, the same ranges hold every number. For
each interval the ranges that can ever answer are listed, best first: narrowest, then latest start. A range is worth
listing only when it begins to be known earlier than every better one, so along a list `since` falls, and the answer
for an instant is the first entry whose `since` is not after it: a binary search. A map without times needs only the
head of each list.

Lists are worked out on a segment tree over the intervals: each range hangs on O(log n) nodes, and the ranges of an
interval are those on its path to the root. When the paths together are short, as in all data without deep overlap,
each interval gets its list written out; else the tree itself is kept and a lookup walks one path, so that the size
never exceeds O(n log n).

A number finds its interval as a key finds its group: a directory over the upper bits of the distance from the first
break says where to look.

Invariants:
* `breaks` ascends strictly; interval `i` holds the numbers from `breaks[i]` up to before `breaks[i + 1]`.
* Within a node's list ranks rise and `since` falls, both strictly.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i64, prefetch
from millpond.arrays.radix import I64, U64, ordered_u64, radix_order
from millpond.maps.search.directories import directory_bits, fill_slots
from millpond.maps.search.kernels import AHEAD, BLOCK, last_not_after

__all__ = (
    "ALWAYS", "INTERVALS_SCHEMA", "LAST_NUMBER", "LINE", "Intervals", "best_first", "choose_sections", "find_ranges",
    "find_ranges_as_of", "locate", "spread",
)  # fmt: skip

WRITTEN_OUT_MAX = 8
"""Entries per range, on average, up to which lists are written out interval by interval; beyond, the tree is kept."""

LAST_NUMBER = np.iinfo(np.int64).max
ALWAYS = np.iinfo(np.int64).min
"""The instant since when a range is known of a map without times."""

INTERVALS_SCHEMA = pa.schema(
    [(name, pa.large_list(pa.int64())) for name in ("breaks", "slots", "lists", "rank", "since", "place", "leaves")]
)


@dataclass(frozen=True, slots=True)
class Intervals:
    """The index of one section.

    * `breaks`: where intervals begin. `slots`: the directory, the first break of each slot, at the end their number.
    * `lists`: offsets of each list over the entries; list `leaves + i` (written out: `i`) is interval i's.
    * `rank`, `since`, `place`: the entries; `place` is the position of the range's group.
    * `leaves`: 0 when lists are written out, else the number of leaves of the tree.
    """

    breaks: I64
    slots: I64
    lists: I64
    rank: I64
    since: I64
    place: I64
    leaves: int

    @classmethod
    def build(cls, section: tuple[int, int], starts: I64, ends: I64, since: I64, place: I64) -> Intervals:
        """The index for the numbers of a section, its first and its last, over different ranges that hold one of them.

        Each is known `since` an instant.
        """
        order = best_first(starts, ends)
        first, last = np.maximum(starts, section[0]), np.where(ends >= section[1], LAST_NUMBER, ends)
        breaks = _breaks(first, last)
        lower = np.searchsorted(breaks, first[order])
        upper = np.where(last[order] == LAST_NUMBER, len(breaks), np.searchsorted(breaks, last[order] + 1))
        leaves = 1 << max(len(breaks) - 1, 0).bit_length()
        lists, rank = _hang(lower, upper.astype(np.int64), since[order], leaves)
        leaf_lists = _written_out(lists, rank, since[order], leaves, len(breaks), WRITTEN_OUT_MAX * len(starts) + 1_024)
        if leaf_lists is not None:
            lists, rank = leaf_lists
            leaves = 0
        entries = order[rank]
        return cls(breaks, _directory(breaks), lists, rank, since[entries], place[entries], leaves)

    def line(self, pieces: I64) -> list[int]:
        """The line of the table of sections that kernels read; `pieces` are those that places count."""
        first, last = (int(self.breaks[0]), int(self.breaks[-1])) if len(self.breaks) else (0, 0)
        bits = len(self.slots).bit_length() - 1
        columns = (self.breaks, self.slots, self.lists, self.rank, self.since, self.place, pieces)
        return [*(int(column.ctypes.data) for column in columns),
                64 - bits, first, last, 64 - max(_span_bits(self.breaks), 1), self.leaves]  # fmt: skip

    def to_batch(self) -> pa.RecordBatch:
        """One row of lists, to be kept as a file beside the snapshot."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays["leaves"] = np.array([self.leaves], np.int64)
        columns = [
            pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), pa.array(values))
            for values in arrays.values()
        ]
        return pa.RecordBatch.from_arrays(columns, schema=INTERVALS_SCHEMA)

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch) -> Intervals | None:
        """The inverse of `to_batch`, without a copy; None when it points outside of itself, as only a damaged file
        does.
        """
        columns = {field.name: batch.column(field.name).values.to_numpy() for field in fields(cls)}
        if len(columns["leaves"]) != 1:
            return None
        index = cls(**(columns | {"leaves": int(columns["leaves"][0])}))
        return index if index._sound() else None

    def _sound(self) -> bool:
        # A kernel that follows what is written here must not leave it.
        if not 0 <= self.leaves <= 1 << 40 or self.leaves & (self.leaves - 1):
            return False
        entries = {len(self.rank), len(self.since), len(self.place)}
        whole = len(self.lists) == (2 * self.leaves + 1 if self.leaves else len(self.breaks) + 1)
        slots = len(self.slots) > 1 and (len(self.slots) - 1).bit_count() == 1
        return (
            whole and slots and len(entries) == 1 and len(self.breaks) <= (self.leaves or len(self.breaks))
            and _ascending(self.lists, len(self.rank)) and _ascending(self.slots, len(self.breaks))
        )  # fmt: skip


def _ascending(numbers: I64, last: int) -> bool:
    """True when numbers ascend from 0 or above to `last`."""
    return int(numbers[0]) >= 0 and int(numbers[-1]) == last and bool(np.all(numbers[1:] >= numbers[:-1]))


def _breaks(starts: I64, ends: I64) -> I64:
    after = ends[ends != LAST_NUMBER] + 1
    # Timsort: starts ascend mostly, and so do ends. np.unique hashes first, which costs ten times as much.
    breaks = np.sort(np.concatenate([starts, after]), kind="stable")
    return breaks[np.append(True, breaks[1:] != breaks[:-1])[: len(breaks)]]


def best_first(starts: I64, ends: I64) -> I64:
    """The order of ranges: narrowest first, among equals the latest start."""
    widths: U64 = ends.view(np.uint64) - starts.view(np.uint64)
    return radix_order([widths, ~ordered_u64(starts)])


@kernel
def _hang(lower, upper, since, leaves):  # type: ignore[no-untyped-def]
    """Hang each range, best first, on the nodes that make up its intervals; per node only those worth listing."""
    lists = np.zeros(2 * leaves + 1, np.int64)
    least = np.full(2 * leaves, LAST_NUMBER)
    for counting in (True, False):
        if not counting:
            for node in range(2 * leaves):
                lists[node + 1] += lists[node]
            entries = np.empty(lists[2 * leaves], np.int64)
            filled = lists[:-1].copy()
        least[:] = LAST_NUMBER
        hung = np.zeros(2 * leaves, np.bool_)
        for rank in range(len(lower)):
            left, right = lower[rank] + leaves, upper[rank] + leaves
            while left < right:
                for side in range(2):
                    node = -1
                    if side == 0 and left & 1:
                        node = left
                        left += 1
                    elif side == 1 and right & 1:
                        right -= 1
                        node = right
                    if node < 0 or (hung[node] and since[rank] >= least[node]):
                        continue
                    hung[node] = True
                    least[node] = since[rank]
                    if counting:
                        lists[node + 1] += 1
                    else:
                        entries[filled[node]] = rank
                        filled[node] += 1
                left >>= 1
                right >>= 1
    return lists, entries


@kernel
def _written_out(lists, rank, since, leaves, intervals, most):  # type: ignore[no-untyped-def]
    """The lists interval by interval; None when the paths hold more than `most` entries."""
    path = np.zeros(2 * leaves, np.int64)
    total = 0
    deepest = 0
    for node in range(1, leaves + intervals):
        path[node] = path[node >> 1] + lists[node + 1] - lists[node]
        if node >= leaves:
            total += path[node]
            deepest = max(deepest, path[node])
    if total > most:
        return None
    out_lists = np.zeros(intervals + 1, np.int64)
    out = np.empty(total, np.int64)
    gathered = np.empty(deepest, np.int64)
    used = 0
    for interval in range(intervals):
        count = 0
        node = leaves + interval
        while node >= 1:
            for entry in range(lists[node], lists[node + 1]):
                gathered[count] = rank[entry]
                count += 1
            node >>= 1
        gathered[:count].sort()
        for k in range(count):
            if used == out_lists[interval] or since[gathered[k]] < since[out[used - 1]]:
                out[used] = gathered[k]
                used += 1
        out_lists[interval + 1] = used
    return out_lists, out[:used].copy()


def _span_bits(breaks: I64) -> int:
    """The number of bits that hold the distance of any break from the first."""
    return (int(breaks[-1]) - int(breaks[0])).bit_length() if len(breaks) else 0


def _directory(breaks: I64) -> I64:
    bits = min(directory_bits(len(breaks)), max(_span_bits(breaks), 1))
    slots = np.zeros((1 << bits) + 1, np.int64)
    if len(breaks):
        fill_slots(spread(int(breaks[0]), int(breaks[-1]), breaks), bits, slots)
    return slots


def spread(first: int, last: int, numbers: I64) -> U64:
    """The distance of each number from the first break, in the upper bits; numbers outside count as the first or
    last.
    """
    out = np.empty(len(numbers), np.uint64)
    _spread(first, last, max((last - first).bit_length(), 1), numbers.ctypes.data, out)
    return out


@kernel
def _spread(first, last, bits, numbers, out):  # type: ignore[no-untyped-def]
    shift = np.uint64(64 - bits)
    for i in range(len(out)):
        number = min(max(load_i64(numbers + 8 * i), first), last)
        out[i] = (np.uint64(number) - np.uint64(first)) << shift


# -- what a batch of numbers is looked up with ----------------------------------------------------------

_BREAKS, _SLOTS, _LISTS, _RANK, _SINCE, _PLACE, _PIECES, _SHIFT, _FIRST, _LAST, _SPAN_SHIFT, _LEAVES = range(12)
LINE = 12
"""The numbers of a line of the table of sections, see `Intervals.line`."""


@kernel
def choose_sections(lower, count, order, numbers, ordered, chosen, needed):  # type: ignore[no-untyped-def]
    """The numbers in the order given, the section of each, and which sections are needed.

    `lower, numbers` are addresses; the first section begins with the first number there is.
    """
    section, low, high = 0, ALWAYS, load_i64(lower + 8) - 1 if count > 1 else LAST_NUMBER
    for i in range(len(chosen)):
        if i + AHEAD < len(chosen):
            prefetch(numbers + 8 * order[i + AHEAD])
        number = load_i64(numbers + 8 * order[i])
        if number < low or number > high:
            section = last_not_after(lower, 0, count, number)
            low = load_i64(lower + 8 * section)
            high = load_i64(lower + 8 * section + 8) - 1 if section + 1 < count else LAST_NUMBER
        needed[section] = True
        ordered[i] = number
        chosen[i] = section


@kernel
def _slot(table, section, number):  # type: ignore[no-untyped-def]
    first = table[section, _FIRST]
    distance = np.uint64(min(max(number, first), table[section, _LAST])) - np.uint64(first)
    slot = (distance << np.uint64(table[section, _SPAN_SHIFT])) >> np.uint64(table[section, _SHIFT])
    return table[section, _SLOTS] + 8 * np.int64(slot)


@kernel
def locate(table, chosen, ordered, rows):  # type: ignore[no-untyped-def]
    """The interval that holds each number within its section; -1 when it lies before the first."""
    slots = np.empty(BLOCK, np.int64)
    for block in range(0, len(rows), BLOCK):
        stop = min(block + BLOCK, len(rows))
        for i in range(block, stop):
            slots[i - block] = _slot(table, chosen[i], ordered[i])
            prefetch(slots[i - block])
        for i in range(block, stop):
            prefetch(table[chosen[i], _BREAKS] + 8 * load_i64(slots[i - block]))
        for i in range(block, stop):
            slot, breaks = slots[i - block], table[chosen[i], _BREAKS]
            rows[i] = last_not_after(breaks, load_i64(slot), load_i64(slot + 8), ordered[i])


@kernel
def _group(table, section, entry):  # type: ignore[no-untyped-def]
    """The position of the group of an entry: what pieces are called is a matter of the snapshot."""
    place = load_i64(table[section, _PLACE] + 8 * entry)
    return (load_i64(table[section, _PIECES] + 8 * (place >> 32)) << 32) | (place & 0xFFFFFFFF)


@kernel
def find_ranges(table, chosen, rows):  # type: ignore[no-untyped-def]
    """From intervals to the group of the narrowest range that holds the number, in place; -1 where there is none."""
    for i in range(len(rows)):
        ahead = i + AHEAD
        if ahead < len(rows) and rows[ahead] >= 0:
            prefetch(table[chosen[ahead], _LISTS] + 8 * (table[chosen[ahead], _LEAVES] + rows[ahead]))
        if rows[i] < 0:
            continue
        section = chosen[i]
        lists, rank, leaves = table[section, _LISTS], table[section, _RANK], table[section, _LEAVES]
        node = leaves + rows[i]
        entry, best = -1, LAST_NUMBER
        while True:
            first = load_i64(lists + 8 * node)
            if first < load_i64(lists + 8 * node + 8) and load_i64(rank + 8 * first) < best:
                best = load_i64(rank + 8 * first)
                entry = first
            node >>= 1
            if leaves == 0 or node == 0:
                break
        rows[i] = _group(table, section, entry) if entry >= 0 else -1


@kernel
def find_ranges_as_of(table, chosen, order, instants, step, rows):  # type: ignore[no-untyped-def]
    """From intervals to the group of the narrowest range that is known at the number's instant, in place; -1: none.

    `instants` is an address; they are `step` bytes apart (0: one for all).
    """
    for i in range(len(rows)):
        ahead = i + AHEAD
        if ahead < len(rows) and rows[ahead] >= 0:
            prefetch(table[chosen[ahead], _LISTS] + 8 * (table[chosen[ahead], _LEAVES] + rows[ahead]))
            prefetch(instants + step * order[ahead])
        if rows[i] < 0:
            continue
        section = chosen[i]
        lists, rank, leaves = table[section, _LISTS], table[section, _RANK], table[section, _LEAVES]
        instant = load_i64(instants + step * order[i])
        node = leaves + rows[i]
        entry, best = -1, LAST_NUMBER
        while True:
            low, high = load_i64(lists + 8 * node), load_i64(lists + 8 * node + 8)
            stop = high
            while low < high:
                middle = (low + high) >> 1
                if load_i64(table[section, _SINCE] + 8 * middle) <= instant:
                    high = middle
                else:
                    low = middle + 1
            if low < stop and load_i64(rank + 8 * low) < best:
                best = load_i64(rank + 8 * low)
                entry = low
            node >>= 1
            if leaves == 0 or node == 0:
                break
        rows[i] = _group(table, section, entry) if entry >= 0 else -1
