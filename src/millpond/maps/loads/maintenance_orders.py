"""Maintenance orders: entered into the log, and carried out in their turn."""

from __future__ import annotations

from millpond.errors import Invalid
from millpond.kernel.space import Transaction
from millpond.kernel.steps import step
from millpond.maps.loads.load import wait_applied
from millpond.maps.loads.loading import Loading
from millpond.maps.loads.merge_queue import Merged, merge_map
from millpond.maps.log.apply import record
from millpond.maps.log.log import Entry
from millpond.maps.log.queue import settings_of
from millpond.maps.maintenance.maintenance import MaintenanceReport, idle_report
from millpond.maps.model.catalogue import find_map, same_map
from millpond.maps.model.definition import MapDefinition
from millpond.maps.shard.shard import Shard

__all__ = ("ORDERS", "maintain_in_turn", "order_maintenance")

ORDERS = ("condense", "retain")


def order_maintenance(
    loading: Loading, name: str, what: str, before_ms: int, *, of: MapDefinition | None = None
) -> Entry:
    """Append the order to `condense` or `retain` a map, or none but that `of` a handle; it is carried out in its turn.

    Raises: `NotFound`; `Invalid` for another kind of maintenance; `Conflict` when a node serves the pond.
    """
    if what not in ORDERS:
        raise Invalid(
            "this maintenance cannot be ordered", kind="maintenance_unknown", what=what, hint="condense or retain"
        )
    loads = loading.loads

    def enter(tx: Transaction) -> Entry:
        definition = find_map(tx, name) if of is None else same_map(tx, of)
        body = {"incarnation": definition.incarnation, "before": before_ms, "settings": settings_of(definition)}
        return record(tx, what, (definition.name,), body, loads.clock.now_ms())

    with loading.writing():
        entry = loads.space.write(enter)
        step("maintenance.ordered")
    loads.announce()
    return entry


def maintain_in_turn(loading: Loading, shard: Shard, what: str, before_ms: int) -> MaintenanceReport:
    """Order maintenance of a map, do what waits before it, carry it out, and say what it did.

    Raises: as `order_maintenance`; `Unavailable` when somebody else keeps the map busy for long, or the disk is full;
    `Invalid`, kinds `sum_overflow`, `resolution_finer`, for rows that cannot be combined.
    """
    began, before = loading.clock.monotonic(), shard.stats()
    with loading.space.read() as tx:
        definition = same_map(tx, shard.definition)
    nothing = what == "condense" and not definition.kind.timed
    if nothing or definition.maintenance_suspended:
        return idle_report(shard, loading.clock, began, before, suspended=not nothing)
    with loading.writing():
        entry = order_maintenance(loading, definition.name, what, before_ms, of=definition)
        merged = Merged()
        merge_map(loading.loads, shard, merged)
        wait_applied(loading, entry.position, [definition.name])
    if (refused := merged.refused.get(entry.position)) is not None:
        raise refused
    report = merged.maintenance.get(entry.position)
    # Another may have carried it out, together with what came before it.
    return report or idle_report(shard, loading.clock, began, before, suspended=False)
