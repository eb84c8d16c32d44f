"""The run of a task of Airflow: its name, its start, how it ended.

    try 1 ── begins NAME-1 ── Airflow's worker is lost
    try 2 ── finds NAME-1, which goes on or is done: its own
    try 2 ── finds NAME-1 failed, begins NAME-2 ── …

Invariants:
* the name is a function of DAG, run of the DAG, task, its number among mapped ones, and a try;
* a try begins a run only when every run of tries before it has failed, of tries since the task was last cleared: so
  one run goes on at a time, and who clears a task gets a new one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from millpond.airflow.location import NodeLocation
from millpond.errors import NotFound
from millpond.workflows.deferred import engine, protocol

__all__ = ("begun_or_found", "name_of", "state_of", "stop")

_NAME_CHARACTERS_MAX: Final = 60
_FAILED: Final = ("ERROR", "EXCEPTION")


def name_of(*words: str) -> str:
    """The name of a run without the number of its try: some words, and a hash of them all.

    >>> name_of("nightly", "manual__2026-01-01T00:00:00+00:00", "load_weather", "-1")
    'nightly-manual-2026-01-01T00-00-00-00-00-load-weather-1-e4ed6d8a15'
    """
    readable = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(words)).strip("-")[:_NAME_CHARACTERS_MAX].strip("-")
    return f"{readable}-{blake2b(chr(0).join(words).encode(), digest_size=5).hexdigest()}"


def state_of(location: NodeLocation, run: str) -> dict[str, Any] | None:
    """A run's `status`, if it has `ended`, and of one that failed the `reason`; None when there is no such run.

    Raises: as `connected`.
    """
    with location.call() as call:
        try:
            row = call("GetWfRun", engine.run_id(run))
        except NotFound:
            return None
    status = protocol.LHStatus.Name(row.status)
    reason = row.thread_runs[0].error_message.strip() if row.thread_runs else ""
    return {"run": run, "status": status, "ended": status in (*_FAILED, "COMPLETED"), "reason": reason}


def begun_or_found(
    location: NodeLocation, pipeline: str, parameters: Mapping[str, Any], name: str, tries: range
) -> dict[str, Any]:  # fmt: skip
    """The run of a task: the newest of its tries that has not failed, or one that begins now.

    One that was stopped with its task is resumed.

    Raises: as `connected`, such as `Invalid` for a parameter, `NotFound` for a pipeline.
    """
    from millpond.workflows.backfill import NodeRuns

    for number in reversed(tries):
        state = state_of(location, f"{name}-{number}")
        if state is None:
            continue
        if state["status"] in _FAILED and number != tries[-1]:
            break
        if state["status"] in ("HALTING", "HALTED"):
            with location.call() as call:
                call("ResumeWfRun", protocol.ResumeWfRunRequest(wf_run_id=engine.run_id(state["run"])))
        return state
    run = f"{name}-{tries[-1]}"
    with location.call() as call:
        NodeRuns(call, pipeline).begin(run, parameters)
    return {"run": run, "status": "RUNNING", "ended": False, "reason": ""}


def stop(location: NodeLocation, run: str) -> None:
    """Stop a run; a retry of its task resumes it.

    Raises: as `connected`.
    """
    with location.call() as call:
        call("StopWfRun", protocol.StopWfRunRequest(wf_run_id=engine.run_id(run)))
