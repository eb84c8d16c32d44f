"""`xxh3_64` of every key of an Arrow column, straight from its buffers.

The hash is XXH3 with 64 bits and seed 0, the one that the `xxhash` package computes; a property test holds
the two together. Keys of up to 240 bytes are hashed by a compiled kernel, in about five nanoseconds; longer
ones go to the package one by one.

`bits` below 64 keeps that many low bits: a weak hash on purpose, so that tests meet keys that clash.
A 4-byte hash is the 8-byte one folded: `fold32`. One key is hashed in `key_hash.py`, which needs no array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_i32, load_i64, load_u8, load_u32, load_u64, multiply_fold, swap_u64
from millpond.errors import Invalid

__all__ = ("KERNEL_BYTES_MAX", "ByteColumn", "byte_column", "hash_at", "hash_keys", "hash_spans")

KERNEL_BYTES_MAX = 240  # XXH3 changes its algorithm here; longer keys are rare and left to the package

_SECRET_BYTES = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
# The secret is read at any byte offset: entry k is the word that starts at byte k.
_SECRET = np.array([int.from_bytes(_SECRET_BYTES[k : k + 8], "little") for k in range(185)], np.uint64)


def _secret_pair(first: int, second: int) -> np.uint64:
    return np.uint64(_SECRET[first] ^ _SECRET[second])


_FLIP_EMPTY = _secret_pair(56, 64)
_FLIP_1_TO_3 = np.uint64((int(_SECRET[0]) ^ int(_SECRET[4])) & 0xFFFFFFFF)
_FLIP_4_TO_8 = _secret_pair(8, 16)
_FLIP_9_LOW, _FLIP_9_HIGH = _secret_pair(24, 32), _secret_pair(40, 48)
_PRIME_1, _PRIME_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_MIX_1, _MIX_2 = np.uint64(0x165667919E3779F9), np.uint64(0x9FB21C651E98DF25)


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """One Arrow array of byte strings, by the addresses of its buffers; `owner` keeps them alive."""

    owner: pa.Array
    count: int
    wide: bool
    offsets: int
    data: int


def byte_column(array: pa.Array) -> ByteColumn:
    """The buffers of a binary or string array (large or not), sliced or not."""
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        return ByteColumn(array, 0, wide, 0, 0)
    at = offsets.address + array.offset * (8 if wide else 4)
    return ByteColumn(array, len(array), wide, at, 0 if data is None else data.address)


def _key_array(array: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Keys as byte strings: text and bytes as they are, integers as their decimal text, views made plain.

    Raises: `Invalid` when the type is none of these.
    """
    kind = array.type
    if _is_bytes(kind) or (pa.types.is_dictionary(kind) and _is_bytes(kind.value_type)):
        return array
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _key_array(array.cast(kind.value_type))
    if pa.types.is_integer(kind) or kind == pa.string_view() or pa.types.is_null(kind):
        return array.cast(pa.string())
    if kind == pa.binary_view() or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.binary())
    raise Invalid(
        "keys are neither text, bytes nor whole numbers", kind="key_type", type=kind, hint="cast the column to string"
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def hash_keys(array: pa.Array | pa.ChunkedArray, *, bits: int = 64) -> npt.NDArray[np.uint64]:
    """The hash of each key, as `uint64`; where the key is null the number says nothing.

    A dictionary-encoded column is hashed once per entry of its dictionary.

    Raises: `Invalid` when the type is neither text, bytes nor integer.
    """
    keys = _key_array(array)
    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    if len(chunks) == 1:
        return _hash_array(chunks[0], bits)
    if not chunks:
        return np.zeros(0, np.uint64)
    return np.concatenate([_hash_array(chunk, bits) for chunk in chunks])


def _hash_array(array: pa.Array, bits: int) -> npt.NDArray[np.uint64]:
    if pa.types.is_dictionary(array.type):
        hashes = _hash_array(array.dictionary, bits)
        if len(hashes) == 0:
            return np.zeros(len(array), np.uint64)
        codes = array.indices.fill_null(0) if array.null_count else array.indices
        return hashes.take(codes.to_numpy(zero_copy_only=False))
    column = byte_column(array)
    out = np.empty(column.count, np.uint64)
    longer = _hash_column(column.offsets, column.wide, column.data, column.count, out)
    for row in np.flatnonzero(_lengths(column) > KERNEL_BYTES_MAX) if longer else ():
        out[row] = xxhash.xxh3_64_intdigest(array[int(row)].as_buffer())
    if bits < 64:
        out &= np.uint64((1 << bits) - 1)
    return out


def hash_spans(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], *, bits: int = 64
) -> npt.NDArray[np.uint64]:
    """The hash of each stretch `[start, stop)` of some bytes, as `hash_keys` gives it for a column."""
    out = np.empty(len(starts), np.uint64)
    if _hash_spans(data.ctypes.data, starts, stops, out):
        for row in np.flatnonzero(stops - starts > KERNEL_BYTES_MAX):
            out[row] = xxhash.xxh3_64_intdigest(data[starts[row] : stops[row]].data)
    if bits < 64:
        out &= np.uint64((1 << bits) - 1)
    return out


def _lengths(column: ByteColumn) -> npt.NDArray[Any]:
    offsets = np.frombuffer(column.owner.buffers()[1], np.int64 if column.wide else np.int32)
    return np.diff(offsets[column.owner.offset : column.owner.offset + column.count + 1])


@kernel(signature="uint64(uint64)")
def _avalanche_xxh64(h):  # type: ignore[no-untyped-def]
    h = (h ^ (h >> np.uint64(33))) * _PRIME_2
    h = (h ^ (h >> np.uint64(29))) * _PRIME_3
    return h ^ (h >> np.uint64(32))


@kernel(signature="uint64(uint64)")
def _avalanche(h):  # type: ignore[no-untyped-def]
    h = (h ^ (h >> np.uint64(37))) * _MIX_1
    return h ^ (h >> np.uint64(32))


@kernel(signature="uint64(int64, int64)")
def _mix(at, secret):  # type: ignore[no-untyped-def]
    """16 bytes of key with 16 bytes of secret."""
    return multiply_fold(load_u64(at) ^ _SECRET[secret], load_u64(at + 8) ^ _SECRET[secret + 8])


@kernel(signature="uint64(int64, int64)")
def _hash_1_to_8(at, length):  # type: ignore[no-untyped-def]
    if length >= 4:
        h = np.uint64(load_u32(at + length - 4)) + (np.uint64(load_u32(at)) << np.uint64(32))
        h ^= _FLIP_4_TO_8
        h ^= ((h << np.uint64(49)) | (h >> np.uint64(15))) ^ ((h << np.uint64(24)) | (h >> np.uint64(40)))
        h *= _MIX_2
        h ^= (h >> np.uint64(35)) + np.uint64(length)
        h *= _MIX_2
        return h ^ (h >> np.uint64(28))
    first, middle, last = load_u8(at), load_u8(at + (length >> 1)), load_u8(at + length - 1)
    h = np.uint64(first) << np.uint64(16) | np.uint64(middle) << np.uint64(24)
    h |= np.uint64(last) | np.uint64(length) << np.uint64(8)
    return _avalanche_xxh64(h ^ _FLIP_1_TO_3)


@kernel(signature="uint64(int64, int64)")
def _hash_17_to_240(at, length):  # type: ignore[no-untyped-def]
    h = np.uint64(length) * _PRIME_1
    if length <= 128:
        # Pairs of 16 bytes from both ends inwards.
        for pair in range((length - 1) // 32, -1, -1):
            h += _mix(at + 16 * pair, 32 * pair)
            h += _mix(at + length - 16 * (pair + 1), 32 * pair + 16)
        return _avalanche(h)
    for k in range(8):
        h += _mix(at + 16 * k, 16 * k)
    h = _avalanche(h)
    for k in range(8, length // 16):
        h += _mix(at + 16 * k, 16 * (k - 8) + 3)
    return _avalanche(h + _mix(at + length - 16, 136 - 17))


@kernel(signature="uint64(int64, int64)")
def hash_at(at, length):  # type: ignore[no-untyped-def]
    """The hash of the bytes at an address, at most `KERNEL_BYTES_MAX`."""
    if length > 16:
        return _hash_17_to_240(at, length)
    if length > 8:
        low, high = load_u64(at) ^ _FLIP_9_LOW, load_u64(at + length - 8) ^ _FLIP_9_HIGH
        return _avalanche(np.uint64(length) + swap_u64(low) + high + multiply_fold(low, high))
    if length > 0:
        return _hash_1_to_8(at, length)
    return _avalanche_xxh64(_FLIP_EMPTY)


@kernel(signature="int64(int64, boolean, int64, int64, uint64[::1])")
def _hash_column(offsets, wide, data, count, out):  # type: ignore[no-untyped-def]
    """Hash all keys into `out`; the number of keys that are too long, which are left undone."""
    longer = 0
    for row in range(count):
        if wide:
            start, stop = load_i64(offsets + 8 * row), load_i64(offsets + 8 * row + 8)
        else:
            start, stop = np.int64(load_i32(offsets + 4 * row)), np.int64(load_i32(offsets + 4 * row + 4))
        if stop - start > KERNEL_BYTES_MAX:
            longer += 1
        else:
            out[row] = hash_at(data + start, stop - start)
    return longer


@kernel
def _hash_spans(memory, starts, stops, out):  # type: ignore[no-untyped-def]
    """As `_hash_column`, of stretches."""
    longer = 0
    for row in range(len(starts)):
        if stops[row] - starts[row] > KERNEL_BYTES_MAX:
            longer += 1
        else:
            out[row] = hash_at(memory + starts[row], stops[row] - starts[row])
    return longer
