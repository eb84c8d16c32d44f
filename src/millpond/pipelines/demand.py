"""Attempts that are watched: does the server of their run still want them?"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

import grpc
from littlehorse.config import LHConfig
from littlehorse.model import TaskRunId, TaskStatus

from millpond.workflows.engine import run_id
from millpond.workflows.engine.attempts import OPEN
from millpond.workflows.engine.halting import is_halted_by_hand

__all__ = ("Demand", "demand_for")

_CALL_SECONDS = 2.0


class Demand(Enum):
    """`ELSEWHERE`: a later attempt at the task has begun. `UNKNOWN`: the server does not answer."""

    YES = "yes"
    NO = "no"
    ELSEWHERE = "elsewhere"
    UNKNOWN = "unknown"


def demand_for(watched: Mapping[str, Any]) -> Demand:
    """The word of the server about an attempt, whose worker is gone, and which the next attempt may take over."""
    run = run_id(watched["run"])
    try:
        stub = _stub()
        task = stub.GetTaskRun(TaskRunId(wf_run_id=run, task_guid=watched["task"]), timeout=_CALL_SECONDS)
        row = stub.GetWfRun(run, timeout=_CALL_SECONDS)
    except grpc.RpcError as error:
        return Demand.NO if error.code() == grpc.StatusCode.NOT_FOUND else Demand.UNKNOWN
    if task.status not in OPEN or is_halted_by_hand(row, watched["thread"]):
        return Demand.NO
    later = len(task.attempts) - 1 > watched["attempt"] and task.status == TaskStatus.TASK_RUNNING
    return Demand.ELSEWHERE if later else Demand.YES


@cache
def _stub() -> Any:
    return LHConfig().stub()
