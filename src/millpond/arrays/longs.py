"""Eight-byte longs inside table keys, one at a time: for seeks.

`ordered` flips the sign bit: byte order is number order. `plain` is two's complement, as published for the
`hash` scheme: negative numbers sort after the others, so a descending walk from `t` visits two stretches of
bytes, `stretches` says which.
"""

from __future__ import annotations

__all__ = ("LONG_MAX", "LONG_MIN", "ascending", "pack_long", "stretches", "unpack_long")

LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
_FLIP = 1 << 63
_MASK = (1 << 64) - 1


def pack_long(number: int, plain: bool) -> bytes:
    """8 bytes big-endian.

    >>> pack_long(1, plain=True).hex(), pack_long(-1, plain=False).hex()
    ('0000000000000001', '7fffffffffffffff')
    """
    assert LONG_MIN <= number <= LONG_MAX, number
    return ((number & _MASK) if plain else number + _FLIP).to_bytes(8, "big")


def unpack_long(packed: bytes, plain: bool) -> int:
    """The long that `pack_long` packed."""
    if plain:
        return int.from_bytes(packed, "big", signed=True)
    return int.from_bytes(packed, "big") - _FLIP


def stretches(highest: int, plain: bool) -> list[tuple[bytes, bytes]]:
    """`(greatest, least)` byte strings of the numbers ≤ `highest`, in descending order of the numbers."""
    if not plain:
        return [(pack_long(highest, plain=False), pack_long(LONG_MIN, plain=False))]
    negative = (pack_long(min(highest, -1), plain=True), pack_long(LONG_MIN, plain=True))
    if highest < 0:
        return [negative]
    return [(pack_long(highest, plain=True), pack_long(0, plain=True)), negative]


def ascending(lower: int, upper: int, plain: bool) -> list[tuple[bytes, bytes]]:
    """`(least, greatest)` byte strings of the numbers in [lower, upper], in ascending order of the numbers."""
    if lower > upper:
        return []
    if not plain or (lower < 0) == (upper < 0):
        return [(pack_long(lower, plain), pack_long(upper, plain))]
    return [
        (pack_long(lower, plain), pack_long(-1, plain)),
        (pack_long(0, plain), pack_long(upper, plain)),
    ]
