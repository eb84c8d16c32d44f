"""The legacy layout: rows by kind first, under text keys, as LittleHorse wrote them before runs were grouped.

    default/0/3/asdf            a run          default/0/4/asdf/0/1      a node run
    default/0/11/asdf/0-1       a task run     default/5/…               a tag, of any object
    default/9/3/asdf            the ids of its external events

A value is a wrapper of three fields: 1 the tags of the object (field 1 of each is its key behind `tenant/5/`), 2 the
message, 3 its kind.

Invariants:
* A key of this layout is no key of a keyspace: it begins with a letter or a digit.
* Nothing here writes a row of it: stores of this layout come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millpond.errors import Corrupt
from millpond.kernel.keys import KeyRange, starting
from millpond.workflows.store.addresses import Address, Kind, RunPath
from millpond.workflows.store.messages import Stored, parse

__all__ = (
    "ROWS",
    "LegacyRow",
    "id_of",
    "inventory_key",
    "key_of",
    "legacy_address",
    "legacy_range",
    "unwrap",
)

ROWS = KeyRange(b"0", None)
"""The range that holds all rows of the layout: behind every keyspace."""

_NUMBERS = {Kind.NODE_RUN: (0, 1), Kind.VARIABLE: (0,), Kind.WORKFLOW_EVENT: (1,), Kind.CHECKPOINT: (1,),
            Kind.INACTIVE_THREAD_RUN: (0,)}  # fmt: skip
_PARTS = {Kind.RUN: 0, Kind.TASK_RUN: 1, Kind.USER_TASK_RUN: 1, Kind.INACTIVE_THREAD_RUN: 1}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class LegacyRow:
    """A row as it was found: its message, and the keys of its tags."""

    address: Address
    message: Stored
    tag_keys: tuple[bytes, ...]


def id_of(run: RunPath) -> str:
    """The id of a run in the keys of the layout.

    >>> id_of(("a", "b"))
    'a_b'
    """
    return "_".join(run)


def key_of(tenant: str, address: Address) -> bytes:
    """The key of an object.

    >>> key_of("default", Address(("asdf",), Kind.NODE_RUN, (0, 1)))
    b'default/0/4/asdf/0/1'
    """
    return "/".join((tenant, "0", str(int(address.kind)), id_of(address.run), *map(str, address.rest))).encode()


def inventory_key(tenant: str, run: RunPath) -> bytes:
    """The key of the list of a run's external events."""
    return f"{tenant}/9/{int(Kind.RUN)}/{id_of(run)}".encode()


def legacy_range(tenant: str, run: RunPath, kind: Kind) -> KeyRange:
    """The rows of a run of one kind."""
    prefix = f"{tenant}/0/{int(kind)}/{id_of(run)}"
    return KeyRange(prefix.encode(), prefix.encode() + b"\0") if kind is Kind.RUN else starting(prefix + "/")


def legacy_address(key: bytes) -> tuple[str, Address] | None:
    """The tenant and the address of a key; None when it is of no object of a run."""
    try:
        tenant, storeable, kind_text, run, *texts = key.decode().split("/")
        kind = Kind(int(kind_text))
    except ValueError:
        return None
    if storeable != "0" or len(texts) != _PARTS.get(kind, 2):
        return None
    rest: list[str | int] = list(texts)
    for at in _NUMBERS.get(kind, ()):
        if not texts[at].isdecimal():
            return None
        rest[at] = int(texts[at])
    return tenant, Address(tuple(run.split("_")), kind, tuple(rest))


def unwrap(tenant: str, address: Address, value: bytes) -> LegacyRow:
    """The message in a wrapper, and the keys of its tags.

    Raises:
        Corrupt: it is no wrapper, or holds no message of its kind.
    """
    message, tags = b"", []
    for number, field in _fields(address, value):
        if number == 2 and isinstance(field, bytes):
            message = field
        elif number == 1 and isinstance(field, bytes):
            tags += [
                cached
                for field_number, cached in _fields(address, field)
                if field_number == 1 and isinstance(cached, bytes)
            ]
    keys = [
        name
        for tag in tags
        for field_number, name in _fields(address, tag)
        if field_number == 1 and isinstance(name, bytes)
    ]
    return LegacyRow(address, parse(address, message), tuple(f"{tenant}/5/".encode() + key for key in keys))


def _fields(address: Address, value: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The numbers and contents of a message's fields, by the wire format of protobuf."""
    at = 0
    try:
        while at < len(value):
            tag, at = _varint(value, at)
            wire = tag & 7
            if wire == _VARINT:
                number, at = _varint(value, at)
                yield tag >> 3, number
                continue
            length, at = _varint(value, at) if wire == _BYTES else ({_FIXED64: 8, _FIXED32: 4}[wire], at)
            yield tag >> 3, _cut(value, at, length)
            at += length
    except (IndexError, KeyError) as error:
        raise Corrupt("a legacy row is damaged", kind="run_row_damaged", of=address) from error


def _cut(value: bytes, at: int, length: int) -> bytes:
    if at + length > len(value):
        raise IndexError(at)
    return value[at : at + length]


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = value[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 63:
            raise IndexError(at)
