"""The choice of maintenance orders: made by the primary before it appends them to the log.

Condensing and retaining happen on every node because the log says so, with a watermark: now, less the age that the
map's setting names. An order that changes nothing would still be an entry, and a walk over the map on every node. So
for each map and act:

* watermarks move in **steps**, of a hundredth of the age, but no less than the interval and no more than a day. A map
  that condenses after 30 days is looked at every 7 hours, however busy it is;
* when the watermark has moved and the map was **loaded or altered** since its last order, maintenance is ordered;
* otherwise only when a **row has come of age**: the oldest row at or after the last watermark is looked up once, with
  one scan of one column, and remembered until the map is loaded again. For rows that age by when they were put, none
  comes of age after the map's last load has.

What is known of the past is read from the log itself, once from its beginning and then as it grows: it is the same on
every node, and survives restarts and a change of the primary. What the log has forgotten counts as never ordered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from millpond.errors import NotFound
from millpond.maps.maintenance.rules import age_column
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.rolled_up import retained_from

if TYPE_CHECKING:
    from millpond.maps.log.log import Entry
    from millpond.maps.map import Map
    from millpond.pond import Pond

__all__ = ("MaintenanceOrders", "watermark")

STEPS = 100
STEP_MS_MAX = 86_400_000
_PAGE = 1_000


def watermark(now_ms: int, age_ms: int, least_step_ms: int) -> int:
    """The watermark of an age: rows before it are old. It moves in steps.

    >>> watermark(now_ms=10_000, age_ms=2_000, least_step_ms=300)
    7800
    """
    step = max(min(age_ms // STEPS, STEP_MS_MAX), least_step_ms, 1)
    return (now_ms - age_ms) // step * step


@dataclass(slots=True)
class _Past:
    """The history of a map in the log: its last load or alteration, the last order of each act, and the entries read
    so far.
    """

    changed: int = 0
    changed_ms: int = 0
    ordered: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Act → position and watermark of its last order."""
    oldest: dict[str, tuple[int, int, int | None]] = field(default_factory=dict)
    """Act → for `changed` and a watermark, the time of the oldest row that is not before it."""


class MaintenanceOrders:
    """Follows the log of a pond, and says which of its maps need an order. Used by one thread at a time."""

    def __init__(self, pond: Pond, least_step_ms: int) -> None:
        self._pond, self._least_step_ms = pond, least_step_ms
        self._read, self._chain = 0, ""
        self._pasts: dict[str, _Past] = {}

    def due(self, pond_map: Map, act: str, now_ms: int) -> int | None:
        """The watermark to order for a map, None when nothing is due. `act` is `condense` or `retain`.

        Raises: what reading the log or the map raises.
        """
        age_ms = _age(pond_map.definition, act)
        if age_ms is None or pond_map.definition.maintenance_suspended:
            return None
        self._follow()
        past = self._pasts.get(pond_map.name, _Past())
        before = retained_from(pond_map.definition, watermark(now_ms, age_ms, self._least_step_ms))
        if act not in past.ordered:
            return before if past.changed or pond_map.rows.stats().rows else None
        position, last = past.ordered[act]
        if before <= last:
            return None
        if past.changed > position or self._comes_of_age(pond_map, act, past, last, before):
            return before
        return None

    def _comes_of_age(self, pond_map: Map, act: str, past: _Past, last: int, before: int) -> bool:
        """True when a row lies between the last watermark and the next."""
        column = _column(pond_map.definition, act)
        if column is None:
            return past.changed_ms >= last
        if self._pond.log.applied(pond_map.name) < past.changed:
            return False  # what was loaded is not in the shard yet: look again next time
        oldest = past.oldest.get(act)
        if oldest is None or oldest[0] != past.changed or (oldest[2] is not None and oldest[2] < last):
            oldest = past.oldest[act] = (past.changed, last, _oldest(pond_map, column, last))
        return oldest[2] is not None and oldest[2] < before

    # -- the log --------------------------------------------------------------------------------------

    def _follow(self) -> None:
        position, chain = self._pond.log.position()
        if position < self._read or (position == self._read and chain != self._chain):
            # The node became a copy of another: it has another past.
            self._pasts.clear()
            self._read = 0
        for entry in self._entries():
            self._note(entry)
            self._read, self._chain = entry.position, entry.chain
        if self._read == position:
            self._chain = chain

    def _entries(self) -> Iterator[Entry]:
        while True:
            try:
                page = self._pond.log.entries(self._read, _PAGE)
            except NotFound as error:
                if error.kind != "log_trimmed":
                    raise
                # What is forgotten was older than the log is kept: as good as never ordered.
                self._pasts.clear()
                self._read = int(str(error.values["first"])) - 1
                continue
            yield from page
            if len(page) < _PAGE:
                return

    def _note(self, entry: Entry) -> None:
        for name in entry.maps:
            if entry.kind in ("create", "drop"):
                self._pasts.pop(name, None)
                continue
            if entry.kind in ("alert", "alerted"):
                continue
            past = self._pasts.setdefault(name, _Past())
            if entry.kind in ("condense", "retain"):
                past.ordered[entry.kind] = (entry.position, int(entry.body["before"]))
            else:
                past.changed, past.changed_ms = entry.position, entry.stamp_ms


def _age(definition: MapDefinition, act: str) -> int | None:
    if act == "retain":
        return definition.retain_ms
    # Only what has a time can repeat itself.
    return definition.condense_ms if definition.kind.timed else None


def _column(definition: MapDefinition, act: str) -> str | None:
    """The time by which a row comes of age; None: when it was put."""
    if act == "retain":
        return age_column(definition)
    if definition.condense_by == "update_time":
        return None
    return "start" if definition.kind is Kind.SESSION else "effective_time"


def _oldest(pond_map: Map, column: str, since_ms: int) -> int | None:
    """The least time of a row that is not before `since_ms`."""
    times = [
        int(pc.min(batch.column(0)).cast("int64").as_py())
        for batch in pond_map.scan([(column, ">=", since_ms)], [column])
        if batch.num_rows
    ]
    return min(times, default=None)
