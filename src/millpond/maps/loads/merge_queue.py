"""Merging what waits: maps in parallel; the loads and the maintenance orders of one map in the order of the log.

Invariants:
* who works on a map holds its lock from the moment it looks at what waits until that waits no more;
* several small loads are folded into one change of the shard, with the same result as one after another; those of a
  map with rules of alerts are not, for each is judged;
* a part that cannot be merged goes to `quarantine/` with its reason, alone, and never blocks those behind it;
* a part that ended the process `ATTEMPTS_MAX` times before its rows were in the shard goes there as well
  (`attempts.py`);
* a full disk stops the merge; the parts stay queued and are merged next time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import Any

from millpond.errors import Conflict, Invalid, MillpondError, NotFound, Unavailable
from millpond.kernel.space import ReadTransaction
from millpond.maps.alerts.alerted import Alerted, left_alerted
from millpond.maps.alerts.rules import AlertRule, rules_of
from millpond.maps.loads.attempts import ATTEMPTS_MAX, MergeAttempts
from millpond.maps.loads.loads import Loads
from millpond.maps.loads.merge import Arrived, merge_loads, part_rows, rows_held
from millpond.maps.log.queue import (
    MaintenanceOrder,
    Quarantined,
    Queued,
    maintenance_orders,
    queued_parts,
    with_settings,
)
from millpond.maps.maintenance.maintenance import MaintenanceReport, condense, delete, idle_report, retain
from millpond.maps.model.catalogue import known_map
from millpond.maps.model.store_limits import tracks_updates
from millpond.maps.parts.part import PartFile
from millpond.maps.shard.shard import WRITE_LOCK_SECONDS, Shard
from millpond.stores.files import remove_tree

__all__ = ("FOLD_BYTES", "FOLD_ROWS", "Merged", "merge_map", "merge_queued")

FOLD_ROWS = 200_000
FOLD_BYTES = 64 << 20
"""Loads are folded together up to about so many rows and bytes: what a change holds in memory, and a crash does
again."""

FOLD_PARTS = 500


@dataclass(slots=True)
class Merged:
    """The result of a round of merging: rows and parts by map, quarantined parts, maintenance reports by position.

    `refused`: the orders that the rows of their map do not allow, which changed nothing more.
    """

    rows: dict[str, int] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    quarantined: list[Quarantined] = field(default_factory=list)
    maintenance: dict[int, MaintenanceReport] = field(default_factory=dict)
    refused: dict[int, Invalid] = field(default_factory=dict)


def _always() -> bool:
    return True


def merge_queued(
    loads: Loads, shard_of: Callable[[str], Shard], maps: Iterable[str] | None = None,
    wait_seconds: float = WRITE_LOCK_SECONDS,
) -> Merged:  # fmt: skip
    """Merge everything that waits for these maps (all: None).

    Raises: `Unavailable` when the disk is full or a map stays busy; what was not merged stays queued.
    """
    queue = loads.queue.maps()
    names = queue if maps is None else sorted(set(maps).intersection(queue))
    merged = Merged()
    if len(names) <= 1:
        for name in names:
            merge_map(loads, shard_of(name), merged, wait_seconds)
        return merged
    with ThreadPoolExecutor(min(len(names), os.cpu_count() or 1)) as pool:
        # `list` waits for all and raises the first error, when every other map has been merged.
        list(pool.map(lambda name: merge_map(loads, shard_of(name), merged, wait_seconds), names))
    return merged


def merge_map(
    loads: Loads, shard: Shard, merged: Merged, wait_seconds: float = WRITE_LOCK_SECONDS,
    going: Callable[[], bool] = _always, up_to: Callable[[], float] = lambda: inf,
) -> None:  # fmt: skip
    """Do what waits for one map, until nothing does that was entered `up_to` a position, or `going` says no.

    Raises: as `merge_queued`; `Corrupt` when the shard itself is damaged.
    """
    try:
        while going() and loads.queue.waits(shard.definition.name, up_to()):
            with shard.exclusive(wait_seconds):
                due = _next(loads, shard)
                if due is None:
                    return
                if isinstance(due, MaintenanceOrder):
                    _carry_out(loads, shard, due, merged, going)
                else:
                    _merge(loads, shard, due, merged)
    except (Conflict, NotFound, OSError) as error:
        if _current(loads, shard) and getattr(error, "kind", "") != "map_converted":
            raise  # who converts a map merges before what waits
    finally:
        if not _current(loads, shard):
            # The map was dropped meanwhile: what was made for it since goes too.
            shard.close()
            remove_tree(shard.folder)


def _current(loads: Loads, shard: Shard) -> bool:
    with loads.space.read() as tx:
        current = known_map(tx, shard.definition.name)
    return current is not None and current.incarnation == shard.definition.incarnation


def _next(loads: Loads, shard: Shard) -> MaintenanceOrder | list[Queued] | None:
    """The next work: a maintenance order, or the parts of the loads before the next one, as many as are folded
    together.
    """
    name = shard.definition.name
    with loads.space.read() as tx:
        current = known_map(tx, name)
        if current is None or current.incarnation != shard.definition.incarnation:
            return None
        order, parts = next(maintenance_orders(tx, name), None), queued_parts(tx, name)
        attempts, watched = MergeAttempts(shard.folder), bool(_rules(tx, shard))
        suspected = bool(attempts.counts()) and attempts.leave({queued.part for queued in queued_parts(tx, name)})
        fold = _fold(shard, parts, None if order is None else order.position, alone=suspected or watched)
    return fold or order


def _rules(tx: ReadTransaction, shard: Shard) -> Sequence[AlertRule]:
    definition = shard.definition
    return () if definition.aggregation is None else rules_of(tx, definition.name)


def _fold(shard: Shard, parts: Iterator[Queued], before: int | None, *, alone: bool) -> list[Queued]:
    """The parts of the next load, and unless it is to be `alone`, of those that are folded together with it."""
    fold: list[Queued] = []
    rows = size = 0
    for queued in parts:
        another = not fold or fold[-1].load_number != queued.load_number
        full = (rows >= FOLD_ROWS or size >= FOLD_BYTES or len(fold) >= FOLD_PARTS) and not queued.again
        if (before is not None and queued.position >= before) or (
            fold and another and (alone or full or _tracks(shard, queued) != _tracks(shard, fold[0]))
        ):
            break
        fold.append(queued)
        rows += queued.rows
        size += queued.bytes
    return fold


def _tracks(shard: Shard, queued: Queued) -> bool:
    return tracks_updates(with_settings(shard.definition, queued.settings))


@contextmanager
def _as_set(shard: Shard, settings: dict[str, object] | None) -> Iterator[Shard]:
    """The shard as its map was set when something was entered: whether it keeps update times depends on it."""
    definition = with_settings(shard.definition, settings)
    if tracks_updates(definition) == shard.tracking:
        yield shard
        return
    other = Shard(shard.folder, definition)
    try:
        yield other
    finally:
        other.close()


# -- maintenance ---------------------------------------------------------------------------------------------


def _carry_out(loads: Loads, shard: Shard, order: MaintenanceOrder, merged: Merged, going: Callable[[], bool]) -> None:
    if order.position < shard.position and not order.again:
        # The shard came from another node, which carried the order out before it merged what followed.
        loads.carried_out(order)
        return
    began, before = loads.clock.monotonic(), shard.stats()
    try:
        report = _carried_out(loads, shard, order, going)
    except Invalid as error:
        if order.what != "retain":
            raise
        # Its rows cannot be combined, here as on every node: the next order will find others, or say so again.
        merged.refused[order.position] = error
        report = idle_report(shard, loads.clock, began, before, suspended=False)
    loads.carried_out(order)
    merged.maintenance[order.position] = report


def _carried_out(
    loads: Loads, shard: Shard, order: MaintenanceOrder, going: Callable[[], bool]
) -> MaintenanceReport:  # fmt: skip
    definition = with_settings(shard.definition, order.settings)
    with (
        loads.reports.job("maintenance", act=order.what, map=definition.name) as job,
        _as_set(shard, order.settings) as target,
    ):
        job.running()
        options: Any = {"clock": loads.clock, "now_ms": order.stamp_ms, "going": going}
        if order.where is not None:
            report = delete(target, definition, order.where, **options)
        else:
            act = condense if order.what == "condense" else retain
            report = act(target, definition, order.before, **options)
        job.note(rows_removed=report.rows_removed)
    return report


# -- parts --------------------------------------------------------------------------------------------


def _merge(loads: Loads, shard: Shard, parts: Sequence[Queued], merged: Merged) -> None:
    attempts = MergeAttempts(shard.folder)
    parts = _without_fatal(loads, shard, attempts, parts, merged)
    taken = {queued.part for queued in parts}
    loads.merging.update(taken)
    attempts.begin(taken)
    name, rows = shard.definition.name, sum(queued.rows for queued in parts)
    try:
        with loads.reports.job(f"merge/{name}", parts=len(parts), rows=rows) as job:
            job.running()
            before, quarantined = merged.rows.get(name, 0), len(merged.quarantined)
            _merge_taken(loads, shard, parts, merged)
            job.note(rows=merged.rows.get(name, 0) - before, quarantined=len(merged.quarantined) - quarantined)
    finally:
        attempts.ended(taken)
        loads.merging.difference_update(taken)


def _without_fatal(
    loads: Loads, shard: Shard, attempts: MergeAttempts, parts: Sequence[Queued], merged: Merged
) -> Sequence[Queued]:  # fmt: skip
    """Quarantine the parts that ended the process before; the others.

    A part whose rows the shard has is not suspected: only the end of its merge was cut off.
    """
    counts = attempts.counts()
    fatal = [queued for queued in parts if counts.get(queued.part, 0) >= ATTEMPTS_MAX]
    if fatal:
        has = rows_held(shard)
        fatal = [queued for queued in fatal if queued.again or not has(queued.load_number, queued.position)]
    for queued in fatal:
        reason = f"the process ended {counts[queued.part]} times while the part was merged"
        merged.quarantined.append(loads.quarantine(queued, reason))
    attempts.ended(queued.part for queued in fatal)
    return [queued for queued in parts if queued not in fatal]


def _merge_taken(loads: Loads, shard: Shard, parts: Sequence[Queued], merged: Merged) -> None:
    whole = _checked(loads, shard, parts, merged)
    while whole:
        try:
            rows = _merge_whole(loads, shard, whole)
        except (Unavailable, Conflict, OSError):
            raise
        except Exception as error:
            bad = _overflowing(error, whole) or _unreadable(shard, whole)
            if not bad:
                raise
            merged.quarantined += [loads.quarantine(queued, reason) for queued, reason in bad]
            whole = [pair for pair in whole if pair[0] not in [queued for queued, _ in bad]]
        else:
            name = shard.definition.name
            merged.rows[name] = merged.rows.get(name, 0) + rows
            merged.parts[name] = merged.parts.get(name, 0) + len(whole)
            return


def _merge_whole(loads: Loads, shard: Shard, parts: Sequence[tuple[Queued, PartFile]]) -> int:
    arrived = []
    for _, group in groupby(parts, key=lambda pair: pair[0].load_number):
        first, *rest = group
        queued, received = first[0], [received for _, received in (first, *rest)]
        overwrite = with_settings(shard.definition, queued.settings).overwrite
        stamp = queued.stamp_ms or loads.clock.now_ms()
        arrived.append(
            Arrived(queued.load_number, stamp, overwrite, tuple(received), queued.position, again=queued.again)
        )
    with loads.space.read() as tx:
        rules = _rules(tx, shard) if len(arrived) == 1 else ()  # else they came before the first rule
    rules = [rule for rule in rules if rule.position <= arrived[0].position or arrived[0].again]
    with _as_set(shard, parts[0][0].settings) as target:
        report = merge_loads(target, arrived, rules=rules)
        alerted = _left_alerted(target, [load.number for load in arrived])
    loads.finish([queued for queued, _ in parts], alerted)
    if alerted:
        loads.tell_alerts()
    return report.rows


def _left_alerted(shard: Shard, loads: Sequence[int]) -> list[Alerted]:
    if shard.definition.aggregation is None:
        return []
    with shard.view() as view:
        return left_alerted(view, loads)


def _checked(loads: Loads, shard: Shard, parts: Sequence[Queued], merged: Merged) -> list[tuple[Queued, PartFile]]:
    """The parts that are whole, taken to be merged; the others are quarantined."""
    whole: list[tuple[Queued, PartFile]] = []
    for queued in parts:
        try:
            file = loads.take(queued)
            whole.append((queued, PartFile(file, loads.accepted.verify(file, shard.definition))))
        except (Unavailable, Conflict, OSError):
            raise
        except MillpondError as error:
            merged.quarantined.append(loads.quarantine(queued, str(error.without("file"))))
        except Exception as error:
            merged.quarantined.append(loads.quarantine(queued, str(error) or repr(error)))
    return whole


def _overflowing(error: Exception, parts: Sequence[tuple[Queued, PartFile]]) -> list[tuple[Queued, str]]:
    """The part whose rows could not be added to those of an aggregate, and why; none for another error."""
    if getattr(error, "kind", "") != "part_sums":
        return []
    assert isinstance(error, MillpondError), "it has a kind"
    return [(queued, str(error)) for queued, _ in parts if queued.part == error.values["part"]]


def _unreadable(shard: Shard, parts: Sequence[tuple[Queued, PartFile]]) -> list[tuple[Queued, str]]:
    """The parts that cannot be read through although they have the right checksums, with reasons; none means
    that the shard is at fault.
    """
    unreadable = []
    for queued, received in parts:
        try:
            rows = sum(batch.num_rows for batch in part_rows(shard.definition, received))
            if rows != queued.rows:
                unreadable.append((queued, f"the part holds {rows} rows, not {queued.rows}"))
        except MillpondError as error:
            unreadable.append((queued, str(error.without("file"))))
        except Exception as error:
            unreadable.append((queued, str(error) or repr(error)))
    return unreadable
