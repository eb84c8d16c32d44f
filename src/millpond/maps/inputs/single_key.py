"""One requested key as the shard stores it: the plain types are read here, all others as a column of one."""

from __future__ import annotations

import re
from typing import Any

from millpond.errors import Invalid
from millpond.maps.model.definition import MapDefinition

__all__ = ("single_key",)

_NUMBER = re.compile(r" *[+-]?[0-9]{1,18} *", re.ASCII)


def single_key(definition: MapDefinition, key: Any) -> bytes | int | None:
    """One key as the shard stores it, for ranged maps a number; None for null, and for what no row can have.

    Raises: as `keys_of`; `Invalid`, kind `key_encoding`, for text that has no UTF-8.
    """
    # Single questions come by the million: the plain types are read here, as a column of one would be.
    if definition.kind.keyed and not definition.tagged:
        if isinstance(key, str):
            return _encoded(definition, key)
        if isinstance(key, bytes):
            return bytes(key)
        if type(key) is int:
            return _digits(key)
    elif type(key) is int and not definition.tagged:
        return key if -(1 << 63) <= key < 1 << 63 else None
    elif isinstance(key, str) and not definition.tagged and _NUMBER.fullmatch(key):
        return int(key)
    from millpond.maps.inputs.key_columns import key_in_column

    keys = key_in_column(definition, key)
    return keys.encode() if isinstance(keys, str) else keys


def _encoded(definition: MapDefinition, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Invalid(
            "the key is no text", kind="key_encoding", map=definition.name, key=ascii(text),
            hint="half a surrogate pair has no UTF-8; ask with the bytes of the key",
        ) from None  # fmt: skip


def _digits(number: int) -> bytes | None:
    """The decimal digits of a number; None for one that is longer than any decimal column holds."""
    return b"%d" % number if number.bit_length() <= 256 else None
