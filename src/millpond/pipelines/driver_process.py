"""The process of a Spark driver: it serves workers on a socket in its folder, and does their jobs in turns.

    worker ── {"key": …, "job": …, "arguments": {…}}, {"cancel": key}, {"forget": key}, {"leave": true} ──▶ driver
           ◀── {"status": {…}} while it works, {"result": {…}} or {"error": {…}}, or {"taken": true}

In a cluster {"file": name} is for a request in the driver's folder, and workers come to a door on the network.

Invariants:
* of several requests with one key one job runs, and none when a request is for a job that is there `again`; its answer
  is that of the worker that asked last, the one before hears that it was taken, and it stays until it is to be
  forgotten, so that a worker which comes later has it;
* a driver without a worker goes on with the jobs that it has, for `orphan_seconds()` and as long as the server of the
  run wants them; with none it ends at once, in a cluster `FIRST_SECONDS` after it came up;
* a job that the server wants no more, as its run was stopped or deleted, has its ticket voided, and the driver ends;
* after a failure that is not one of a job's own the driver ends: its JVM may be gone, and its session of no use.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any, Final

from millpond.client.wire_errors import to_wire
from millpond.clock import SystemClock
from millpond.errors import Closed, Invalid, MillpondError, NotFound
from millpond.json_forms import parse_object, to_json
from millpond.kernel.worker import begin_thread
from millpond.lineage import PARENT, wait_sent
from millpond.pipelines.attempt_logs import AttemptLog, collecting
from millpond.pipelines.cluster_doors import Door
from millpond.pipelines.step import classify_error
from millpond.process_settings import tracing_target
from millpond.stores.files import remove_tree, write_file_atomically
from millpond.tracing import TRACEPARENT, Kind, begin_tracing, flush_spans, span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = (
    "ADDRESS", "APPLICATION", "ENVIRONMENT", "LOG_BYTES_MAX", "empty_large", "main", "main_in_cluster",
    "orphan_seconds",
)  # fmt: skip

ADDRESS: Final = "address"
"""The file of a driver's folder that says where its door is, and the secret."""
APPLICATION: Final = "application"
"""The file of a driver's folder that holds the id of its Spark application."""
ENVIRONMENT: Final = "environment"
"""The file of a driver's folder with what it takes over from its first worker."""
FIRST_SECONDS: Final = 30.0
"""The time in which the worker that had the cluster begin a driver comes to its door."""

LOG_BYTES_MAX: Final = 16 << 20
"""Bytes of a driver's log, after which it is emptied: those who want its lines have read them."""
_LOOK_SECONDS = 1.0
_ELSEWHERE_LOOKS = 5
"""Looks at an attempt that another worker has, without one that comes here: it works on another machine."""
_SEND_SECONDS = 5


def orphan_seconds() -> float:
    """The time for which a driver goes on without a worker: `MILLPOND_DRIVER_SECONDS`, or two minutes."""
    return float(os.environ.get("MILLPOND_DRIVER_SECONDS", "120"))


@dataclass(slots=True)
class _Job:
    request: dict[str, Any]
    worker: socket.socket
    answer: dict[str, Any] | None = None
    looks_elsewhere: int = 0


@dataclass(slots=True)
class _Driver:
    master: str
    folder: Path
    jobs: dict[str, _Job] = field(default_factory=dict)
    """Those that wait, run, or have an answer that is not to be forgotten yet."""
    queue: Queue[_Job] = field(default_factory=Queue)
    workers: set[socket.socket] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    departures: int = 0
    running: _Job | None = None
    log_start: int = 0
    session: SparkSession | None = None
    application: str = ""
    door: Door | None = None
    """The door of one that is in a cluster."""
    changed: threading.RLock = field(default_factory=threading.RLock)
    clock: SystemClock = field(default_factory=SystemClock)

    # -- workers ----------------------------------------------------------------------------------------

    def accept(self, listener: socket.socket) -> None:
        """Serve the workers that come."""
        while True:
            worker, _ = listener.accept()
            # A worker that is held up must not hold up the driver.
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
            if self.door is None:
                with self.changed:
                    self.workers.add(worker)
            begin_thread("requests of a worker", partial(self.serve, worker))

    def serve(self, worker: socket.socket) -> None:
        """Take the requests of a worker, until it is gone."""
        with suppress(OSError), worker.makefile("rb") as lines:
            if self.door is not None and not self.door.admits(worker, lines):
                worker.close()
                return
            with self.changed:
                self.workers.add(worker)
            for line in lines:
                if line.endswith(b"\n"):
                    self.take(parse_object(line), worker)
        with self.changed:
            self.workers.discard(worker)
            self.departures = number = self.departures + 1
            alone = not self.workers
        worker.close()
        if alone:
            try:
                self.go_on_alone(number)
            except Exception:  # whatever it is: nobody else would end this process
                traceback.print_exc()
                self.end()

    def take(self, request: dict[str, Any], worker: socket.socket) -> None:
        """Do what a worker asks for."""
        if "file" in request:
            file = self.folder / Path(request["file"]).name
            request = parse_object(file.read_bytes())
            file.unlink()
        if "forget" in request:
            with self.changed:
                self.jobs.pop(request["forget"], None)
                self.cancelled.discard(request["forget"])
        elif "leave" in request:
            with self.changed:
                for key in [key for key, job in self.jobs.items() if job.worker is worker and job.answer is not None]:
                    del self.jobs[key]
        elif "cancel" in request:
            self.cancel(request["cancel"])
        else:
            key = request["key"]
            with self.changed:
                job = self.jobs.get(key)
                if job is None and request["again"]:
                    self.send(worker, {"key": key, "error": to_wire(_unknown()), "usable": True})
                    return
                if job is None:
                    job = self.jobs[key] = _Job(request, worker)
                    self.queue.put(job)
                    return
                if job.worker is not worker:
                    self.send(job.worker, {"key": key, "taken": True})
                job.worker = worker
                if job.answer is not None:
                    self.send(worker, job.answer)

    def cancel(self, key: str) -> None:
        """Interrupt what Spark does for a job."""
        with self.changed:
            if key in self.jobs:
                self.cancelled.add(key)
        running = self.running
        if self.session is not None and running is not None and running.request["key"] == key:
            from millpond.pipelines.sessions import stop_job

            stop_job(self.session, key)

    def send(self, worker: socket.socket, line: Mapping[str, Any]) -> None:
        """Give a worker a line, unless it is gone."""
        with self.changed, suppress(OSError):
            worker.sendall(to_json(dict(line)) + b"\n")

    # -- without a worker -------------------------------------------------------------------------------

    def wait_for_first(self) -> None:
        """End, when the worker that had this process begun does not come."""
        self.clock.wait(threading.Event(), self.clock.monotonic() + FIRST_SECONDS)
        self.go_on_alone(0)

    def go_on_alone(self, departure: int) -> None:
        """Go on with jobs that are wanted until a worker comes, or end; after a later departure, that one's turn."""
        until = self.clock.monotonic() + orphan_seconds()
        while True:
            with self.changed:
                if self.workers or self.departures != departure:
                    return
                jobs = list(self.jobs.values())
                if not jobs or self.clock.monotonic() > until:
                    self.end()
            looks = [self._goes_on(job) for job in jobs]
            if any(looks):
                until = self.clock.monotonic() + orphan_seconds()
            empty_large(self.folder / "log")
            self.clock.wait(threading.Event(), self.clock.monotonic() + _LOOK_SECONDS)

    def _goes_on(self, job: _Job) -> bool:
        """Look at a job without a worker, and give it up when nobody wants it; True when it works and is wanted."""
        from millpond.pipelines.demand import Demand, demand_for

        watched = job.request.get("watched")
        word = demand_for(watched) if watched else Demand.UNKNOWN
        job.looks_elsewhere += word == Demand.ELSEWHERE
        if word == Demand.NO or job.looks_elsewhere >= _ELSEWHERE_LOOKS:
            self._give_up(job, is_void=word == Demand.NO)
            return False
        return word == Demand.YES and job.answer is None

    def _give_up(self, job: _Job, *, is_void: bool) -> None:
        """End a job that nobody wants: a load does not enter afterwards, and what runs ends with the process."""
        request = job.request
        self.cancel(request["key"])
        if is_void and request["job"] == "load":
            from millpond.client.location import parse_location
            from millpond.pipelines.tickets import void

            with suppress(MillpondError), parse_location(request["arguments"]["pond"]).open_existing() as pond:
                void(pond, request["key"])
        with self.changed:
            self.jobs.pop(request["key"], None)
            if job is self.running and not self.workers:
                self.end()

    def end(self) -> None:
        """End the process, and with it the JVM."""
        flush_spans()
        remove_tree(self.folder)
        wait_sent()
        os._exit(0)

    # -- jobs -------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Do jobs, one after another."""
        while True:
            job = self.queue.get()
            with self.changed:
                self.log_start, self.running = os.fstat(2).st_size, job
            answer = {"key": job.request["key"], **self._done(job.request), **self._state()}
            with self.changed:
                job.answer, self.running = answer, None
                self.send(job.worker, answer)
                if not answer["usable"]:
                    flush_spans()
                    remove_tree(self.folder)
                    wait_sent()
                    os._exit(1)

    def _done(self, request: Mapping[str, Any]) -> dict[str, Any]:
        key, usable = request["key"], True
        if key in self.cancelled:
            return {"error": to_wire(_stopped()), "usable": True}
        from millpond.pipelines.sessions import begin_job, end_job, ui_of

        try:
            session = self.session_here()
            begin_job(session, key, request["job"])
            if ui := ui_of(session):
                print(f"Spark UI of {request['job']} {key} in {self.application}: {ui}", file=sys.stderr, flush=True)
            PARENT.set(request["parent"] and tuple(request["parent"]))
            with (
                collecting(AttemptLog(values={"secrets": request["secrets"]})),
                span(request["job"], Kind.CONSUMER, request.get(TRACEPARENT, ""), application=self.application),
            ):
                outcome = {"result": _job(request["job"])(session, request["arguments"])}
        except Exception as error:  # whatever it is, the worker reports it
            cause, usable = _classify_error(error)
            if key in self.cancelled:
                cause = _stopped()
            outcome = {"error": to_wire(cause)}
        end_job()
        sys.stdout.flush()
        return {**outcome, "usable": usable}

    def session_here(self) -> SparkSession:
        """The session, which the first job begins, or what begins the driver in a cluster."""
        if self.session is None:
            from millpond.pipelines.sessions import application_of, open_session

            session = open_session(self.master)
            self.application = application_of(session)
            (self.folder / APPLICATION).write_text(self.application)
            self.session = session
        return self.session

    def _state(self) -> dict[str, Any]:
        """The facts of each line: where in the log the job begins, and the Spark application."""
        return {"log_start": self.log_start, "application": self.application}

    def tell(self) -> None:
        """Tell the worker once a second how far the job is; one that was cancelled may have begun another query."""
        from millpond.pipelines.sessions import Progress, stop_job

        progress = Progress(self.clock)
        while True:
            self.clock.wait(threading.Event(), self.clock.monotonic() + _LOOK_SECONDS)
            job, session = self.running, self.session
            if job is None:
                continue
            key = job.request["key"]
            if session is not None and key in self.cancelled:
                stop_job(session, key)
            status = {} if session is None else progress.of(session, key)
            self.send(job.worker, {"status": status, **self._state()})


def main(master: str, folder: str, listener: str) -> None:
    """Serve the workers that come to a socket."""
    _serve(_Driver(master, Path(folder)), socket.socket(fileno=int(listener)))


def main_in_cluster(master: str, folder: str) -> None:
    """Serve the workers that come over the network, as an application of a cluster: it is to have a session soon."""
    home = Path(folder)
    file = home / ENVIRONMENT
    own = parse_object(file.read_bytes())
    os.environ |= own["environment"]
    file.unlink()
    os.chdir(own["cwd"])
    with (home / "log").open("ab") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    driver = _Driver(master, home, door=Door())
    assert driver.door is not None
    conf = driver.session_here().conf
    host = conf.get("spark.driver.host") or socket.gethostname()
    listener = socket.create_server((conf.get("spark.driver.bindAddress", host) or host, 0))
    address = to_json({"host": host, "port": listener.getsockname()[1], "secret": driver.door.secret})
    write_file_atomically(home / ADDRESS, address, mode=0o600)
    begin_thread("whether a worker comes", driver.wait_for_first)
    _serve(driver, listener)


def _serve(driver: _Driver, listener: socket.socket) -> None:
    begin_tracing(tracing_target())
    begin_thread("workers that come", partial(driver.accept, listener))
    begin_thread("how far the job is", driver.tell)
    driver.work()


def empty_large(log: Path) -> bool:
    """Empty a log that has grown large: who writes to it goes on at its new end."""
    with suppress(OSError):
        if log.stat().st_size > LOG_BYTES_MAX:
            os.truncate(log, 0)
            return True
    return False


def _unknown() -> NotFound:
    return NotFound("the driver has no such job", kind="driver_job")


def _stopped() -> Closed:
    return Closed("the step was stopped", kind="step_stopped")


def _job(name: str) -> Any:
    from millpond.pipelines.jobs import JOBS

    return JOBS[name]


def _classify_error(error: Exception) -> tuple[MillpondError, bool]:
    """The error as one of ours, and True when the session is of use after it."""
    if isinstance(error, MillpondError):
        return error, True
    from millpond.spark.failures import error_behind, is_of_spark

    if is_of_spark(error):
        cause = error_behind(error)
        return cause, cause.kind != "spark_failed"
    ours = classify_error(error)
    return ours, isinstance(ours, Invalid)  # an error of the system may be the connection to a JVM that is gone
