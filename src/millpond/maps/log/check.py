"""Checking the log of a pond, and the parts that are kept for those who follow it.

Invariants checked:
* positions are dense up to the head, times never fall, and every chain follows from the one before (`kernel/log.py`);
* every part that is kept lies where it should, and is whole: `full` reads its files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millpond.errors import Corrupt, MillpondError
from millpond.kernel.space import ReadTransaction
from millpond.kernel.verify import Report, checked, problem
from millpond.maps.log.log import ENTRIES
from millpond.maps.log.queue import Queued, queued_parts
from millpond.maps.model.keyspaces import RETAINED
from millpond.maps.parts.part import read_manifest, verify_part

if TYPE_CHECKING:
    from millpond.maps.loads.loads import Loads

__all__ = ("check_retained", "check_log")

_COPY = "make the node a copy of another: millpond repair --from URL"


def check_log(tx: ReadTransaction) -> Iterator[Report]:
    """The log from its oldest entry to its head."""
    try:
        yield from ENTRIES.check(tx, _COPY)
    except MillpondError as error:
        yield problem("log", ENTRIES.prefix, error, _COPY)


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
            yield problem("kept part", loads.places.part(part.part), damage, remedy)


def _damage(loads: Loads, retained: Queued, *, full: bool) -> Corrupt | None:
    place = next(
        (place for place in loads.places.of(retained) if (place / "manifest.json").exists()),
        loads.places.part(retained.part),
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
