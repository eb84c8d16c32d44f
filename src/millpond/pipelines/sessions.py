"""The sessions of a driver: of Spark in its own process, or on a server of Spark Connect.

| | in this process | `sc://` |
|---|---|---|
| the application | that of the driver | that of the server, which outlives it |
| a job is stopped by | its group of jobs | interrupting its sessions |
| its progress | stages, tasks, rows | stages, tasks |

Invariants:
* a job has sessions of its own, beside that of the driver; they end with it;
* a query on a server is interrupted when its tasks run: Spark forgets the interrupt of one whose tasks come later, and
  they would have the server's cores for ever. One whose tasks do not come in `_PATIENCE_SECONDS` is interrupted anyway.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from millpond import spark
from millpond.clock import SystemClock
from millpond.errors import Closed
from millpond.spark.private_api import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond.clock import Clock

__all__ = ("Progress", "application_of", "begin_job", "end_job", "open_session", "own_session", "stop_job")

_SETTINGS: Final = {"spark.sql.shuffle.partitions": "8"}
_NAME_CHARACTERS: Final = 120
_OF_JOB: list[SparkSession] = []
"""The sessions of the job that runs, where Spark is on a server."""
_PATIENCE_SECONDS: Final = 3.0
_CLOCK: Final = SystemClock()
_STOPPED: list[float] = []
"""The time at which the job that runs was stopped, if it was."""
_STAGES: list[Any] = []
"""The newest stages of which the server told."""


def open_session(master: str) -> SparkSession:
    """The session of a driver.

    Raises: as `spark.start`.
    """
    session = spark.start(master, app="millpond-pipelines", settings=_SETTINGS)
    spark.register(session)
    return session


def application_of(session: SparkSession) -> str:
    """The id of the Spark application, as its cluster knows it."""
    return session.conf.get("spark.app.id") or "" if is_connect(session) else session.sparkContext.applicationId


def own_session(session: SparkSession) -> SparkSession:
    """A session for a job, whose views nobody else sees.

    Raises: `Closed` for a job on a server that was stopped.
    """
    own = session.newSession()
    if is_connect(session):
        _OF_JOB.append(own)
        if _STOPPED:
            raise Closed("the step was stopped", kind="step_stopped")
        for name in ("spark.sql.session.timeZone", *_SETTINGS):
            own.conf.set(name, session.conf.get(name) or "")
        own.registerProgressHandler(cast("Any", _note_stages))
    return own


def _note_stages(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
    _STAGES[:] = [] if done else stages or ()


def begin_job(session: SparkSession, key: str, name: str) -> None:
    """Begin a job: what this thread has Spark do from now on is its work."""
    _STOPPED.clear()  # not when a job ends: it may be stopped at that moment
    if not is_connect(session):
        session.sparkContext.setJobGroup(key, name, interruptOnCancel=True)


def stop_job(session: SparkSession, key: str) -> None:
    """End what Spark does for the job that runs; on a server this is called until it has ended."""
    with suppress(Exception):  # then the job has failed
        if not is_connect(session):
            session.sparkContext.cancelJobGroup(key)
            return
        if not _STOPPED:
            _STOPPED.append(_CLOCK.monotonic())
        if _STAGES or _CLOCK.monotonic() - _STOPPED[0] > _PATIENCE_SECONDS:
            for own in tuple(_OF_JOB):
                own.interruptAll()


def end_job() -> None:
    """End the sessions of the job that ran."""
    while _OF_JOB:
        with suppress(Exception):  # it was stopped, or the server is gone
            _OF_JOB.pop().stop()
    _STAGES.clear()


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
        active = [stage for stage in tuple(_STAGES) if not stage.done]
        if not active:
            return {}
        stage = max(active, key=lambda stage: stage.stage_id)
        return {
            "stage": stage.stage_id, "stages": len(_STAGES), "name": "", "tasks_done": stage.num_completed_tasks,
            "tasks": stage.num_tasks,
        }  # fmt: skip
