"""Workflows in the console: they are drawn, their schedules are switched and run, and pipelines are filled back."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from littlehorse import model as lh
from littlehorse.model import service_pb2_grpc
from littlehorse.workflow import Workflow
from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.nodes.tokens import hash_token
from millpond.pipelines.compiled import compiled
from millpond.pipelines.plan import Parameter, Plan, PlannedStep
from millpond.server.console import workflows
from millpond.server.console.backfills import PARTITIONS_MAX
from millpond.workflows.engine.pipeline_starts import STEP as TASK
from tests.nodes.conftest import Served
from tests.nodes.console_pond import HOSTILE
from tests.nodes.test_console_actions import SCRIPT, TOKENS, Visitor, went_to
from tests.nodes.test_console_runs import serve_runs

PAGE, TENANT = "/console/workflows", "?tenant=default"
STEPS = {"loaded": "load", "told": "notify"}


@contextmanager
def stub_of(node: Served) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{node.node.settings.server.grpc_port}") as channel:
        yield service_pb2_grpc.LittleHorseStub(channel)


def report(stub: Any, outcome: dict[str, Any] | str) -> None:
    """Carry out the next task of a pipeline: its output, or the words of its exception."""
    polls = stub.PollTask(iter([lh.PollTaskRequest(client_id="c", task_def_id=lh.TaskDefId(name=TASK))]))
    done = lh.ReportTaskRun(task_run_id=next(polls).result.task_run_id)
    if isinstance(outcome, str):
        done.status = lh.TaskStatus.TASK_EXCEPTION
        done.exception.CopyFrom(lh.LHTaskException(name="file-not-found", message=outcome))
    else:
        done.status = lh.TaskStatus.TASK_SUCCESS
        done.output.CopyFrom(lh.VariableValue(json_obj=json.dumps(outcome)))
    stub.ReportTask(done)


def define(node: Served, access: Any = ()) -> None:
    """A pipeline, a workflow that loops and branches with a schedule, and one with names that would be tags."""
    takes = [lh.VariableDef(name=name, type=lh.VariableType.JSON_OBJ) for name in ("step", "values", "program")]
    returns = lh.ReturnType(return_type=lh.TypeDefinition(primitive_type=lh.VariableType.JSON_OBJ))
    secret = Parameter(name="api_key", type="str", required=False, default="")
    steps = tuple(PlannedStep(name=name, kind=kind, inputs={}) for name, kind in STEPS.items())
    nightly = Plan(name="nightly", parameters=(Parameter(name="day", type="date"), secret), steps=steps)

    def tries(wf: Any) -> None:
        count = wf.declare_int("count").with_default(0)
        wf.do_while(count.is_less_than(3), lambda body: body.mutate(count, lh.VariableMutationType.ADD, 1))
        wf.do_if(count.is_equal_to(3), lambda body: body.sleep(60), lambda body: body.fail("odd", "odd"))

    hostile = Workflow("hostile", lambda wf: wf.assign_user_task("approve", "anna")).compile()
    thread = hostile.thread_specs.pop(hostile.entrypoint_thread_name)
    hostile.entrypoint_thread_name = SCRIPT
    hostile.thread_specs[SCRIPT].CopyFrom(thread)
    often = lh.ScheduleWfRequest(
        id="often", wf_spec_name="tries", cron_expression="CRON_TZ=Europe/Paris 0 3 * * *", major_version=0, revision=0,
        variables={"count": lh.VariableValue(int=2)},
    )  # fmt: skip
    with stub_of(node) as stub:
        stub.PutTaskDef(lh.PutTaskDefRequest(name=TASK, input_vars=takes, return_type=returns), metadata=access)
        for spec in (compiled(nightly, {}).compile(), Workflow("tries", tries).compile(), hostile):
            stub.PutWfSpec(spec, metadata=access)
        stub.ScheduleWf(often, metadata=access)


def test_workflows_are_drawn_with_their_schedules(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    define(node)
    visitor = Visitor(node)
    listed = {row["name"]: row for row in visitor.data(PAGE)["workflows"]}
    assert [*listed] == ["asks", "fails", "hostile", "nightly", "tries"]
    [often] = listed["tries"]["schedules"]
    assert (often["time_zone"], often["next"][0], often["version"]) == ("Europe/Paris", "2026-01-01 03:00+01:00", "0.0")
    shown = visitor.data(f"{PAGE}/workflow?name=tries")
    assert shown["version"] == "0.0" and [own["name"] for own in shown["inputs"]] == ["count"]
    [thread] = shown["threads"]
    kinds = {own["kind"] for own in thread["nodes"]}
    assert {"entrypoint", "exit", "sleep"} <= kinds and thread["nodes"][0]["kind"] == "entrypoint"
    steps = [own["label"] for own in visitor.data(f"{PAGE}/workflow?name=nightly")["threads"][0]["nodes"]]
    assert {f"{name} [{kind}]" for name, kind in STEPS.items()} <= {*steps}
    for name in listed:
        page = node.get(f"{PAGE}/workflow?name={name}")
        assert page.status == 200 and b'<svg class="flow"' in page.body and SCRIPT.encode() not in page.body
    for query in ("name=nothing", "name=tries&version=9.9", *(f"name={own}" for own in ("%3Cscript%3E", "k" * 1_000))):
        assert node.get(f"{PAGE}/workflow?{query}").status == 404, query
    for query in ("name=tries&version=x", "name=tries&version=1.99999999999", "name=tries&after=x"):
        assert node.get(f"{PAGE}/workflow?{query}").status == 400, query
    assert node.get(f"{PAGE}?after=zz").status == node.get(f"{PAGE}/tasks?after=00").status == 400
    tasks = visitor.data(f"{PAGE}/tasks")["tasks"]
    assert tasks == [{"task": TASK, "queued": 0, "more_queued": False, "workers": []}]
    found = node.pool.request("GET", f"{node.url}/console/find?q=tries", redirect=False)
    assert found.headers["location"] == f"{PAGE}/workflow?name=tries"


def test_tasks_show_their_queue_and_their_workers(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    define(node)
    visitor = Visitor(node)
    with stub_of(node) as stub:
        stub.RunWf(lh.RunWfRequest(wf_spec_name="nightly", variables={
            "parameters": lh.VariableValue(json_obj='{"day": "2026-01-01"}')}))  # fmt: skip
        assert b"none: what waits goes on waiting" in node.get(f"{PAGE}/tasks").body
        for worker in HOSTILE[:2]:
            task = lh.TaskDefId(name=TASK)
            stub.RegisterTaskWorker(lh.RegisterTaskWorkerRequest(task_def_id=task, task_worker_id=worker))
    [row] = visitor.data(f"{PAGE}/tasks")["tasks"]
    assert row["queued"] == 1 and {own["worker"] for own in row["workers"]} == {*HOSTILE[:2]}
    assert SCRIPT.encode() not in node.get(f"{PAGE}/tasks").body


def test_a_schedule_is_paused_for_good_resumed_and_run_now(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    define(node)
    visitor, page = Visitor(node), f"{PAGE}/workflow?name=tries"
    assert went_to(visitor.press(page, f"{PAGE}/pause{TENANT}")) == f"{page}&tenant=default"
    [paused] = visitor.data(page)["schedules"]
    assert paused["paused"] and paused["next"] == [] and paused["version"] == "0.0"
    assert f"{PAGE}/pause{TENANT}" not in visitor.forms(page)
    node.close()
    node = serve(server_grpc_port=0, server_data=str(node.pond.folder))
    visitor = Visitor(node)
    assert visitor.data(page)["schedules"] == [paused]
    node.clock.advance(30 * 3_600_000)  # an instant passes
    assert visitor.data("/console/runs?workflow=tries")["runs"] == []
    went_to(visitor.press(PAGE, f"{PAGE}/resume{TENANT}"))
    [resumed] = visitor.data(page)["schedules"]
    assert not resumed["paused"] and resumed["next"][0] == "2026-01-03 03:00+01:00"
    run = went_to(visitor.press(page, f"{PAGE}/run{TENANT}"))
    shown = visitor.data(run)
    assert shown["run"]["workflow"] == "tries" and shown["variables"]["count"] == 3
    assert b'<rect class="good"' in node.get(run).body and b'<rect class="now"' in node.get(run).body
    form = {**visitor.forms(page)[f"{PAGE}/run{TENANT}"], "schedule": "x"}
    assert visitor.send(f"{PAGE}/run{TENANT}", form).status == 404
    node.clock.advance(21 * 3_600_000)  # and one that counts
    node.until(lambda: len(visitor.data("/console/runs?workflow=tries")["runs"]) == 2)
    lines = [json.loads(line) for line in (node.pond.folder / "audit.jsonl").read_text().splitlines()]
    done = [(line["path"].rpartition("/")[2], line["schedule"]) for line in lines if line["status"] == 303]
    assert done == [("pause", "often"), ("resume", "often"), ("run", "often")]


def test_a_pipeline_is_filled_back_some_runs_at_a_time(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    define(node)
    visitor, page, path = Visitor(node), f"{PAGE}/workflow?name=nightly", f"/console/runs/backfill{TENANT}"
    form = {**visitor.forms(page)[path], "parameter": "day", "every": "day", "first": "2026-01-01"}
    form |= {"last": "2026-01-05", "parallel": "2", "input.api_key": SCRIPT}

    def press(**fields: str) -> Any:
        answer = visitor.send(path, {**form, **fields}, Accept="application/json")
        return answer.status, json.loads(answer.data)

    status, report = press()
    assert (status, report["going"], report["left"], report["done"]) == (200, 2, 3, 0)
    runs = [row["run"] for row in report["partitions"] if row["run"]]
    assert press()[1]["partitions"] == report["partitions"]  # they are open: no other one begins
    with stub_of(node) as stub:
        for run in runs:
            stub.DeleteWfRun(lh.DeleteWfRunRequest(id=lh.WfRunId(id=run)))
    page_of = visitor.send(path, form)
    assert page_of.status == 200 and SCRIPT.encode() not in page_of.data
    assert f"/console/runs/run?id={runs[0]}".encode() in page_of.data
    for wrong in ({"last": "2028-01-01"}, {"first": "x"}, {"parallel": "0"}, {"parallel": "9" * 30}, {"parallel": "²"},
                  {"parameter": "api"}, {"every": "year"}, {"input.other": "1"}):  # fmt: skip
        assert press(**wrong)[0] == 400, wrong
    assert press(workflow="tries")[0] == press(workflow="nothing")[0] == 404
    assert press(last="2028-01-01")[1]["values"]["limit"] == PARTITIONS_MAX


def test_the_step_at_which_a_pipeline_failed_is_tried_again(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    define(node)
    visitor, run, rescue = Visitor(node), "/console/runs/run?id=n", f"/console/runs/rescue{TENANT}"
    inputs = {"parameters": lh.VariableValue(json_obj='{"day": "2026-01-01", "api_key": "hunter22"}')}
    with stub_of(node) as stub:
        stub.RunWf(lh.RunWfRequest(wf_spec_name="nightly", id="n", variables=inputs))
        report(stub, "no file")
    assert visitor.data(run)["run"]["status"] == "EXCEPTION" and visitor.data(run)["run"]["error"] == "no file"
    body = node.get(run).body.decode()
    for step in visitor.data(run)["steps"]:
        assert f"<bdi>{step['label']}</bdi></td>" in body and step["label"] != step["name"]
    assert [step["inputs"] for step in visitor.data(run)["steps"]] == [{}, {"day": "2026-01-01", "api_key": "*****"}]
    assert '2 inputs</summary><pre tabindex="0">day: 2026-01-01\n' in body and "hunter22" not in body
    server = f"127.0.0.1:{node.node.settings.server.grpc_port}"
    tree = CliRunner().invoke(app, ["run", "show", "n", "--server", server], prog_name="millpond")
    assert '│        given {"day":"2026-01-01","api_key":"*****"}\n' in tree.stdout, tree.output
    like = visitor.data("/console/runs/start?workflow=nightly&like=n")["inputs"]
    assert {field["name"]: field["value"] for field in like} == {"day": "2026-01-01", "api_key": ""}
    went_to(visitor.press(run, rescue))
    assert visitor.data(run)["run"]["status"] == "RUNNING" and rescue not in visitor.forms(run)


def test_a_run_is_started_with_the_computed_defaults_that_its_form_shows(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    define(node)
    computed = {name: word for word, name in (("yesterday", "day"), ("arrived", "at"))}
    parameters = (
        Parameter(name="day", type="date", required=False, default="yesterday", computed=True),
        Parameter(name="at", type="str", required=False, default="arrived", computed=True),
        Parameter(name="rows", type="int", required=False, default=7),
    )
    plan = Plan(name="daily", parameters=parameters, steps=(PlannedStep(name="told", kind="notify", inputs={}),))
    visitor, page, start = Visitor(node), "/console/runs/start?workflow=daily", f"/console/runs/start{TENANT}"
    with stub_of(node) as stub:
        stub.PutWfSpec(compiled(plan, {}).compile())

    def filled(path: str) -> dict[str, str]:
        return {f"input.{field['name']}": field["value"] for field in visitor.data(path)["inputs"]}

    assert filled(page) == {"input.day": "", "input.at": "", "input.rows": "7"}
    body = node.get(page).body.decode()
    assert all(f'placeholder="{word} by default"' in body for word in computed.values())
    assert b"yesterday</bdi>()" in node.get(f"{PAGE}/workflow?name=daily").body
    went_to(visitor.press(page, start, id="d", **{name: text for name, text in filled(page).items() if text}))
    like = f"{page}&like=d"
    assert filled(like) == {"input.day": "", "input.at": "", "input.rows": "7"}
    found = {"day": "2026-01-01", "at": "5", "rows": 7}
    with stub_of(node) as stub:
        report(stub, found)
    assert filled(like) == {"input.day": "2026-01-01", "input.at": "5", "input.rows": "7"}
    went_to(visitor.press(like, start, **filled(like)))


def test_lists_have_the_reason_of_a_run_that_ended_behind_a_handler(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    define(node)
    failing, notify = (PlannedStep(name=name, kind="notify", inputs={}) for name in ("failing", "told"))
    plan = Plan(name="daily", steps=(failing,), on_failure=(notify,))
    reason = f"the step failing failed: no file {SCRIPT}"
    with stub_of(node) as stub:
        stub.PutWfSpec(compiled(plan, {}).compile())
        stub.RunWf(lh.RunWfRequest(wf_spec_name="daily", id="d"))
        for outcome in ({}, f"no file {SCRIPT}", {}):
            report(stub, outcome)
    visitor = Visitor(node)
    assert [run["error"] for run in visitor.data("/console/runs")["runs"]] == [reason]
    body = node.get("/console/runs").body.decode()
    assert html.escape(reason) in body and SCRIPT not in body
    assert [fault["why"] for fault in visitor.data("/")["wrong"] if fault["what"].startswith("run d")] == [reason]
    assert visitor.data("/console/sql?q=select+error+from+runs")["result"]["rows"] == [[reason]]


def test_the_box_finds_runs_and_workflows_of_the_tenants_that_a_caller_may_see(serve: Callable[..., Served]) -> None:
    rights = {"theirs": ["tenant:theirs"], "both": ["tenant:theirs", "tenant:default"], "none": ["ours"]}
    tokens = [{"name": name, "sha256": hash_token(name), "rights": {"read": own}} for name, own in rights.items()]
    node = serve_runs(serve, server_tokens=[*TOKENS, *tokens])
    with stub_of(node) as stub:
        own, others = [("authorization", "owner")], [("authorization", "owner"), ("tenantid", "theirs")]
        stub.PutTenant(lh.PutTenantRequest(id="theirs"), metadata=own)
        stub.PutWfSpec(Workflow("a-b", lambda wf: wf.sleep(60)).compile(), metadata=others)
        stub.RunWf(lh.RunWfRequest(wf_spec_name="a-b", id="r1"), metadata=others)
        count = {"count": lh.VariableValue(int=1)}
        for metadata, spec in ((own, "fails"), (others, "a-b")):
            stub.RunWf(lh.RunWfRequest(wf_spec_name=spec, id="r2", variables=count if spec == "fails" else {}),
                       metadata=metadata)  # fmt: skip

    def places(token: str, q: str) -> list[str]:
        headers = {**Visitor(node, token).headers, "Accept": "application/json"}
        answer = node.pool.request("GET", f"{node.url}/console/find?q={q}", headers=headers, redirect=False)
        return (
            [answer.headers["location"]] if answer.status == 303 else [own["what"] for own in answer.json()["places"]]
        )

    run = "/console/runs/run?id=r1&tenant=theirs"
    assert places("owner", "r1") == places("theirs", "r1") == places("both", "r1") == [run]
    assert places("owner", "r2") == places("both", "r2") == ["the run r2", "the run r2 of the tenant theirs"]
    assert places("theirs", "r2") == ["/console/runs/run?id=r2&tenant=theirs"] and places("none", "r1") == []
    assert places("theirs", "a_b") == ["/console/workflows/workflow?name=a-b&tenant=theirs"]
    assert Visitor(node, "theirs").data(run)["run"]["workflow"] == "a-b"


def test_schedules_have_buttons_for_those_who_may_press_them(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve, server_tokens=TOKENS)
    define(node, [("authorization", "owner")])
    starter, reader = Visitor(node, "starter"), Visitor(node, "reader")
    forms = starter.forms(f"{PAGE}/workflow?name=tries")
    assert {form.partition("?")[0].rpartition("/")[2] for form in forms} == {"run", "pause"}
    assert "/console/runs/backfill" in " ".join(starter.forms(f"{PAGE}/workflow?name=nightly"))
    for page in (PAGE, f"{PAGE}/workflow?name=tries", f"{PAGE}/workflow?name=nightly", f"{PAGE}/tasks"):
        assert reader.forms(page) == {}
        assert node.get(page, headers={"Accept": "application/json"}).status == 401
    fields = {**forms[f"{PAGE}/pause{TENANT}"]}
    assert starter.send(f"{PAGE}/pause?tenant=other", fields).status == 403


def test_lists_of_workflows_are_paged(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows, "PAGE_ROWS", 5)
    node = serve_runs(serve)
    names = [f"flow-{number:03}" for number in range(8)]
    with stub_of(node) as stub:
        for name in names:
            stub.PutWfSpec(Workflow(name, lambda wf: wf.sleep(1)).compile())
            stub.PutTaskDef(lh.PutTaskDefRequest(name=name))
            stub.ScheduleWf(lh.ScheduleWfRequest(id=name, wf_spec_name=names[0], cron_expression="0 3 * * *"))
    visitor = Visitor(node)

    def walk(path: str | None, field: str, name: str) -> list[str]:
        seen: list[str] = []
        while path:
            data = visitor.data(path)
            assert len(data[field]) <= 5
            seen += [row[name] for row in data[field]]
            path = data["next"]
        return seen

    assert walk(PAGE, "workflows", "name") == ["asks", "fails", *names]
    assert walk(f"{PAGE}/tasks?prefix=flow", "tasks", "task") == names
    assert sorted(walk(f"{PAGE}/workflow?name={names[0]}", "schedules", "id")) == names


def test_a_node_without_workflows_says_so(serve: Callable[..., Served]) -> None:
    node = serve()
    for path in (PAGE, f"{PAGE}/tasks"):
        assert b"no port for gRPC" in node.get(path).body
    assert node.get(f"{PAGE}/workflow?name=x").status == 503


@pytest.mark.parametrize("version", ["1", "1.0"])
def test_a_version_is_part_of_a_schedule(version: str) -> None:
    from millpond.workflows.engine.cron import Cron, parse_cron

    cron = Cron("0 3 * * *", version=version)
    assert parse_cron(cron.text()) == cron and cron.switched(paused=True).numbers() == cron.numbers()
