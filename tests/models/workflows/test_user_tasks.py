"""User tasks: what holds in every order of commands and timers, failing reminders, specifications that are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from hypothesis import given, settings
from hypothesis import strategies as st
from littlehorse.model import (
    PutWfSpecRequest,
    ScheduledTask,
    TaskRun,
    TaskStatus,
    UserTaskNode,
    UserTaskRun,
    UserTaskRunStatus,
    VariableAssignment,
    VariableValue,
)

from millpond.errors import Invalid, MillpondError
from tests.models.workflows.people import user_task_request
from tests.models.workflows.specs import request
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_scenarios import prepared
from tests.rings.sampling import examples

ENDED = (UserTaskRunStatus.DONE, UserTaskRunStatus.CANCELLED)
STEPS = st.one_of(
    st.tuples(st.just("assign"), st.sampled_from(["ann -", "- staff", "bob staff", "- -", "ann - override"])),
    st.tuples(st.just("save"), st.sampled_from(['ann remark="x"', "bob approved=true", "bob ignore", "ann other=1"])),
    st.tuples(st.just("complete"), st.sampled_from(["ann", "bob approved=true", 'ann approved="no"'])),
    st.tuples(st.just("comment"), st.just("ann hello")),
    st.tuples(st.just("edit"), st.sampled_from(["ann 1 better", "ann 7 better"])),
    st.tuples(st.just("uncomment"), st.just("ann 1")),
    st.tuples(st.just("cancel"), st.just("")),
    st.tuples(st.just("pass"), st.sampled_from(["1", "4", "11", "60"])),
)


def _check(stage: Stage) -> None:
    """A user task is ASSIGNED exactly while it has a user and has not ended; one that has ended has no timer."""
    for _key, task in stage.rows.list(UserTaskRun, ()):
        if task.status in ENDED:
            assert not stage.timers and not list(stage.rows.list(ScheduledTask, ("r",)))
        else:
            assert (task.status == UserTaskRunStatus.ASSIGNED) == task.HasField("user_id")
        assert task.epoch == sum(event.HasField("assigned") for event in task.events)
        assert set(task.results) <= {"approved", "remark"}


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(10, 40), deadline=None)
@given(st.sampled_from(["reassigns", "reminds"]), st.lists(STEPS, max_size=12))
def test_a_user_task_ends_once_and_leaves_nothing_behind(spec: str, steps: list[tuple[str, str]]) -> None:
    stage = prepared()
    stage.run(spec, "r", {})
    ended: bytes | None = None
    for verb, words in steps:
        before = dict(stage.rows.bytes)
        try:
            if verb == "pass":
                stage.pass_time(1000 * int(words))
            else:
                stage.do(user_task_request(verb, ["r", "0-1", *words.split()]))
        except MillpondError:
            assert stage.rows.bytes == before, "a refused command leaves no trace"
        _check(stage)
        task = stage.rows.get(UserTaskRun, ("r", "0-1"))
        assert task is not None
        if task.status in ENDED:
            task.ClearField("events")
            now = task.SerializeToString(deterministic=True)
            assert ended in (None, now)
            ended = now


def test_a_reminder_that_fails_is_queued_again_for_its_retry() -> None:
    stage = prepared()
    spec = request("reminds")
    node = next(node for node in spec.thread_specs["entrypoint"].nodes.values() if node.HasField("user_task"))
    node.user_task.actions[0].task.task.retries = 1
    spec.name = "reminds-twice"
    stage.do(spec)
    stage.run("reminds-twice", "r", {})
    stage.pass_time(5000)
    for attempt in range(2):
        claimed = stage.claim("greet")
        assert claimed is not None and claimed.attempt_number == attempt
        stage.report("r", claimed.task_run_id.task_guid, attempt, "failed", VariableValue(), "no mail today")
    assert stage.claim("greet") is None
    reminder = stage.rows.get(TaskRun, ("r", "ut-0-1-1"))
    assert reminder is not None and reminder.status == TaskStatus.TASK_FAILED
    stage.do(user_task_request("complete", ["r", "0-1", "ann", "approved=true"]))
    assert stage.show("r").startswith("r COMPLETED")


def _changed(name: str) -> tuple[PutWfSpecRequest, UserTaskNode]:
    spec = request(name)
    node = next(node for node in spec.thread_specs["entrypoint"].nodes.values() if node.HasField("user_task"))
    return spec, node.user_task


def test_specifications_with_mistakes_in_user_tasks_are_refused_with_the_node() -> None:
    stage = prepared()
    spec, node = _changed("reminds")
    node.user_task_def_name = "nothing"
    with pytest.raises(Invalid, match=r"Specified UserTaskDef nothing not found.*node=1-approval-USER_TASK.*nothing"):
        stage.do(spec)
    spec, node = _changed("reminds")
    node.ClearField("user_id")
    with pytest.raises(Invalid, match=r"Must specify userGroup or userId.*node=1-approval-USER_TASK"):
        stage.do(spec)
    spec, node = _changed("reminds")
    node.user_id.CopyFrom(VariableAssignment(variable_name="ghost"))
    with pytest.raises(Invalid, match=r"not declared.*node=1-approval-USER_TASK.*ghost"):
        stage.do(spec)
    spec, node = _changed("reminds")
    node.actions[1].ClearField("cancel")
    with pytest.raises(Invalid, match=r"does nothing.*node=1-approval-USER_TASK"):
        stage.do(spec)


def test_comments_and_results_of_a_user_task_end_at_the_size_of_one_value() -> None:
    stage = prepared()
    stage.run("reminds", "r", {})
    words = ["r", "0-1", "ann", "x" * 600_000]
    stage.do(user_task_request("comment", words))
    with pytest.raises(Invalid, match="limit=1047000"):
        stage.do(user_task_request("comment", words))
