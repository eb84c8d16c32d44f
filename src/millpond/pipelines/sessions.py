"""The sessions of a driver: of Spark in its own process, or on a server of Spark Connect.

| | in this process | `sc://` |
|---|---|---|
| the application | that of the driver | that of the server, which outlives it |
| a job is stopped by | its group of jobs | interrupting its sessions |
| its progress | stages, tasks, rows | stages, tasks |

Invariants:
* a job has sessions of its own, beside that of the driver; they end with it, and who stops it stops no later one;
* a query on a server is interrupted when its tasks run: Spark forgets the interrupt of one whose tasks come later, and
  they would have the server's cores for ever. One whose tasks do not come in `_PATIENCE_SECONDS` is interrupted anyway.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from millpond import spark
from millpond.clock import Clock, SystemClock
from millpond.errors import Closed
from millpond.spark.private_api import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = (
    "Progress",
    "application_of",
    "begin_job",
    "end_job",
    "open_session",
    "own_session",
    "stop_job",
    "ui_of",
)

_SETTINGS: Final = {"spark.sql.shuffle.partitions": "8"}
_NAME_CHARACTERS: Final = 120
_PATIENCE_SECONDS: Final = 3.0
_CLOCK: Final = SystemClock()


@dataclass(slots=True)
class _Job:
    """A job, where Spark is on a server: its sessions, the time at which it was stopped, the stages told of last."""

    key: str
    sessions: list[SparkSession] = field(default_factory=list)
    stopped: float | None = None
    stages: Sequence[Any] = ()

    def note_stages(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Note what the server tells of a query."""
        self.stages = () if done else tuple(stages or ())


_NEWEST: list[_Job] = [_Job("")]
"""The job that runs, or the last that did."""


def open_session(master: str) -> SparkSession:
    """The session of a driver.

    Raises: as `spark.start`.
    """
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # nobody else sees the UI of a machine's own work
    session = spark.start(master, app="millpond-pipelines", settings=_SETTINGS, ui=True)
    spark.register(session)
    return session


def application_of(session: SparkSession) -> str:
    """The id of the Spark application, as its cluster knows it."""
    return session.conf.get("spark.app.id") or "" if is_connect(session) else session.sparkContext.applicationId


def ui_of(session: SparkSession) -> str:
    """The address of the Spark UI; nothing where there is none, or it is that of a server."""
    return "" if is_connect(session) else session.sparkContext.uiWebUrl or ""


def own_session(session: SparkSession) -> SparkSession:
    """A session for a job, whose views nobody else sees.

    Raises: `Closed` for a job on a server that was stopped.
    """
    own = session.newSession()
    if is_connect(session):
        job = _NEWEST[0]
        job.sessions.append(own)
        if job.stopped is not None:
            raise Closed("the step was stopped", kind="step_stopped")
        for name in ("spark.sql.session.timeZone", *_SETTINGS):
            own.conf.set(name, session.conf.get(name) or "")
        own.registerProgressHandler(cast("Any", job.note_stages))
    return own


def begin_job(session: SparkSession, key: str, name: str) -> None:
    """Begin a job: what this thread has Spark do from now on is its work."""
    _NEWEST[0] = _Job(key)
    if not is_connect(session):
        session.sparkContext.setJobGroup(key, name, interruptOnCancel=True)


def stop_job(session: SparkSession, key: str) -> None:
    """End what Spark does for a job; on a server this is called until it has ended."""
    with suppress(Exception):  # then the job has failed
        if not is_connect(session):
            session.sparkContext.cancelJobGroup(key)
        elif (job := _NEWEST[0]).key == key:
            job.stopped = job.stopped or _CLOCK.monotonic()
            if job.stages or _CLOCK.monotonic() - job.stopped > _PATIENCE_SECONDS:
                for own in tuple(job.sessions):
                    own.interruptAll()


def end_job() -> None:
    """End the sessions of the job that ran."""
    sessions = _NEWEST[0].sessions
    while sessions:
        with suppress(Exception):  # it was stopped, or the server is gone
            sessions.pop().stop()


class Progress:
    """The progress of a job of Spark: the stage that runs now, its tasks, its rows and their rate since it was seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: tuple[int, float, int] = (-1, 0.0, 0)

    def of(self, session: SparkSession, key: str) -> dict[str, Any]:
        """The newest of the stages that run for a job; nothing while none does, or Spark does not say."""
        try:
            return self._on_server() if is_connect(session) else self._here(session, key)
        except Exception:  # the JVM may end at any moment, and the job says so by itself
            return {}

    def _here(self, session: SparkSession, key: str) -> dict[str, Any]:
        context = session.sparkContext
        jobs = context.statusTracker().getJobIdsForGroup(key)
        infos = [info for job in jobs if (info := context.statusTracker().getJobInfo(job)) is not None]
        own = {stage for info in infos for stage in info.stageIds}
        stages = context._jsc.sc().statusStore().activeStages()  # noqa: SLF001
        active = [stage for number in range(stages.size()) if (stage := stages.apply(number)).stageId() in own]
        if not active:
            return {}
        stage = max(active, key=lambda stage: stage.stageId())
        rows = max(stage.inputRecords(), stage.shuffleReadRecords(), stage.outputRecords())
        number, now = stage.stageId(), self._clock.monotonic()
        if self._seen[0] != number:
            self._seen = (number, now, rows)
        _, since, before = self._seen
        rate = (rows - before) / (now - since) if now > since else 0.0
        return {
            "stage": number, "stages": len(own), "name": str(stage.name())[:_NAME_CHARACTERS],
            "tasks_done": stage.numCompleteTasks(), "tasks": stage.numTasks(), "rows": rows,
            "rows_per_second": round(rate),
        }  # fmt: skip

    def _on_server(self) -> dict[str, Any]:
        stages = _NEWEST[0].stages
        active = [stage for stage in stages if not stage.done]
        if not active:
            return {}
        stage = max(active, key=lambda stage: stage.stage_id)
        return {
            "stage": stage.stage_id, "stages": len(stages), "name": "", "tasks_done": stage.num_completed_tasks,
            "tasks": stage.num_tasks,
        }  # fmt: skip
