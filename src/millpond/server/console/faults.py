"""The faults that the first page shows, each with the page about it: those first that keep the node from work.

Invariant: each kind of fault is read from an index, so many of the newest at most, and nothing is counted whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request

from millpond.console import link, segment
from millpond.errors import MillpondError
from millpond.events.days import DAY_MS
from millpond.nodes.tokens import Caller
from millpond.server.console.pages import PAGE_ROWS
from millpond.server.console.run_search import failed_runs
from millpond.server.console.runs import TENANT, TENANTS_MAX, calling, tenants_of
from millpond.server.wire import relative

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.nodes.node import Node
    from millpond.server.rpc.dispatch import Front

__all__ = ("faults", "runs_that_failed")

LATE_MS: Final = 10_000
"""The time that a timer, or a job, may be late."""
DISK_FREE_SHARE: Final = 0.05
LOADS_SHOWN: Final = 20
RUNS_SHOWN: Final = 5
"""The failed runs of each tenant; their page has all."""
Fault = Mapping[str, str]


def faults(node: Node, request: Request, caller: Caller, loads: Iterable[Mapping[str, Any]]) -> list[Fault]:
    """The faults that a caller may see; `loads` are those of the last day."""
    failed = (load for load in loads if load["error"])
    of_loads = [
        _fault(f"load into {load['map']}", load["error"], f"/console/maps/{segment(load['map'])}")
        for load in islice(failed, LOADS_SHOWN)
    ]
    of_node = [] if not caller.may("read") else [*_of_node(node), *_late(request, node), *_of_jobs(node)]
    return [*of_node, *of_loads, *runs_that_failed(request, caller, node.clock)]


def _fault(what: str, why: object, path: str) -> Fault:
    return {"what": what, "why": str(why), "path": path}


def _of_node(node: Node) -> Iterator[Fault]:
    folder, reasons = node.pond.folder, node.reasons()
    for reason in reasons:
        yield _fault("not ready", relative(str(reason), folder), "/console/jobs")
    usage = shutil.disk_usage(node.pond.own_folder)
    if usage.free < DISK_FREE_SHARE * usage.total and not any("disk" in reason for reason in reasons):
        yield _fault("disk", f"nearly full: {usage.free >> 20} of {usage.total >> 20} MiB are free", "/console/jobs")
    for url, failure in sorted(node.follower.survey.failures.items()):
        yield _fault(f"node {url}", failure.message, "/console/jobs")
    if node.bucket is None and (status := node.follower.status()).behind:
        yield _fault("replica", f"{status.behind} entries behind {status.primary}", "/console/jobs")
    for part in islice(node.pond.parts.list(None, "quarantined"), PAGE_ROWS):
        yield _fault(f"quarantined: {part.map}", relative(part.reason, folder), "/console/jobs#parts")


def _of_jobs(node: Node) -> Iterator[Fault]:
    now_ms = node.clock.now_ms()
    for job in node.scheduler.status():
        if job.last is not None and job.last.error:
            yield _fault(f"job {job.name}", relative(job.last.error, node.pond.folder), "/console/jobs")
        elif job.next_ms is not None and job.running_since_ms is None and now_ms - job.next_ms > LATE_MS:
            yield _fault(f"job {job.name}", f"it is late by {(now_ms - job.next_ms) // 1_000} s", "/console/jobs")


def _late(request: Request, node: Node) -> Iterator[Fault]:
    """The timers of workflows that should have fired: schedules, retries, timeouts."""
    front: Front | None = request.app.state.front
    if front is None or front.workflows is None:
        return
    from millpond.workflows.processor.timers import next_due

    now_ms = oldest_ms = node.clock.now_ms()
    with suppress(MillpondError):  # a partition that was closed meanwhile
        for processor in tuple(front.workflows.about.partitions.owned.values()):
            with processor.space.read() as tx:
                due_ms = next_due(tx)
            if due_ms is not None:
                oldest_ms = min(oldest_ms, due_ms)
    late_ms = now_ms - oldest_ms
    if late_ms > LATE_MS:
        yield _fault("timers", f"schedules and retries are late by {late_ms // 1_000} s", "/console/workflows")


def runs_that_failed(request: Request, caller: Caller, clock: Clock) -> Iterator[Fault]:
    """The newest failed runs of a day, of the first tenants that the caller may read."""
    calls = calling(request, caller, TENANT)
    if calls is None:
        return
    for tenant in islice(tenants_of(calls), TENANTS_MAX):
        call = replace(calls, tenant=tenant)
        with suppress(MillpondError):  # the access lists keep the runs of this tenant to others
            for run in failed_runs(call, RUNS_SHOWN):
                if (run["began_ms"] or 0) + (run["took_ms"] or 0) > clock.now_ms() - DAY_MS:
                    page = link("/console/runs/run", id=run["id"], tenant=tenant)
                    yield _fault(f"run {run['id']} of {run['workflow']}", run["error"] or run["status"], page)
