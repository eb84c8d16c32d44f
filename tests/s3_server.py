"""A real S3 server on a free loopback port, in a process of its own: S3Proxy over a folder.

What it does as S3 does, and so is verified with it: signatures, single and multipart uploads, ranges, listings with
prefix, start and delimiter, deletion of many, presigned URLs, `If-None-Match: *` also among writers at once, and
`If-Match` of one writer after another. It checks `If-Match` before it writes, not while: two writers at once may both
succeed, so that race is S3's own promise and is not tried here.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from millpond.clock import SystemClock
from tests.harness.cluster import free_port

JARS = Path(sys.prefix) / "s3-server"
KEY, SECRET = "millpond-tests", "of-no-use-elsewhere"
START_SECONDS = 60.0
CLOCK = SystemClock()


@dataclass(frozen=True)
class S3Server:
    """A running server: its URL, and the folder in which each bucket is a folder."""

    url: str
    folder: Path

    def make_bucket(self, name: str) -> str:
        """A new bucket; its URL."""
        (self.folder / name).mkdir()
        return f"s3://{name}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that uses it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url, "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip

    def config(self) -> dict[str, object]:
        """The settings with which `open_objects` uses it."""
        return {
            "endpoint": self.url, "access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1",
            "allow_http": True,
        }  # fmt: skip


def start_server(stack: ExitStack) -> S3Server:
    """Start a server that is stopped with the stack."""
    return stack.enter_context(running(Path(stack.enter_context(TemporaryDirectory(prefix="millpond-s3-")))))


@contextmanager
def running(folder: Path, *, authorization: str = "aws-v4") -> Iterator[S3Server]:
    """Start a server, wait until it answers, and end it with the block; with `none` it checks no signature."""
    assert any(JARS.glob("s3proxy-*.jar")), "the S3 server is missing: run `tools/setup s3`"
    port = free_port()
    buckets, settings, log = folder / "buckets", folder / "s3proxy.properties", folder / "s3proxy.log"
    buckets.mkdir(parents=True)
    settings.write_text(
        f"s3proxy.endpoint=http://127.0.0.1:{port}\ns3proxy.authorization={authorization}\ns3proxy.identity={KEY}\n"
        f"s3proxy.credential={SECRET}\njclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={buckets}\n"
    )
    command = [
        java_command(), "-Xmx160m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{JARS}/*",
        "org.gaul.s3proxy.Main", "--properties", str(settings),
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        wait_until_it_answers(process, f"http://127.0.0.1:{port}", log)
        yield S3Server(f"http://127.0.0.1:{port}", buckets)
    finally:
        end(process, 10)


def java_command() -> str:
    """The Java to start servers with."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    assert found, "the S3 server needs Java: run `tools/setup java`"
    return found


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a process, by force when it takes longer than so many seconds."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a server answers, or has ended."""
    deadline = CLOCK.monotonic() + START_SECONDS
    while process.poll() is None and CLOCK.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return  # it answers, and wants a signature
        except OSError:
            threading.Event().wait(0.05)
        else:
            return
    raise AssertionError(f"the S3 server did not start:\n{log.read_text(errors='replace')[-4000:]}")
