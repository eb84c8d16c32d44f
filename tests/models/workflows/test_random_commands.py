"""Random commands on runs of the scenarios' specifications.

Whatever clients, workers and timers do, and in whatever order: no command fails unexpectedly, a queued task belongs to
a thread that runs, and a run whose stops are all resumed, tasks all done and events all sent comes to its end.
"""

from __future__ import annotations

import contextlib

import pytest

pytest.importorskip("littlehorse")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from littlehorse.model import LHStatus, ScheduledTask, VariableValue, WfRun

from millpond.errors import Conflict, MillpondError
from millpond.workflows.engine import run_path, thread_queue
from millpond.workflows.engine.limits import THREADS_ACTIVE_MAX
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_scenarios import perform, prepared
from tests.rings.sampling import examples

RUNS = {
    "one-task": 'name="x"',
    "retried": "",
    "delayed": "",
    "timed": "",
    "handled": "",
    "interrupted": "",
    "interrupted-task": "",
    "interrupted-child": "",
    "interrupted-parent": "",
    "wait-all": "",
    "wait-any": "",
    "wait-first": "",
    "per-element": 'items=["a","b","c","d"]',
    "child-fails": "",
    "short-lived": "",
    "correlates": 'key="k"',
}
threads = st.integers(0, 3)
commands = st.one_of(
    st.sampled_from(["claim work", "claim repair", "claim greet", "pass 0.5", "pass 3"]),
    st.sampled_from(['event r ready {} "x"', 'event r alarm {} "x"']),
    st.builds("{} r {}".format, st.sampled_from(["stop", "resume", "rescue", "skip"]), threads),
    st.builds(
        "{} r {}-1 {} {}".format,
        st.sampled_from(["done", "done", "failed", "thrown"]),
        threads,
        st.integers(0, 2),
        st.sampled_from(['"sad"']),
    ),
)


def check(stage: Stage) -> None:
    """Compare the queue with the threads: nobody may take a task of a thread that does not run."""
    run = stage.rows.get(WfRun, ("r",))
    assert run is not None
    for _key, row in stage.rows.list(ScheduledTask, ()):
        number = row.source.task_node.node_run_id.thread_run_number
        thread = next(thread for thread in run.thread_runs if thread.number == number)
        assert thread.status == LHStatus.RUNNING, stage.show("r")


def brought_to_its_end(stage: Stage) -> None:
    """Resume every thread, do every task, send every event."""
    for number in range(30):
        run = stage.rows.get(WfRun, ("r",))
        assert run is not None
        if run.status in (LHStatus.COMPLETED, LHStatus.ERROR, LHStatus.EXCEPTION):
            return
        for thread in [*(thread.number for thread in run.thread_runs), *run.thread_run_queue]:
            with contextlib.suppress(Conflict):  # archived by the one before
                perform(stage, f"resume r {thread}")
        for name in ("work", "repair", "greet"):
            while task := stage.claim(name):
                path, guid = run_path(task.task_run_id.wf_run_id), task.task_run_id.task_guid
                stage.report(path, guid, task.attempt_number, "done", VariableValue(str="x"))
        perform(stage, f'event r ready end-{number} "x"')
        stage.pass_time(120_000)
    raise AssertionError(stage.show("r"))


_PREPARED = prepared()


def _stage() -> Stage:
    stage = Stage()
    stage.rows.bytes = dict(_PREPARED.rows.bytes)
    return stage


def play(spec: str, script: list[str], threads_active_max: int) -> None:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(thread_queue, "THREADS_ACTIVE_MAX", threads_active_max)
        _play(spec, script)


def _play(spec: str, script: list[str]) -> None:
    stage = _stage()
    perform(stage, f"run {spec} r {RUNS[spec]}")
    for number, command in enumerate(script):
        with contextlib.suppress(MillpondError):
            perform(stage, command.format(f"event-{number}"))
        check(stage)
    brought_to_its_end(stage)


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(50, 200), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(RUNS)), st.lists(commands, max_size=15), st.sampled_from([2, 3, THREADS_ACTIVE_MAX]))
def test_any_commands_lead_to_an_end(spec: str, script: list[str], threads_active_max: int) -> None:
    play(spec, script, threads_active_max)


@pytest.mark.full
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(RUNS)), st.lists(commands, max_size=40), st.sampled_from([2, 3, THREADS_ACTIVE_MAX]))
def test_many_commands_lead_to_an_end(spec: str, script: list[str], threads_active_max: int) -> None:
    play(spec, script, threads_active_max)
