"""The Spark driver of a worker: a process of its own, which takes one job after another.

    worker ── {"key": …, "job": "load", "arguments": {…}} or {"cancel": key} ──▶ driver ── JVM ── executors
           ◀── {"result": {…}} or {"error": {…}}, and "usable": false before it ends ──

A worker sends heartbeats and holds its claims while Spark works, or fails; and a driver that runs out of memory takes
no worker with it. So they are two processes.

Invariants:
* the driver ends when its worker does, also when that one is killed: it reads the end of its input;
* of several calls with one key one job runs, and all get its result;
* a job that is cancelled ends within seconds: its Spark jobs at once, and what does not end then with the process;
* a driver that is lost fails the job that it had, as `Unavailable`; the next job gets a new one;
* what driver and JVM write during a job is in the log of its attempt, and in the worker's own;
* after a failure that is not one of a job's own the driver ends too: its JVM may be gone, and its session of no use.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.client.wire_errors import from_wire, to_wire
from millpond.errors import Closed, Internal, Invalid, MillpondError, Unavailable
from millpond.json_forms import parse_object, to_json
from millpond.kernel.worker import begin_thread
from millpond.pipelines.attempt_logs import AttemptLog, current_log
from millpond.pipelines.step import understood

if TYPE_CHECKING:
    from typing import IO, BinaryIO

    from pyspark.sql import SparkSession

__all__ = ("SparkDriver", "main")

_MAIN = "import sys; from millpond.pipelines.driver import main; main(sys.argv[1])"
_ERROR_STATUS = 400
_END_SECONDS = 10.0
_WRITTEN = b"\0written\n"
"""The line by which the driver ends what it writes about a job."""
_WRITTEN_SECONDS = 1.0
_LINE_BYTES = 65_536
CANCELLED_MAX = 1_000
"""Keys without a job that are remembered as cancelled, the newest: their attempts are over, or begin within moments."""
_CANCELS, _CANCEL_SECONDS = 8, 0.25


class SparkDriver:
    """The driver's process, seen from its worker. Threads may share it; jobs take turns."""

    def __init__(self, master: str) -> None:
        self._master, self._lock = master, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._going: dict[str, Future[dict[str, Any]]] = {}
        self._cancelled: dict[str, None] = {}
        self._running = ""
        self._log: AttemptLog | None = None
        self._written = threading.Event()
        self._changed, self._writing = threading.Lock(), threading.Lock()

    def run(self, key: str, job: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a job; of the one with the same key that goes on already, if there is one.

        Raises: the error of the job; `Unavailable` when the driver is lost.
        """
        with self._changed:
            going, mine = self._going.get(key), Future[dict[str, Any]]()
            if going is None:
                self._going[key] = mine
        if going is not None:
            return going.result()
        try:
            mine.set_result(self._run(key, job, arguments))
        except BaseException as error:
            mine.set_exception(error)
        finally:
            with self._changed:
                del self._going[key]
                self._cancelled.pop(key, None)
        return mine.result()

    def cancel(self, key: str) -> None:
        """End the job with a key, and wait until it has ended; none is no error, and none begins under it afterwards.

        What does not end within two seconds ends with the driver's process.
        """
        with self._changed:
            going = self._going.get(key)
            self._cancelled[key] = None
            if going is None:  # a job that begins with this key from now on fails; of attempts that are over none does
                idle = [own for own in self._cancelled if own not in self._going]
                for own in idle[: max(0, len(idle) - CANCELLED_MAX)]:
                    del self._cancelled[own]
                return
            if self._running != key:
                return  # it fails when its turn comes
            process = self._process
        for _ in range(_CANCELS):
            if process is not None:  # again and again: its Spark job may be about to begin
                self._send(process, to_json({"cancel": key}) + b"\n")
            with suppress(TimeoutError):
                going.exception(_CANCEL_SECONDS)
                return
        with self._changed:
            if self._running == key and self._process is not None:
                self._process.kill()
        going.exception()

    def _run(self, key: str, job: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._begin(key)
            self._log = current_log()
            self._written.clear()
            try:
                response = self._response(to_json({"key": key, "job": job, "arguments": arguments}) + b"\n")
            except Unavailable:
                self._begin(key)  # lost because it was cancelled: that is the reason then
                raise
            finally:
                self._written.wait(_WRITTEN_SECONDS)
                self._log = None
                with self._changed:
                    self._running = ""
            if not response["usable"]:
                self._end()
        if "result" in response:
            result: dict[str, Any] = response["result"]
            return result
        raise from_wire("driver", _ERROR_STATUS, to_json(response["error"])) or Internal("the driver failed")

    def _begin(self, key: str) -> None:
        with self._changed:
            if key in self._cancelled:
                raise Closed("the step was stopped", kind="step_stopped")
            self._running = key

    @property
    def process_id(self) -> int | None:
        """The process, while there is one."""
        process = self._process
        return None if process is None else process.pid

    @property
    def busy(self) -> bool:
        """True while a job runs."""
        return self._lock.locked()

    def close(self) -> None:
        """End the process. Closing twice is harmless."""
        with self._lock:
            self._end()

    def _response(self, request: bytes) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        line = b""
        self._send(process, request)
        with suppress(OSError):
            line = process.stdout.readline()
        if line.endswith(b"\n"):
            return parse_object(line)
        self._end()
        raise Unavailable(
            "the Spark driver was lost while it worked", kind="driver_lost", code=process.returncode,
            hint="the task is tried again with a new one; the worker's log holds what it wrote",
        )  # fmt: skip

    def _send(self, process: subprocess.Popen[bytes], line: bytes) -> None:
        assert process.stdin is not None
        with self._writing, suppress(OSError, ValueError):  # it is gone: whoever reads its answer hears of it
            process.stdin.write(line)
            process.stdin.flush()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, self._master],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert self._process.stderr is not None
            begin_thread("what the driver writes", partial(self._pass_on, self._process.stderr))
        return self._process

    def _pass_on(self, lines: IO[bytes]) -> None:
        """Give what the driver writes to the worker's own standard error, and to the log of the attempt that runs."""
        with lines:
            while line := lines.readline(_LINE_BYTES):
                line, is_end = line.removesuffix(_WRITTEN), line.endswith(_WRITTEN)
                if log := self._log:
                    log.write(line.decode(errors="replace"))
                with suppress(OSError):
                    os.write(2, line)
                if is_end:
                    self._written.set()
        self._written.set()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# -- inside the driver --------------------------------------------------------------------------------


def main(master: str) -> None:
    """Take jobs from standard input until it ends."""
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Spark and its workers print must not come between responses
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    cancelled: set[str] = set()
    begin_thread("jobs from standard input", partial(_read, sys.stdin.buffer, requests, cancelled))
    session: SparkSession | None = None
    while True:
        request = requests.get()
        try:
            session = session or _session(master)
            session.sparkContext.setJobGroup(request["key"], request["job"], interruptOnCancel=True)
            response = {"result": _job(request["job"])(session, request["arguments"])}
            usable = True
        except Exception as error:  # whatever it is, the worker reports it
            understood, usable = _understood(error)
            if request["key"] in cancelled:
                understood = Closed("the step was stopped", kind="step_stopped")
            response = {"error": to_wire(understood)}
        sys.stdout.flush()
        os.write(2, _WRITTEN)
        responses.write(to_json(response | {"usable": usable}) + b"\n")
        responses.flush()
        if not usable:
            os._exit(1)


def _read(lines: BinaryIO, requests: queue.Queue[dict[str, Any]], cancelled: set[str]) -> None:
    for line in lines:
        request = parse_object(line)
        if "cancel" not in request:
            requests.put(request)
            continue
        from pyspark import SparkContext

        cancelled.add(request["cancel"])
        if SparkContext._active_spark_context is not None:  # noqa: SLF001
            SparkContext._active_spark_context.cancelJobGroup(request["cancel"])  # noqa: SLF001
    os._exit(0)  # the worker is gone, and nobody wants the job; the JVM ends with this process


def _session(master: str) -> SparkSession:
    from millpond import spark

    session = spark.start(master, app="millpond-pipelines", settings={"spark.sql.shuffle.partitions": "8"})
    spark.register(session)
    return session


def _job(name: str) -> Any:
    from millpond.pipelines.jobs import JOBS

    return JOBS[name]


def _understood(error: Exception) -> tuple[MillpondError, bool]:
    """The error as one of ours, and True when the session is of use after it."""
    if isinstance(error, MillpondError):
        return error, True
    from millpond.spark.failures import error_behind, is_of_spark

    if is_of_spark(error):
        cause = error_behind(error)
        return cause, cause.kind != "spark_failed"
    ours = understood(error)
    return ours, isinstance(ours, Invalid)  # an error of the system may be the connection to a JVM that is gone
