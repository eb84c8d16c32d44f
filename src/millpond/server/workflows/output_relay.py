"""The relay of output: an outbox that writes the records of a partition to the topics of their tenants.

    <cluster>_<tenant>_execution    as many partitions as `RUN_PARTITIONS` says; those of a run are in one
    <cluster>_<tenant>_metadata     one partition, compacted
    <cluster>_output                the place of each partition, as an offset of the group <cluster>-output-NUMBER

Invariants:
* each record is in its topic once, for those who read what was committed, also when the process is killed or the
  partition moves: a page is one transaction with its place, and what is not behind the place is passed over;
* records of a run are in the order of its commands;
* a record that is larger than a broker takes is dropped, counted, and said in the log;
* brokers are called only when there is a record; where the settings name none, records wait for an owner that has some.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from millpond.errors import Unavailable
from millpond.kernel.steps import step
from millpond.server.workflows.outbox import Outbox
from millpond.workflows.logs.kafka_config import kafka_address
from millpond.workflows.logs.topics import RECORD_BYTES_MAX, TopicRecord, Topics
from millpond.workflows.outputs import (
    EXECUTION,
    METADATA,
    Output,
    OutputPosition,
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

__all__ = ("OUTPUT_BYTES_WAITING_MAX", "relay_of", "relay_to")

OUTPUT_BYTES_WAITING_MAX = 1 << 30
"""The records of a partition that wait on the disk for brokers that cannot be reached."""
_COMPACTED: Final = {"cleanup.policy": "compact"}
_LOG = logging.getLogger(__name__)


class _Sender:
    """Writes records to the topics of one partition."""

    def __init__(self, topics: Topics, cluster: str, newest: int | None, dropped: Callable[[int], object]) -> None:
        self._topics, self._cluster, self._newest, self._dropped = topics, cluster, newest, dropped
        self._written: OutputPosition = (0, 0)

    def send(self, rows: Sequence[WaitingOutput]) -> None:
        """Write what no earlier writer wrote, who could not delete it any more.

        Raises: `Unavailable`.
        """
        if not self._topics.is_open:
            self._note_written(self._topics.open())
        outputs, position = [output for at, output in rows if at > self._written], rows[-1].position
        if not outputs:
            return
        large = [output for output in outputs if len(output.record) > RECORD_BYTES_MAX]
        records = [record for output in outputs if output not in large for record in self._records(output)]
        self._newest = None if self._newest is None else max(self._newest, position[0])
        self._topics.write(records, position)
        step("workflows.output_written")
        for output in large:
            _LOG.error("a record is too large for its topic, and left out. tenant=%s topic=%s key=%s bytes=%s",
                       output.tenant, output.topic, output.key[:100], len(output.record))  # fmt: skip
        self._dropped(len(large))

    def _note_written(self, last: OutputPosition) -> None:
        if self._newest is not None and last[0] > self._newest:
            _LOG.warning("the runs are those of an older copy: topics of output get records of a time that they have "
                         "already. position=%s written=%s", self._newest, last[0])  # fmt: skip
        else:
            self._written = last

    def _records(self, output: Output) -> list[TopicRecord]:
        if output.topic:
            return [TopicRecord(self._name(output.tenant, output.topic), output.key, output.record)]
        return [TopicRecord(self._name(output.tenant, topic)) for topic in (EXECUTION, METADATA)]

    def _name(self, tenant: str, topic: str) -> str:
        return f"{self._cluster}_{tenant}_{topic}"


def relay_to(
    topics: Topics, cluster: str, space: Space, clock: Clock, *, newest: int | None = None,
    ended: Callable[[OutputPosition, bool], object] | None = None, dropped: Callable[[int], object] = lambda _: None,
) -> Outbox[WaitingOutput]:  # fmt: skip
    """The outbox of a partition's records; `ended`, see `Outbox`, None: its rows are this process' own.

    `newest` is the position of a partition that may be an older copy of itself: one with its own log.
    """
    return Outbox(
        "records of output", space, clock, _Sender(topics, cluster, newest, dropped).send, page=outputs_after,
        sizes=output_sizes, waiting_max=OUTPUT_BYTES_WAITING_MAX, dropped=dropped,
        ended=ended or (lambda position, _: space.write(lambda tx: delete_outputs(tx, position))),
    )  # fmt: skip


def relay_of(settings: Workflows, number: int, space: Space, clock: Clock, **rows: Any) -> Outbox[WaitingOutput]:
    """The relay of a partition to the brokers that the settings name; `rows`: see `relay_to`."""
    servers, cluster, config = kafka_address(settings.output or settings.log)
    topics = _kafka_topics(servers, cluster, number, config) if cluster else _NoTopics()
    return relay_to(topics, cluster, space, clock, **rows)


def _kafka_topics(servers: str, cluster: str, number: int, config: Mapping[str, str]) -> Topics:
    from millpond.workflows.logs.kafka_topics import KafkaTopics

    def made(topic: str) -> tuple[int, Mapping[str, str]]:
        return (1, _COMPACTED) if topic.endswith(f"_{METADATA}") else (RUN_PARTITIONS, {})

    return KafkaTopics(servers, f"{cluster}_output", f"{cluster}-output-{number}", topics=made, config=config)


class _NoTopics:
    """The topics of an owner whose settings name no brokers."""

    is_open = False

    def open(self) -> tuple[int, int]:
        raise Unavailable("topics of output cannot be written", kind="output_unreachable",
                          reason="no brokers are named", hint="set workflows.output at each node")  # fmt: skip

    def write(self, records: Sequence[TopicRecord], position: tuple[int, int]) -> None:
        raise AssertionError("never opened")
