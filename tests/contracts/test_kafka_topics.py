"""Topics in a real Kafka: pages are there once, whole, and of one writer."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from threading import Event

import pytest

if find_spec("confluent_kafka") is None:
    pytest.skip("the extra kafka is not installed", allow_module_level=True)

from millpond.clock import SystemClock
from millpond.errors import Unavailable
from millpond.workflows.logs.kafka_topics import KafkaTopics
from millpond.workflows.logs.topics import TopicRecord
from tests.ports import free_ports
from tests.topic_records import committed

PARTITIONS = 3
SECONDS = 60
_NUMBERS = itertools.count()


def _made(topic: str) -> tuple[int, Mapping[str, str]]:
    return (1, {"cleanup.policy": "compact"}) if topic.endswith("-compact") else (PARTITIONS, {})


@pytest.fixture
def name() -> str:
    return f"topics-{os.getpid()}-{next(_NUMBERS)}"


def writer(server: str, name: str) -> KafkaTopics:
    return KafkaTopics(server, f"{name}-places", f"{name}-writer", topics=_made)


def opened(topics: KafkaTopics) -> tuple[int, int]:
    """The place of the last page. A broker that just began has no offsets of groups for a while."""
    clock = SystemClock()
    until = clock.monotonic() + SECONDS
    while clock.monotonic() < until:
        with suppress(Unavailable):
            return topics.open()
        clock.wait(Event(), clock.monotonic() + 0.2)
    raise AssertionError("no broker takes a writer")


def test_pages_are_there_with_their_place(kafka_server: str, name: str) -> None:
    topics = writer(kafka_server, name)
    assert opened(topics) == (0, 0)
    topics.write([TopicRecord(name, "21", b"one"), TopicRecord(f"{name}-compact", "k", b"two")], (7, 3))
    topics.write([TopicRecord(name, "21", b"three")], (8, 1 << 40))
    assert committed(kafka_server, name) == [
        (at, "21", data) for at, data in ((_java_partition(), b"one"), (_java_partition(), b"three"))
    ]
    assert committed(kafka_server, f"{name}-compact") == [(0, "k", b"two")]
    assert writer(kafka_server, name).open() == (8, 1 << 40)


def _java_partition() -> int:
    """The partition of the key "21", by a vector that Kafka's own tests have."""
    return (-973932308 & 0x7FFFFFFF) % PARTITIONS


def test_a_record_without_data_makes_its_topic(kafka_server: str, name: str) -> None:
    topics = writer(kafka_server, name)
    opened(topics)
    topics.write([TopicRecord(name), TopicRecord(f"{name}-compact")], (1, 0))
    assert committed(kafka_server, name) == []


def test_the_writer_that_was_opened_last_writes(kafka_server: str, name: str) -> None:
    first, second = writer(kafka_server, name), writer(kafka_server, name)
    opened(first)
    first.write([TopicRecord(name, "k", b"1")], (1, 0))
    assert second.open() == (1, 0)
    with pytest.raises(Unavailable):
        first.write([TopicRecord(name, "k", b"lost")], (2, 0))
    assert not first.is_open
    second.write([TopicRecord(name, "k", b"2")], (2, 0))
    assert first.open() == (2, 0)
    assert [data for _, _, data in committed(kafka_server, name)] == [b"1", b"2"]


def test_a_page_that_was_left_is_not_there(kafka_server: str, name: str) -> None:
    topics = writer(kafka_server, name)
    opened(topics)
    assert topics._open is not None
    producer = topics._open[0]
    topics.write([TopicRecord(name, "k", b"1")], (1, 0))
    producer.begin_transaction()
    producer.produce(name, b"left", "k")
    producer.flush(10)
    again = writer(kafka_server, name)
    assert again.open() == (1, 0)
    again.write([TopicRecord(name, "k", b"2")], (2, 0))
    assert [data for _, _, data in committed(kafka_server, name)] == [b"1", b"2"]


@pytest.mark.usefixtures("process")
def test_brokers_that_cannot_be_reached_are_an_error(name: str) -> None:
    [port] = free_ports(1)
    topics = writer(f"127.0.0.1:{port}", name)
    with pytest.raises(Unavailable, match="topics of output cannot be written"):
        topics.open()
    assert not topics.is_open
