"""Measurements of streams of events, for Prometheus. A page reads no stream: the job `events` has counted.

| metric | labels | |
|---|---|---|
| `millpond_events_appended_total`, `millpond_events_appended_bytes_total` | surface | events, bytes of their payloads |
| `millpond_events_past_retention_total` | surface | those of days that retention drops with the next maintenance |
| `millpond_events_streams` | | streams at the last whole count: each run of the job counts 20,000 |
| `millpond_events_days`, `millpond_events_stored_bytes` | state | their days, and the bytes that these take |
| `millpond_events_losses_total` | | how often the Redis of the streams lost them |
| `millpond_events_ahead_seconds` | | how far the id of the newest event is ahead of the clock |
| `millpond_events_maintenance_lag_seconds` | work | since when a day is due to be compressed, or dropped |

What was appended is counted since the node started, by surface: `http`, `armada`, `workflows`. Its own reports are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millpond.events.census import lag_ms
from millpond.events.index import State
from millpond.events.protocol import losses_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.nodes.node import Node

__all__ = ("EventMetrics",)


class EventMetrics(Collector):
    """The streams of a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def describe(self) -> list[Metric]:
        """Nothing is read before it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The counts so far."""
        yield from self._of_appends()
        yield from self._of_census()
        yield self._lags()
        losses = losses_of(self._node.events.store).count
        yield CounterMetricFamily("millpond_events_losses", "Times that Redis lost the streams.", value=losses)

    def _of_appends(self) -> Iterator[Metric]:
        events = CounterMetricFamily("millpond_events_appended", "Events that were stored.", labels=["surface"])
        size = CounterMetricFamily("millpond_events_appended_bytes", "Bytes of their payloads.", labels=["surface"])
        past = CounterMetricFamily(
            "millpond_events_past_retention", "Events of days that retention drops.", labels=["surface"]
        )
        for surface, volume in sorted(self._node.events.volumes.by_surface.items()):
            events.add_metric([surface], volume.events)
            size.add_metric([surface], volume.bytes)
            past.add_metric([surface], volume.past_retention)
        yield from (events, size, past)

    def _of_census(self) -> Iterator[Metric]:
        count = self._node.census.count
        if count is None:
            return
        yield GaugeMetricFamily("millpond_events_streams", "Streams, as they were counted.", value=count.streams)
        for name, said, by_state in (
            ("days", "Days of streams, as they were counted.", count.days),
            ("stored_bytes", "Bytes that days take, as they were counted.", count.stored_bytes),
        ):
            family = GaugeMetricFamily(f"millpond_events_{name}", said, labels=["state"])
            for state in State:
                family.add_metric([state.value], by_state.get(state, 0))
            yield family

    def _lags(self) -> Metric:
        now_ms = self._node.clock.now_ms()
        family = GaugeMetricFamily(
            "millpond_events_maintenance_lag_seconds",
            "Since when a day is due, at its stream's age.",
            labels=["work"],
        )
        for work, due_ms in self._node.census.due_ms.items():
            family.add_metric([work.value], lag_ms(due_ms, now_ms) / 1000)
        return family
