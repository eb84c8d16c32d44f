"""Measurements of workflows, for Prometheus: read at every scrape, so that nothing is counted twice.

| metric | labels | |
|---|---|---|
| `millpond_workflows_commands_total` | | commands of callers and workers that were applied |
| `millpond_workflows_claims_total` | | tasks handed to workers |
| `millpond_workflows_timers_total` | | timers that fired |
| `millpond_workflows_failed_total` | | commands that failed for a mistake of the program |
| `millpond_workflows_writes_total`, `millpond_workflows_write_seconds_total` | | durable writes, and their time |
| `millpond_workflows_commands_queued` | | commands that wait for a write |
| `millpond_workflows_workers_waiting` | | workers that wait for a task |
| `millpond_workflows_position` | partition | of a shared log: the last entry applied, where this process is the owner |

Calls are counted as those of HTTP are, with their method: label `route="/littlehorse.LittleHorse/RunWf"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millpond.workflows.processor import Measures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.server.workflows.service import WorkflowService

__all__ = ("WorkflowMetrics",)


class WorkflowMetrics(Collector):
    """The state of the workflows of a node."""

    def __init__(self, service: WorkflowService) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        """Nothing is read before it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The counts so far; zeros of a processor that has not begun."""
        workers = self._service.workers.count
        yield GaugeMetricFamily("millpond_workflows_workers_waiting", "Workers that wait for a task.", value=workers)
        positions = {number: follower.position for number, follower in tuple(self._service.followers.items())}
        if positions:
            family = GaugeMetricFamily(
                "millpond_workflows_position", "Last entry applied of a partition owned here.", labels=["partition"]
            )
            for partition, position in sorted(positions.items()):
                family.add_metric([str(partition)], position)
            yield family
        processor = self._service.processor
        queued, measures = (0, Measures()) if processor is None else (processor.queued, processor.measures)
        yield GaugeMetricFamily("millpond_workflows_commands_queued", "Commands that wait for a write.", value=queued)
        for name, said, value in (
            ("commands", "Commands that were applied.", measures.commands),
            ("claims", "Tasks handed to workers.", measures.claims),
            ("timers", "Timers that fired.", measures.timers),
            ("failed", "Commands that failed for a mistake of the program.", measures.failed),
            ("writes", "Durable writes of workflows.", measures.writes),
            ("write_seconds", "Time of durable writes of workflows.", measures.write_seconds),
        ):
            yield CounterMetricFamily(f"millpond_workflows_{name}", said, value=value)
