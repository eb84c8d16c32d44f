"""Checking the log of a pond, and the parts that are kept for those who follow it.

Invariants checked:
* positions are dense up to the head, times never fall, and every chain follows from the one before;
* every part that is kept lies where it should, and is whole: `full` reads its files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millpond.errors import Corrupt, MillpondError
from millpond.kernel.space import ReadTransaction
from millpond.kernel.verify import Report, checked, problem
from millpond.maps.log.log import Entry, chain_after, entries_after, first_position, head_of
from millpond.maps.log.queue import Queued, queued_parts
from millpond.maps.model.keyspaces import RETAINED
from millpond.maps.parts.part import read_manifest, verify_part

if TYPE_CHECKING:
    from millpond.maps.loads.loads import Loads

__all__ = ("check_retained", "check_log")

_OURS = "report this; it should not be possible"
_COPY = "make the node a copy of another: millpond repair --from URL"


def check_log(tx: ReadTransaction) -> Iterator[Report]:
    """The log from its oldest entry to its head."""
    head, before = head_of(tx), None
    after = first_position(tx) - 1
    try:
        while some := entries_after(tx, after, 1000):
            for entry in some:
                yield from _check_entry(entry, before, after + 1)
                before, after = entry, entry.position
    except MillpondError as error:
        yield problem("log", after + 1, error, _COPY)
        return
    if after != head.position or (before is not None and before.chain != head.chain):
        found = f"the log ends at {after}, its head says {head.position}"
        yield problem("log", head.position, found, _COPY, counted=False)


def _check_entry(entry: Entry, before: Entry | None, position: int) -> Iterator[Report]:
    yield checked("log entry")
    if entry.position != position:
        yield problem("log", position, f"the next entry is {entry.position}", _COPY, counted=False)
    if before is not None and entry.chain != chain_after(before.chain, entry):
        yield problem("log", position, "it does not follow from the entry before it", _COPY, counted=False)
    if before is not None and entry.stamp_ms < before.stamp_ms:
        yield problem("log", position, "it is older than the entry before it", _OURS, counted=False)


def check_retained(loads: Loads, *, full: bool) -> Iterator[Report]:
    """The parts that are kept."""
    with loads.space.read() as tx:
        retained = [Queued.from_json(row) for _, row in tx.scan(RETAINED.range())]
    for part in retained:
        damage = _damage(loads, part, full=full)
        if damage is None:
            yield checked("kept part")
        elif _still_retained(loads, part):
            remedy = "its rows are in the map; those who follow take it from another node, and it goes when it expires"
            yield problem("kept part", loads.retained(part.part), damage, remedy)


def _damage(loads: Loads, retained: Queued, *, full: bool) -> Corrupt | None:
    place = next(
        (place for place in loads.places(retained) if (place / "manifest.json").exists()), loads.retained(retained.part)
    )
    try:
        manifest = verify_part(place) if full else read_manifest(place)
    except Corrupt as error:
        return error
    return None if manifest.id == retained.part else Corrupt("it is another part", kind="part_other", found=manifest.id)


def _still_retained(loads: Loads, retained: Queued) -> bool:
    """Looked at again: it may have expired, or been quarantined, while it was read."""
    with loads.space.read() as tx:
        return tx.get(RETAINED.pack(retained.part)) is not None and retained.part not in {
            part.part for part in queued_parts(tx, retained.map)
        }
