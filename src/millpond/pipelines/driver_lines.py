"""The way from a worker to a driver: its process, its socket, and what it writes.

| | a driver beside its worker | a driver in the cluster |
|---|---|---|
| folder | in this user's temporary files | in a folder that the worker shares with the cluster |
| socket | of this machine, in the folder | of the network; the folder says where, and what both sides know |
| process | pid, and the time of its start | the id of the cluster, which is asked, see `clusters` |
| without a worker | ends when it comes up | ends soon after it came up |

Invariants:
* nobody speaks with a driver in a cluster who has not read its folder, nor does one that has not written it: each
  proves to the other that it knows the secret there, which is not sent;
* what a worker asks for goes through the folder, for it may hold what its users keep secret.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from millpond.clock import SystemClock
from millpond.errors import Invalid, Unavailable
from millpond.json_forms import FormError, parse_object, to_json
from millpond.pipelines.attempt_logs import AttemptLog
from millpond.pipelines.cluster_doors import admitted_by, keep_alive
from millpond.pipelines.clusters import ClusterDriver, State, is_managed, submit, submitted
from millpond.pipelines.driver_process import ADDRESS, APPLICATION, ENVIRONMENT, empty_large
from millpond.stores.files import remove_tree, write_file_atomically

__all__ = ("Line", "LocalProcess", "began_of")

_MAIN: Final = "import sys; from millpond.pipelines.driver_process import main; main(*sys.argv[1:])"
_CLUSTER_MAIN: Final = """\
import sys

from millpond.pipelines.driver_process import main_in_cluster

main_in_cluster(*sys.argv[1:])
"""
_END_SECONDS = 10.0
_SOCKET_CHARACTERS_MAX = 100
"""Characters of a socket's path: the system takes no more than 107."""
_LEFT_SECONDS, _SHARED_LEFT_SECONDS = 3_600.0, 86_400.0
"""The age from which the folder of a driver that was killed is removed; a day in a folder that is shared."""
_LOOK_SECONDS, _SHARED_LOOK_SECONDS = 0.05, 0.25
_ASK_SECONDS, _SUBMIT_SECONDS = 10.0, 60.0
"""Seconds between the questions to a cluster about a driver that comes up, and those in which one is submitted."""
_CONNECT_SECONDS = 5.0
_LINE_BYTES_MAX = 65_536
"""Bytes of a line for whose end is waited."""
_SUBMITTED: Final = "submitted"
"""The file of a shared folder with what the program wrote that had the driver begun."""
_PASSED_ON: Final = ("MILLPOND_", "LHC_", "AWS_")
"""Variables of a worker's environment that a driver in a cluster has, too: those that begin so."""


@dataclass(slots=True)
class LocalProcess:
    """A process of this machine by its pid and the time of its start, whoever began it."""

    pid: int
    began: str
    popen: subprocess.Popen[bytes] | None = None

    @property
    def code(self) -> int | None:
        """The code with which it ended, if it is this process's child."""
        return None if self.popen is None else self.popen.poll()

    def is_alive(self) -> bool:
        """True while the same process runs."""
        return self.popen.poll() is None if self.popen is not None else began_of(self.pid) == self.began

    def kill(self) -> None:
        """End it at once, and not another one that has its pid."""
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self, *, kills: bool) -> None:
        """Wait a time until it has ended, if it is this process's own, and kill it then."""
        clock = SystemClock()
        until = clock.monotonic() + _END_SECONDS
        while self.popen is not None and self.is_alive():
            if clock.monotonic() >= until:
                if kills:
                    self.kill()
                    self.popen.wait()
                return
            clock.wait(threading.Event(), clock.monotonic() + _LOOK_SECONDS)


@dataclass(slots=True)
class _InCluster:
    """A driver that a cluster runs, seen as a process."""

    driver: ClusterDriver
    pid: int = 0
    code: int | None = None

    @property
    def began(self) -> str:
        """The id of the cluster, which tells it from others."""
        return self.driver.id

    def kill(self) -> None:
        """Let the cluster end it."""
        self.driver.kill()

    def end(self, *, kills: bool) -> None:
        """Let the cluster end it, if it is to be killed: it ends by itself, and nobody waits for it."""
        if kills:
            self.kill()


def began_of(pid: int) -> str:
    """The time of a process's start, in ticks since the machine's; nothing when it is gone, or where none is told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


@dataclass(slots=True)
class Line:
    """The way to a driver: its socket, and what it writes."""

    folder: Path
    process: LocalProcess | _InCluster
    connection: socket.socket
    lines: IO[bytes]
    application: str = ""
    read_bytes: int = 0
    writing: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def beside(cls, master: str) -> Line:
        """The way to a new driver beside this worker."""
        parent = _drivers()
        _sweep(parent)
        folder = parent / SystemClock().random_id()
        folder.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX) as listener, (folder / "log").open("ab") as log:
            listener.bind(str(folder / "socket"))
            listener.listen()
            connection = _connected(folder)  # before it begins: if this process is killed now, it ends, too
            assert connection is not None
            popen = subprocess.Popen(
                [sys.executable, "-c", _MAIN, master, str(folder), str(listener.fileno())], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, pass_fds=[listener.fileno()],
                start_new_session=True,  # what ends a terminal's programs ends none that a later worker may find
            )  # fmt: skip
        process = LocalProcess(popen.pid, began_of(popen.pid), popen)
        return cls(folder, process, connection, connection.makefile("rb"))

    @classmethod
    def in_cluster(cls, master: str, folder: Path, look: Callable[[], object]) -> Line:
        """The way to the driver of a shared folder, which is begun unless it was; it may have to wait for its turn.

        `look` is called now and then. Raises: as `submit`; `Invalid` for a folder that cannot be written;
        `Unavailable`, kind `driver_lost`, when the driver has ended; what `look` raises, and then the driver ends.
        """
        log = folder / _SUBMITTED
        driver: ClusterDriver | None = None
        if not log.exists():
            _fill(folder)
            driver = submit(master, folder / "driver.py", [master, str(folder)], f"millpond-{folder.name}", log, look)
        clock = SystemClock()
        until, asks_at = (clock.monotonic() + seconds for seconds in (_SUBMIT_SECONDS, _ASK_SECONDS))
        while (way := _through(folder)) is None:
            driver = driver or submitted(master, log)
            try:
                look()
            except BaseException:
                if driver is not None:
                    driver.kill()
                raise
            if clock.monotonic() > asks_at:
                if clock.monotonic() > until if driver is None else driver.state() is State.ENDED:
                    raise Unavailable("the driver in the cluster has ended", kind="driver_lost",
                                      application=driver and driver.id, hint="the cluster has its log")  # fmt: skip
                asks_at = clock.monotonic() + _ASK_SECONDS
            clock.wait(threading.Event(), clock.monotonic() + _SHARED_LOOK_SECONDS)
        driver = driver or submitted(master, log)
        assert driver is not None, "a driver that came up was begun"
        return cls(folder, _InCluster(driver), *way, driver.id)

    @classmethod
    def to(cls, location: Mapping[str, Any], master: str) -> Line | None:
        """The way to a driver that is beside this worker already; what is left of one that was killed ends."""
        name = str(location["folder"])
        if location["host"] != socket.gethostname() or not re.fullmatch(r"\w+", name):
            return None
        process = LocalProcess(int(location["pid"]), str(location["began"]))
        connection = _connected(_drivers() / name) if process.began and process.is_alive() else None
        if connection is None:
            _end_left(_drivers() / name, master)
            return None
        return cls(_drivers() / name, process, connection, connection.makefile("rb"), str(location["application"]))

    def is_there(self) -> bool:
        """True while the driver is."""
        if isinstance(self.process, LocalProcess):
            return self.process.is_alive()
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def ask(self, request: dict[str, Any]) -> None:
        """Send a request for a job, unless the driver is gone."""
        if isinstance(self.process, LocalProcess):
            self.send(to_json(request) + b"\n")
            return
        name = f"request-{SystemClock().random_id()}"
        with suppress(OSError):
            write_file_atomically(self.folder / name, to_json(request), mode=0o600)
        self.send(to_json({"file": name}) + b"\n")

    def send(self, line: bytes) -> None:
        """Send a line, unless the driver is gone: whoever reads its answer hears of it."""
        with self.writing, suppress(OSError):
            self.connection.sendall(line)

    def next(self) -> dict[str, Any] | None:
        """The next row that the driver sends; None when it is gone."""
        line = b""
        with suppress(OSError, ValueError):
            line = self.lines.readline()
        if not line.endswith(b"\n"):
            return None
        row = parse_object(line)
        self.application = row.get("application", self.application)
        return row

    def pass_on(self, log: AttemptLog | None, start: int, *, is_last: bool) -> None:
        """Give what the driver wrote to this process's standard error, and from a byte on to the attempt's log: whole
        lines, before the last.
        """
        file = self.folder / "log"
        with suppress(OSError), file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            self.read_bytes = self.read_bytes if self.read_bytes <= size else 0
            stream.seek(self.read_bytes)
            text = stream.read(size - self.read_bytes)
            if not is_last and len(text) < _LINE_BYTES_MAX:  # a part of a secret would not be known for one
                text = text[: text.rfind(b"\n") + 1]
            own = text[max(0, start - self.read_bytes) :]
            self.read_bytes += len(text)
            with suppress(OSError):
                os.write(2, (log or AttemptLog()).masked(text.decode(errors="replace")).encode())
            if log is not None:
                log.write(own.decode(errors="replace"))
            if empty_large(file):
                self.read_bytes = 0

    def close(self, *, kills: bool) -> None:
        """Leave it, and wait a time for its end when it is this process's own: another worker may use it."""
        self.send(b'{"leave":true}\n')
        self.lines.close()
        self.connection.close()
        self.process.end(kills=kills)


def _fill(folder: Path) -> None:
    """Put into a shared folder what a driver needs that is begun in a cluster."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep_shared(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        own = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
        taken_over = to_json({"cwd": str(Path.cwd()), "environment": own})
        write_file_atomically(folder / ENVIRONMENT, taken_over, mode=0o600)
        (folder / "driver.py").write_text(_CLUSTER_MAIN)
    except OSError as error:
        raise Invalid("the shared folder cannot be written", kind="pipeline_place", path=folder, reason=error.strerror,
                      hint="name a folder that worker and cluster may write") from None  # fmt: skip


def _end_left(folder: Path, master: str) -> None:
    """End the application of a driver that was killed beside its worker, where a cluster may still run it."""
    if is_managed(master):
        with suppress(OSError):
            own = ClusterDriver(master, (folder / APPLICATION).read_text())
            if own.state() is not State.ENDED:
                own.kill()


def _through(folder: Path) -> tuple[socket.socket, IO[bytes]] | None:
    """The way that the folder of a driver in a cluster names; None where there is none."""
    try:
        address = parse_object((folder / ADDRESS).read_bytes())
        connection = socket.create_connection((address["host"], address["port"]), _CONNECT_SECONDS)
    except (OSError, FormError, KeyError):
        return None
    lines = connection.makefile("rb")
    if not admitted_by(connection, lines, address["secret"]):
        lines.close()
        connection.close()
        return None
    connection.settimeout(None)
    keep_alive(connection)
    return connection, lines


def _drivers() -> Path:
    """The folder of this user's drivers on this machine.

    Raises: `Unavailable` when somebody else made it.
    """
    name = f"millpond-drivers-{os.getuid()}"
    parent = Path(tempfile.gettempdir()) / name
    if len(str(parent)) > _SOCKET_CHARACTERS_MAX - 40:
        parent = Path("/tmp") / name
    parent.mkdir(mode=0o700, exist_ok=True)
    about = parent.lstat()
    if about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise Unavailable("the folder of drivers is another user's", kind="system", path=parent,
                          hint="name a folder of your own by TMPDIR")  # fmt: skip
    return parent


def _connected(folder: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(folder / "socket"))
    except OSError:
        connection.close()
        return None
    return connection


def _sweep(parent: Path) -> None:
    """Remove the folders of drivers that were killed."""
    now = SystemClock().now_ms() / 1000
    for folder in parent.iterdir():
        with suppress(OSError):
            if now - folder.stat().st_mtime < _LEFT_SECONDS:
                continue
            if (there := _connected(folder)) is not None:
                there.close()
            else:
                remove_tree(folder)


def _sweep_shared(shared: Path) -> None:
    """Remove the folders of drivers that a cluster has no more."""
    now = SystemClock().now_ms() / 1000
    for begun in shared.glob(f"*/{_SUBMITTED}"):
        with suppress(OSError):
            if now - begun.stat().st_mtime < _SHARED_LEFT_SECONDS:
                continue
            if (there := _through(begun.parent)) is not None:
                there[0].close()
            else:
                remove_tree(begun.parent)
