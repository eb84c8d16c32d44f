"""A real PostgreSQL server on a free loopback port, as Debian ships it, in a data folder of its own.

PostgreSQL refuses to run as root: then it runs as the user that Debian's package makes for it, who owns the folder.
The server ends with the process that started it, even when that is killed.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from millpond.clock import SystemClock
from tests.harness.cluster import free_port
from tests.rings.servers import shared

START_SECONDS = 60.0
CLOCK = SystemClock()
_NAMES = itertools.count()


@dataclass
class PostgresServer:
    """A server that can be stopped and started again on its port."""

    folder: Path
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=CLOCK.random_id)
    process: subprocess.Popen[bytes] | None = None

    def url(self, port: int | None = None) -> str:
        """A URL of its database, or of a proxy before it."""
        return f"postgresql://millpond:{self.password}@127.0.0.1:{port or self.port}/postgres"

    def make(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if os.getuid() == 0:
            owner = pwd.getpwnam("postgres")
            for path in (self.folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        command = [
            *_as_user(), str(_programs() / "initdb"), "--pgdata", str(self.folder / "data"), "--username", "millpond",
            "--pwfile", str(secret), "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync",
        ]  # fmt: skip
        made = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr

    def start(self) -> None:
        command = [
            *_as_user(), str(_programs() / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port),
            "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off",
        ]  # fmt: skip
        log = self.folder / "log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=out)
        deadline = CLOCK.monotonic() + START_SECONDS
        while b"ready to accept connections" not in log.read_bytes():
            assert self.process.poll() is None and CLOCK.monotonic() < deadline, log.read_text()[-4000:]
            threading.Event().wait(0.02)

    def stop(self) -> None:
        """Let it end its connections and itself."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait()
            self.process = None
            (self.folder / "log").unlink()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)


def start_server(stack: ExitStack) -> PostgresServer:
    """Start a server that is stopped with the stack; as workers get it."""
    found = PostgresServer(Path(tempfile.mkdtemp(prefix="millpond-postgres-")))
    stack.callback(found.remove)
    found.make()
    found.start()
    return replace(found, process=None)


@cache
def server() -> PostgresServer:
    """The server that all tests share; one that is to be stopped is made by its test."""
    found: PostgresServer = shared("postgres")
    return found


def new_location() -> str:
    """A space on the server that holds nothing yet."""
    return f"{server().url()}#space-{os.getpid()}-{next(_NAMES)}"


def _as_user() -> list[str]:
    """The beginning of a command that ends with this process, and does not run as root."""
    beginning = ["setpriv", "--pdeathsig", "INT"]
    if os.getuid() == 0:
        beginning += ["--reuid", "postgres", "--regid", "postgres", "--init-groups"]
    return beginning


def _programs() -> Path:
    """The folder of the newest version; Debian puts only some programs on the path."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found and (elsewhere := shutil.which("initdb")):
        found = [Path(elsewhere).resolve().parent]
    assert found, "PostgreSQL is missing: run `tools/setup postgres`"
    return max(found, key=lambda folder: int(folder.parent.name) if folder.parent.name.isdigit() else 0)
