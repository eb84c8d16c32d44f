"""A real broker of Kafka on free loopback ports: one node that is its own controller, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyspark
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from millpond.clock import SystemClock
from tests.ports import free_ports
from tests.s3_server import end, java_command

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("CONNECTOR", "PARTITIONS", "PASSWORD", "USER", "running")

JARS = Path(sys.prefix) / "kafka"
CONNECTOR = [
    str(jar)
    for name in ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
    for jar in JARS.glob(f"{name}*.jar")
]
"""The jars of Spark's connector; `spark.jars.packages` brings a user the same."""
PARTITIONS = 2
USER, PASSWORD = "millpond", "of-no-use-elsewhere"
START_SECONDS = 90.0
_SPARKS = ("scala-library", "slf4j-api", "log4j-api-2", "log4j-core", "log4j-slf4j2")
_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"


def start_server(stack: ExitStack) -> str:
    """Start a broker that is stopped with the stack; its address."""
    return stack.enter_context(running(Path(stack.enter_context(TemporaryDirectory(prefix="millpond-kafka-")))))


@contextmanager
def running(folder: Path, *, authority: trustme.CA | None = None) -> Iterator[str]:
    """Start a broker, wait until it takes connections, and end it with the block; its address.

    With an authority it takes connections over TLS alone, from the user `USER` with `PASSWORD` (SASL PLAIN).
    """
    assert CONNECTOR, "Kafka is missing: run `make kafka`"
    port, controller, internal = free_ports(3)
    settings, log = folder / "server.properties", folder / "kafka.log"
    listeners = f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"
    if authority is not None:
        listeners += f",INTERNAL://127.0.0.1:{internal}\n" + _secured(authority)
        listeners = listeners.replace("PLAINTEXT://", "SASL_SSL://", 1)
    settings.write_text(
        f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
        f"{listeners}\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={folder / 'data'}\nnum.partitions={PARTITIONS}\n"
        "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
        "transaction.state.log.min.isr=1\n"
        # one file for each partition of its own, and no three seconds for whoever else may join a group
        "offsets.topic.num.partitions=4\ntransaction.state.log.num.partitions=4\ngroup.initial.rebalance.delay.ms=0\n"
    )
    command = [java_command(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", _class_path()]
    with log.open("wb") as out:
        subprocess.run(
            [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)], stdout=out,
            stderr=out, check=True, timeout=START_SECONDS,
        )  # fmt: skip
        process = subprocess.Popen([*command, "kafka.Kafka", str(settings)], stdout=out, stderr=out)
    try:
        _wait(process, port, log)
        yield f"127.0.0.1:{port}"
    finally:
        end(process, 15)


def _secured(authority: trustme.CA) -> str:
    """The settings of a listener with TLS and passwords; the broker's own calls come by another one."""
    leaf = authority.issue_cert("127.0.0.1", "localhost")
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    chain = "".join(blob.bytes().decode() for blob in leaf.cert_chain_pems)
    login = (f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{USER}" '
             f'password="{PASSWORD}" user_{USER}="{PASSWORD}";')  # fmt: skip
    inline = {"certificate.chain": chain, "key": pem}
    return "\n".join([
        "inter.broker.listener.name=INTERNAL",
        "listener.security.protocol.map=SASL_SSL:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN", f"listener.name.sasl_ssl.plain.sasl.jaas.config={login}",
        "ssl.keystore.type=PEM",
        *(f"ssl.keystore.{name}={_one_line(text)}" for name, text in inline.items()),
    ])  # fmt: skip


def _one_line(text: str) -> str:
    return text.strip().replace("\n", "\\n\\\n")


def _class_path() -> str:
    """The broker's own jars, and what PySpark brings of those that it needs besides."""
    folder = Path(pyspark.__file__).parent / "jars"
    return ":".join([f"{JARS}/*", *(str(jar) for name in _SPARKS for jar in folder.glob(f"{name}*.jar"))])


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + START_SECONDS
    while process.poll() is None and clock.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except OSError:
            threading.Event().wait(0.05)
        else:
            return
    raise AssertionError(f"Kafka did not start:\n{log.read_text(errors='replace')[-4000:]}")
