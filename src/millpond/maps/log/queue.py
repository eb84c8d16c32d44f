"""The queue of a map: parts to be merged and maintenance orders, in the order of the log.

    ("maps", "queue", map, number)            a part that waits, JSON; merged, it leaves
    ("maps", "absorbed", map, part id)        the number under which this part was entered; forgotten by `forget_parts`
    ("maps", "maintenance", map, position)    an order to condense or retain, JSON; carried out, it leaves
    ("maps", "retained", part id)             a part that was merged and whose files are kept, JSON
    ("maps", "quarantine", map, number)       a part that could not be merged, JSON

Invariants:
* parts are numbered in the order of their entries, and within an entry in its order;
* what waits carries the settings of its map at its position: an `alter` holds for what follows it, whenever that is
  merged;
* of the parts that wait no more, the last `PARTS_REMEMBERED_MAX` by number are remembered, on every node the same:
  numbers come from the log, and so does the moment of forgetting;
* every entry about a map is applied up to the one before the first that waits, or to the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from millpond.json_forms import JsonForm
from millpond.kernel.scans import first_parts
from millpond.kernel.series import Listed, Series
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.maps.log.log import Entry, head_of
from millpond.maps.model.catalogue import map_names
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.keyspaces import (
    ABSORBED,
    ALERT_MARK,
    ALERTS,
    HISTORY,
    MAINTENANCE,
    PART_NUMBER,
    QUARANTINE,
    QUEUE,
)
from millpond.maps.model.snapshot_pointer import move_pointer

__all__ = (
    "NUMBER",
    "ORDER_KINDS",
    "MaintenanceOrder",
    "PartFacts",
    "PartPlaces",
    "PartStatus",
    "Quarantined",
    "Queued",
    "applied_everywhere",
    "applied_position",
    "first_waiting",
    "maintenance_orders",
    "map_of_part",
    "forget_map",
    "forget_parts",
    "series_of",
    "settings_of",
    "queue_counts",
    "queued_part",
    "queued_parts",
    "waiting_maps",
    "with_settings",
)

T = TypeVar("T")

NUMBER = PART_NUMBER.pack()
ORDER_KINDS = ("condense", "retain", "delete")
"""The kinds of entries that order something of one map, carried out after the loads before them."""
PARTS_REMEMBERED_MAX = 200_000
"""A part that comes again after so many others counts as new: its rows are put once more, over those of later loads.

What is sent again after a failure comes after a few. To remember one costs some 100 bytes in every copy of the pond.
"""
PARTS_FORGOTTEN_EVERY = 10_000
"""Numbers between two looks at all that is remembered: one look costs some tenths of a second."""

Row = bytes
_SETTINGS = ("overwrite", "retain_ms", "retain_by", "roll_up", "maintenance_suspended")
_CONDENSE_BY = "effective_time"
"""Of entries that do not say: also of those from before there was another."""


def series_of(name: str) -> Series[PartFacts]:
    """The parts of a map that wait, and the ids of all it ever took."""
    return Series(QUEUE[name], ABSORBED[name], _FACTS)


def map_of_part(tx: ReadTransaction, part: str) -> str | None:
    """The map that took a part, in a load that was entered; None when none did. One look at the rows of all maps."""
    names = map_names(tx)
    rows = tx.get_many([ABSORBED[name].pack(part) for name in names])
    return next((name for name, row in zip(names, rows, strict=True) if row is not None), None)


def settings_of(definition: MapDefinition) -> dict[str, Any]:
    """The settings that decide what merging and maintenance do; `condense_by` where it is no effective time."""
    settings = {name: getattr(definition, name) for name in _SETTINGS}
    return settings | ({} if definition.condense_by == _CONDENSE_BY else {"condense_by": definition.condense_by})


def with_settings(definition: MapDefinition, settings: dict[str, Any] | None) -> MapDefinition:
    """The map as it was set when something was entered; what was entered before logs carries none."""
    return replace(definition, **{"condense_by": _CONDENSE_BY, **settings}) if settings else definition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFacts:
    """The load of a part, and its place in it: all that a series stores of it besides the segment.

    `again`: it is merged once more, in its order, after a part before it was put back.
    """

    load: str
    index: int
    load_number: int
    source: str
    queued_ms: int
    position: int = 0
    stamp_ms: int = 0
    bytes: int = 0
    settings: dict[str, Any] | None = None
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued(PartFacts):
    """A part that waits to be merged, or did: its facts, and which part of which map it is."""

    map: str
    number: int
    part: str
    rows: int

    @classmethod
    def of(cls, name: str, entry: Listed[PartFacts]) -> Queued:
        """The part that is listed in a map's series."""
        segment, about = entry.segment, {field: getattr(entry.about, field) for field in _FACT_NAMES}
        return cls(map=name, number=segment.position, part=segment.id, rows=segment.entries, **about)

    @classmethod
    def from_json(cls, row: Row) -> Queued:
        """Parse the row written by `to_json`.

        Raises: `Corrupt`.
        """
        return _read(_QUEUED, row)

    def to_json(self) -> Row:
        """A row of the space."""
        return _QUEUED.encode(self)

    @property
    def facts(self) -> PartFacts:
        """The fields that a series stores besides the segment itself."""
        return PartFacts(**{name: getattr(self, name) for name in _FACT_NAMES})


_FACT_NAMES = tuple(field.name for field in fields(PartFacts))


@dataclass(frozen=True, slots=True)
class MaintenanceOrder:
    """An order to condense or retain a map, with its watermark, or to delete the rows `where` a condition holds."""

    map: str
    position: int
    what: str
    before: int
    stamp_ms: int
    settings: dict[str, Any] | None = None
    again: bool = False
    where: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> MaintenanceOrder:
        """The order in an entry of the log, of a kind in `ORDER_KINDS`."""
        body = entry.body
        return cls(
            map=entry.maps[0], position=entry.position, what=entry.kind, before=body.get("before", 0),
            stamp_ms=entry.stamp_ms, settings=body["settings"], where=body.get("where"),
        )  # fmt: skip

    @classmethod
    def from_json(cls, row: Row) -> MaintenanceOrder:
        """Parse the row written by `to_json`.

        Raises: `Corrupt`.
        """
        return _read(_ORDER, row)

    def to_json(self) -> Row:
        """A row of the space."""
        return _ORDER.encode(self)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A part that could not be merged, and why."""

    map: str
    number: int
    part: str
    reason: str
    since_ms: int = 0
    queued: Queued | None = field(default=None, compare=False)

    @classmethod
    def from_json(cls, row: Row) -> Quarantined:
        """Parse the row written by `to_json`.

        Raises: `Corrupt`.
        """
        return _read(_QUARANTINED, row)

    def to_json(self) -> Row:
        """A row of the space, and the file beside the part."""
        return _QUARANTINED.encode(self)

    @property
    def position(self) -> int:
        """The position of the entry that brought it; 0 when it came before there was a log."""
        return 0 if self.queued is None else self.queued.position


_FACTS, _QUEUED, _ORDER = JsonForm(PartFacts), JsonForm(Queued), JsonForm(MaintenanceOrder)
_QUARANTINED = JsonForm(Quarantined)


def _read(form: JsonForm[T], row: Row) -> T:
    return form.stored(
        row, "a row about a part or an order cannot be read", kind="queue_damaged", form=form.type.__name__,
        hint="restore the pond from a copy",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartPlaces:
    """The paths of parts below the folder of a pond, as `loads.py` draws them."""

    folder: Path

    def part(self, part: str) -> Path:
        """Path of a part that is queued, merged now or retained."""
        return self.folder / "parts" / part

    def quarantine(self, part: Queued | Quarantined) -> Path:
        """Path of a quarantined part."""
        return self.folder / "quarantine" / f"{part.number:012d}-{part.map}"

    def reason(self, part: Queued | Quarantined) -> Path:
        """Path of the reason why a part was quarantined."""
        return self.folder / "quarantine" / f"{part.number:012d}-{part.map}.json"

    def of(self, queued: Queued) -> tuple[Path, ...]:
        """The paths at which a queued or retained part may be found: taken again, where it was quarantined, too."""
        place = self.part(queued.part)
        return (place, self.quarantine(queued)) if queued.again else (place,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """The state of a part: `state` is `queued`, `merging`, `quarantined` or `retained` (merged, and not removed yet).

    `reason`: why it was quarantined, or why the last attempt to merge the queue of its map failed.
    """

    state: str
    map: str
    part: str
    number: int
    position: int
    load: str
    rows: int
    bytes: int
    source: str
    since_ms: int
    reason: str = ""


def queued_parts(tx: ReadTransaction, name: str) -> Iterator[Queued]:
    """The parts that wait for a map, in order."""
    for entry in series_of(name).listed(tx):
        yield Queued.of(name, entry)


def queue_counts(tx: ReadTransaction, name: str) -> tuple[int, int]:
    """The numbers of parts and of rows that are queued for a map."""
    rows = [entry.segment.entries for entry in series_of(name).listed(tx)]
    return len(rows), sum(rows)


def queued_part(tx: ReadTransaction, name: str, part: str) -> Queued | None:
    """A part that waits, by its id; None when it does not."""
    entry = series_of(name).find(tx, part)
    return None if entry is None else Queued.of(name, entry)


def forget_parts(tx: Transaction, before: int, last: int) -> None:
    """Forget parts that came long ago, when the numbers of parts have gone from `before` to `last`."""
    if before // PARTS_FORGOTTEN_EVERY < last // PARTS_FORGOTTEN_EVERY:
        for name in map_names(tx):
            series_of(name).forget(tx, last - PARTS_REMEMBERED_MAX + 1)


def maintenance_orders(tx: ReadTransaction, name: str) -> Iterator[MaintenanceOrder]:
    """The maintenance orders that wait for a map, in order."""
    for _, value in tx.scan(MAINTENANCE[name].range()):
        yield MaintenanceOrder.from_json(value)


def waiting_maps(tx: ReadTransaction) -> list[str]:
    """The maps that something waits for, by name: one look for each of them, however many maps there are."""
    return sorted({str(name) for prefix in (QUEUE, MAINTENANCE) for name in first_parts(tx, prefix)})


def applied_everywhere(tx: ReadTransaction) -> int:
    """Every entry up to this position has been applied to all maps: only those that something waits for are read."""
    return min((applied_position(tx, name) for name in waiting_maps(tx)), default=head_of(tx).position)


def applied_position(tx: ReadTransaction, name: str) -> int:
    """Every entry about the map up to this position has been applied."""
    front = first_waiting(tx, name)
    return head_of(tx).position if front is None else max(0, front - 1)


def first_waiting(tx: ReadTransaction, name: str) -> int | None:
    """The position of the first entry that waits to be applied to a map; None when none does."""
    part, order = next(queued_parts(tx, name), None), next(maintenance_orders(tx, name), None)
    return min((item.position for item in (part, order) if item is not None), default=None)


def forget_map(tx: Transaction, name: str) -> None:
    """Take everything of a dropped map out of the space, but for the parts that are kept."""
    move_pointer(tx, name, None)
    series_of(name).clear(tx)
    for prefix in (QUARANTINE[name], MAINTENANCE[name], HISTORY[name], ALERTS[name]):
        tx.delete_range(prefix.range())
    tx.delete(ALERT_MARK.pack(name))
