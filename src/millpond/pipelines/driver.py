"""The Spark driver of a worker: a process of its own, which takes one job after another.

    worker ── {"job": "load", "arguments": {…}} ──▶ driver ── JVM ── executors
           ◀── {"result": {…}} or {"error": {…}}, and "usable": false before it ends ──

A worker sends heartbeats and holds its claims while Spark works, or fails; and a driver that runs out of memory takes
no worker with it. So they are two processes.

Invariants:
* the driver ends when its worker does, also when that one is killed: it reads the end of its input;
* of several attempts at one key one job runs, and all get its result: an attempt that follows one which timed out waits
  for the job that goes on, instead of a job behind it;
* a driver that is lost fails the job that it had, as `Unavailable`; the next job gets a new one;
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
from typing import TYPE_CHECKING, Any

from millpond.client.wire_errors import from_wire, to_wire
from millpond.error_values import shown
from millpond.errors import Internal, MillpondError, Unavailable
from millpond.json_forms import parse_object, to_json

if TYPE_CHECKING:
    from typing import BinaryIO

    from pyspark.sql import SparkSession

__all__ = ("SparkDriver", "main")

_MAIN = "import sys; from millpond.pipelines.driver import main; main(sys.argv[1])"
_ERROR_STATUS = 400
_END_SECONDS = 10.0


class SparkDriver:
    """The driver's process, seen from its worker. Threads may share it; jobs take turns."""

    def __init__(self, master: str) -> None:
        self._master, self._lock = master, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._going: dict[str, Future[dict[str, Any]]] = {}
        self._changed = threading.Lock()

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
            mine.set_result(self._run(job, arguments))
        except BaseException as error:
            mine.set_exception(error)
        finally:
            with self._changed:
                del self._going[key]
        return mine.result()

    def _run(self, job: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            response = self._response(to_json({"job": job, "arguments": arguments}) + b"\n")
            if not response["usable"]:
                self._end()
        if "result" in response:
            result: dict[str, Any] = response["result"]
            return result
        raise from_wire("driver", _ERROR_STATUS, to_json(response["error"])) or Internal("the driver failed")

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
        with suppress(OSError):
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline()
        if line.endswith(b"\n"):
            return parse_object(line)
        self._end()
        raise Unavailable(
            "the Spark driver was lost while it worked", kind="driver_lost", code=process.returncode,
            hint="the task is tried again with a new one; the worker's log holds what it wrote",
        )  # fmt: skip

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, self._master],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        return self._process

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
    requests: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    session: SparkSession | None = None
    while True:
        request = parse_object(requests.get())
        try:
            session = session or _session(master)
            response = {"result": _job(request["job"])(session, request["arguments"])}
            usable = True
        except Exception as error:  # whatever it is, the worker reports it
            understood, usable = _understood(error)
            response = {"error": to_wire(understood)}
        responses.write(to_json(response | {"usable": usable}) + b"\n")
        responses.flush()
        if not usable:
            os._exit(1)


def _read(requests: BinaryIO, taken: queue.Queue[bytes]) -> None:
    for line in requests:
        taken.put(line)
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
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        # It may be the connection to a JVM that is gone.
        return Unavailable("the system refused", kind="system", reason=reason, path=error.filename), False
    return Internal(
        f"unexpected {type(error).__name__}: {shown(str(error))}", kind="unexpected",
        hint="this is our mistake: report it with the worker's log",
    ), False  # fmt: skip
