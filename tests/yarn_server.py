"""A real cluster of YARN on free loopback ports: a resource manager and one node, each a process.

Its programs are those of Hadoop's mini cluster, with the jars that PySpark brings; containers are plain processes of
this user.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from millpond.clock import SystemClock
from millpond.json_forms import parse_object
from tests.ports import free_ports
from tests.s3_server import end, java_command

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("Yarn", "running")

JARS = Path(sys.prefix) / "yarn"
START_SECONDS = 90.0
MEMORY_MB = 8_192
_PACKAGE = "org.apache.hadoop.yarn.server"


class Yarn:
    """A cluster: where its settings are, and what it says of its applications."""

    def __init__(self, settings: Path, address: str) -> None:
        self.settings, self._address = settings, address

    def applications(self) -> dict[str, str]:
        """The state of each application by its id."""
        rows = self._answer("apps")["apps"] or {"app": []}
        return {row["id"]: row["state"] for row in rows["app"]}

    def nodes(self) -> int:
        """The nodes that work."""
        return len((self._answer("nodes")["nodes"] or {"node": []})["node"])

    def _answer(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self._address}/ws/v1/cluster/{what}", timeout=20) as answer:
            return parse_object(answer.read())


@contextmanager
def running(folder: Path) -> Iterator[Yarn]:
    """Start a cluster, wait until its node works, and end it with the block."""
    assert list(JARS.glob("*.jar")), "YARN is missing: run `make yarn`"
    web, *ports = (f"127.0.0.1:{port}" for port in free_ports(6))
    settings = folder / "hadoop"
    settings.mkdir(parents=True)
    manager = dict(zip(("address", "scheduler.address", "resource-tracker.address", "admin.address"), ports[:4],
                       strict=True))  # fmt: skip
    _write(settings / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp")})
    _write(
        settings / "yarn-site.xml",
        {
            **{f"yarn.resourcemanager.{name}": address for name, address in manager.items()},
            "yarn.resourcemanager.webapp.address": web,
            "yarn.resourcemanager.scheduler.class": f"{_PACKAGE}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.address": "127.0.0.1:0",
            "yarn.nodemanager.localizer.address": ports[4],
            "yarn.nodemanager.webapp.address": "127.0.0.1:0",
            "yarn.nodemanager.resource.memory-mb": str(MEMORY_MB),
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.local-dirs": str(folder / "local"),
            "yarn.nodemanager.log-dirs": str(folder / "logs"),
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.delete.debug-delay-sec": "3600",
        },
    )
    path = ":".join((str(settings), f"{JARS}/*", f"{Path(pyspark.__file__).parent / 'jars'}/*"))
    command = [java_command(), "-Xmx256m", "-XX:+UseSerialGC", f"-Dhadoop.home.dir={folder}", "-cp", path]
    log, yarn = folder / "yarn.log", Yarn(settings, web)
    with ExitStack() as stack, log.open("wb") as out:
        processes = []
        for name in ("resourcemanager.ResourceManager", "nodemanager.NodeManager"):
            process = subprocess.Popen([*command, f"{_PACKAGE}.{name}"], stdout=out, stderr=out, cwd=folder)
            stack.callback(end, process, 5)
            processes.append(process)
        _wait(yarn, processes, log)
        yield yarn


def _write(file: Path, settings: dict[str, str]) -> None:
    rows = "".join(f"<property><name>{name}</name><value>{own}</value></property>\n" for name, own in settings.items())
    file.write_text(f"<configuration>\n{rows}</configuration>\n")


def _wait(yarn: Yarn, processes: list[subprocess.Popen[bytes]], log: Path) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + START_SECONDS
    while all(process.poll() is None for process in processes) and clock.monotonic() < deadline:
        try:
            if yarn.nodes():
                return
        except OSError:
            pass
        threading.Event().wait(0.2)
    raise AssertionError(f"YARN did not start:\n{log.read_text(errors='replace')[-4000:]}")
