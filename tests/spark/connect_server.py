"""A server of Spark Connect as people start one: a process of Spark's own, which sees this code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from tests.ports import free_ports

__all__ = ("connect_server",)

CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Its address, while it serves."""
    [port] = free_ports(1)
    settings = {"connect.grpc.binding.port": str(port), "ui.enabled": "false", "driver.host": "127.0.0.1"}
    words = [str(Path(pyspark.__path__[0]) / "bin" / "spark-submit"), "--master", "local[2]", "--class", CLASS]
    words += ["--driver-memory", "700m", *(word for name, value in settings.items()
              for word in ("--conf", f"spark.{name}={value}")), "spark-internal"]  # fmt: skip
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    with (folder / "connect.log").open("w") as log:
        server = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            while server.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                    break
            assert server.poll() is None, (folder / "connect.log").read_text()[-2000:]
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()
