"""The address of a topic, and settings of a client of Kafka, of a file: encryption, credentials, what librdkafka knows.

    kafka://host:9092,host:9092/topic?config=FILE

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    # a comment

Invariants:
* settings on which the command log stands cannot be changed by a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millpond.errors import Invalid

__all__ = ("kafka_address", "read_client_config")

_OWN: Final = frozenset({
    "bootstrap.servers", "metadata.broker.list", "group.id", "client.id", "group.instance.id", "acks",
    "request.required.acks", "enable.idempotence", "enable.auto.commit", "isolation.level", "auto.offset.reset",
    "transactional.id", "partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms",
    "max.poll.interval.ms",
})  # fmt: skip
"""Settings that the log gives itself."""


def kafka_address(address: str) -> tuple[str, str, dict[str, str]]:
    """The brokers and the topic of an address, and the settings of its file. Raises: as `read_client_config`."""
    servers, _, rest = address.removeprefix("kafka://").partition("/")
    topic, _, file = rest.partition("?config=")
    return servers, topic, read_client_config(Path(file)) if file else {}


def read_client_config(path: Path) -> dict[str, str]:
    """The settings of a file: a name, `=` and a value on each line.

    Raises:
        Invalid: kind `kafka_config`: the file cannot be read, a line is no setting, or is one of the log's own.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid("the settings of Kafka's client cannot be read", kind="kafka_config", path=path,
                      reason=str(error), hint="see workflows.log") from error  # fmt: skip
    settings = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise _wrong(path, number, name, "write name=value")
        if name in _OWN:
            raise _wrong(path, number, name, "leave it out: the command log sets it")
        settings[name] = value
    return settings


def _wrong(path: Path, line: int, name: str, hint: str) -> Invalid:
    """The error of a line, which does not show its value: it may be a password."""
    return Invalid("not a setting for Kafka's client", kind="kafka_config", path=path, line=line, name=name[:60],
                   hint=hint)  # fmt: skip
