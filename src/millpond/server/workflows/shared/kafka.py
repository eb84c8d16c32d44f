"""Workflows that several processes share by a topic of Kafka."""

from __future__ import annotations

from pathlib import Path

from millpond.server.workflows.shared.partitions import SharedPartitions, SharedParts
from millpond.stores.objects import open_objects
from millpond.workflows.logs.kafka import KafkaLog
from millpond.workflows.logs.kafka_config import kafka_address
from millpond.workflows.logs.kafka_group import KafkaGroup
from millpond.workflows.partitions import RUN_PARTITIONS, Checkpoints

__all__ = ("TopicPartitions",)


class TopicPartitions(SharedPartitions):
    """The partitions of a topic, of which Kafka's group assigns some to this process."""

    _group: KafkaGroup
    needed = True

    def has_runs(self) -> bool:
        """True: partitions that are assigned to this process are nobody else's."""
        return True

    def _open_parts(self) -> SharedParts:
        settings = self._node.settings
        servers, topic, config = kafka_address(settings.workflows.log)
        place = f"{settings.objects.place.rstrip('/')}/.workflows/{topic}"
        log = KafkaLog(servers, topic, partitions=RUN_PARTITIONS + 1, config=config)
        group = KafkaGroup(log, topic, self._service.address, lambda: self._ownership.wake())
        folder = Path(self._node.pond.folder) / "shared-workflows" / topic
        return SharedParts(log, group, Checkpoints(open_objects(place)), folder)

    def hosts(self) -> list[str]:
        """The addresses of all processes, of which each has tasks of its own."""
        return list(self._group.members())
