"""The progress of attempts: from a worker's beat to the task runs that a server shows."""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import TaskAttempt, TaskRun, TaskRunId, TaskRunList, TaskStatus, WfRunId

from millpond.clock import ManualClock
from millpond.workflows.tasks.progress import BEAT_BYTES_MAX, SILENT_SECONDS, Progresses, beaten, showing, words_of

STATUS = {"stage": 3, "stages": 4, "name": "säm", "tasks_done": 5, "tasks": 8, "rows": 12_000, "rows_per_second": 900}


def task(status: Any = TaskStatus.TASK_RUNNING, guid: str = "g") -> TaskRun:
    return TaskRun(id=TaskRunId(wf_run_id=WfRunId(id="r"), task_guid=guid), status=status, attempts=[TaskAttempt()] * 2)


def test_a_beat_is_shown_with_the_attempt_that_runs_until_it_is_silent() -> None:
    clock = ManualClock()
    progresses = Progresses(clock)
    assert beaten() == "" and progresses.added("t", TaskRun, b"as it is") == b"as it is"
    with showing(task().id, 1, lambda: STATUS), showing(task(guid="nothing").id, 0, dict):
        progresses.note("t", beaten())
    assert beaten() == ""
    assert progresses.of("t", task()) == STATUS
    for other in (task(TaskStatus.TASK_SUCCESS), task(guid="x")):
        assert progresses.of("t", other) == {}
    assert progresses.of("another tenant", task()) == {}
    listed = TaskRunList(results=[task(), task(guid="x")]).SerializeToString()
    first, second = TaskRunList.FromString(progresses.added("t", TaskRunList, listed)).results
    assert json.loads(first.attempts[1].log_output.json_obj) == STATUS and second == task(guid="x")
    clock.advance(int(SILENT_SECONDS * 1000) + 1)
    assert progresses.of("t", task()) == {}
    progresses.note("t", b64encode(b'[["r", "z", 0, {"stage": 1}]]').decode())
    assert len(progresses._heard) == 1, "what is silent is forgotten"


@pytest.mark.parametrize("beat", ["", "%", "AAAA", *(b64encode(text).decode() for text in (b"{}", b"[1]", b'[["r"]]'))])
def test_a_beat_that_is_not_understood_is_nothing(beat: str) -> None:
    progresses = Progresses(ManualClock())
    progresses.note("t", beat)
    assert progresses._heard == {}


def test_a_beat_has_few_bytes() -> None:
    with ExitStack() as stack:
        for number in range(1_000):
            stack.enter_context(showing(task(guid=str(number)).id, 1, lambda: STATUS))
        assert 0 < len(beaten()) <= BEAT_BYTES_MAX * 4 / 3 + 4


def test_the_progress_in_words_is_nothing_where_it_is_another_one() -> None:
    assert words_of(STATUS) == "stage 3 (säm), 5/8 tasks, 12,000 rows, 900 rows/s"
    assert words_of({"stage": 1}) == words_of(STATUS | {"rows": "many"}) == ""
