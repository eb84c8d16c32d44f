"""Metrics of a node, for Prometheus.

| metric | labels | |
|---|---|---|
| `millpond_requests_total` | route, method, status | requests answered |
| `millpond_request_seconds` | route, method | how long they took, to the last byte |
| `millpond_requests_running` | | requests being answered |
| `millpond_requests_refused_total` | surface, kind | requests without the right, over a limit, or from a foreign page |
| `millpond_requests_memory_bytes`, `millpond_requests_memory_bytes_max` | | memory that requests hold, and may hold |
| `millpond_requests_queued` | | requests that wait for memory |
| `millpond_connections` | | connections that are open |
| `millpond_readers`, `millpond_readers_replaced_total` | | reading processes that answer; that were replaced |
| `millpond_long_polls` | | requests that wait for a change |
| `millpond_watchers` | protocol | streams that are watched, over `http` or `grpc`: one for each watcher |
| `millpond_events_left_out_total` | what | events, or payloads, that have no form for Armada's clients |
| `millpond_upload_bytes_total` | | bytes of parts received |
| `millpond_parts_merged_total`, `millpond_rows_merged_total` | map | since the node started |
| `millpond_parts_queued`, `millpond_rows_queued` | map | entered, not merged yet |
| `millpond_parts_quarantined` | map | quarantined |
| `millpond_merge_failing` | map | 1 while merging it fails |
| `millpond_bucket_moment`, `millpond_bucket_clock_skew_seconds` | | of a node on a bucket: its last change, our clock |
| `millpond_log_position`, `millpond_log_behind` | | last entry; how many the primary is ahead |
| `millpond_clock_skew_seconds` | node | by how much the clock of a peer is ahead |
| `millpond_maps_differing` | | maps of a replica that are not as the primary has them (job `compare`) |
| `millpond_applied_position` | map | applied up to there |
| `millpond_snapshot_age_seconds` | map | since its snapshot was frozen; it may be current all the same |
| `millpond_disk_free_bytes` | | where the pond lies |
| `millpond_versions_compactions_total`, `millpond_versions_compactions_lost_total` | | compactions of branches |
| `millpond_versions_compaction_seconds_total`, `millpond_versions_layers_folded_total` | | their time, their layers |
| `millpond_versions_heads_moved_total`, `millpond_versions_moves_repeated_total` | | commits, also built again |
| `millpond_versions_branches`, `millpond_versions_sealed_layers`, `…_max` | | of all branches, and the most of one |
| `millpond_versions_deletions` | | tombstones counted since branches were compacted or committed |
| `millpond_job_runs_total`, `millpond_job_failures_total` | job | since the node started |
| `millpond_backup_age_seconds` | | of the newest backup where `objects.backups` says; infinite without one |
| `millpond_log_ahead_seconds` | | by how much the newest entry of the log is ahead of the clock, which was wrong |
| `millpond_ready` | | 1 when it may be sent work |
| `millpond_build_info` | version | 1 |
| `process_resident_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds` … | | of the process |

Routes are labelled with their template (`/v1/maps/{name}`), so that names of maps make no new series; what no route
takes is `none`. A reading process has series of its own, with the label `process` (`reader-1`). State is read when it
is asked for. The page is in Prometheus' text format, or in OpenMetrics where that is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millpond.clock import Clock
from millpond.errors import MillpondError
from millpond.kernel.hours import Hours
from millpond.maps.log.log import head_of
from millpond.maps.model.snapshot_pointer import current_snapshots
from millpond.maps.snapshots.manifest import load_manifest
from millpond.nodes.node import Node
from millpond.server.armada.messages import LEFT_OUT
from millpond.server.armada.watching import GRPC, HTTP, Watching
from millpond.server.connections import Connections
from millpond.server.dispatch import Routes
from millpond.server.event_metrics import EventMetrics
from millpond.server.memory import MemoryBudget
from millpond.server.readers import Readers
from millpond.server.routes.table import MONITOR, WORKS
from millpond.versions.staging.branches import count_layers

__all__ = ("Metrics", "routes")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
disable_created_metrics()  # type: ignore[no-untyped-call]  # a series for when another began is of no use to anybody here
_LOOKUPS = frozenset(("/v1/maps/{name}/get", "/v1/maps/{name}/lookup"))
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """The counters of one application; several may live in one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lookups = Hours()
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "millpond_requests", "Requests answered.", ("route", "method", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "millpond_request_seconds", "How long requests took, to the last byte.", ("route", "method"),
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.running = Gauge("millpond_requests_running", "Requests being answered.", registry=self.registry)
        self.refused = Counter(
            "millpond_requests_refused", "Requests refused before they were worked on.", ("surface", "kind"),
            registry=self.registry,
        )  # fmt: skip
        self.registry.register(LEFT_OUT)
        self.events_ahead = Gauge(
            "millpond_events_ahead_seconds", "How far the id of the newest appended event is ahead of the clock.",
            registry=self.registry,
        )  # fmt: skip
        self.upload_bytes = Counter("millpond_upload_bytes", "Bytes of parts received.", registry=self.registry)
        ProcessCollector(registry=self.registry)
        build = Gauge("millpond_build_info", "The release that runs.", ("version",), registry=self.registry)
        build.labels(version("millpond")).set(1)
        self._series: dict[tuple[str, str, int | str], tuple[Counter, Histogram]] = {}
        self.readers: Readers | None = None

    def lookups_by_hour(self) -> list[int]:
        """The lookups that all processes answered in each of the last 24 hours, since they began; a request is one."""
        others = () if self.readers is None else self.readers.lookups_by_hour()
        return [sum(counts) for counts in zip(self._lookups.of_day(self._clock.now_ms()), *others, strict=True)]

    def show_readers(self, readers: Readers) -> None:
        """Show the reading processes, and what they count, at every scrape."""
        self.readers = readers
        self.registry.register(readers)

    def collect(self) -> Iterator[Metric]:
        """All of this process, and those of the reading processes with their names."""
        families = {family.name: family for family in self.registry.collect()}
        for process, samples in () if self.readers is None else self.readers.metrics():
            for family in samples:
                mine = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                mine.samples += [
                    sample._replace(labels={**sample.labels, "process": process}) for sample in family.samples
                ]
        yield from families.values()

    def count_refused(self, surface: str, kind: str) -> None:
        """Count a request or a connection that was refused. `surface`: the API, or `connection`."""
        self.refused.labels(surface, kind).inc()

    def show_connections(self, connections: Connections) -> None:
        """Show the number of connections at every scrape."""
        gauge = Gauge("millpond_connections", "Connections that are open.", registry=self.registry)
        gauge.set_function(lambda: connections.total)

    def show_memory(self, memory: MemoryBudget) -> None:
        """Show the memory of requests at every scrape."""
        for name, said, value in (
            ("memory_bytes", "Memory that requests hold.", lambda: memory.taken),
            ("memory_bytes_max", "Memory that requests may hold: server.max_request_memory.", lambda: memory.bytes_max),
            ("queued", "Requests that wait for memory.", lambda: memory.queued),
        ):
            Gauge(f"millpond_requests_{name}", said, registry=self.registry).set_function(value)

    def show_long_polls(self, state: Any) -> None:
        """Show the number of long polls at every scrape; there are some while the application runs."""
        gauge = Gauge("millpond_long_polls", "Requests that wait for a change.", registry=self.registry)
        gauge.set_function(lambda: state.long_polls.count)

    def show_watchers(self, watching: Watching) -> None:
        """Show the number of watchers of events at every scrape."""
        gauge = Gauge("millpond_watchers", "Watchers of event streams.", ("protocol",), registry=self.registry)
        for protocol in (GRPC, HTTP):
            gauge.labels(protocol).set_function(partial(watching.counts.__getitem__, protocol))

    def counting(self, app: ASGIApp, clock: Clock) -> ASGIApp:
        """The application, counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            status = 0
            began = clock.monotonic()

            async def sending(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                await send(message)

            self.running.inc()
            try:
                await app(scope, receive, sending)
            finally:
                if (end := scope.get(WORKS)) is not None:
                    end()
                # 499: who asked went away before there was an answer
                self.count(_template(scope), scope["method"], status or 499, clock.monotonic() - began)
                self.running.dec()  # last: once none runs, all are counted

        return counted

    def count(self, route: str, method: str, status: int | str, seconds: float) -> None:
        """Count a request that was answered; of a call over gRPC, the method is `GRPC`, and the status has a name."""
        requests, duration = self._of(route, method, status)
        requests.inc()
        duration.observe(seconds)
        if route in _LOOKUPS and status == 200:
            self._lookups.add(self._clock.now_ms())

    def _of(self, route: str, method: str, status: int | str) -> tuple[Counter, Histogram]:
        """The series of one kind of request: finding them by their labels takes longer than counting."""
        labelled = self._series.get((route, method, status))
        if labelled is None:
            series = self.requests.labels(route, method, status), self.seconds.labels(route, method)
            labelled = self._series[route, method, status] = series
        return labelled


def _template(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "none")


class _State(Collector):
    """The state of a node, read at every scrape."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # A manifest never changes: of thousands of maps, a page reads those that were frozen since the last.
        self._frozen_ms: dict[tuple[str, str], int] = {}

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        node = self._node
        yield _gauge("ready", "Whether the node may be sent work.", float(not node.reasons()))
        if node.bucket is not None:
            yield _gauge("bucket_moment", "Number of the last change that was seen.", node.bucket.space.moment)
            yield _gauge("bucket_clock_skew_seconds", "Beside the bucket's clock.", node.bucket.skew_ms / 1000)
            if node.bucket.away:
                return  # what follows would ask it
        yield _gauge("log_position", "Position of the last entry.", node.pond.log.position()[0])
        with node.pond.space.read() as tx:
            ahead_ms = head_of(tx).stamp_ms - node.clock.now_ms()
        yield _gauge("log_ahead_seconds", "By how much the log is ahead of the clock.", max(0, ahead_ms) / 1000)
        yield _gauge("log_behind", "Entries the primary is ahead.", node.follower.status().behind)
        skews = {url: skew / 1000 for url, skew in node.follower.survey.skews_ms.items()}
        yield _gauges("clock_skew_seconds", "By how much a peer's clock is ahead of this one's.", "node", skews)
        differing = len(node.comparing.differing)
        yield _gauge("maps_differing", "Maps that are not as the primary has them.", differing)
        yield _gauge("disk_free_bytes", "Bytes free where the pond lies.", node.disk_free())
        if (backup_ms := node.newest_backup.created_ms) is not None:
            yield _gauge("backup_age_seconds", "Age of the newest backup.", (node.clock.now_ms() - backup_ms) / 1000)
        yield from self._of_versions()
        yield from self._of_maps()
        yield from self._of_jobs()

    def _of_versions(self) -> Iterator[Metric]:
        measures = self._node.pond.repositories.measures
        for name, said, value in (
            ("compactions", "Compactions of branches that were taken.", measures.compactions),
            (
                "compactions_lost",
                "Compactions of branches that something else was ahead of.",
                measures.compactions_lost,
            ),
            ("compaction_seconds", "Time of compactions.", measures.compaction_ms / 1000),
            ("layers_folded", "Sealed layers that compactions replaced.", measures.layers_folded),
            ("heads_moved", "Commits, merges and reverts.", measures.heads_moved),
            ("moves_repeated", "Commits and merges that were built again.", measures.moves_repeated),
        ):
            yield CounterMetricFamily(f"millpond_versions_{name}", said, value=value)
        repositories = self._node.pond.repositories
        yield _gauge("versions_deletions", "Deletions since compactions and commits.", repositories.tombstones.total())
        with suppress(MillpondError), repositories.space.read() as tx:  # the page answers without the database
            layers = count_layers(tx)
            yield _gauge("versions_branches", "Branches of repositories.", layers.branches)
            yield _gauge("versions_sealed_layers", "Sealed layers of all branches.", layers.sealed)
            yield _gauge("versions_sealed_layers_max", "Sealed layers of one branch, at most.", layers.sealed_max)

    def _of_maps(self) -> Iterator[Metric]:
        status = self._node.merger.status()
        for name, said, column in (
            ("parts_queued", "Parts that are entered and not merged.", "parts_queued"),
            ("rows_queued", "Rows of those parts.", "rows_queued"),
            ("applied_position", "Everything up to there is applied.", "position"),
        ):
            yield _gauges(name, said, "map", {row["map"]: row[column] for row in status})
        yield _gauges(
            "merge_failing", "Whether merging fails.", "map", {row["map"]: bool(row["error"]) for row in status}
        )
        yield _counters("parts_merged", "Parts merged.", "map", {row["map"]: row["parts_total"] for row in status})
        yield _counters("rows_merged", "Rows merged.", "map", {row["map"]: row["rows_total"] for row in status})
        quarantined = {row["map"]: 0 for row in status}
        for part in self._node.pond.parts.list(state="quarantined"):
            quarantined[part.map] = quarantined.get(part.map, 0) + 1
        yield _gauges("parts_quarantined", "Parts that were quarantined.", "map", quarantined)
        yield _gauges("snapshot_age_seconds", "Since the snapshot was frozen.", "map", self._snapshot_ages())

    def _snapshot_ages(self) -> dict[str, float]:
        pond, now = self._node.pond, self._node.clock.now_ms()
        with pond.space.read() as tx:
            current = [(definition, snapshot.manifest) for definition, snapshot in current_snapshots(tx)]
        frozen: dict[tuple[str, str], int] = {}
        for definition, manifest in current:
            key = definition.incarnation, manifest
            created_ms = self._frozen_ms.get(key)
            with suppress(MillpondError):  # `verify` tells of it
                if created_ms is None:
                    created_ms = load_manifest(pond.open_maps.map(definition).objects, manifest).created_ms
                frozen[key] = created_ms
        self._frozen_ms = frozen
        return {
            definition.name: max(0.0, (now - frozen[definition.incarnation, manifest]) / 1000)
            for definition, manifest in current if (definition.incarnation, manifest) in frozen
        }  # fmt: skip

    def _of_jobs(self) -> Iterator[Metric]:
        jobs = self._node.scheduler.status()
        yield _counters("job_runs", "Runs that ended.", "job", {job.name: job.runs for job in jobs})
        yield _counters(
            "job_failures", "Runs in which something failed.", "job", {job.name: job.failures for job in jobs}
        )


def _gauge(name: str, said: str, value: float) -> Metric:
    return GaugeMetricFamily(f"millpond_{name}", said, value=value)


def _gauges(name: str, said: str, label: str, values: dict[str, Any]) -> Metric:
    family = GaugeMetricFamily(f"millpond_{name}", said, labels=(label,))
    for value_label, value in values.items():
        family.add_metric((value_label,), float(value))
    return family


def _counters(name: str, said: str, label: str, values: dict[str, Any]) -> Metric:
    family = CounterMetricFamily(f"millpond_{name}", said, labels=(label,))
    for value_label, value in values.items():
        family.add_metric((value_label,), float(value))
    return family


def routes(node: Node, metrics: Metrics) -> Routes:
    """`/metrics`: where tokens are wanted, for who may read everything."""
    router = Routes(tag="health")
    metrics.registry.register(_State(node))
    metrics.registry.register(EventMetrics(node))

    formats: dict[str, Any] = {
        media_type.partition(";")[0]: {} for media_type in (CONTENT_TYPE, openmetrics.CONTENT_TYPE_LATEST)
    }

    @router.get(
        "/metrics", MONITOR, summary="Counters and measurements, for Prometheus", responses={200: {"content": formats}}
    )  # fmt: skip
    def scrape(request: Request) -> Response:
        if "application/openmetrics-text" in request.headers.get("accept", ""):
            page = openmetrics.generate_latest(metrics)  # type: ignore[no-untyped-call]
            return Response(page, media_type=openmetrics.CONTENT_TYPE_LATEST)
        return Response(generate_latest(cast(CollectorRegistry, metrics)), media_type=CONTENT_TYPE)

    return router
