"""The contract of command logs over each driver: a log in a space, in a bucket, and in a topic of a real broker."""

from __future__ import annotations

import itertools
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from millpond.clock import SystemClock
from millpond.kernel.keys import Prefix
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import ObjectStore, open_objects
from millpond.testing.contracts.command_logs import CommandLogContract
from millpond.workflows.logs.bucket import BucketLog
from tests.harness.embedded_log import EmbeddedLog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond.workflows.logs import CommandLog
    from millpond.workflows.logs.kafka import KafkaLog

_NUMBERS = itertools.count()


class TestEmbeddedLog(CommandLogContract):
    space: MemorySpace

    @pytest.fixture
    def log(self) -> Iterator[CommandLog]:
        self.space = MemorySpace()
        yield EmbeddedLog(self.space, Prefix("log"), 3, SystemClock())
        self.space.close()

    def opened(self, log: CommandLog) -> CommandLog:
        return EmbeddedLog(self.space, Prefix("log"), log.partitions, SystemClock())


class _BucketLogContract(CommandLogContract):
    objects: ObjectStore
    logs: list[BucketLog]

    @pytest.fixture
    def log(self, objects: ObjectStore) -> Iterator[CommandLog]:
        self.objects, self.logs = objects, []
        yield self._open(3)
        for log in self.logs:
            log.close()

    def opened(self, log: CommandLog) -> CommandLog:
        return self._open(log.partitions)

    def _open(self, partitions: int) -> BucketLog:
        log = BucketLog(self.objects, partitions, SystemClock())
        self.logs.append(log)
        return log


class TestBucketLogOverAFolder(_BucketLogContract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        return open_objects(str(tmp_path / "bucket"))


class TestBucketLogOverS3(_BucketLogContract):
    @pytest.fixture
    def objects(self, bucket: ObjectStore) -> ObjectStore:
        return bucket


@pytest.fixture(scope="module")
def broker(kafka_server: str) -> str:
    if find_spec("confluent_kafka") is None:
        pytest.skip("the extra kafka is not installed")
    return kafka_server


class TestKafkaLog(CommandLogContract):
    logs: list[KafkaLog]
    servers: str

    @pytest.fixture
    def log(self, broker: str) -> Iterator[CommandLog]:
        self.servers, self.logs = broker, []
        yield self._open(f"commands-{next(_NUMBERS)}-{os.getpid()}")
        for log in self.logs:
            log.close()

    def opened(self, log: CommandLog) -> CommandLog:
        return self._open(log.topic)  # type: ignore[attr-defined]

    def _open(self, topic: str) -> KafkaLog:
        from millpond.workflows.logs.kafka import KafkaLog

        log = KafkaLog(self.servers, topic, partitions=3)
        self.logs.append(log)
        return log
