"""Directories and filters of layers, which lead from a hash to its groups: worked out when a snapshot is first asked.

Groups ascend by hash, so a *directory* over the upper bits of the hash says where those of a slot begin: a few on
average, one read away. The *filter* of each layer that lies over others says of most keys that the layer lacks them, by
one cache line.
"""

from __future__ import annotations

import numpy as np

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_u64, prefetch
from millpond.maps.search.group_table import COUNT, HASH, PIECE, cell

__all__ = (
    "FILTER_WORDS", "directory_bits", "fill_directory", "fill_filter", "fill_slots", "filter_blocks", "may_have",
    "probes_of",
)  # fmt: skip

SLOT_GROUPS = 4
"""Groups in a slot of a directory, on average: the directory costs eight bytes a slot."""

FILTER_KEYS = 25
"""Keys in a block of a filter, on average: ten bits a key, and about one of eighty keys is asked for in vain."""
FILTER_WORDS = 4
"""A block is four words, half a cache line; a key has one bit in each."""


def directory_bits(groups: int) -> int:
    """The number of upper bits of the hash that choose the slot in the directory of a layer."""
    return max((groups // SLOT_GROUPS).bit_length(), 1)


def filter_blocks(groups: int) -> int:
    """The number of blocks of the filter of a layer."""
    return max(1, -(-groups // FILTER_KEYS))


@kernel
def fill_directory(table, begin, end, bits, directory):  # type: ignore[no-untyped-def]
    """The position of the first group of each slot of the layer `[begin, end)`; the last entry is its end."""
    shift = np.uint64(64 - bits)
    slot = 0
    for piece in range(begin, end):
        at = cell(table, piece, HASH)
        for number in range(cell(table, piece, COUNT)):
            reached = np.int64(load_u64(at + 8 * number) >> shift)
            while slot <= reached:
                directory[slot] = (piece << PIECE) | number
                slot += 1
    while slot < len(directory):
        directory[slot] = end << PIECE
        slot += 1


@kernel
def fill_slots(hashes, bits, slots):  # type: ignore[no-untyped-def]
    """The first of the ascending hashes in each slot; the last entry is their number."""
    shift, slot = np.uint64(64 - bits), 0
    for number in range(len(hashes)):
        reached = np.int64(hashes[number] >> shift)
        while slot <= reached:
            slots[slot] = number
            slot += 1
    slots[slot:] = len(hashes)


@kernel
def _filter_word(hash_, blocks):  # type: ignore[no-untyped-def]
    """The first word of the block of a hash: by its upper half, so keys in order of their hashes ask side by side."""
    return np.int64(((hash_ >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)) * FILTER_WORDS


@kernel
def fill_filter(table, begin, end, words):  # type: ignore[no-untyped-def]
    """Set the bits of all groups of the layer `[begin, end)`."""
    blocks = len(words) // FILTER_WORDS
    for piece in range(begin, end):
        at = cell(table, piece, HASH)
        for number in range(cell(table, piece, COUNT)):
            hash_ = load_u64(at + 8 * number)
            word = _filter_word(hash_, blocks)
            for i in range(FILTER_WORDS):
                words[word + i] |= np.uint64(1) << ((hash_ >> np.uint64(6 * i)) & np.uint64(63))


@kernel
def probes_of(hashes, pending, count, filters, begin, blocks, which, probes):  # type: ignore[no-untyped-def]
    """Fill in which of the pending keys a layer may have, and those keys; how many. Without blocks it may have all."""
    if blocks == 0:
        for k in range(count):
            which[k], probes[k] = k, pending[k]
        return count
    address = filters.ctypes.data + 8 * begin
    for k in range(count):
        prefetch(address + 8 * _filter_word(hashes[pending[k]], blocks))
    left = np.int64(0)
    for k in range(count):
        hash_ = hashes[pending[k]]
        word = begin + _filter_word(hash_, blocks)
        bits = np.uint64(1)
        for i in range(FILTER_WORDS):
            bits &= filters[word + i] >> ((hash_ >> np.uint64(6 * i)) & np.uint64(63))
        which[left], probes[left] = k, pending[k]
        left += np.int64(bits)  # without a branch, which would be guessed wrongly
    return left


@kernel
def may_have(hash_, filter_, blocks):  # type: ignore[no-untyped-def]
    """False for a key that the layer with the filter at this address lacks; without blocks it may have all."""
    if blocks == 0:
        return True
    word, bits = filter_ + 8 * _filter_word(hash_, blocks), np.uint64(1)
    for i in range(FILTER_WORDS):
        bits &= load_u64(word + 8 * i) >> ((hash_ >> np.uint64(6 * i)) & np.uint64(63))
    return bits != 0
