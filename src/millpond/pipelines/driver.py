"""The Spark driver, seen from a worker: a process of its own, which outlives the worker that began it.

    worker ── a socket in the driver's folder ──▶ driver ── JVM ── executors
    checkpoint: host, folder, pid and its start, Spark application, ticket ──▶ a later worker comes to the same socket

A worker sends heartbeats and holds its claims while Spark works, or fails; and a driver that runs out of memory takes
no worker with it. So they are two processes.

Invariants:
* a driver whose worker is gone goes on with its job, see `driver_process`; whoever asks it for the same job has its
  result;
* a driver is there when it listens in its folder, and its process began when the checkpoint says: a pid that was given
  to another process is not taken for it, nor killed;
* of several calls with one key one job runs, and all get its result;
* a job that is cancelled ends within seconds: its Spark jobs at once, and what does not end then with the process;
* a driver that is lost fails the job that it had, as `Unavailable`; the next job gets a new one;
* what driver and JVM write during a job is in the log of its attempt, and in the worker's own, both without secrets;
* what a job does has the attempt as its parent in lineage, whose events have no secret of the run.
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
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from millpond.client.wire_errors import from_wire
from millpond.clock import SystemClock
from millpond.errors import Closed, Internal, Unavailable
from millpond.json_forms import parse_object, to_json
from millpond.lineage import PARENT
from millpond.pipelines.attempt_logs import AttemptLog, current_log
from millpond.pipelines.driver_process import empty_large
from millpond.stores.files import remove_tree
from millpond.tracing import trace_headers

__all__ = ("Drivers", "SparkDriver", "began_of")

_MAIN = "import sys; from millpond.pipelines.driver_process import main; main(*sys.argv[1:])"
_ERROR_STATUS = 400
_END_SECONDS = 10.0
_SOCKET_CHARACTERS_MAX = 100
"""Characters of a socket's path: the system takes no more than 107."""
_LEFT_SECONDS = 3_600.0
"""The age from which the folder of a driver that was killed is removed."""
_LOOK_SECONDS = 0.05
_LINE_BYTES_MAX = 65_536
"""Bytes of a line for whose end is waited."""
CANCELLED_MAX = 1_000
"""Keys without a job that are remembered as cancelled, the newest: their attempts are over, or begin within moments."""
_CANCELS, _CANCEL_SECONDS = 16, 0.25


class SparkDriver:
    """The driver's process, seen from its worker. Threads may share it; jobs take turns."""

    def __init__(self, master: str) -> None:
        self._master, self._lock = master, threading.Lock()
        self._line: _Line | None = None
        self._going: dict[str, Future[dict[str, Any]]] = {}
        self._cancelled: dict[str, None] = {}
        self._taken: dict[str, None] = {}
        self._running = ""
        self._status: tuple[str, dict[str, Any]] = ("", {})
        self._changed = threading.Lock()

    @classmethod
    def again(cls, master: str, place: Mapping[str, Any]) -> SparkDriver | None:
        """The driver that a checkpoint names, if it is there still: on this machine, and the same process."""
        line = _Line.to(place)
        if line is None:
            return None
        driver = cls(master)
        driver._line = line
        return driver

    def place(self) -> dict[str, Any]:
        """The words of a checkpoint by which `again` finds the driver; its process is begun if there is none."""
        with self._changed:
            line = self._line
            if line is None or not line.process.is_alive():
                line = self._line = _Line.begun(self._master)
            return {
                "host": socket.gethostname(), "folder": line.folder.name, "pid": line.process.pid,
                "began": line.process.began, "application": line.application,
            }  # fmt: skip

    def run(
        self, key: str, job: str, arguments: Mapping[str, Any], watched: Mapping[str, Any] | None = None, *,
        again: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """The result of a job; of the one with the same key that goes on already, if there is one.

        The driver keeps it until `forget`. Without a worker it asks the server about the attempt that is `watched`.
        With `again` no job begins.

        Raises: the error of the job; `NotFound`, kind `driver_job`, when it is to be there and is not; `Unavailable`
            when the driver is lost, or another worker has taken the job.
        """
        with self._changed:
            going, mine = self._going.get(key), Future[dict[str, Any]]()
            if going is None:
                self._going[key] = mine
                self._taken.pop(key, None)  # what another worker took has come back
        if going is not None:
            return going.result()
        try:
            log = current_log()
            request = {
                "key": key, "job": job, "arguments": dict(arguments), "watched": watched, "again": again,
                "parent": PARENT.get(), "secrets": [] if log is None else log.secrets, **trace_headers(),
            }  # fmt: skip
            mine.set_result(self._run(key, to_json(request) + b"\n"))
        except BaseException as error:
            mine.set_exception(error)
        finally:
            with self._changed:
                del self._going[key]
                self._cancelled.pop(key, None)
        return mine.result()

    def forget(self, key: str) -> None:
        """Let the driver forget the result of a job: a checkpoint has it."""
        if (line := self._line) is not None:
            line.send(to_json({"forget": key}) + b"\n")

    def status(self, key: str) -> dict[str, Any]:
        """The progress of a job, see `driver_process`."""
        of, status = self._status
        return status if of == key else {}

    def cancel(self, key: str) -> bool:
        """End the job with a key, and wait until it has ended; none is no error, and none begins under it afterwards.

        What does not end within two seconds ends with the driver's process. False when another worker has taken the
        job: it is not this one's to end.
        """
        with self._changed:
            if key in self._taken:
                return False
            going = self._going.get(key)
            self._cancelled[key] = None
            if going is None:  # a job that begins with this key from now on fails; of attempts that are over none does
                _keep_newest(self._cancelled, self._going)
                return True
            if self._running != key:
                return True  # it fails when its turn comes
            line = self._line
        for _ in range(_CANCELS):
            if line is not None:  # again and again: its Spark job may be about to begin
                line.send(to_json({"cancel": key}) + b"\n")
            with suppress(TimeoutError):
                going.exception(_CANCEL_SECONDS)
                return key not in self._taken
        with self._changed:
            if self._running == key and self._line is not None:
                self._line.process.kill()
        going.exception()
        return key not in self._taken

    @property
    def process_id(self) -> int | None:
        """The process, while there is one."""
        line = self._line
        return None if line is None else line.process.pid

    @property
    def busy(self) -> bool:
        """True while a job runs, or waits for its turn."""
        return bool(self._going)

    def close(self) -> None:
        """Leave the driver, which ends when it has no job and no other worker. Closing twice is harmless."""
        with self._lock:
            self._end(kills=False)

    def _run(self, key: str, request: bytes) -> dict[str, Any]:
        with self._lock:
            self._begin(key)
            log = current_log()
            try:
                answer = self._answer(key, request, log)
            except Unavailable:
                self._begin(key)  # lost because it was cancelled: that is the reason then
                raise
            finally:
                with self._changed:
                    self._running = ""
            if not answer["usable"]:
                self._end()
        if "result" in answer:
            result: dict[str, Any] = answer["result"]
            return result
        self.forget(key)
        raise from_wire("driver", _ERROR_STATUS, to_json(answer["error"])) or Internal("the driver failed")

    def _begin(self, key: str) -> None:
        with self._changed:
            if key in self._cancelled:
                raise Closed("the step was stopped", kind="step_stopped")
            self._running = key

    def _answer(self, key: str, request: bytes, log: AttemptLog | None) -> dict[str, Any]:
        self.place()
        line = self._line
        assert line is not None
        line.send(request)
        while (row := line.next()) is not None:
            line.pass_on(log, row.get("log_start", 0), is_last="status" not in row)
            if "status" in row:
                self._status = key, row["status"]
            elif row["key"] != key:
                continue  # the answer of a job that nobody waits for any more
            elif "taken" in row:
                with self._changed:
                    self._taken[key] = None
                    _keep_newest(self._taken, {})
                raise Unavailable("another worker has taken the job over", kind="driver_taken", job=key)
            else:
                return row
        line.pass_on(log, 0, is_last=True)
        self._end()
        raise Unavailable(
            "the Spark driver was lost while it worked", kind="driver_lost", code=line.process.code,
            hint="the task is tried again with a new one; the worker's log holds what it wrote",
        )  # fmt: skip

    def _end(self, *, kills: bool = True) -> None:
        with self._changed:
            line, self._line = self._line, None
        if line is not None:
            line.close(kills=kills)


class Drivers:
    """The drivers of a worker: its own, which is warm, and those of others that it found. Threads may share it."""

    def __init__(self, master: str) -> None:
        self._master, self._changed = master, threading.Lock()
        self._own = SparkDriver(master)
        self._others: dict[str, SparkDriver] = {}

    def own(self) -> SparkDriver:
        """The one for a job that begins."""
        return self._own

    def again(self, place: Mapping[str, Any]) -> SparkDriver | None:
        """The one that a checkpoint names, if it is there still; a worker without one keeps it as its own."""
        with self._changed:
            for driver in (self._own, *self._others.values()):
                if driver.process_id == place["pid"] and driver.place()["folder"] == place["folder"]:
                    return driver
            other = SparkDriver.again(self._master, place)
            if other is not None and self._own.process_id is None and not self._own.busy:
                self._own = other
            elif other is not None:
                self._others[str(place["folder"])] = other
            return other

    def left(self, driver: SparkDriver) -> None:
        """Leave a driver that is not this worker's own, when no job of it is waited for."""
        with self._changed:
            for name in [name for name, other in self._others.items() if other is driver and not driver.busy]:
                del self._others[name]
                driver.close()


def _keep_newest(keys: dict[str, None], going: Mapping[str, object]) -> None:
    idle = [key for key in keys if key not in going]
    for key in idle[: max(0, len(idle) - CANCELLED_MAX)]:
        del keys[key]


# -- the process, and the way to it -------------------------------------------------------------------


@dataclass(slots=True)
class _Process:
    """A process by its pid and the time of its start, whoever began it."""

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

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended; False when it has not."""
        clock = SystemClock()
        until = clock.monotonic() + seconds
        while self.is_alive() and clock.monotonic() < until:
            clock.wait(threading.Event(), clock.monotonic() + _LOOK_SECONDS)
        return not self.is_alive()


def began_of(pid: int) -> str:
    """The time of a process's start, in ticks since the machine's; nothing when it is gone, or where none is told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


@dataclass(slots=True)
class _Line:
    """The way to a driver: its socket, and what it writes."""

    folder: Path
    process: _Process
    connection: socket.socket
    lines: IO[bytes]
    application: str = ""
    read_bytes: int = 0
    writing: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def begun(cls, master: str) -> _Line:
        """The way to a new driver."""
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
        process = _Process(popen.pid, began_of(popen.pid), popen)
        return cls(folder, process, connection, connection.makefile("rb"))

    @classmethod
    def to(cls, place: Mapping[str, Any]) -> _Line | None:
        """The way to a driver that is there already."""
        name, process = str(place["folder"]), _Process(int(place["pid"]), str(place["began"]))
        if place["host"] != socket.gethostname() or not re.fullmatch(r"\w+", name):
            return None
        if not process.began or not process.is_alive():
            return None
        connection = _connected(_drivers() / name)
        if connection is None:
            return None
        return cls(_drivers() / name, process, connection, connection.makefile("rb"), str(place["application"]))

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
        with suppress(OSError), file.open("rb") as written:
            size = os.fstat(written.fileno()).st_size
            self.read_bytes = self.read_bytes if self.read_bytes <= size else 0
            written.seek(self.read_bytes)
            text = written.read(size - self.read_bytes)
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
        if self.process.popen is not None and not self.process.wait(_END_SECONDS) and kills:
            self.process.kill()
            self.process.popen.wait()


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
