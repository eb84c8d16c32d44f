"""The legacy layout of runs, as LittleHorse wrote it: rows to be read, and a store moved whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step
from millpond.workflows.store import RunStore
from millpond.workflows.store.addresses import address_of
from millpond.workflows.store.initialization import LEGACY_LOG
from millpond.workflows.store.legacy import ROWS, key_of
from millpond.workflows.store.messages import Stored
from millpond.workflows.store.run_slices import SLICE_ROWS_MAX, move_slice

__all__ = ("migrate_store", "write_legacy")


def migrate_store(space: Space, store_of: Callable[[str], RunStore], *, rows_max: int = SLICE_ROWS_MAX) -> int:
    """Move all legacy rows of runs, then note in the initialization log that none is left; how many there were.

    `store_of` gives the store of a tenant. From then on no row is read twice, and searches find every run.

    Raises:
        Corrupt: a row is damaged; those before it have moved.
    """
    place: bytes | None = ROWS.start
    moved = 0
    while place is not None:
        place, count = space.write(partial(move_slice, store_of=store_of, prefix=place, rows_max=rows_max))
        moved += count
        step("workflows.migrated_slice")
    return moved


def write_legacy(tx: Transaction, tenant: str, message: Stored, tags: tuple[str, ...] = ()) -> bytes:
    """Write an object as the legacy layout has it, and the log of such a store; the key of its row.

    `tags` are the keys of its tags behind `tenant/5/`.
    """
    address = address_of(message.id)
    names = (tenant, *address.run, *address.rest)
    separated = any("/" in str(name) for name in names) or any("_" in name for name in address.run)
    assert not separated, "no name has a character that separates the parts of legacy keys"
    cache = b"".join(_field(1, _field(1, tag.encode())) for tag in tags)
    wrapper = _field(1, cache) + _field(2, message.SerializeToString()) + b"\x18" + bytes([int(address.kind)])
    key = key_of(tenant, address)
    tx.put(key, wrapper)
    tx.put(LEGACY_LOG, b"")
    for tag in tags:
        tx.put(f"{tenant}/5/{tag}".encode(), b"")
    return key


def _field(number: int, value: bytes) -> bytes:
    length, size = len(value), bytearray()
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + value
