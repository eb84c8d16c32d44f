"""A command log in a topic of Kafka, by `confluent-kafka`.

    position = offset + 1        partition = the topic's

Invariants:
* an entry is durable when all replicas in sync have it (`acks=all`), and is read when it is below the high watermark;
* the producer is idempotent: what it sends again, by itself, is there once and in order;
* nothing is deleted by time or size: only `trim` deletes, so a reader is behind the oldest entry by a trim alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from millpond.clock import SystemClock
from millpond.errors import Closed, Invalid, Unavailable, Uncertain
from millpond.extras import need
from millpond.kernel.worker import WorkerThread
from millpond.workflows.logs.protocol import Entry, trimmed

need("confluent_kafka")

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient  # noqa: E402

from millpond.workflows.logs.kafka_topic import CALL_SECONDS, ensure_topic  # noqa: E402

__all__ = ("ENTRY_BYTES_MAX", "KafkaLog")

ENTRY_BYTES_MAX = 1_000_000
"""A broker takes 1 MiB by default, with what Kafka adds."""
_APPEND_MS = 20_000
_START_SECONDS = 60.0
_RETAINED = {"retention.ms": "-1", "retention.bytes": "-1"}
# librdkafka's own codes begin with an underscore, and are public all the same.
_UNMADE = frozenset({
    KafkaError._QUEUE_FULL, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED,
})  # fmt: skip
_MOVED = frozenset({
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART,
})  # fmt: skip
_MOVED_TRIES = 50
_MOVED_SECONDS = 0.1
_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE})
_BEHIND = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001


class KafkaLog:
    """A `CommandLog` in a topic, which is made with `partitions` if it is missing; then the topic's number counts.

    `config` are librdkafka's own settings, for encryption and credentials.

    Raises:
        Unavailable: no broker can be reached.
    """

    def __init__(
        self, servers: str, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:  # fmt: skip
        self.topic = topic
        self.config: dict[str, Any] = {**(config or {}), "bootstrap.servers": servers, "log_level": 0}
        self._admin = AdminClient(self.config)
        with _translated():
            self._partitions = ensure_topic(self._admin, topic, partitions, _RETAINED, _START_SECONDS)
        self._producer = Producer(
            {**self.config, "acks": "all", "enable.idempotence": True, "linger.ms": 0, "compression.type": "none",
             "message.max.bytes": ENTRY_BYTES_MAX + 4_096, "delivery.timeout.ms": _APPEND_MS}
        )  # fmt: skip
        self._reading = self._consumer({})
        self._closed = threading.Event()
        self._reports = WorkerThread("reports of the command log", self._report, SystemClock())
        self._reports.start()

    @property
    def partitions(self) -> int:
        """The number of partitions of the topic."""
        return self._partitions

    def append(self, partition: int, data: bytes) -> Future[int]:
        """Put an entry to the end of a partition."""
        future: Future[int] = Future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                future.set_exception(_append_error(error))
            else:
                offset = message.offset()
                assert offset is not None, "a delivered message has an offset"
                future.set_result(offset + 1)

        if self._closed.is_set():
            future.set_exception(_closed())
        elif len(data) > ENTRY_BYTES_MAX:
            future.set_exception(_large(len(data)))
        else:
            try:
                self._producer.produce(self.topic, data, partition=partition, on_delivery=delivered)
            except BufferError:
                future.set_exception(_unavailable("too many appends are under way"))
            except KafkaException as error:
                future.set_exception(_append_error(error.args[0]))
        return future

    def follow(self, partition: int, after: int) -> _Following:
        """The entries behind a position, and those to come."""
        low, _ = self._watermarks(partition)
        if after < low:
            raise trimmed(partition, after, low + 1)
        consumer = self._consumer({"fetch.wait.max.ms": 500, "fetch.error.backoff.ms": 50})
        consumer.assign([TopicPartition(self.topic, partition, after)])
        return _Following(consumer, partition, after)

    def end(self, partition: int) -> int:
        """The position of the last entry."""
        return self._watermarks(partition)[1]

    def trim(self, partition: int, before: int) -> None:
        """Drop the entries before a position."""
        low, high = self._watermarks(partition)
        offset = min(before - 1, high)
        if offset <= low:
            return
        target = TopicPartition(self.topic, partition, offset)
        with _translated():
            for done in self._admin.delete_records([target], request_timeout=CALL_SECONDS).values():
                done.result()

    def close(self) -> None:
        """Let go of the connections; appends that are under way end within some seconds, or with an error."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._reports.stop()
        self._producer.flush(2.0)
        self._producer.purge()
        self._producer.flush(2.0)
        self._reading.close()

    # -- inside ---------------------------------------------------------------------------------------

    def _report(self) -> None:
        # Not an act for each: a reply waits for it.
        while not self._reports.stopping.is_set():
            self._producer.poll(0.2)

    def _consumer(self, more: dict[str, Any]) -> Consumer:
        # A group must be named, though none is joined: partitions are assigned by hand, nothing is committed.
        return Consumer({**self.config, "group.id": "none", "enable.auto.commit": False,
                         "auto.offset.reset": "error", **more})  # fmt: skip

    def _watermarks(self, partition: int) -> tuple[int, int]:
        if self._closed.is_set():
            raise _closed()
        for _ in range(_MOVED_TRIES):
            try:
                watermarks = self._reading.get_watermark_offsets(
                    TopicPartition(self.topic, partition), timeout=CALL_SECONDS
                )  # fmt: skip
            except KafkaException as error:
                if error.args[0].code() not in _MOVED:
                    raise _unavailable(error.args[0].str()) from error
                self._closed.wait(_MOVED_SECONDS)
            else:
                if watermarks is None:
                    raise _unavailable("no answer in time")
                return int(watermarks[0]), int(watermarks[1])
        raise _unavailable("the partition has no leader")


class _Following:
    def __init__(self, consumer: Consumer, partition: int, after: int) -> None:
        self._consumer, self._partition, self._after = consumer, partition, after
        self._open = True

    def next(self, limit: int, seconds: float) -> list[Entry]:
        # `consume` waits until it has all it may take: the first is waited for alone, then those that are there.
        if not self._open:
            raise _closed()
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        rest = self._consumer.consume(limit - 1, timeout=0) if limit > 1 else []
        return [self._entry(message) for message in (first, *rest)]

    def _entry(self, message: Message) -> Entry:
        error = message.error()
        if error is not None:
            if error.code() in _BEHIND:
                raise trimmed(self._partition, self._after, None)
            raise _unavailable(error.str())
        offset, data = message.offset(), message.value()
        assert offset is not None, "a message that was read has an offset"
        self._after = offset + 1
        return Entry(self._after, bytes(data or b""))

    def close(self) -> None:
        if self._open:
            self._open = False
            self._consumer.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of Kafka as ours, while something is read or changed that may be tried again."""
    try:
        yield
    except KafkaException as error:
        raise _unavailable(error.args[0].str()) from error


def _append_error(error: KafkaError) -> Exception:
    if error.code() in _LARGE:
        return _large(None)
    if error.code() in _UNMADE:
        return _unavailable(error.str())
    return Uncertain("the entry may be in the command log, or not", kind="append_uncertain", reason=error.str(),
                     hint="look before you send it again")  # fmt: skip


def _large(size: int | None) -> Invalid:
    return Invalid("the entry is too large for the command log", kind="entry_large", bytes=size,
                   bytes_max=ENTRY_BYTES_MAX, hint="hand over a reference to what is large")  # fmt: skip


def _unavailable(reason: str) -> Unavailable:
    return Unavailable("the command log cannot be reached", kind="log_unreachable", reason=reason,
                       hint="check that the brokers run")  # fmt: skip


def _closed() -> Closed:
    return Closed("the command log is closed", kind="log_closed")
