r"""Text of hexadecimal digits as half as many bytes, and back.

>>> pairs = pack_digits(pa.py_buffer(b"00ff1a"))
>>> pairs.to_pybytes(), unpack_digits(pairs, 6).to_pybytes()
(b'\x00\xff\x1a', b'00ff1a')

Eight digits are one word, a digit in each of its bytes, and all eight are worked on at once. The value of a digit is
its lower half, and 9 more for a letter; a letter comes 0x27 behind the place where a tenth digit would.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millpond.arrays.compiled import kernel
from millpond.arrays.memory import load_u8, load_u64, store_u8

__all__ = ("pack_digits", "unpack_digits")


def pack_digits(text: pa.Buffer) -> pa.Buffer | None:
    """Two digits as one byte, the first in its upper half; None where the text is not of lower-case digits alone."""
    assert text.size % 2 == 0, "digits come in pairs"
    pairs = pa.allocate_buffer(text.size // 2)
    return pairs if _pack_digits(text.address, text.size, pairs.address) else None


def unpack_digits(pairs: pa.Buffer, size: int) -> pa.Buffer:
    """The text of so many digits; `pairs` has half as many bytes, or more."""
    assert size % 2 == 0 and 2 * pairs.size >= size, "digits come in pairs"
    text = pa.allocate_buffer(size)
    words, rest = divmod(size, 8)
    if words:
        _unpack_words(np.frombuffer(pairs, np.uint32, words), np.frombuffer(text, np.uint64, words))
    if rest:
        _unpack_rest(pairs.address + 4 * words, rest, text.address + 8 * words)
    return text


# Each constant is one byte eight times, so that an operation on the word is one on each digit.
_LOW, _SIXES, _ONES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0606060606060606), np.uint64(0x0101010101010101)
_HIGH, _ZEROS = np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(0x3030303030303030)
_NINE, _LETTERS = np.uint64(9), np.uint64(0x27)
_PAIRS, _FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_BY_4, _BY_6, _BY_8, _BY_16 = np.uint64(4), np.uint64(6), np.uint64(8), np.uint64(16)


@kernel
def _spelled(values):  # type: ignore[no-untyped-def]
    """The digits of eight values, each of a byte and below 16."""
    # Adding 6 carries into bit 4 from ten on, so that bit says whether a letter's distance is added. No branch.
    return values + _ZEROS + (((values + _SIXES) >> _BY_4) & _ONES) * _LETTERS


@kernel
def _values(digits):  # type: ignore[no-untyped-def]
    # Bit 6 is set in letters only: `0` is 0x30 and `a` is 0x61.
    return (digits & _LOW) + ((digits >> _BY_6) & _ONES) * _NINE


@kernel
def _pack_digits(data, size, out):  # type: ignore[no-untyped-def]
    """Write two digits as a byte, the first in its upper half; False where a byte is no digit."""
    wrong = np.uint64(0)
    at = np.int64(0)
    while at < size:
        if at + 8 <= size:
            digits = load_u64(data + at)
        else:  # the last pairs, filled up with zeros
            digits = _ZEROS
            for place in range(size - at):
                shift = np.uint64(8 * place)
                digits ^= (np.uint64(load_u8(data + at + place)) ^ np.uint64(0x30)) << shift
        values = _values(digits)
        # Spelled anew, only what was a lower-case digit is itself again: so upper case and all else are refused.
        wrong |= (values & _HIGH) | (_spelled(values) ^ digits)
        if wrong:
            return False
        # Halves move together step by step, 8 to 16 to 32 bits: the word is narrowed without a loop.
        pairs = ((values << _BY_4) | (values >> _BY_8)) & _PAIRS
        pairs = (pairs | (pairs >> _BY_8)) & _FOURS
        pairs |= pairs >> _BY_16
        for place in range(min(np.int64(4), (size - at) // 2)):
            store_u8(out + at // 2 + place, np.uint8((pairs >> np.uint64(8 * place)) & np.uint64(0xFF)))
        at += 8
    return True


@kernel
def _unpack_words(words, out):  # type: ignore[no-untyped-def]
    """Arrays, not addresses: so the compiler does several words at a time."""
    for at in range(len(words)):
        out[at] = _unpaired(np.uint64(words[at]))


@kernel
def _unpack_rest(data, size, out):  # type: ignore[no-untyped-def]
    for at in range(0, size, 2):
        pair = _unpaired(np.uint64(load_u8(data + at // 2)))
        store_u8(out + at, np.uint8(pair & np.uint64(0xFF)))
        store_u8(out + at + 1, np.uint8((pair >> _BY_8) & np.uint64(0xFF)))


@kernel
def _unpaired(pairs):  # type: ignore[no-untyped-def]
    """The eight digits of four bytes."""
    pairs = (pairs | (pairs << _BY_16)) & _FOURS
    pairs = (pairs | (pairs << _BY_8)) & _PAIRS
    return _spelled(((pairs >> _BY_4) | (pairs << _BY_8)) & _LOW)
