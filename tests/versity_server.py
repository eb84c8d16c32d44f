"""A second real S3 server on a free loopback port: versitygw over a folder, whose conditional writes are atomic.

`tools/setup versitygw` installs it where Go is there. A race of two that swap by one tag can be tried with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.cluster import free_port
from tests.s3_server import KEY, SECRET, S3Server, end, wait_until_it_answers

__all__ = ("running",)


@contextmanager
def running(folder: Path) -> Iterator[S3Server]:
    """Start a server, wait until it answers, and end it with the block."""
    server = shutil.which("versitygw", path=str(Path(sys.prefix, "bin"))) or shutil.which("versitygw")
    assert server, "the server is missing: run `tools/setup versitygw`"
    port, buckets, about, log = free_port(), folder / "buckets", folder / "about", folder / "versitygw.log"
    buckets.mkdir()
    about.mkdir()
    command = [
        server, "--access", KEY, "--secret", SECRET, "--port", f"127.0.0.1:{port}", "--keep-alive", "--quiet",
        "posix", "--sidecar", str(about), str(buckets),
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        wait_until_it_answers(process, f"http://127.0.0.1:{port}", log)
        yield S3Server(f"http://127.0.0.1:{port}", buckets)
    finally:
        end(process, 10)
