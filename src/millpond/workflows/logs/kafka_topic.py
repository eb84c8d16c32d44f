"""Topics of Kafka: made if they are missing, and errors of its client as ours."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from millpond.extras import need

need("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException  # noqa: E402
from confluent_kafka.cimpl import NewTopic  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka.admin import AdminClient

__all__ = ("CALL_SECONDS", "ensure_topic")

CALL_SECONDS = 15.0
_LEADER_TRIES = 150
_LEADER_SECONDS = 0.1


def ensure_topic(
    admin: AdminClient, name: str, partitions: int, config: Mapping[str, str], seconds: float = CALL_SECONDS
) -> int:
    """The number of partitions of a topic, made if it is missing. The cluster is waited for some seconds.

    Raises: `KafkaException`.
    """
    topic = admin.list_topics(timeout=seconds).topics.get(name)
    if topic is not None and topic.partitions:
        return len(topic.partitions)
    made = admin.create_topics([NewTopic(name, partitions, config=dict(config))], operation_timeout=CALL_SECONDS)[name]
    try:
        made.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    return _seen(admin, name)


def _seen(admin: AdminClient, name: str) -> int:
    """The partitions of a topic that was made a moment ago: brokers hear of it one after another."""
    pause = threading.Event()
    for _ in range(_LEADER_TRIES):
        topic = admin.list_topics(name, timeout=CALL_SECONDS).topics[name]
        if topic.error is None and all(part.leader >= 0 for part in topic.partitions.values()) and topic.partitions:
            return len(topic.partitions)
        pause.wait(_LEADER_SECONDS)
    raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
