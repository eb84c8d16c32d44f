"""The relay of output: a thread that writes the records that wait in a partition to the topics of their tenants.

    <cluster>_<tenant>_execution    as many partitions as `RUN_PARTITIONS` says; those of a run are in one
    <cluster>_<tenant>_metadata     one partition, compacted
    <cluster>_output                the place of each partition, as an offset of the group <cluster>-output-NUMBER

Invariants:
* the processor waits for nobody: a record that cannot be written waits in its row, and is tried again;
* each record is in its topic once, for those who read what was committed, also when the process is killed or the
  partition moves: a page is one transaction with its place, and what is not behind the place is passed over;
* records of a run are in the order of its commands;
* at most `OUTPUT_BYTES_WAITING_MAX` wait for brokers that cannot be reached: the oldest beyond it are dropped, which is
  counted, and said in the log; so is a record that is larger than a broker takes;
* brokers are called only when there is a record; where the settings name none, records wait for an owner that has some.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from millpond.errors import Unavailable
from millpond.kernel.steps import step
from millpond.kernel.worker import WorkerThread
from millpond.workflows.logs.kafka_config import read_client_config
from millpond.workflows.logs.topics import RECORD_BYTES_MAX, TopicRecord, Topics
from millpond.workflows.outputs import (
    EXECUTION,
    METADATA,
    Output,
    OutputPlace,
    WaitingOutput,
    delete_outputs,
    output_sizes,
    outputs_after,
)
from millpond.workflows.partitions.routing import RUN_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from millpond.clock import Clock
    from millpond.kernel.space import Space
    from millpond.settings.groups import Workflows

__all__ = ("OUTPUT_BYTES_WAITING_MAX", "OutputRelay", "relay_of")

OUTPUT_BYTES_WAITING_MAX = 1 << 30
"""The records of a partition that wait on the disk for brokers that cannot be reached."""
RECORDS_PER_WRITE = 1_000
BYTES_PER_WRITE = 8 << 20
_DROPPED_AT_ONCE = 100
"""The part of the limit that is dropped in one write, so that one row more is no write more."""
PAUSE_SECONDS = 0.25
RETRY_SECONDS = 1.0
_COMPACTED: Final = {"cleanup.policy": "compact"}
_LOG = logging.getLogger(__name__)


class OutputRelay:
    """Writes the records of one partition."""

    def __init__(
        self, space: Space, clock: Clock, topics: Topics, cluster: str, *, newest: int | None = None,
        ended: Callable[[OutputPlace], object] | None = None, dropped: Callable[[int], object] = lambda _: None,
    ) -> None:  # fmt: skip
        """`ended` deletes the records up to a place; `dropped` gets the number of those that are in no topic.

        `newest` is the position of a partition that may be an older copy of itself: one with its own log.
        """
        self._space, self._clock, self._topics, self._cluster = space, clock, topics, cluster
        self._newest, self._dropped = newest, dropped
        self._ended = ended or (lambda place: space.write(lambda tx: delete_outputs(tx, place)))
        self._after: OutputPlace = (0, 0)
        self._seen, self._queued = (0, 0), 0
        self._worker = WorkerThread("topics of output", self._write_all, clock, retry_seconds=RETRY_SECONDS)

    def start(self) -> None:
        """Begin to write."""
        self._worker.start()

    def stop(self) -> None:
        """End after the page that is under way; what waits is its next owner's."""
        self._worker.stop()

    def turn(self) -> int:
        """Write one page of the records that wait; how many there were.

        Raises: `Unavailable`: what was not written is written by another turn.
        """
        page = self._page()
        if page and not self._topics.is_open:
            self._go_on_behind(self._topics.open())
            page = self._page()
        if page:
            self._write([output for _, output in page], page[-1].place)
        return len(page)

    def _write(self, outputs: list[Output], place: OutputPlace) -> None:
        large = [output for output in outputs if len(output.record) > RECORD_BYTES_MAX]
        records = [record for output in outputs if output not in large for record in self._records(output)]
        self._newest = None if self._newest is None else max(self._newest, place[0])
        self._topics.write(records, place)
        step("workflows.output_written")
        self._after, self._seen, self._queued = place, place, 0
        for output in large:
            _LOG.error("a record is too large for its topic, and left out. tenant=%s topic=%s key=%s bytes=%s",
                       output.tenant, output.topic, output.key[:100], len(output.record))  # fmt: skip
        self._dropped(len(large))
        self._ended(place)

    def drop(self) -> None:
        """Drop the oldest records beyond the limit. It reads those that came since it was called before."""
        with self._space.read() as tx:
            for place, size in output_sizes(tx, max(self._seen, self._after)):
                self._seen, self._queued = place, self._queued + size
            if self._queued <= OUTPUT_BYTES_WAITING_MAX:
                return
            count, most = 0, OUTPUT_BYTES_WAITING_MAX - OUTPUT_BYTES_WAITING_MAX // _DROPPED_AT_ONCE
            for place, size in output_sizes(tx, self._after):
                if self._queued <= most:
                    break
                self._after, self._queued, count = place, self._queued - size, count + 1
        _LOG.error("more records of output wait than may: the oldest are dropped. records=%s waiting_max=%s", count,
                   OUTPUT_BYTES_WAITING_MAX)  # fmt: skip
        self._dropped(count)
        self._ended(self._after)

    def _page(self) -> list[WaitingOutput]:
        with self._space.read() as tx:
            return outputs_after(tx, self._after, count=RECORDS_PER_WRITE, size=BYTES_PER_WRITE)

    def _go_on_behind(self, last: OutputPlace) -> None:
        """Pass over what an earlier writer wrote, and could not delete any more."""
        if self._newest is not None and last[0] > self._newest:
            _LOG.warning("the runs are those of an older copy: topics of output get records of a time that they have "
                         "already. position=%s written=%s", self._newest, last[0])  # fmt: skip
        elif last > self._after:
            self._after = last
            self._ended(last)

    def _records(self, output: Output) -> list[TopicRecord]:
        if output.topic:
            return [TopicRecord(self._name(output.tenant, output.topic), output.key, output.record)]
        return [TopicRecord(self._name(output.tenant, topic)) for topic in (EXECUTION, METADATA)]

    def _name(self, tenant: str, topic: str) -> str:
        return f"{self._cluster}_{tenant}_{topic}"

    def _write_all(self) -> float:
        try:
            while self.turn() == RECORDS_PER_WRITE and not self._worker.stopping.is_set():
                pass
        except Exception:
            self.drop()
            raise
        return self._clock.monotonic() + PAUSE_SECONDS


def relay_of(
    settings: Workflows, number: int, space: Space, clock: Clock, *, newest: int | None = None,
    ended: Callable[[OutputPlace], object] | None = None, dropped: Callable[[int], object] = lambda _: None,
) -> OutputRelay:  # fmt: skip
    """The relay of a partition to the brokers that the settings name."""
    where = urlsplit(settings.output or settings.log)
    cluster = where.path.strip("/")
    topics = _kafka_topics(where.netloc, cluster, number, settings.log_config) if cluster else _NoTopics()
    return OutputRelay(space, clock, topics, cluster, newest=newest, ended=ended, dropped=dropped)


def _kafka_topics(servers: str, cluster: str, number: int, config_file: str) -> Topics:
    from millpond.workflows.logs.kafka_topics import KafkaTopics

    def made(topic: str) -> tuple[int, Mapping[str, str]]:
        return (1, _COMPACTED) if topic.endswith(f"_{METADATA}") else (RUN_PARTITIONS, {})

    config = read_client_config(Path(config_file)) if config_file else {}
    return KafkaTopics(servers, f"{cluster}_output", f"{cluster}-output-{number}", topics=made, config=config)


class _NoTopics:
    """The topics of an owner whose settings name no brokers."""

    is_open = False

    def open(self) -> tuple[int, int]:
        raise Unavailable("topics of output cannot be written", kind="output_unreachable",
                          reason="no brokers are named", hint="set workflows.output at each node")  # fmt: skip

    def write(self, records: Sequence[TopicRecord], place: tuple[int, int]) -> None:
        raise AssertionError("never opened")
