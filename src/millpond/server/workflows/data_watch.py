"""The look-out of a node for data: schedules that wait for it begin runs, see `nodes/data_starts.py`.

Invariants:
* a process looks for the schedules of its own partitions; when they move, the next owner goes on at the cursor;
* nothing is read while no schedule waits for data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from anyio.to_thread import run_sync
from littlehorse.model import ScheduleWfRequest

from millpond.nodes.data_starts import DataStarts, newest_mark
from millpond.server.workflows.looking import Looking
from millpond.workflows.engine.cron import parse_cron

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.pond import Pond
    from millpond.server.workflows.service import WorkflowService
    from millpond.workflows.engine import DataArrived
    from millpond.workflows.processor import Applied

__all__ = ("LOOK_SECONDS", "DataWatch", "at_cursor")

LOOK_SECONDS: Final = 0.5
_AT_ONCE = 1_000
"""Runs of a backlog that are begun without a pause."""


class DataWatch:
    """Begins what waits for data, of one service. Used from its event loop, but for `applied`."""

    def __init__(self, service: WorkflowService, pond: Pond) -> None:
        self._service, self._starts = service, DataStarts(pond)
        self._changes = 0
        self._seen: tuple[int, frozenset[int]] = (-1, frozenset())
        self.looking = Looking("data that schedules wait for", LOOK_SECONDS, self._look)

    def applied(self, ends: Sequence[Applied]) -> None:
        """Note that schedules may have changed. Called by the processor's thread."""
        if any(isinstance(end.command.request, ScheduleWfRequest) for end in ends):
            self._changes += 1

    async def _look(self) -> None:
        seen = self._changes, frozenset(self._service.partitions.owned)
        if seen == self._seen:
            return  # since then no schedule has come that waits
        for _ in range(_AT_ONCE):
            self._starts.schedules = 0
            arrived: list[tuple[str, DataArrived]] = []
            for processor in list(self._service.partitions.owned.values()):
                arrived += await run_sync(self._starts.look, processor)
            for tenant, request in arrived:
                await self._service.submit(tenant, request)
            if not arrived:
                break
        if not self._starts.schedules:
            self._seen = seen


def at_cursor(pond: Pond, request: ScheduleWfRequest) -> ScheduleWfRequest:
    """A request for a schedule, with the mark behind which it looks if it waits for data.

    Raises: `Invalid` for an expression that is none.
    """
    if "ON=" not in request.cron_expression:
        return request
    cron = parse_cron(request.cron_expression)
    whole = ScheduleWfRequest()
    whole.CopyFrom(request)
    whole.cron_expression = replace(cron, after=newest_mark(pond, cron.on)).text()
    return whole
