"""The progress of a job of Spark: the stage that runs now, its tasks, its rows and their rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millpond.clock import Clock

__all__ = ("Progress",)

_NAME_CHARACTERS = 120


class Progress:
    """Looks at the stages of a session; the rate is that since a stage was seen first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: tuple[int, float, int] = (-1, 0.0, 0)

    def of(self, session: SparkSession, key: str) -> dict[str, Any]:
        """The newest of the stages that run for a job; nothing while none does, or the JVM does not say."""
        try:
            context = session.sparkContext
            jobs = context.statusTracker().getJobIdsForGroup(key)
            infos = [info for job in jobs if (info := context.statusTracker().getJobInfo(job)) is not None]
            own = {stage for info in infos for stage in info.stageIds}
            stages = context._jsc.sc().statusStore().activeStages()  # noqa: SLF001
            active = [stage for number in range(stages.size()) if (stage := stages.apply(number)).stageId() in own]
            return self._progress(max(active, key=lambda stage: stage.stageId()), len(own)) if active else {}
        except Exception:  # the JVM may end at any moment, and the job says so by itself
            return {}

    def _progress(self, stage: Any, stages: int) -> dict[str, Any]:
        rows = max(stage.inputRecords(), stage.shuffleReadRecords(), stage.outputRecords())
        number, now = stage.stageId(), self._clock.monotonic()
        if self._seen[0] != number:
            self._seen = (number, now, rows)
        _, since, before = self._seen
        rate = (rows - before) / (now - since) if now > since else 0.0
        return {
            "stage": number, "stages": stages, "name": str(stage.name())[:_NAME_CHARACTERS],
            "tasks_done": stage.numCompleteTasks(), "tasks": stage.numTasks(), "rows": rows,
            "rows_per_second": round(rate),
        }  # fmt: skip
