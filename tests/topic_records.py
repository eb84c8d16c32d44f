"""The records of topics in a real Kafka, as readers of what was committed see them."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

__all__ = ("TopicRow", "committed")

TopicRow = tuple[int, str, bytes]
"""A partition, a key and data."""
SECONDS = 30


def committed(server: str, topic: str) -> Sequence[TopicRow]:
    """All records of a topic, in the order of each partition."""
    consumer = Consumer({"bootstrap.servers": server, "group.id": "none", "enable.partition.eof": True})
    partitions = consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    records, ends = list[TopicRow](), set[int | None]()
    while len(ends) < len(partitions):
        message = consumer.poll(SECONDS)
        assert message is not None, "the end of each partition is said"
        if message.error() is not None:
            ends.add(message.partition())
        else:
            records.append((message.partition() or 0, (message.key() or b"").decode(), message.value() or b""))
    consumer.close()
    return records
