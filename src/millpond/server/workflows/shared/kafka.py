"""Workflows that several processes share by a topic of Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from millpond.server.workflows.shared.service import SharedParts, SharedWorkflows
from millpond.stores.objects import open_objects
from millpond.workflows.logs.kafka import KafkaLog
from millpond.workflows.logs.kafka_config import read_client_config
from millpond.workflows.logs.kafka_group import KafkaGroup
from millpond.workflows.partitions import RUN_PARTITIONS, Checkpoints

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.server.rpc.threads import CallThreads

__all__ = ("KafkaWorkflows",)


class KafkaWorkflows(SharedWorkflows):
    """The workflows of one process, whose partitions Kafka's group assigns to it."""

    _group: KafkaGroup

    def __init__(self, node: Node, threads: CallThreads) -> None:
        super().__init__(node, threads)
        where = urlsplit(node.settings.workflows.log)
        self._servers, self._topic = where.netloc, where.path.strip("/")

    def _open_parts(self) -> SharedParts:
        node, settings = self._node, self._node.settings.workflows
        config = read_client_config(Path(settings.log_config)) if settings.log_config else {}
        log = KafkaLog(self._servers, self._topic, partitions=RUN_PARTITIONS + 1, config=config)
        group = KafkaGroup(log, self._topic, self.address, lambda: self._ownership.wake())
        folder = Path(node.pond.folder) / "shared-workflows" / self._topic
        return SharedParts(log, group, Checkpoints(open_objects(settings.checkpoints)), folder)

    def hosts(self) -> list[str]:
        """The addresses of all processes, of which each has tasks of its own."""
        return list(self._group.members())
