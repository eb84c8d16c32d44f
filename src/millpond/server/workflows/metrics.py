"""Measurements of workflows, for Prometheus: read at every scrape, so that nothing is counted twice.

| metric | labels | |
|---|---|---|
| `millpond_workflows_commands_total` | | commands of callers and workers that were applied |
| `millpond_workflows_claims_total` | | tasks handed to workers |
| `millpond_workflows_timers_total` | | timers that fired |
| `millpond_workflows_failed_total` | | commands that failed for a mistake of the program, and timers that failed |
| `millpond_workflows_writes_total`, `millpond_workflows_write_seconds_total` | | durable writes, and their time |
| `millpond_workflows_commands_queued` | | commands that wait for a write |
| `millpond_workflows_workers_waiting` | | workers that wait for a task |
| `millpond_workflows_tasks_queued` | tenant, task | tasks that wait, at most 1,000 of each of 50 queues |
| `millpond_workflows_task_oldest_seconds` | tenant, task | how long the first of a queue has waited |
| `millpond_workflows_timer_late_seconds` | | how long the next timer has been due: above 0 the processor is behind |
| `millpond_workflows_log_ahead_seconds` | | by how much the last command is ahead of the clock, which was wrong |
| `millpond_workflows_stories_queued` | | commands whose events are in no stream yet, at most 1,000 |
| `millpond_workflows_stories_dropped_total` | | commands whose events had no room while they could not be appended |
| `millpond_workflows_outputs_queued` | | records that are in no topic of output yet, at most 1,000 |
| `millpond_workflows_outputs_dropped_total` | | records that had no room, or were too large |
| `millpond_workflows_position` | partition | of a shared log: the last entry applied, where this process is the owner |

Calls are counted as those of HTTP are, with their method: label `route="/littlehorse.LittleHorse/RunWf"`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millpond.errors import MillpondError
from millpond.workflows.partitions import Follower

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.server.workflows.service import WorkflowService
    from millpond.workflows.processor import Backlog

__all__ = ("WorkflowMetrics",)

_QUEUE = ("tenant", "task")


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
        processors = tuple(self._service.partitions.owned.items())
        positions = {
            number: of_partition.position for number, of_partition in processors if isinstance(of_partition, Follower)
        }
        if positions:
            family = GaugeMetricFamily(
                "millpond_workflows_position", "Last entry applied of a partition owned here.", labels=["partition"]
            )
            for partition, position in sorted(positions.items()):
                family.add_metric([str(partition)], position)
            yield family
        yield from self._of_backlog()
        queued, measures = sum(processor.queued for _, processor in processors), self._service.measures
        yield GaugeMetricFamily("millpond_workflows_commands_queued", "Commands that wait for a write.", value=queued)
        for name, said, value in (
            ("stories_dropped", "Commands whose events were dropped.", self._service.stories_dropped.number),
            ("outputs_dropped", "Records of output that were dropped.", self._service.outputs_dropped.number),
            ("commands", "Commands that were applied.", measures.commands),
            ("claims", "Tasks handed to workers.", measures.claims),
            ("timers", "Timers that fired.", measures.timers),
            ("failed", "Commands that failed for a mistake of the program, and timers.", measures.failed),
            ("writes", "Durable writes of workflows.", measures.writes),
            ("write_seconds", "Time of durable writes of workflows.", measures.write_seconds),
        ):
            yield CounterMetricFamily(f"millpond_workflows_{name}", said, value=value)

    def _of_backlog(self) -> Iterator[Metric]:
        backlogs: list[Backlog] = []
        with suppress(MillpondError):  # a partition that was closed meanwhile; the page answers without it
            backlogs = [processor.backlog() for processor in tuple(self._service.partitions.owned.values())]
        now = self._service.clock.now_ms()
        tasks = GaugeMetricFamily("millpond_workflows_tasks_queued", "Tasks that wait for a worker.", labels=_QUEUE)
        oldest = GaugeMetricFamily(
            "millpond_workflows_task_oldest_seconds", "How long the first task of a queue has waited.", labels=_QUEUE
        )
        for queue in sorted({queue for backlog in backlogs for queue in backlog.queues}):
            depths = [backlog.queues[queue] for backlog in backlogs if queue in backlog.queues]
            tasks.add_metric(queue, sum(depth.tasks for depth in depths))
            oldest.add_metric(queue, max(0, now - min(depth.oldest_ms for depth in depths)) / 1000)
        yield from (tasks, oldest)
        due = min((backlog.due_ms for backlog in backlogs if backlog.due_ms is not None), default=now)
        last = max((backlog.stamp_ms for backlog in backlogs), default=0)
        for name, said, value in (
            ("log_ahead_seconds", "By how much the last command is ahead of the clock.", max(0, last - now) / 1000),
            ("timer_late_seconds", "How long the next timer has been due.", max(0, now - due) / 1000),
            ("stories_queued", "Commands whose events are in no stream yet.", sum(part.stories for part in backlogs)),
            ("outputs_queued", "Records that are in no topic of output yet.", sum(part.outputs for part in backlogs)),
        ):
            yield GaugeMetricFamily(f"millpond_workflows_{name}", said, value=value)
