"""Parts that were quarantined, taken again: each ends with the rows it would have given in its place.

The rows of a map depend on the order of its loads. So a part is put back before everything that was entered after it,
and what was applied meanwhile is applied once more, in order, from parts that were kept. That gives the same rows and
update times as if the part had never been quarantined, because

* every load in question overwrites: of two rows with one address the later wins, whatever was there before; and
* nothing was condensed meanwhile: condensing drops rows by what lay before them, which was not all there.

Where it would not, the part stays quarantined, and the error names the way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path

from millpond.errors import Conflict, Invalid, NotFound, Unavailable
from millpond.kernel.series import Segment
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.kernel.steps import step
from millpond.maps.loads.attempts import MergeAttempts
from millpond.maps.loads.loading import Loading
from millpond.maps.loads.loads import Loads
from millpond.maps.loads.merge_queue import merge_queued
from millpond.maps.loads.retention import part_statuses
from millpond.maps.log.apply import events_alone
from millpond.maps.log.log import Entry, entries_after
from millpond.maps.log.queue import (
    ORDER_KINDS,
    MaintenanceOrder,
    PartStatus,
    Quarantined,
    Queued,
    maintenance_orders,
    queued_parts,
    series_of,
    with_settings,
)
from millpond.maps.model.keyspaces import ABSORBED, MAINTENANCE, QUARANTINE, RETAINED
from millpond.maps.parts.part import is_part, verify_part
from millpond.maps.shard.shard import Shard
from millpond.stores.files import move

__all__ = ("replace_part", "retry_parts")


def retry_parts(loading: Loading, part_ids: Sequence[str] | None) -> list[PartStatus]:
    """Take parts that were quarantined again, see `PondParts.retry`."""
    loads = loading.loads
    quarantine = [part for part in loads.queue.quarantined() if part_ids is None or part.part in part_ids]
    unknown = set(part_ids or ()) - {part.part for part in quarantine}
    if unknown:
        raise NotFound(
            "no such part was quarantined", kind="part_not_found", part=min(unknown),
            hint="millpond parts lists those that were",
        )  # fmt: skip
    refused: dict[str, str] = {}
    for name in sorted({part.map for part in quarantine}):
        try:
            _retry_map(loads, loading.shard_of(name), [part for part in quarantine if part.map == name])
        except Conflict as error:
            if part_ids is not None:
                raise
            refused |= {part.part: str(error) for part in quarantine if part.map == name}
    loads.announce()
    if not loading.served:
        merge_queued(loads, loading.shard_of, {part.map for part in quarantine})
    retried = {part.part for part in quarantine}
    return [
        replace(part, reason=refused.get(part.part, part.reason))
        for part in part_statuses(loads) if part.part in retried
    ]  # fmt: skip


def replace_part(loading: Loading, part_id: str, file: Path) -> list[PartStatus]:
    """Hand in an intact copy of a part that was quarantined, see `PondParts.replace`."""
    loads = loading.loads
    quarantined = next((part for part in loads.queue.quarantined() if part.part == part_id), None)
    if quarantined is not None:
        manifest = verify_part(file)
        if manifest.id != part_id:
            raise Invalid("it is another part", kind="part_other", wanted=part_id, found=manifest.id)
        move(file, loads.places.quarantine(quarantined))
        step("retry.part_replaced")
    return retry_parts(loading, [part_id])


# -- one map ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Redo:
    """The work to repeat for a map: parts in their order, and maintenance orders."""

    parts: list[Queued] = field(default_factory=list)
    orders: list[MaintenanceOrder] = field(default_factory=list)
    reloaded: list[Quarantined] = field(default_factory=list)


def _retry_map(loads: Loads, shard: Shard, quarantine: Sequence[Quarantined]) -> None:
    sound = {part.number for part in quarantine if _is_whole(loads, part)}
    with loads.space.read() as tx:
        loaded_again = _reloaded(tx, shard.definition.name, sound)
    # Whose rows were loaded again since is not wanted any more, damaged or not.
    parts = [part for part in quarantine if part.number in loaded_again]
    whole = [part for part in quarantine if part.number in sound - loaded_again]
    with shard.exclusive(), loads.alone():
        _end_attempts(loads, shard)
        if parts:
            _put_back(loads, shard, parts, sound)
        if whole:
            _finish_absorbed(loads, shard)
            _put_back(loads, shard, whole, sound)


def _end_attempts(loads: Loads, shard: Shard) -> None:
    """Forget the attempts on parts that were merged, which may be queued again now."""
    with loads.space.read() as tx:
        queued = [part.part for part in queued_parts(tx, shard.definition.name)]
    MergeAttempts(shard.folder).leave(queued)


def _put_back(loads: Loads, shard: Shard, quarantine: Sequence[Quarantined], sound: AbstractSet[int]) -> None:
    def act(tx: Transaction) -> _Redo:
        redo = _plan(tx, shard, quarantine, sound)
        for queued in redo.parts:
            segment = Segment(queued.part, queued.number, queued.rows)
            series_of(queued.map).put_back(tx, segment, replace(queued, again=True).facts)
            if (events := events_alone(tx, queued)) is not None:
                tx.put(ABSORBED.pack(queued.map, events), queued.number.to_bytes(8, "big"))
        for order in redo.orders:
            tx.put(MAINTENANCE.pack(order.map, order.position), replace(order, again=True).to_json())
        for part in quarantine:
            tx.delete(QUARANTINE.pack(part.map, part.number))
        return redo

    redo = loads.space.write(act)
    step("retry.entered")
    for part in redo.reloaded:
        for place in (loads.places.quarantine(part), loads.places.reason(part)):
            place.unlink(missing_ok=True)


def _is_whole(loads: Loads, quarantined: Quarantined) -> bool:
    return quarantined.queued is not None and is_part(loads.places.quarantine(quarantined), quarantined.part)


def _finish_absorbed(loads: Loads, shard: Shard) -> None:
    """Take out of the queue what the shard has already: only the end of its merge was cut off."""
    with loads.space.read() as tx:
        queue = list(queued_parts(tx, shard.definition.name))
    if any(part.again for part in queue):
        raise Unavailable(
            "parts of the map are taken again already", kind="part_waits", map=shard.definition.name,
            hint="try again when that is done",
        )  # fmt: skip
    absorbed = shard.absorbed
    loads.finish([part for part in queue if part.load_number <= absorbed])


def _plan(
    tx: ReadTransaction, shard: Shard, quarantine: Sequence[Quarantined], sound: AbstractSet[int]
) -> _Redo:  # fmt: skip
    redo = _Redo()
    retried: dict[int, Queued] = {}
    loaded_again = _reloaded(tx, shard.definition.name, sound)
    for part in quarantine:
        if part.number in loaded_again:
            redo.reloaded.append(part)  # its rows were loaded again since
        elif part.queued is not None:
            retried[part.number] = part.queued
    if not retried:
        return redo
    least = retried[min(retried)]
    later = _later(tx, shard, least, retried)
    if shard.definition.aggregation is not None and later.orders:
        raise _out_of_order(least, "rows of the map were deleted since")
    redo.parts = sorted([*retried.values(), *later.parts], key=lambda part: part.number)
    redo.orders = later.orders
    if later.parts or later.orders:
        _check_overwrite(redo.parts)
    return redo


def _reloaded(tx: ReadTransaction, name: str, sound: AbstractSet[int]) -> set[int]:
    """The numbers of the quarantined parts of a map whose rows, or whose events, were loaded again since: of several
    with the same events all but one, which is `sound` if one is.
    """
    quarantine = (Quarantined.from_json(row) for _, row in tx.scan(QUARANTINE[name].range()))
    again, brought = set[int](), set[str]()
    for part in sorted(quarantine, key=lambda part: part.number not in sound):
        events = None if part.queued is None else events_alone(tx, part.queued)
        if series_of(name).members(tx, [part.part if events is None else events]) or events in brought:
            again.add(part.number)
        if events is not None:
            brought.add(events)
    return again


def _later(tx: ReadTransaction, shard: Shard, least: Queued, retried: dict[int, Queued]) -> _Redo:
    """The work that was applied after a part, and must be applied again."""
    name, redo = shard.definition.name, _Redo()
    if least.position == 0:
        if shard.absorbed >= least.load_number:
            raise _out_of_order(least, "it came before there was a log")
        return redo
    queued = {part.number for part in queued_parts(tx, name)}
    orders = {order.position for order in maintenance_orders(tx, name)}
    quarantined = {Quarantined.from_json(row).number for _, row in tx.scan(QUARANTINE[name].range())}
    for entry in _entries_from(tx, least):
        if entry.kind == "load":
            for number, part in enumerate(entry.body["parts"], entry.body["number"]):
                if (
                    part["map"] == name
                    and number > least.number
                    and number not in queued | quarantined | retried.keys()
                    and shard.definition.aggregation is None  # its rows combine in any order, and once
                ):
                    redo.parts.append(_retained_part(tx, part["id"], number, least))
        elif entry.kind in ORDER_KINDS and entry.maps == (name,) and entry.position not in orders:
            if entry.kind == "condense" and shard.definition.kind.timed:
                raise _out_of_order(least, "the map was condensed since")
            order = MaintenanceOrder.of(entry)
            if entry.kind != "retain" or with_settings(shard.definition, order.settings).roll_up is None:
                redo.orders.append(order)  # rows are added to those that were rolled up
    return redo


def _entries_from(tx: ReadTransaction, least: Queued) -> Iterator[Entry]:
    after = least.position - 1
    try:
        while some := entries_after(tx, after, 1000):
            yield from some
            after = some[-1].position
    except NotFound as error:
        raise _out_of_order(least, "the log no longer reaches back to it") from error


def _retained_part(tx: ReadTransaction, part: str, number: int, least: Queued) -> Queued:
    row = tx.get(RETAINED.pack(part))
    queued = None if row is None else Queued.from_json(row)
    if queued is None or queued.number != number:
        raise _out_of_order(least, "a part that was merged after it is no longer kept")
    return queued


def _check_overwrite(parts: Sequence[Queued]) -> None:
    for part in parts:
        if part.settings is not None and not part.settings["overwrite"]:
            raise _out_of_order(parts[0], "of equal addresses the first row stays, and later ones are there already")


def _out_of_order(part: Queued, reason: str) -> Conflict:
    return Conflict(
        "the part can no longer be put in its place", kind="part_order", map=part.map, part=part.part, reason=reason,
        hint="load its rows again (again=True), or make the node a copy of another: millpond repair --from URL",
    )  # fmt: skip
