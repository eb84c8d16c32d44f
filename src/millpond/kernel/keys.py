"""Ordered keys: tuples become bytes whose order is the order of the tuples.

A key is the codes of its parts, one after another (drawn in `docs/format/space.md`):

| part | tag | then |
|---|---|---|
| None | `01` | |
| False, True | `02`, `03` | |
| integer, signed 64 bits | `10` | 8 bytes big-endian, sign bit flipped |
| time, UTC milliseconds | `11` | the same |
| text | `20` | UTF-8 with `00` as `01 01` and `01` as `01 02`, then `00` |
| bytes | `21` | the same escapes, then `00` |

Invariants:
* `encode(a) < encode(b)` exactly when `a < b`; parts of different types are ordered as in the table.
* `decode(encode(parts)) == parts`, types included.
* No code is a prefix of another, so a key starts with the bytes of `p` exactly when its parts start with `p`.
* No tag is `FF`, so `[p, p + FF)` holds everything that starts with `p`, and nothing else.

Integers keep a fixed width: a few bytes larger than a length-prefixed form, and NumPy can make a million of
them at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from millpond.deferred import np
from millpond.errors import Corrupt, Invalid

__all__ = ("EVERYTHING", "KeyRange", "Part", "Prefix", "decode", "encode", "starting", "text_prefix")

Part: TypeAlias = "bool | int | datetime | str | bytes | None"

_NONE, _FALSE, _TRUE, _INT, _TIME, _TEXT, _BYTES = 0x01, 0x02, 0x03, 0x10, 0x11, 0x20, 0x21
# Added to a number it flips the sign bit: -2^63 becomes 0, so negative numbers sort before the others as bytes.
_SIGN = 1 << 63
# Big-endian, so that the byte that weighs most is compared first.
_BIG = struct.Struct(">BQ")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class KeyRange(NamedTuple):
    """The keys from `start` up to, and without, `stop`; a `stop` of None has no end."""

    start: bytes
    stop: bytes | None

    def holds(self, key: bytes) -> bool:
        """True when `key` lies in the range."""
        return self.start <= key and (self.stop is None or key < self.stop)


EVERYTHING = KeyRange(b"", None)


def starting(prefix: bytes | str) -> KeyRange:
    """The keys that begin with these bytes; a text stands for its UTF-8.

    >>> starting("a/"), starting(b"\\xff")
    (KeyRange(start=b'a/', stop=b'a0'), KeyRange(start=b'\\xff', stop=None))

    Raises:
        Invalid: the text is no Unicode.
    """
    start = _utf8(prefix) if isinstance(prefix, str) else prefix
    # What begins so ends before the same bytes with the last one raised by one. FF cannot be raised, so the byte before
    # it is; nothing ends what begins with FF alone.
    shorter = start.rstrip(b"\xff")
    return KeyRange(start, shorter[:-1] + bytes([shorter[-1] + 1]) if shorter else None)


def text_prefix(text: str, *before: Part) -> bytes:
    """The prefix of encoded keys whose parts are `before` and then a text that begins so.

    >>> starting(text_prefix("a/", "main")).holds(encode(("main", "a/b", 7)))
    True
    """
    return encode((*before, text))[:-1]  # without the byte that ends a text


def encode(parts: tuple[Part, ...]) -> bytes:
    """The bytes of a tuple.

    >>> encode(("runs", 1)).hex(" ")
    '20 72 75 6e 73 00 10 80 00 00 00 00 00 00 01'

    Raises:
        Invalid: a part is of another type, an integer needs more than 64 bits, a time has no zone or is finer
            than a millisecond, a text is no Unicode.
    """
    try:
        return b"".join([_CODES[type(part)](part) for part in parts])
    except KeyError:  # a type that extends one of those, and others
        return b"".join(map(_encode_part, parts))


def decode(key: bytes) -> tuple[Part, ...]:
    """The tuple that `encode` made `key` from.

    >>> decode(encode(("runs", -1, b"", None, True)))
    ('runs', -1, b'', None, True)

    Raises:
        Corrupt: `key` is not the encoding of any tuple.
    """
    parts: list[Part] = []
    at = 0
    while at < len(key):
        part, at = _decode_part(key, at)
        parts.append(part)
    return tuple(parts)


@dataclass(frozen=True, slots=True, init=False)
class Prefix:
    """The common start of all keys of one kind; index it to go deeper.

    >>> runs = Prefix("runs")
    >>> runs["acme"][7].pack("state") == encode(("runs", "acme", 7, "state"))
    True
    >>> runs["acme"].unpack(runs["acme"][7].pack("state"))
    (7, 'state')
    """

    packed: bytes

    def __init__(self, *parts: Part) -> None:
        object.__setattr__(self, "packed", encode(parts))

    def __getitem__(self, part: Part | tuple[Part, ...]) -> Prefix:
        """The prefix one part longer; a tuple adds each of its parts."""
        longer = object.__new__(Prefix)
        object.__setattr__(longer, "packed", self.pack(*(part if isinstance(part, tuple) else (part,))))
        return longer

    def __contains__(self, key: bytes) -> bool:
        return key.startswith(self.packed)

    def pack(self, *parts: Part) -> bytes:
        """The key of `parts` under this prefix; without parts, the prefix's own key."""
        return self.packed + encode(parts)

    def pack_texts(self, texts: Sequence[str]) -> list[bytes]:
        """`pack(text)` of each, for less.

        >>> Prefix("runs").pack_texts(["a", "b"]) == [Prefix("runs").pack(text) for text in ("a", "b")]
        True
        """
        whole = "".join(texts)
        if "\x00" in whole or "\x01" in whole:  # they are escaped
            return [self.pack(text) for text in texts]
        before = self.packed + b"\x20"
        return [before + _utf8(text) + b"\x00" for text in texts]

    def unpack(self, key: bytes) -> tuple[Part, ...]:
        """The parts of `key` after this prefix.

        Raises:
            Corrupt: the key is no key of this prefix.
        """
        if key not in self:
            raise Corrupt("key is not under its prefix", kind="key_damaged", key=key.hex(), prefix=self.packed.hex())
        return decode(key[len(self.packed) :])

    def range(self, start: tuple[Part, ...] = (), stop: tuple[Part, ...] | None = None) -> KeyRange:
        """All keys under this prefix, its own key included; or only those from `start` up to, without, `stop`."""
        # FF is no tag, so it is above whatever may follow the prefix.
        return KeyRange(self.pack(*start), self.packed + b"\xff" if stop is None else self.pack(*stop))

    def starting(self, text: str) -> KeyRange:
        """The keys under this prefix whose next part is a text that begins so.

        >>> branch = Prefix("staged")["main"]
        >>> branch.starting("a/").holds(branch.pack("a/b")), branch.starting("a/").holds(branch.pack("ab"))
        (True, False)
        """
        return starting(self.packed + text_prefix(text))

    def after(self, text: str) -> KeyRange:
        """The keys under this prefix behind all those of `starting(text)`: a listing goes on there that skips them."""
        behind = starting(self.packed + text_prefix(text)).stop
        assert behind is not None, "a code begins with its tag, and no tag is FF"
        return KeyRange(behind, self.range().stop)


def _encode_part(part: Any) -> bytes:
    code = next((code for kind, code in _CODES.items() if isinstance(part, kind)), None)
    if code is not None:
        return code(part)
    if isinstance(part, np.integer):
        return _encode_whole(int(part))
    raise Invalid("this type cannot be part of a key", kind="key_part_type", type=type(part).__name__, value=repr(part))


def _encode_text(text: str) -> bytes:
    if "\0" in text or "\x01" in text:  # to look for them in bytes takes four times as long
        return b" " + _escape(_utf8(text)) + b"\0"
    try:
        return b" " + text.encode() + b"\0"
    except UnicodeEncodeError:
        return _utf8(text)  # raises


def _encode_bytes(raw: bytes) -> bytes:
    return b"!" + _escape(raw) + b"\0"


@lru_cache(1024)
def _encode_whole(number: int) -> bytes:
    return _encode_int(_INT, number)


def _encode_time(time: datetime) -> bytes:
    return _encode_int(_TIME, _milliseconds(time))


def _encode_bool(flag: bool) -> bytes:
    return b"\x03" if flag else b"\x02"


def _encode_none(_: None) -> bytes:
    return b"\x01"


_CODES: Final[dict[type, Callable[[Any], bytes]]] = {
    str: _encode_text, bytes: _encode_bytes, type(None): _encode_none, bool: _encode_bool, int: _encode_whole,
    datetime: _encode_time,
}  # fmt: skip
"""The code of each type; of those that extend another the more special one is first."""


def _encode_int(tag: int, number: int) -> bytes:
    if not -_SIGN <= number < _SIGN:
        raise Invalid("an integer in a key must fit 64 bits", kind="key_part_range", value=number)
    return _BIG.pack(tag, number + _SIGN)


def _milliseconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise Invalid("a time in a key must have a time zone", kind="time_without_zone", value=time.isoformat())
    whole, rest = divmod(time - _EPOCH, _MILLISECOND)
    if rest:
        # Rounding would make two different times one key, and neither would be read back as it was.
        raise Invalid("a time in a key must be whole milliseconds", kind="key_part_range", value=time.isoformat())
    return whole


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid("a text in a key must be Unicode", kind="key_part_range", value=repr(text)) from error


def _escape(raw: bytes) -> bytes:
    if b"\x00" in raw or b"\x01" in raw:
        # In this order: the 01 that escapes a 00 must not be escaped itself. Both escapes are above the 00 that ends a
        # text, so "a" sorts before "a\0"; and 01 01 is below 01 02, as 00 is below 01.
        return raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01")
    return raw


def _decode_part(key: bytes, at: int) -> tuple[Part, int]:
    """The part that starts at `at`, and where the next one starts."""
    tag = key[at]
    if tag in (_TEXT, _BYTES):
        return _decode_bytes(key, at)
    if tag in (_INT, _TIME):
        return _decode_int(key, at)
    if tag in (_NONE, _FALSE, _TRUE):
        return (None, False, True)[tag - _NONE], at + 1
    raise _damaged(key)


def _decode_int(key: bytes, at: int) -> tuple[Part, int]:
    stop = at + _BIG.size
    if stop > len(key):
        raise _damaged(key)
    tag, flipped = _BIG.unpack_from(key, at)
    if tag == _INT:
        return flipped - _SIGN, stop
    try:
        return _EPOCH + (flipped - _SIGN) * _MILLISECOND, stop
    except OverflowError as error:
        raise _damaged(key) from error


def _decode_bytes(key: bytes, at: int) -> tuple[Part, int]:
    # The first 00 is the end, for one within the text is escaped.
    stop = key.find(b"\x00", at)
    if stop < 0:
        raise _damaged(key)
    raw = key[at + 1 : stop]
    if b"\x01" in raw:
        # In this order: 00 and then 02 is 01 01 02, of which the other order would read the last two bytes as a 01.
        # A tuple has one encoding, so bytes that are not encoded back to themselves are damaged.
        plain = raw.replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01")
        if _escape(plain) != raw:
            raise _damaged(key)
        raw = plain
    try:
        return (raw.decode() if key[at] == _TEXT else raw), stop + 1
    except UnicodeDecodeError as error:
        raise _damaged(key) from error


def _damaged(key: bytes) -> Corrupt:
    return Corrupt("bytes are no ordered key", kind="key_damaged", key=key.hex())
