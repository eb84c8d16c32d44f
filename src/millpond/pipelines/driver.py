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

import re
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from millpond.client.wire_errors import from_wire
from millpond.clock import SystemClock
from millpond.errors import Closed, Internal, NotFound, Unavailable
from millpond.json_forms import to_json
from millpond.lineage import PARENT
from millpond.pipelines.attempt_logs import AttemptLog, current_log
from millpond.pipelines.driver_lines import Line
from millpond.tracing import trace_headers

__all__ = ("Drivers", "SparkDriver")

_ERROR_STATUS = 400
CANCELLED_MAX = 1_000
"""Keys without a job that are remembered as cancelled, the newest: their attempts are over, or begin within moments."""
_CANCELS, _CANCEL_SECONDS = 16, 0.25


class SparkDriver:
    """The driver's process, seen from its worker. Threads may share it; jobs take turns."""

    def __init__(self, master: str, shared: str = "") -> None:
        """A driver, of the cluster that `master` names: in it, where a folder is `shared` with it, else beside it."""
        self._master, self._shared, self._lock, self._placing = master, shared, threading.Lock(), threading.Lock()
        self._line: Line | None = None
        self._folder: Path | None = None
        self._going: dict[str, Future[dict[str, Any]]] = {}
        self._cancelled: dict[str, None] = {}
        self._taken: dict[str, None] = {}
        self._running = ""
        self._status: tuple[str, dict[str, Any]] = ("", {})
        self._changed = threading.Lock()

    @classmethod
    def again(cls, location: Mapping[str, Any], master: str, shared: str = "") -> SparkDriver | None:
        """The driver that a checkpoint names, if it may be there still: the same process on this machine, or in the
        cluster the one of its folder.
        """
        driver, name = cls(master, shared), str(location["folder"])
        if shared and re.fullmatch(r"\w+", name) and (Path(shared) / name).is_dir():
            driver._folder = Path(shared) / name
            return driver
        driver._line = None if shared else Line.to(location, master)
        return None if driver._line is None else driver

    def location(self) -> dict[str, Any]:
        """The words of a checkpoint by which `again` finds the driver. Its process is begun if there is none; in a
        cluster by the first job, so that its folder is known before.
        """
        with self._placing:
            line = self._line
            if line is None or not line.is_there():
                if self._shared:
                    if line is not None or self._folder is None:
                        self._end()
                        self._folder = Path(self._shared) / SystemClock().random_id()
                    return {"folder": self._folder.name, "pid": 0}
                line = Line.beside(self._master)
                with self._changed:
                    self._line = line
            return {
                "host": socket.gethostname(), "folder": line.folder.name, "pid": line.process.pid,
                "began": line.process.began, "application": line.application,
            }  # fmt: skip

    def _there(self, key: str) -> Line:
        """The way to the driver, when it has come up."""
        self.location()
        with self._placing:
            if self._folder is not None and (self._line is None or not self._line.is_there()):
                try:
                    line = Line.in_cluster(self._master, self._folder, lambda: self._begin(key))
                except BaseException:
                    self._folder = None
                    raise
                with self._changed:
                    self._line = line
            assert self._line is not None
            return self._line

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
            mine.set_result(self._run(key, request))
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
    def folder(self) -> str:
        """The name of its folder, while there is one."""
        folder = self._folder if self._line is None else self._line.folder
        return "" if folder is None else folder.name

    @property
    def busy(self) -> bool:
        """True while a job runs, or waits for its turn."""
        return bool(self._going)

    def close(self) -> None:
        """Leave the driver, which ends when it has no job and no other worker. Closing twice is harmless."""
        with self._lock:
            self._end(kills=False)

    def _run(self, key: str, request: dict[str, Any]) -> dict[str, Any]:
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

    def _answer(self, key: str, request: dict[str, Any], log: AttemptLog | None) -> dict[str, Any]:
        try:
            line = self._there(key)
        except Unavailable as error:
            if request["again"] and error.kind == "driver_lost":
                raise NotFound("the driver has no such job", kind="driver_job") from None
            raise
        line.ask(request)
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
            line, self._line, self._folder = self._line, None, None
        if line is not None:
            line.close(kills=kills)


class Drivers:
    """The drivers of a worker: its own, which is warm, and those of others that it found. Threads may share it."""

    def __init__(self, master: str, shared: str = "") -> None:
        self._master, self._shared, self._changed = master, shared, threading.Lock()
        self._own = SparkDriver(master, shared)
        self._others: dict[str, SparkDriver] = {}

    def own(self) -> SparkDriver:
        """The one for a job that begins."""
        return self._own

    def again(self, location: Mapping[str, Any]) -> SparkDriver | None:
        """The one that a checkpoint names, if it is there still; a worker without one keeps it as its own."""
        with self._changed:
            for driver in (self._own, *self._others.values()):
                if driver.folder == location["folder"]:
                    return driver
            other = SparkDriver.again(location, self._master, self._shared)
            if other is not None and not self._own.folder and not self._own.busy:
                self._own = other
            elif other is not None:
                self._others[str(location["folder"])] = other
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
