"""The tables of a map's rows, drawn in `layouts.py`, and where the rows of one key lie in them: without an array."""

from __future__ import annotations

from millpond.arrays.key_hash import fold32, hash_key
from millpond.maps.model.definition import Kind, MapDefinition, Scheme

__all__ = (
    "ADDED", "ALERTED", "CLASH_BYTES", "DIRECT", "HASHED", "LMDB_BYTES_MAX", "OVERFLOW", "RANGES", "direct_bytes_max",
    "hash_prefix", "plain_longs", "row_tables", "split_seed_value",
)  # fmt: skip

DIRECT, HASHED, OVERFLOW, RANGES = "direct", "hashed", "overflow", "ranges"
ADDED = "added"
"""Of aggregates, the parts that were taken out of quarantine and added: a part, and the number of its load."""
ALERTED = "alerted"
"""Of aggregates, the alerts that loads left to be told, see `maps/alerts/alerted.py`."""
LMDB_BYTES_MAX = 511
AUTO_DIRECT_BYTES_MAX = 128
CLASH_BYTES = 2


def row_tables(definition: MapDefinition) -> tuple[str, ...]:
    """The tables in which a part of this map, and its shard unless interned, keep rows."""
    if not definition.kind.keyed:
        return (RANGES,)
    return (HASHED, OVERFLOW) if definition.scheme is Scheme.HASH else (DIRECT, OVERFLOW)


def plain_longs(definition: MapDefinition) -> bool:
    """True when longs in table keys are plain two's complement: negative ones then sort after the others."""
    return definition.scheme is Scheme.HASH


def direct_bytes_max(definition: MapDefinition) -> int:
    """The longest escaped key that table `direct` takes."""
    longs = len(definition.kind.address) - 1
    if definition.scheme is Scheme.DIRECT:
        return LMDB_BYTES_MAX - 1 - 8 * longs
    return AUTO_DIRECT_BYTES_MAX


def hash_prefix(definition: MapDefinition, key: bytes, table: str) -> bytes:
    """The prefix of this key's rows in `hashed` or `overflow`; clashing keys share it."""
    number = hash_key(key, bits=definition.hash_bits)
    if table == HASHED and definition.hash_bytes == 4:
        return int(fold32(number)).to_bytes(4, "big")
    return number.to_bytes(8, "big")


def split_seed_value(definition: MapDefinition, stored: bytes) -> tuple[bytes, bytes]:
    """`(key, <VALUE_TYPE><VALUE>)` of one row value of `hashed` and `overflow`."""
    if definition.kind is Kind.SESSION:
        return stored, b""
    length = int.from_bytes(stored[:4], "big")
    return stored[4 : 4 + length], stored[4 + length :]
