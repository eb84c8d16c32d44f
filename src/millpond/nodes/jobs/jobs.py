"""The periodic jobs of a node.

| job | does | where |
|---|---|---|
| `merge` | has what waits merged | every node |
| `condense`, `retain` | orders maintenance in the log, and waits until it has run | the primary |
| `compact` | rewrites shards of which much is free, folds layers | every node |
| `snapshot` | freezes maps that moved on since they were last frozen | every node |
| `cleanup` | removes expired uploads and kept parts, lets go of files nobody asks for | every node |
| `events` | compresses days of events, drops others, ends jobs of lost clients, tells alerts that wait | every node |
| `orphans` | removes folders that belong to nothing (`orphans.py`) | every node |
| `replicate` | pulls what the primary entered | replicas; a primary asks whether others know more |
| `compare` | compares the rows of every map with the primary's, by their digests | replicas |
| `garbage` | removes files of a bucket that nothing needs | one node on the bucket |
| `verify` | checks every invariant on the data; off unless its interval is set | every node |

Invariants:
* a fault of one map is reported, and the job goes on with the next;
* a job ends soon after its node begins to stop;
* a job that ends early leaves nothing half: what it did counts, the rest is done when it is next due.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.arrays.malloc import give_memory_back
from millpond.errors import MillpondError, Unavailable
from millpond.events.maintenance import EventMaintenance, MaintenanceReport, MaintenanceRules
from millpond.events.protocol import StreamRules
from millpond.maps.layered.maintenance import folds_due, tidy
from millpond.maps.shard.free_space import free_space
from millpond.maps.snapshots.refresh import current_manifest
from millpond.nodes.jobs.maintenance import MaintenanceOrders
from millpond.nodes.jobs.orphans import remove_orphans
from millpond.nodes.jobs.scheduler import Job, Outcome
from millpond.nodes.limits import intervals_ms
from millpond.sizes import human_count

if TYPE_CHECKING:
    from millpond.maps.map import Map
    from millpond.nodes.node import Node

__all__ = ("node_jobs",)

FREE_SHARE_MIN = 0.2
"""A shard is compacted when at least so much of its file is free pages: deleting also leaves pages half full."""
COMPACT_BYTES_MIN = 1 << 20
"""Smaller shards are not worth it."""
WAIT_SECONDS = 60.0
"""The time for which a job waits for the merger; it goes on without."""
_CLEANED = {
    "uploads": ("upload", "expired"), "parts": ("kept part", "expired"), "copies": ("copy", "removed"),
    "closed": ("idle map", "closed"),
}  # fmt: skip
_DONE = {"condense": "condensed", "retain": "retained"}
_REPORTED = frozenset(("snapshot", "cleanup", "events", "orphans"))
"""The jobs with events of their own; merges and orders of maintenance report themselves."""
_ON_BUCKETS = frozenset(("condense", "retain", "compact", "cleanup", "events", "verify"))
"""The jobs of a node on a bucket, beside `garbage`; the others are about folders and other nodes."""
_SLICE_SECONDS = 0.5
_REPLICATE_SECONDS = 10.0


def node_jobs(node: Node) -> list[Job]:
    """The jobs of a node, each at its usual interval, or at the one that its settings say.

    Raises: `Invalid` for an interval of something that is no job.
    """
    every = intervals_ms(node.settings)
    jobs: list[tuple[str, str, Callable[[Node, threading.Event], Outcome]]] = [
        ("merge", "merges what was loaded", _Merging()),
        ("condense", "drops repeats, joins sessions", _maintain(node, "condense", every["condense"])),
        ("retain", "deletes what is too old", _maintain(node, "retain", every["retain"])),
        ("compact", "gives disk back", _compact),
        ("snapshot", "freezes maps that moved on", _snapshot),
        ("cleanup", "removes expired uploads and parts, closes idle files", _cleanup),
        ("events", "compresses and drops old days of events", _events),
        ("orphans", "removes folders that belong to nothing", _orphans),
        ("replicate", "follows the log of the primary", _replicate),
        ("compare", "compares maps with the primary's", _compare),
        ("verify", "checks every promise on the data", _verify),
    ]
    if node.bucket is not None:
        jobs = [job for job in jobs if job[0] in _ON_BUCKETS]
        jobs.append(("garbage", "removes files of the bucket that nothing needs", _garbage))
    if node.settings.objects.backups:
        jobs.append(("backups", "looks for the newest backup", _backups))
    # Other jobs open files, too: after them, those that nobody else asked for are idle.
    lag = {"cleanup": 0.5}
    # The merger does not wait for a notice of a load, nor the follower for its turn.
    pause = {"merge": node.merger.pause.set, "replicate": node.follower.pause.set}
    return [
        Job(name, purpose, every[name], partial(_reported, name, work, node), lag.get(name, 0.0), pause.get(name))
        for name, purpose, work in jobs
    ]


def _reported(
    name: str, work: Callable[[Node, threading.Event], Outcome], node: Node, stopping: threading.Event
) -> Outcome:
    """Work whose outcome is an event, if there was anything to do and no other event says so."""
    outcome = work(node, stopping)
    if name in _REPORTED and any(outcome.numbers.values()):
        with node.pond.reports.job("maintenance", act=name) as job:
            job.running()
            job.note(faults=len(outcome.faults), **outcome.numbers)
    return outcome


class _Faults(list[str]):
    """The faults of a run, thing by thing."""

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Note an error of one thing, and go on."""
        try:
            yield
        except MillpondError as error:
            if error.kind != "map_dropped":  # meanwhile: there is nothing left to do
                self.append(f"{what}: {error}")


def _maps(node: Node, stopping: threading.Event) -> Iterator[Map]:
    for pond_map in node.pond.maps():
        if stopping.is_set():
            return
        yield pond_map


def _undoubted_ms(node: Node) -> int:
    """The time by which things go for their age: no later than that of the streams, the one that may be doubted."""
    return min(node.clock.now_ms(), node.events.store.now_ms())


def _of(count: int, of: int, what: str) -> str:
    return f"{human_count(count)} of {human_count(of, what)}"


# -- merging ------------------------------------------------------------------------------------------


class _Merging:
    """The job `merge`. It runs every second, so it looks closer only when something waits, or was entered since."""

    def __init__(self) -> None:
        self._position, self._last = -1, ""

    def __call__(self, node: Node, stopping: threading.Event) -> Outcome:
        position = node.pond.log.position()[0]
        if node.bucket is None:
            node.pond.tell_alerts()
        if node.pond.parts.queued_maps():
            self._position = -1
            return _merge(node, position, stopping)
        if position != self._position:
            status = node.merger.status()
            settled = not any(row["working"] for row in status)
            self._position, self._last = position if settled else -1, _last_merge(status)
        return Outcome(self._last, {"parts": 0, "rows": 0, "parts_queued": 0})


def _merge(node: Node, position: int, stopping: threading.Event) -> Outcome:
    before, faults = _queued(node.merger.status()), _Faults()
    with node.merger.pause.awake(), faults.of("queued"):
        _wait_applied(node, position, stopping)
    status = node.merger.status()
    after = _queued(status)
    faults += [f"map {row['map']}: {row['error']}" for row in status if row["error"]]
    merged = {what: max(before[what] - after[what], 0) for what in before}
    summary = f"merged {human_count(merged['parts'], 'part')}, {human_count(merged['rows'], 'row')}"
    summary += f"; {human_count(after['parts'], 'part')} wait" if after["parts"] else ""
    return Outcome(summary, merged | {"parts_queued": after["parts"]}, tuple(faults))


def _last_merge(status: Sequence[Mapping[str, Any]]) -> str:
    done = [row for row in status if row["merged_ms"] is not None]
    if not done:
        return "nothing waited"
    last = max(done, key=lambda row: row["merged_ms"])
    return f"nothing waited; last: {human_count(last['merged_rows'], 'row')} of {last['map']}"


def _queued(status: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {what: sum(row[f"{what}_queued"] for row in status) for what in ("parts", "rows")}


def _wait_applied(node: Node, position: int, stopping: threading.Event) -> None:
    """Wait until the merger has come to a position, the node stops, or patience ends.

    Raises: `Corrupt` when a part was quarantined.
    """
    until = node.clock.monotonic() + WAIT_SECONDS
    while not stopping.is_set() and node.clock.monotonic() < until:
        try:
            node.pond.log.wait_applied(position, timeout=_SLICE_SECONDS)
        except Unavailable as error:
            if error.kind != "merge_failed":  # the merger says itself why
                continue
        return


# -- maintenance ---------------------------------------------------------------------------------------------


def _maintain(node: Node, act: str, interval_ms: int) -> Callable[[Node, threading.Event], Outcome]:
    orders = MaintenanceOrders(node.pond, interval_ms)

    def work(node: Node, stopping: threading.Event) -> Outcome:
        if not node.leads():
            return Outcome(f"follows the log of {node.follower.members.primary}")
        node.need_primary()
        if (doubt := node.events.doubt()) is not None:
            return Outcome(f"kept what is old: {doubt}")
        return _order_maintenance(node, act, orders, stopping)

    return work


def _order_maintenance(node: Node, act: str, orders: MaintenanceOrders, stopping: threading.Event) -> Outcome:
    faults, ordered, seen, reports = _Faults(), list[int](), 0, list[Any]()
    now_ms = _undoubted_ms(node)
    for pond_map in _maps(node, stopping):
        seen += 1
        with faults.of(f"map {pond_map.name}"):
            if orders.due(pond_map, act, now_ms) is None:
                continue
            with node.turns(f"{act}/{pond_map.name}", stopping) as turn:
                # Another node may have done it before this one had its turn.
                before = None if turn is None else orders.due(pond_map, act, now_ms)
                if before is None:
                    continue
                with node.appending():
                    if pond_map.layers is not None:  # nobody else carries it out
                        reports.append(pond_map.rows.maintain(act, before))
                    else:
                        ordered.append(node.pond.log.order_maintenance(pond_map.name, act, before).position)
    count = len(ordered) + len(reports)
    reports += [report for report in _reports(node, ordered, stopping) if report is not None]
    removed = sum(report.rows_removed for report in reports)
    summary = f"nothing to do in {human_count(seen, 'map')}"
    if count:
        summary = f"{_DONE[act]} {_of(len(reports), seen, 'map')}, {human_count(removed, 'row')} fewer"
        pending = count - len(reports)
        summary += f"; {human_count(pending, 'order')} wait to be carried out" if pending else ""
    return Outcome(summary, {"maps": len(reports), "ordered": count, "rows_removed": removed}, tuple(faults))


def _reports(node: Node, positions: list[int], stopping: threading.Event) -> list[Any]:
    """The reports of the orders, None for those that are not carried out in time."""
    node.merger.nudge()
    until = node.clock.monotonic() + WAIT_SECONDS
    for position in positions:
        while not stopping.is_set() and node.clock.monotonic() < until:
            if node.merger.wait_report(position, _SLICE_SECONDS) is not None:
                break
    return [node.merger.report(position) for position in positions]


def _compact(node: Node, stopping: threading.Event) -> Outcome:
    faults, seen, done, given_back = _Faults(), 0, 0, 0
    for pond_map in _maps(node, stopping):
        seen += 1
        with faults.of(f"map {pond_map.name}"):
            if pond_map.layers is not None:
                done += _tidy(node, pond_map, stopping)
                continue
            space = free_space(pond_map.shard)
            if (
                pond_map.definition.maintenance_suspended
                or space.file_bytes < COMPACT_BYTES_MIN
                or space.share < FREE_SHARE_MIN
            ):
                continue
            report = pond_map.compact()
            done, given_back = done + 1, given_back + report.bytes_before - report.bytes_after
    summary = f"nothing to do in {human_count(seen, 'map')}"
    if done:
        summary = f"compacted {_of(done, seen, 'map')}, {given_back / (1 << 20):,.1f} MiB given back"
    return Outcome(summary, {"maps": done, "bytes": given_back}, tuple(faults))


def _tidy(node: Node, pond_map: Map, stopping: threading.Event) -> bool:
    assert pond_map.layers is not None, "it has layers"
    if node.bucket is not None and not folds_due(node.pond.loading, pond_map.name):
        return False  # a turn costs requests
    with node.turns(f"compact/{pond_map.name}", stopping) as turn:
        return turn is not None and tidy(pond_map.layers, node.pond.loading.shared_layers)


# -- snapshots ----------------------------------------------------------------------------------------


def _snapshot(node: Node, stopping: threading.Event) -> Outcome:
    faults, seen, done = _Faults(), 0, 0
    for pond_map in _maps(node, stopping):
        seen += 1
        with faults.of(f"map {pond_map.name}"):
            if _snapshot_due(node, pond_map):
                pond_map.freeze()
                done += 1
    summary = f"froze {_of(done, seen, 'map')}" if done else f"nothing to do in {human_count(seen, 'map')}"
    return Outcome(summary, {"maps": done}, tuple(faults))


def _snapshot_due(node: Node, pond_map: Map) -> bool:
    """True when a map that is read by snapshots moved on, and its snapshot is old enough to be replaced."""
    # A map that was never frozen is frozen when somebody asks: a snapshot that nobody reads only takes disk.
    if pond_map.layers is not None:
        return False
    manifest = current_manifest(node.pond.space, pond_map.objects, pond_map.definition)
    if manifest is None or manifest.shard_version == pond_map.shard.version:
        return False
    age_ms = node.clock.now_ms() - manifest.created_ms
    return not 0 <= age_ms < node.settings.client.min_time_to_keep_snapshots


# -- the rest -----------------------------------------------------------------------------------------


def _cleanup(node: Node, _stopping: threading.Event) -> Outcome:
    faults, numbers, doubts = _Faults(), dict.fromkeys(_CLEANED, 0), []
    with faults.of("uploads and parts"):
        if (doubt := node.events.doubt()) is not None:
            doubts.append(f"kept what is old: {doubt}")
        else:
            now_ms = _undoubted_ms(node)
            numbers["uploads"] = node.receiver.expire(now_ms)
            numbers["parts"] = node.pond.parts.expire(now_ms - node.settings.maps.part_retention)
    with faults.of("copies"):
        numbers["copies"] = node.copies.expire()
    with faults.of("files"):
        node.at_refs.release()
        numbers["closed"] = node.pond.open_maps.close_idle(node.limits.files_idle_ms / 1000)
    give_memory_back()
    summaries = [
        f"{human_count(numbers[what], thing)} {done}" for what, (thing, done) in _CLEANED.items() if numbers[what]
    ]
    return Outcome(", ".join((*summaries, *doubts)) or "nothing to do", numbers, tuple(faults))


def _events(node: Node, stopping: threading.Event) -> Outcome:
    settings, events = node.settings, node.events
    node.pond.tell_alerts()
    rules = MaintenanceRules(retention_ms=settings.events.retention)
    doubt = events.doubt()
    maintenance = EventMaintenance(events.store, node.clock, rules, StreamRules().forget_ms, doubt=doubt)
    with node.turns("events", stopping) as turn:  # of a bucket one node does it
        compressed = maintenance.compress(turn) if turn is not None else MaintenanceReport()
        expired = maintenance.expire(turn) if turn is not None and doubt is None else MaintenanceReport()
    lost, faults = 0, list[str]()
    if doubt is None:
        lost, faults = node.client_jobs.end_lost(node.limits.client_silent_ms, stopping)
    node.census.turn(stopping, maintenance.ages)
    failed = compressed.failed + expired.failed
    numbers = {"days": compressed.days, "events": expired.events, "lost": lost, "failed": failed}
    done = [f"compressed {human_count(compressed.days, 'day')}"] if compressed.days else []
    done += [f"dropped {human_count(expired.events, 'event')}"] if expired.events else []
    done += [f"ended {human_count(lost, 'job')} of lost clients"] if lost else []
    done += [f"kept what is old: {doubt}"] if doubt else []
    return Outcome("; ".join(done) or "nothing to do", numbers, (*compressed.faults, *expired.faults, *faults))


def _garbage(node: Node, stopping: threading.Event) -> Outcome:
    with node.turns("garbage", stopping) as turn:
        if turn is None:
            return Outcome("another node does it")
        garbage = node.pond.collect_garbage()
    numbers = {"files": garbage.files + garbage.manifests, "bytes": garbage.bytes, "retained": garbage.retained}
    removed = f"removed {human_count(numbers['files'], 'file')}, {garbage.bytes / (1 << 20):,.1f} MiB"
    return Outcome(removed if numbers["files"] else "nothing to do", numbers)


def _backups(node: Node, _stopping: threading.Event) -> Outcome:
    newest = node.newest_backup.look()
    return Outcome(f"the newest is {newest}" if newest else "there is no backup of this pond")


def _orphans(node: Node, _stopping: threading.Event) -> Outcome:
    if (doubt := node.events.doubt()) is not None:
        return Outcome(f"kept what is old: {doubt}")
    removed = remove_orphans(node.pond, _undoubted_ms(node))
    summary = f"removed {', '.join(removed)}" if removed else "nothing to do"
    return Outcome(summary, {"folders": len(removed)})


def _replicate(node: Node, _stopping: threading.Event) -> Outcome:
    status = node.follower.status()
    if status.state == "alone":
        return Outcome(f"alone at position {status.position:,}", {"position": status.position, "behind": 0})
    faults = _Faults()
    with faults.of("behind"):
        if node.follower.pause.held:
            node.follower.ask_now(_REPLICATE_SECONDS)
        elif status.behind:
            node.follower.pull(status.position + status.behind, _REPLICATE_SECONDS)
    status = node.follower.status()
    if status.error is not None and not faults:
        faults.append(status.error)
    leads = status.state == "following" and node.leads()
    summary = f"{'leading' if leads else status.state} at position {status.position:,}"
    summary += f", {status.behind:,} behind" if status.behind else ""
    return Outcome(summary, {"position": status.position, "behind": status.behind}, tuple(faults))


def _compare(node: Node, stopping: threading.Event) -> Outcome:
    if node.follower.role != "replica":
        others = ": the replicas compare themselves with it" if node.follower.role == "primary" else ""
        return Outcome(f"{node.follower.role}{others}")
    findings = node.comparing.compare(stopping)
    if findings is None:
        return Outcome("equal to the primary; nothing changed since")
    own = [finding for finding in findings.findings if finding.node == node.url]
    equal = sum(finding.state == "agrees" for finding in own)
    behind = sum(finding.state == "behind" for finding in own)
    summary = f"{_of(equal, len(own), 'map')} equal to the primary's"
    summary += f", {behind:,} not there yet" if behind else ""
    numbers = {"maps": len(own), "equal": equal, "behind": behind, "differing": len(node.comparing.differing)}
    return Outcome(summary, numbers, tuple(node.comparing.reasons()))


def _verify(node: Node, stopping: threading.Event) -> Outcome:
    report = node.pond.verify(full=True, going=lambda: not stopping.is_set())
    problems = tuple(str(problem) for problem in report.problems)
    summary = f"checked {human_count(report.checked, 'thing')}, {human_count(len(problems), 'problem')}"
    return Outcome(summary, {"checked": report.checked, "problems": len(problems)}, problems)
