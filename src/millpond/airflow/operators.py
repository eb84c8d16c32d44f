"""The operator: a task that is a run of a pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from millpond.airflow.hook import CONNECTION, MillpondHook
from millpond.airflow.runs import begun_or_found, name_of, stop
from millpond.airflow.triggers import RunTrigger
from millpond.airflow.waits import ended

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ("MillpondRunOperator", "checked")


class MillpondRunOperator(BaseOperator):
    """A run of a pipeline on a node, until it has ended; its id is the task's result.

    A retry finds the run that goes on or is done, and begins another only when that has failed. What trying again
    cannot help, an EXCEPTION of the pipeline such as `check-failed`, is not retried. Who ends the task stops the run,
    unless `stops` is False. Assets `millpond://…` among the outlets get the id of the run with their event.
    """

    template_fields: Sequence[str] = ("pipeline", "parameters")

    def __init__(
        self, *, pipeline: str, parameters: Mapping[str, Any] | None = None, millpond_conn_id: str = CONNECTION,
        deferrable: bool | None = None, stops: bool = True, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.pipeline, self.parameters = pipeline, dict(parameters or {})
        self.millpond_conn_id, self.stops = millpond_conn_id, stops
        by_default = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = by_default if deferrable is None else deferrable
        self._run = ""

    def execute(self, context: Context) -> str:
        """Begin the run or find it, and wait for its end."""
        location, ti = MillpondHook(self.millpond_conn_id).get_conn(), context["ti"]
        # Clearing a task raises `max_tries`: tries before that are of runs that somebody wanted done again.
        first = max(1, min(ti.try_number, ti.max_tries - (self.retries or 0) + 1))
        name = name_of(ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index))
        state = begun_or_found(location, self.pipeline, self.parameters, name, range(first, ti.try_number + 1))
        self._run = state["run"]
        self.log.info("run %s of %s: %s", self._run, self.pipeline, state["status"])
        if not state["ended"] and self.deferrable:
            trigger = RunTrigger(self._run, self.millpond_conn_id, stops=self.stops)
            timeout: timedelta | None = self.execution_timeout
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)
        if not state["ended"]:
            state = asyncio.run(ended(location, self._run, is_begun=True))
        return self.execute_complete(context, state)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """The id of the run that has ended."""
        run = str(checked(event)["run"])
        for outlet in self.outlets:
            if str(getattr(outlet, "uri", "")).startswith("millpond://"):
                context["outlet_events"][outlet].extra["run"] = run
        return run

    def on_kill(self) -> None:
        """Stop the run."""
        if self.stops and self._run:
            stop(MillpondHook(self.millpond_conn_id).get_conn(), self._run)


def checked(event: dict[str, Any]) -> dict[str, Any]:
    """The event of a trigger, unless it is a failure.

    Raises: `AirflowFailException` where trying again cannot help; `AirflowException`.
    """
    if "error" in event:
        raise AirflowException(event["error"])
    if event.get("status") == "EXCEPTION":
        raise AirflowFailException(f"run {event['run']} failed: {event['reason']}")
    if event.get("status") == "ERROR":
        raise AirflowException(f"run {event['run']} failed: {event['reason']}")
    return event
