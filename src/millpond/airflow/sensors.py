"""The sensor: a task that waits for a load, a commit, or the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowSensorTimeout

from millpond.airflow.hook import CONNECTION, MillpondHook
from millpond.airflow.location import NodeLocation
from millpond.airflow.operators import checked
from millpond.airflow.triggers import DataTrigger, RunTrigger
from millpond.airflow.waits import ended, marks, newest
from millpond.errors import Invalid

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ("MillpondSensor",)


class MillpondSensor(BaseSensorOperator):
    """Waits until a `map` got a load, a `branch` (REPOSITORY/BRANCH) a commit, or a `run` has ended.

    `after` is a position or a commit; without it, what comes after the task began counts. The result is the load's
    position, the commit, or the run's id. It waits in the triggerer, or with `deferrable=False` in the task.
    """

    template_fields: Sequence[str] = ("map", "branch", "awaited", "after")

    def __init__(
        self, *, map: str | None = None, branch: str | None = None, run: str | None = None, after: str | None = None,
        millpond_conn_id: str = CONNECTION, deferrable: bool = True, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        if len(list(filter(None, (map, branch, run)))) != 1 or (branch and "/" not in branch):
            raise Invalid("a sensor waits for one thing", kind="airflow_sensor", map=map, branch=branch, run=run,
                          hint="give it a map, a branch (REPOSITORY/BRANCH) or a run")  # fmt: skip
        self.map, self.branch, self.awaited, self.after = map, branch, run, after
        self.millpond_conn_id, self.deferrable = millpond_conn_id, deferrable

    def execute(self, context: Context) -> str:
        """Wait; what comes from now on counts, also before the triggerer has the task."""
        location = MillpondHook(self.millpond_conn_id).get_conn()
        if self.awaited:
            trigger: Any = RunTrigger(self.awaited, self.millpond_conn_id, is_begun=False)
        else:
            data = str(self.map or self.branch)
            after = str(self.after or asyncio.run(newest(location, data)))
            trigger = DataTrigger(data, self.millpond_conn_id, after)
        if self.deferrable:
            timeout = timedelta(seconds=self.timeout)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)
        try:
            event = asyncio.run(asyncio.wait_for(self._first(location, trigger), self.timeout))
        except TimeoutError:
            raise AirflowSensorTimeout(f"nothing came in {self.timeout} seconds") from None
        return self.execute_complete(context, event)

    async def _first(self, location: NodeLocation, trigger: Any) -> dict[str, Any]:
        if self.awaited:
            return await ended(location, self.awaited, is_begun=False)
        async with aclosing(marks(location, trigger.data, trigger.after)) as events:
            return await anext(events)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """The position, the commit or the run that was waited for."""
        del context
        return str(checked(event).get("mark") or event["run"])
