"""The group of processes that share the partitions of a topic, by Kafka's own consumer groups.

    members ─▶ coordinator ─▶ assignment: partitions of each      address of a member = its client id

The group reads nothing: it says who owns what. A member that is killed is missed after `SESSION_MS`; one that comes
back before, with the same address, has its partitions again at once, without a new assignment. One that stops leaves.

Invariants:
* a partition has one owner at most, as the group sees it; a former owner may hear of it later than the new one;
* a partition that stays with its owner is never taken from it in between (cooperative assignment).
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from millpond.clock import SystemClock
from millpond.kernel.worker import WorkerThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.workflows.logs.kafka import KafkaLog

__all__ = ("SESSION_MS", "KafkaGroup")

SESSION_MS = 6_000
"""The time after which a member that says nothing has lost its partitions: the least that brokers allow."""
_LOOK_SECONDS = 0.5
_CALL_SECONDS = 5.0
_LEAVE_TRIES, _LEAVE_SECONDS = 20, 0.1
_LOG = logging.getLogger(__name__)


class KafkaGroup:
    """A member of a group. `changed` is called, from a thread of its own, when this member's partitions changed."""

    def __init__(self, log: KafkaLog, group: str, address: str, changed: Callable[[], None]) -> None:
        self._topic, self._group, self.address, self._changed = log.topic, group, address, changed
        self._admin = AdminClient(log.config)
        self._consumer = Consumer(
            {**log.config, "group.id": group, "client.id": address, "enable.auto.commit": False,
             "group.instance.id": re.sub(r"[^A-Za-z0-9._-]", "-", address), "session.timeout.ms": SESSION_MS,
             "heartbeat.interval.ms": 500, "max.poll.interval.ms": 30_000, "auto.offset.reset": "latest",
             "partition.assignment.strategy": "cooperative-sticky"}
        )  # fmt: skip
        self.own: frozenset[int] = frozenset()
        self._owners: dict[int, str] = {}
        self._members: tuple[str, ...] = (address,)
        self._clock = SystemClock()
        self._part = WorkerThread("the group of workflows", self._take_part, self._clock, retry_seconds=_LOOK_SECONDS)
        self._view = WorkerThread("members of the group", self._look, self._clock, retry_seconds=_LOOK_SECONDS)

    def start(self) -> None:
        """Join the group."""
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )  # fmt: skip
        self._part.start()
        self._view.start()

    def stop(self) -> None:
        """Leave: the others get the partitions at once. So nothing may be written for them any more."""
        self._part.stop()
        self._view.stop()
        try:
            # A member with an instance id, as each is here, leaves when it unsubscribes; when it is closed alone, it
            # is expected back until its session is over.
            self._consumer.unsubscribe()
            for _ in range(_LEAVE_TRIES):
                self._consumer.poll(_LEAVE_SECONDS)
                if not self.own:
                    break
        except KafkaException as error:
            _LOG.warning("the group of workflows is not left in order: %s", error)
        self._consumer.close()

    def owner(self, partition: int) -> str | None:
        """The address of a partition's owner, as it was known a moment ago."""
        return self.address if partition in self.own else self._owners.get(partition)

    def members(self) -> tuple[str, ...]:
        """The addresses of all members, this one too."""
        return self._members

    # -- inside ---------------------------------------------------------------------------------------

    def _take_part(self) -> float:
        self._consumer.poll(0.2)
        return self._clock.monotonic()

    def _assigned(self, consumer: Consumer, more: list[TopicPartition]) -> None:
        # From the end on, and paused at once: the group is for the assignment alone.
        consumer.incremental_assign(more)
        consumer.pause(more)
        self._owns(self.own | {part.partition for part in more})

    def _revoked(self, consumer: Consumer, less: list[TopicPartition]) -> None:
        consumer.incremental_unassign(less)
        self._owns(self.own - {part.partition for part in less})

    def _owns(self, own: frozenset[int]) -> None:
        self.own = own
        _LOG.info("partitions of workflows: %s", sorted(own))
        self._changed()

    def _look(self) -> float:
        described = self._admin.describe_consumer_groups([self._group], request_timeout=_CALL_SECONDS)
        group = described[self._group].result()
        owners = {
            part.partition: member.client_id for member in group.members if member.assignment is not None
            for part in member.assignment.topic_partitions
        }  # fmt: skip
        if owners:  # none while members are joining: what was known still is the best guess
            self._owners = owners
        self._members = tuple(sorted({*(member.client_id for member in group.members), self.address}))
        return self._clock.monotonic() + _LOOK_SECONDS
