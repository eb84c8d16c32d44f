"""Topics in Kafka, by `confluent-kafka`: a page is one transaction with its place, the offset of a group.

Invariants, besides those of `topics`:
* it holds for readers of what was committed: `isolation.level=read_committed`;
* a key is in the partition that clients in Java give it;
* a page that was left undecided is decided when the next writer of its name opens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from millpond.errors import Unavailable
from millpond.extras import need

need("confluent_kafka")

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import AdminClient  # noqa: E402

from millpond.workflows.logs.kafka_topic import ensure_topic  # noqa: E402
from millpond.workflows.logs.topics import RECORD_BYTES_MAX, TopicRecord  # noqa: E402

__all__ = ("KafkaTopics",)

_SECONDS = 5.0


class KafkaTopics:
    """A writer with a name, which notes its places in the topic `positions_topic`. One thread uses it.

    Topics that are missing are made as `topics` says: with a number of partitions and settings. `config` are
    librdkafka's own settings, for encryption and credentials.
    """

    def __init__(
        self, servers: str, positions_topic: str, name: str, *, topics: Callable[[str], tuple[int, Mapping[str, str]]],
        config: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._config: dict[str, Any] = {**(config or {}), "bootstrap.servers": servers, "log_level": 0}
        self._positions_topic, self._name, self._topics = positions_topic, name, topics
        self._open: tuple[Producer, object] | None = None
        self._ensured: set[str] = set()

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def open(self) -> tuple[int, int]:
        """Begin to write."""
        with self._closed_by_errors():
            self._ensured.clear()
            self._ensure(self._positions_topic, (1, {}))
            producer = Producer(
                {**self._config, "transactional.id": self._name, "partitioner": "murmur2_random",
                 "compression.type": "lz4", "message.max.bytes": RECORD_BYTES_MAX + 4_096}
            )  # fmt: skip
            # What an earlier writer left undecided is decided, and it writes no more.
            producer.init_transactions(_SECONDS)
            consumer = Consumer({**self._config, "group.id": self._name, "isolation.level": "read_committed"})
            [last] = consumer.committed([TopicPartition(self._positions_topic, 0)], timeout=_SECONDS)
            self._open = producer, consumer.consumer_group_metadata()
            consumer.close()
        return (last.offset, int(last.metadata or 0)) if last.offset >= 0 else (0, 0)

    def write(self, records: Sequence[TopicRecord], position: tuple[int, int]) -> None:
        """Write a page."""
        assert self._open is not None, "opened"
        producer, group = self._open
        with self._closed_by_errors():
            for topic in dict.fromkeys(record.topic for record in records):
                self._ensure(topic, self._topics(topic))
            producer.begin_transaction()
            for record in records:
                if record.data:
                    producer.produce(record.topic, record.data, record.key)
            last = TopicPartition(self._positions_topic, 0, position[0], metadata=str(position[1]))
            producer.send_offsets_to_transaction([last], group, _SECONDS)
            producer.commit_transaction(_SECONDS)

    def _ensure(self, topic: str, made: tuple[int, Mapping[str, str]]) -> None:
        if topic not in self._ensured:
            ensure_topic(AdminClient(self._config), topic, *made, seconds=_SECONDS)
            self._ensured.add(topic)

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        try:
            yield
        except (KafkaException, BufferError) as error:
            self._open = None
            reason = error.args[0].str() if isinstance(error, KafkaException) else "too many records are under way"
            raise Unavailable("topics of output cannot be written", kind="output_unreachable", reason=reason,
                              hint="check that the brokers run, and let the node make topics") from error  # fmt: skip
