"""Triggers, which wait in Airflow's triggerer: for the end of a run, for loads and commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from millpond.airflow.hook import CONNECTION, location_of
from millpond.airflow.runs import stop
from millpond.airflow.waits import ended, marks, newest
from millpond.errors import MillpondError

__all__ = ("DataTrigger", "RunTrigger")

_MARK = "millpond_mark"


class RunTrigger(BaseTrigger):
    """The end of a run; with `stops` the run is stopped when a person ends the task that waits."""

    def __init__(self, run: str, millpond_conn_id: str = CONNECTION, *, is_begun: bool = True, stops: bool = False):
        super().__init__()
        self.own_run, self.millpond_conn_id, self.is_begun, self.stops = run, millpond_conn_id, is_begun, stops

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The words from which another triggerer makes it again."""
        return f"{__name__}.{type(self).__name__}", {
            "run": self.own_run, "millpond_conn_id": self.millpond_conn_id, "is_begun": self.is_begun,
            "stops": self.stops,
        }  # fmt: skip

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """One event: how the run ended, or the `error` for which nobody can know."""
        try:
            location = location_of(await BaseHook.aget_connection(self.millpond_conn_id))
            yield TriggerEvent(await ended(location, self.own_run, is_begun=self.is_begun))
        except MillpondError as error:
            yield TriggerEvent({"error": str(error)})

    async def on_kill(self) -> None:
        """Stop the run."""
        if self.stops:
            location = location_of(await BaseHook.aget_connection(self.millpond_conn_id))
            await asyncio.to_thread(stop, location, self.own_run)


class DataTrigger(BaseEventTrigger):
    """Loads of a map, or commits of REPOSITORY/BRANCH, behind a mark; without one, those to come.

    As a watcher of an asset it goes on at the mark that Airflow stores with the asset.
    """

    def __init__(self, data: str, millpond_conn_id: str = CONNECTION, after: str | None = None):
        super().__init__()
        self.data, self.millpond_conn_id, self.after = data, millpond_conn_id, after

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The words from which another triggerer makes it again."""
        return f"{__name__}.{type(self).__name__}", {
            "data": self.data, "millpond_conn_id": self.millpond_conn_id, "after": self.after
        }  # fmt: skip

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """An event for each load or commit; of a task that waits the first counts, or an `error`."""
        store = getattr(self, "asset_state_store", None)  # Airflow has it from 3.3 on
        try:
            location = location_of(await BaseHook.aget_connection(self.millpond_conn_id))
            after = self.after if store is None else await store.aget(_MARK)
            if after is None:
                after = await newest(location, self.data)
            self.log.info("waits for what comes to %s behind %s", self.data, after)
            async for event in marks(location, self.data, after):
                yield TriggerEvent(event)
                if store is not None:
                    await store.aset(_MARK, event["mark"])
        except MillpondError as error:
            if store is not None:
                raise  # Airflow begins the watcher of an asset again, and logs why
            yield TriggerEvent({"error": str(error)})
