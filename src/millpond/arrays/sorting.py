"""The order that sorts byte strings, and strings taken in an order: whole columns, compiled.

Strings are compared eight bytes at a time, as big-endian words. All rows are ordered by their first word after what
they have in common, by radix; rows that tie are ordered by their next word among themselves, and so on. A string
that ends within a word sorts before every longer one that agrees with it so far.

Invariants:
* orders are stable: equal strings keep their order;
* no byte is read outside the column.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import copy_bytes, load_i64, load_u8, load_u64, prefetch, swap_u64
from millpond.arrays.radix import radix_order

__all__ = ("order_of_strings", "taken")

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

INSERTION_MAX = 16
AHEAD = 12
"""Rows of look-ahead for prefetching: memory takes that long to answer."""
_LONGER = 9


def order_of_strings(offsets: I64, data: U8) -> I64:
    """The stable order that sorts the strings `offsets` cuts out of `data`, shortest prefix first."""
    count = len(offsets) - 1
    if count < 2:
        return np.arange(count, dtype=np.int64)
    skipped = int(_common_prefix(offsets, data))
    words = _words(offsets, data.ctypes.data, len(data), skipped)
    if bool(np.all(words[:-1] < words[1:])):
        return np.arange(count, dtype=np.int64)
    order = radix_order([words])
    # The next words are read while the column lies in order: ties then miss the cache once a row, not thrice.
    following, rest = _following(offsets, data.ctypes.data, len(data), skipped)
    _order_ties(order, words[order], following, rest, offsets, data.ctypes.data, len(data), skipped)
    return order


def taken(offsets: I64, data: U8, order: I64) -> tuple[I64, U8]:
    """Offsets and bytes of the strings in `order`."""
    assert offsets.dtype == np.int64 and offsets.flags.c_contiguous
    lengths = np.diff(offsets)[order]
    into = np.zeros(len(order) + 1, np.int64)
    np.cumsum(lengths, out=into[1:])
    out = np.empty(int(into[-1]), np.uint8)
    _take(out.ctypes.data, into, data.ctypes.data, offsets.ctypes.data, order)
    return into, out


@kernel
def _take(out, into, data, offsets, order):  # type: ignore[no-untyped-def]
    count = len(order)
    for i in range(count):
        if i + 2 * AHEAD < count:
            prefetch(offsets + 8 * order[i + 2 * AHEAD])
            prefetch(data + load_i64(offsets + 8 * order[i + AHEAD]))
        copy_bytes(out + into[i], data + load_i64(offsets + 8 * order[i]), into[i + 1] - into[i])


@kernel
def _common_prefix(offsets, data):  # type: ignore[no-untyped-def]
    shared = offsets[1] - offsets[0]
    for i in range(1, len(offsets) - 1):
        length = min(shared, offsets[i + 1] - offsets[i])
        k = 0
        while k < length and data[offsets[i] + k] == data[offsets[0] + k]:
            k += 1
        shared = k
        if shared == 0:
            break
    return shared


@kernel(inline=True)
def _word(data, size, start, stop):  # type: ignore[no-untyped-def]
    """The eight bytes from `start`, zeros from `stop` on."""
    length = stop - start
    if length <= 0:
        return np.uint64(0)
    if start + 8 <= size:
        word = swap_u64(load_u64(data + start))
        if length < 8:
            word &= ~np.uint64(0) << np.uint64(64 - 8 * length)
        return word
    word = np.uint64(0)
    for k in range(min(length, 8)):
        word |= np.uint64(load_u8(data + start + k)) << np.uint64(56 - 8 * k)
    return word


@kernel
def _words(offsets, data, size, skipped):  # type: ignore[no-untyped-def]
    count = len(offsets) - 1
    words = np.empty(count, np.uint64)
    for i in range(count):
        words[i] = _word(data, size, offsets[i] + skipped, offsets[i + 1])
    return words


@kernel
def _following(offsets, data, size, skipped):  # type: ignore[no-untyped-def]
    """The second word of every string, and how much was left of it: up to 8 in its first word, 9 to 17 after it."""
    count = len(offsets) - 1
    words, rest = np.empty(count, np.uint64), np.empty(count, np.uint8)
    for i in range(count):
        start, stop = offsets[i] + skipped, offsets[i + 1]
        words[i] = _word(data, size, start + 8, stop)
        rest[i] = min(stop - start, 8 + _LONGER)
    return words, rest


@kernel
def _order_ties(order, words, following, left, offsets, data, size, skipped):  # type: ignore[no-untyped-def]
    """Order the rows whose words agree; `words` stand in the order of `order`, the others in that of the rows."""
    count = len(order)
    rest = np.empty(count, np.uint8)
    spare_words, spare_rest, spare_order = words, rest, order
    spared = False
    stack = np.empty((count // 2 + 1, 3), np.int64)
    begin = 0
    while begin < count:
        end = begin + 1
        while end < count and words[end] == words[begin]:
            end += 1
        height = 0
        if end - begin > 1:
            stack[0, 0], stack[0, 1], stack[0, 2] = begin, end, skipped
            height = 1
        while height:
            height -= 1
            low, high, depth = stack[height, 0], stack[height, 1], stack[height, 2]
            if depth == skipped:
                # The first words agree: what is left of the strings and their second words decide.
                depth = skipped + 8
                for i in range(low, high):
                    words[i], rest[i] = following[order[i]], left[order[i]]
            else:
                for i in range(low, high):
                    row = order[i]
                    start, stop = offsets[row] + depth, offsets[row + 1]
                    words[i] = _word(data, size, start, stop)
                    rest[i] = 8 + min(stop - start, _LONGER)
            if high - low <= INSERTION_MAX:
                _insertion_sort(words, rest, order, low, high)
            else:
                if not spared:
                    spare_words = np.empty(count, np.uint64)
                    spare_rest, spare_order = np.empty(count, np.uint8), np.empty(count, np.int64)
                    spared = True
                _merge_sort(words, rest, order, spare_words, spare_rest, spare_order, low, high)
            first = low
            while first < high:
                last = first + 1
                while last < high and words[last] == words[first] and rest[last] == rest[first]:
                    last += 1
                if last - first > 1 and rest[first] == 8 + _LONGER:
                    stack[height, 0], stack[height, 1], stack[height, 2] = first, last, depth + 8
                    height += 1
                first = last
        begin = end


@kernel
def _insertion_sort(words, rest, order, low, high):  # type: ignore[no-untyped-def]
    for i in range(low + 1, high):
        word, left, row = words[i], rest[i], order[i]
        k = i
        while k > low and (words[k - 1] > word or (words[k - 1] == word and rest[k - 1] > left)):
            words[k], rest[k], order[k] = words[k - 1], rest[k - 1], order[k - 1]
            k -= 1
        words[k], rest[k], order[k] = word, left, row


@kernel
def _merge_sort(words, rest, order, spare_words, spare_rest, spare_order, low, high):  # type: ignore[no-untyped-def]
    for start in range(low, high, INSERTION_MAX):
        _insertion_sort(words, rest, order, start, min(start + INSERTION_MAX, high))
    block = INSERTION_MAX
    while block < high - low:
        for start in range(low, high - block, 2 * block):
            middle, stop = start + block, min(start + 2 * block, high)
            a, b = middle - 1, middle
            if words[a] < words[b] or (words[a] == words[b] and rest[a] <= rest[b]):
                continue
            for k in range(start, middle):
                spare_words[k], spare_rest[k], spare_order[k] = words[k], rest[k], order[k]
            left, right = start, middle
            for k in range(start, stop):
                if left >= middle:
                    break
                if right < stop and (
                    words[right] < spare_words[left]
                    or (words[right] == spare_words[left] and rest[right] < spare_rest[left])
                ):
                    words[k], rest[k], order[k] = words[right], rest[right], order[right]
                    right += 1
                else:
                    words[k], rest[k], order[k] = spare_words[left], spare_rest[left], spare_order[left]
                    left += 1
        block *= 2
