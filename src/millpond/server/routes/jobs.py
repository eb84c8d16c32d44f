"""Jobs of a node, and an operator's orders: maintenance of a map, another merge of quarantined parts.

| route | answers |
|---|---|
| `GET /v1/jobs` | every job as it stands |
| `GET /v1/jobs/{name}?run&wait` | one job; when a run has ended, or so many seconds have passed |
| `POST /v1/jobs/{name}/run` | begins a run, and with `wait` waits for its end |
| `POST /v1/jobs/{name}/pause`, `/resume` | the job as it stands |
| `POST /v1/maps/{m}/maintenance` | condenses, retains or compacts now |
| `POST /v1/maps/{m}/rows/delete` | deletes the rows for which a condition holds |
| `GET /v1/parts?map&state` | parts that wait, are merged, were quarantined or are kept |
| `POST /v1/parts/retry` | merges parts that were quarantined once more |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from millpond.json_forms import plain
from millpond.kernel.worker import WorkerStatus, workers
from millpond.maps.loads.deletion import DeleteReport
from millpond.maps.log.queue import PartStatus
from millpond.maps.map import Map
from millpond.nodes.backups.holding import naming_backups
from millpond.nodes.jobs.scheduler import JobStatus
from millpond.nodes.node import Node
from millpond.nodes.tokens import Caller
from millpond.refs.face import POND
from millpond.server.access import caller_in
from millpond.server.dispatch import Routes
from millpond.server.lakefs.access import need as need_repository
from millpond.server.long_polls import polls_of
from millpond.server.map_refs import Branch, Ref, map_of
from millpond.server.routes.table import JSON_BYTES_MAX, MONITOR, On, order, read
from millpond.server.thread_limits import in_thread
from millpond.server.wire import RequestBody, relative

__all__ = (
    "DeleteRequest",
    "Called",
    "Maintenance",
    "MaintenanceRequest",
    "MaintenanceResponse",
    "Jobs",
    "Parts",
    "Retry",
    "delete",
    "routes",
    "tend",
)

WAIT_SECONDS_MAX = 30.0
Wait = Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)]


class Jobs(msgspec.Struct):
    """All jobs of one node."""

    node: str
    clock_ms: Annotated[int, Meta(description="the node's time")]
    jobs: list[JobStatus]
    workers: Annotated[list[WorkerStatus], Meta(description="the threads of the process that work by themselves")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Called(JobStatus):
    """A requested run of a job."""

    run: Annotated[int, Meta(description="the number of this run: it has ended when `runs` has come to it")]


class Maintenance(StrEnum):
    """The acts of maintenance on a map."""

    condense = "condense"
    retain = "retain"
    compact = "compact"


class MaintenanceRequest(RequestBody):
    """An act of maintenance, and its time limit: UTC milliseconds, or text with a zone. By default, the map's
    setting.
    """

    what: Maintenance
    before: int | str | None = None


class DeleteRequest(RequestBody):
    """A condition on the rows to delete, as scans read it; `now` purges them from the files of this node, `branches`
    also from all branches, tags and merge bases.
    """

    where: str
    now: bool = False
    branches: bool = False


class MaintenanceResponse(msgspec.Struct):
    """The result of maintenance, and the position of the log."""

    position: int
    report: dict[str, Any]


class Parts(msgspec.Struct):
    """Parts, in the order in which they were entered."""

    parts: list[PartStatus]


class Retry(RequestBody):
    """The parts to merge once more; null: all quarantined ones."""

    parts: list[str] | None = None


def routes(node: Node) -> Routes:
    """The routes of one node."""
    router = Routes(prefix="/v1")
    _add_jobs(router, node)
    _add_maintenance(router, node)
    _add_deletes(router, node)
    _add_parts(router, node)
    return router


def _add_jobs(router: Routes, node: Node) -> None:
    @router.get("/jobs", MONITOR, summary="What the node does by itself", answer=Jobs, tag="jobs")
    def list_jobs() -> dict[str, Any]:
        jobs = [_job(node, job) for job in node.scheduler.status()]
        threads = relative([plain(worker) for worker in workers()], node.pond.folder)
        return {"node": node.url, "clock_ms": node.clock.now_ms(), "jobs": jobs, "workers": threads}

    @router.get(
        "/jobs/{name}", MONITOR, summary="One job, or the end of one of its runs", answer=JobStatus, tag="jobs"
    )  # fmt: skip
    async def get_job(
        request: Request, name: str, run: Annotated[int, Meta(ge=0)] = 0, wait: Wait = 0.0,
    ) -> dict[str, Any]:  # fmt: skip
        return await _waited(request, node, name, run, wait)

    @router.post("/jobs/{name}/run", order(), summary="Run a job now, also a paused one", answer=Called, tag="jobs")
    async def run_job(request: Request, name: str, wait: Wait = 0.0) -> dict[str, Any]:
        number = node.scheduler.call(name)
        return await _waited(request, node, name, number, wait) | {"run": number}

    @router.post("/jobs/{name}/pause", order(), summary="Do not run it by itself", answer=JobStatus, tag="jobs")
    def pause_job(name: str) -> dict[str, Any]:
        return _job(node, node.scheduler.pause(name))

    @router.post("/jobs/{name}/resume", order(), summary="Run it by itself again", answer=JobStatus, tag="jobs")
    def resume_job(name: str) -> dict[str, Any]:
        return _job(node, node.scheduler.resume(name))


async def _waited(request: Request, node: Node, name: str, number: int, seconds: float) -> dict[str, Any]:
    """The job as it stands when a run has ended, or so many seconds have passed.

    Raises: as `Scheduler.has_ended`.
    """
    await polls_of(request).until(partial(node.scheduler.has_ended, name, number), bool, seconds)
    return _job(node, node.scheduler.status(name)[0])


def _job(node: Node, status: JobStatus) -> dict[str, Any]:
    """A job; its faults name files of the pond from its folder on."""
    return dict(relative(plain(status), node.pond.folder))


def tend(node: Node, pond_map: Map, order: MaintenanceRequest) -> dict[str, Any]:
    """Carry out an act of maintenance: the position of the log, and the report.

    Raises: as `Node.need_primary`, `Map.compact`, `Map.condense` and `Map.retain`.
    """
    if order.what is Maintenance.compact:
        report = pond_map.compact()
    else:
        node.need_primary()
        act = pond_map.condense if order.what is Maintenance.condense else pond_map.retain
        report = act(before=order.before)
    return {"position": node.pond.log.position()[0], "report": plain(report)}


def _add_maintenance(router: Routes, node: Node) -> None:
    @router.post(
        "/maps/{name}/maintenance", order(On.MAP), summary="Condense, retain or compact now",
        answer=MaintenanceResponse, tag="maps",
    )  # fmt: skip
    async def maintenance(
        request: Request, name: str, order: MaintenanceRequest, branch: Branch = None, ref: Ref = None
    ) -> dict[str, Any]:
        return await in_thread(request, lambda: tend(node, map_of(request, name, branch, ref), order))


def delete(node: Node, request: Request, pond_map: Map, order: DeleteRequest) -> dict[str, Any]:
    """Delete rows of a map; the report, which names the backups that have what was purged.

    Raises: `Denied` for all branches without a right on them; as `Map.delete`.
    """
    node.need_primary()
    if order.branches:
        need_repository(caller_in(request), "write", POND, None)
    report = pond_map.delete(order.where, now=order.now, branches=order.branches)
    location = node.settings.objects.backups
    return dict(plain(naming_backups(report, pond_map.definition, order.where, location) if order.now else report))


def _add_deletes(router: Routes, node: Node) -> None:
    @router.post(
        "/maps/{name}/rows/delete", order(On.MAP), summary="Delete the rows for which a condition holds",
        answer=DeleteReport, tag="maps",
    )  # fmt: skip
    async def delete_rows(
        request: Request, name: str, order: DeleteRequest, branch: Branch = None, ref: Ref = None
    ) -> dict[str, Any]:
        """One entry of the log, which other nodes carry out as well; `now` is for this node. `branches` needs the right
        to write all of them.
        """
        return await in_thread(request, lambda: delete(node, request, map_of(request, name, branch, ref), order))


def _add_parts(router: Routes, node: Node) -> None:
    @router.get(
        "/parts", read(On.QUERY_MAP), summary="Parts that wait, were quarantined or are kept", answer=Parts, tag="parts"
    )  # fmt: skip
    def list_parts(caller: Caller, map: str | None = None, state: str | None = None) -> dict[str, Any]:
        name = None if map is None else node.pond.map(map).name
        parts = node.pond.parts.list(name, state)
        # The reason for which a part was quarantined may name its file.
        return {"parts": [relative(plain(part), node.pond.folder) for part in parts if caller.may("read", part.map)]}

    @router.post(
        "/parts/retry", order(body_bytes_max=JSON_BYTES_MAX),
        summary="Merge once more what was quarantined", answer=Parts, tag="parts",
    )  # fmt: skip
    def retry_parts(retry: Retry) -> dict[str, Any]:
        return {"parts": [relative(plain(part), node.pond.folder) for part in node.pond.parts.retry(retry.parts)]}
