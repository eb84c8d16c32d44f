"""`millpond workflow`, `task`, `schedule`, `user-task`, `external-event` and `bulk-job`, of a node and of a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from littlehorse import model as lh
from littlehorse.workflow import Workflow, WorkflowThread

from tests.nodes.conftest import Served
from tests.nodes.test_console_runs import serve_runs
from tests.nodes.test_console_workflows import define, stub_of
from tests.nodes.test_run_commands import HOSTILE, Typed, typed


@pytest.fixture
def millpond(serve: Callable[..., Served]) -> Typed:
    """A node with workflows, one of them in two versions, and a schedule with a secret."""
    node = serve_runs(serve)
    define(node)

    def waits(wf: WorkflowThread) -> None:
        key = wf.declare_str("order").required()
        wf.declare_str("secret").masked()
        wf.wait_for_event("approved", return_type=bool)
        wf.wait_for_event("payment", correlation_id=key, correlated_event_config=lh.CorrelatedEventConfig())

    def longer(wf: WorkflowThread) -> None:
        waits(wf)
        wf.sleep(5)

    with stub_of(node) as stub:
        boolean = lh.ReturnType(return_type=lh.TypeDefinition(primitive_type=lh.VariableType.BOOL))
        stub.PutExternalEventDef(lh.PutExternalEventDefRequest(name="approved", content_type=boolean))
        keyed = lh.CorrelatedEventConfig()
        stub.PutExternalEventDef(lh.PutExternalEventDefRequest(name="payment", correlated_event_config=keyed))
        for body in (waits, longer):
            stub.PutWfSpec(Workflow("waits", body).compile())
        given = {name: lh.VariableValue(str="s3") for name in ("order", "secret")}
        stub.ScheduleWf(lh.ScheduleWfRequest(
            id="daily", wf_spec_name="waits", cron_expression="0 3 * * *", variables=given))  # fmt: skip
    return Typed(node)


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_workflows_are_listed_shown_and_deleted_by_version(millpond: Typed) -> None:
    listed = {own["workflow"]: own["versions"] for own in lines(millpond("workflow", "list", "--json"))}
    assert [*listed] == ["asks", "fails", "hostile", "nightly", "tries", "waits"]
    assert listed["waits"] == ["0.0", "0.1"]
    assert lines(millpond("workflow", "list", "--prefix", "none", "--json")) == [[]]
    shown = millpond("workflow", "show", "waits")
    assert shown.startswith("waits  0.1  of 0.0, 0.1\n├─ input order: str, required\n")
    assert "│    0-entrypoint-ENTRYPOINT → 1-approved-EXTERNAL_EVENT" in shown
    assert "SLEEP" in shown and "SLEEP" not in millpond("workflow", "show", "waits", "--version", "0.0")
    assert json.loads(millpond("workflow", "show", "waits", "--json"))["versions"] == ["0.0", "0.1"]
    for version, code in (("7.7", 3), ("x", 5), ("1", 5), ("1.99999999999", 5)):
        for act in ("show", "delete"):
            millpond("workflow", act, "waits", "--version", version, code=code)
    assert "its newest is 0.1" in millpond("workflow", "show", "waits", "--version", "7.7", code=3)
    assert "one of: asks" in millpond("workflow", "delete", HOSTILE, "--version", "0.0", code=3)
    assert millpond("workflow", "delete", "waits", "--version", "0.0") == "deleted waits 0.0\n"
    assert "of 0.1\n" in millpond("workflow", "show", "waits")
    millpond("workflow", "delete", "waits", "--version", "0.0", code=3)


def test_tasks_are_listed_with_their_queues_and_workers(millpond: Typed) -> None:
    [task] = lines(millpond("task", "list", "--json"))
    name = task["id"]["name"]
    assert (task["queued"], task["workers"]) == (0, [])
    millpond("run", "start", "nightly", "--input", "day=2026-01-01")
    with stub_of(millpond.node) as stub:
        worker = lh.RegisterTaskWorkerRequest(task_def_id=lh.TaskDefId(name=name), task_worker_id="w-1")
        stub.RegisterTaskWorker(worker)
    [task] = lines(millpond("task", "list", "--json"))
    assert (task["queued"], task["workers"]) == (1, ["w-1"])
    assert millpond("task", "list").splitlines()[-2].split()[-2:] == ["1", "1"]
    assert millpond("task", "delete", name) == f"deleted {name}\n"
    assert "list them: millpond task list" in millpond("task", "delete", name, code=3)


def test_schedules_are_listed_paused_resumed_run_and_deleted(millpond: Typed) -> None:
    rows = {own["id"]: own for own in lines(millpond("schedule", "list", "--json"))}
    assert [*rows] == ["often", "daily"] and rows["often"]["workflow"] == "tries"
    assert len(rows["often"]["next"]) == 3 and rows["often"]["next"][0].endswith("03:00+01:00")
    [daily] = lines(millpond("schedule", "list", "--workflow", "waits", "--json"))
    assert daily["id"] == "daily"
    assert millpond("schedule", "pause", "often") == "paused often\n"
    assert "paused" in millpond("schedule", "list", "--workflow", "tries")
    [paused] = lines(millpond("schedule", "list", "--workflow", "tries", "--json"))
    assert paused["paused"] and paused["next"] == []
    assert millpond("schedule", "resume", "often") == "resumed often\n"
    run = json.loads(millpond("schedule", "run", "often", "--json"))["started"]
    assert "= count = 3" in millpond("run", "show", run)
    assert "inputs of the schedule are hidden" in millpond("schedule", "run", "daily", code=6)
    assert millpond("schedule", "delete", "often") == "deleted often\n"
    for act in ("pause", "resume", "run", "delete"):
        assert "list them: millpond schedule list" in millpond("schedule", act, "often", code=3)
    assert "one of: asks" in millpond("schedule", "list", "--workflow", "nope", code=3)


def test_user_tasks_are_assigned_answered_and_cancelled(millpond: Typed) -> None:
    for name in ("a-1", "a-2"):
        millpond("run", "start", "asks", "--input", "count=1", "--id", name)
    tasks = lines(millpond("user-task", "list", "--task", "approve", "--json"))
    paths = {
        own["id"]["wf_run_id"]["id"]: f"{own['id']['wf_run_id']['id']}/{own['id']['user_task_guid']}" for own in tasks
    }
    assert {*paths} == {"a-1", "a-2"}
    first, second = paths["a-1"], paths["a-2"]
    assert first in millpond("user-task", "list", "--limit", "1") and second not in millpond(
        "user-task", "list", "--limit", "1"
    )
    shown = millpond("user-task", "show", first)
    assert "field ok   bool, required" in shown and "field why  str" in shown
    millpond("user-task", "assign", first, "--override", code=5)
    assert millpond("user-task", "assign", first, "--user", "carl", "--override") == f"assigned {first}\n"
    assert "--override" in millpond("user-task", "assign", first, "--user", "bert", code=6)
    [mine] = lines(millpond("user-task", "list", "--user", "carl", "--status", "assigned", "--json"))
    assert mine["id"]["wf_run_id"]["id"] == "a-1"
    assert "has another type" in millpond("user-task", "answer", first, "--field", "ok=perhaps", code=5)
    assert "is missing" in millpond("user-task", "answer", first, code=5)
    assert millpond("user-task", "answer", first, "--field", "ok=true", "--field", "why=1") == f"answered {first}\n"
    shown = millpond("user-task", "show", first)
    assert "DONE" in shown and "answer ok   yes" in shown and "carl" in shown
    assert millpond("user-task", "cancel", second) == f"cancelled {second}\n"
    assert "CANCELLED" in millpond("user-task", "show", second)
    for act, *more in (("answer", first), ("cancel", second), ("assign", second, "--user", "anna")):
        assert "the user task has ended" in millpond("user-task", act, *more, code=6)
    for path in ("a-1/nope", "nope", HOSTILE, "a_b/c", "/"):
        for act, *more in (("show",), ("cancel",), ("assign", "--user", "anna")):
            assert "list them: millpond user-task list" in millpond("user-task", act, path, *more, code=3)
    assert "one of UNASSIGNED, ASSIGNED, DONE" in millpond("user-task", "list", "--status", "nope", code=5)


def test_external_events_reach_runs_by_their_id_and_by_a_key(millpond: Typed) -> None:
    rows = {own["id"]["name"]: own for own in lines(millpond("external-event", "list", "--json"))}
    assert {*rows} == {"approved", "payment"}
    assert [line.split() for line in millpond("external-event", "list").splitlines()[-3:-1]] == [
        ["approved", "bool", "no"], ["payment", "yes"],
    ]  # fmt: skip
    millpond("run", "start", "waits", "--input", "order=o-1", "--id", "w-1")
    post = ("external-event", "post")
    assert millpond(*post, "approved", "--run", "w-1", "--content", "true") == "sent approved to w-1\n"
    millpond(*post, "approved", "--run", "w-1", "--content", "perhaps", code=5)
    sent = json.loads(millpond(*post, "payment", "--key", "o-1", "--json"))
    assert sent["id"]["key"] == "o-1"
    assert "2-payment-EXTERNAL_EVENT  COMPLETED" in millpond("run", "show", "w-1")
    again = (*post, "approved", "--run", "w-2", "--content", "true", "--id", "e-1")
    millpond(*again)
    millpond(*again, code=4)
    for words in ((), ("--run", "w-1", "--key", "o-1"), ("--key", "o-1", "--id", "e-1")):
        assert "--run RUN, perhaps with --id ID; or --key KEY" in millpond(*post, "approved", *words, code=5)
    assert "list them: millpond external-event list" in millpond(*post, "nope", "--run", "w-1", code=3)


def test_deletions_of_many_runs_are_listed_and_forgotten(millpond: Typed) -> None:
    assert lines(millpond("bulk-job", "list", "--json")) == [[]]
    job = json.loads(millpond("run", "delete-many", "fails", "--status", "ERROR", "--json"))["job"]
    assert job in millpond("bulk-job", "list") and "fails" in millpond("bulk-job", "list")
    assert "list them: millpond bulk-job list" in millpond("bulk-job", "delete", "nope", code=3)


def test_a_folder_answers_questions_without_a_node(millpond: Typed) -> None:
    millpond("run", "start", "asks", "--input", "count=1", "--id", "a-1")
    place = ("--pond", str(millpond.node.pond.folder))
    [task] = lines(millpond("user-task", "list", "--json"))
    path = f"a-1/{task['id']['user_task_guid']}"
    questions = [
        ("workflow", "list"), ("workflow", "show", "waits"), ("schedule", "list"), ("user-task", "list"),
        ("user-task", "show", path), ("external-event", "list"), ("bulk-job", "list"),
    ]  # fmt: skip
    for words in questions:
        assert typed(*words, *place) == millpond(*words), words
        assert lines(typed(*words, "--json", *place)) == lines(millpond(*words, "--json")), words
    listed = typed("task", "list", *place)
    assert "queued" in listed and "workers" not in listed
    assert "the node cannot be reached" in typed("workflow", "list", "--pond", "http://127.0.0.1:1", code=7)
