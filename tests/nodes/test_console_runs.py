"""Runs in the console: they are started, stopped, resumed, tried again and answered by forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import grpc
import pytest
from littlehorse.model import service_pb2_grpc
from typer.testing import CliRunner

import millpond
from millpond.cli.main import app
from millpond.cli.workflows import runs as command
from millpond.events.event import NewEvent
from millpond.nodes.tokens import hash_token
from millpond.server.console import run_search, runs
from millpond.server.console.faults import RUNS_SHOWN
from millpond.workflows.engine import thread_queue
from millpond.workflows.store import joins
from tests.nodes.conftest import BEGIN, Served
from tests.nodes.test_console_actions import SCRIPT, TOKENS, Visitor, went_to


def asks(wf: Any) -> None:
    wf.declare_int("count").required()
    wf.declare_str("api_key").masked()
    wf.declare_str("note").with_default("<none>")
    wf.assign_user_task("approve", "anna")


def fails(wf: Any) -> None:
    count = wf.declare_int("count").required()
    wf.sleep(count.divide(0))


def serve_runs(serve: Callable[..., Served], **settings: Any) -> Served:
    """A node with a workflow that asks, and one that fails."""
    from littlehorse import model as lh
    from littlehorse.workflow import Workflow

    node = serve(server_grpc_port=0, **settings)
    fields = [
        lh.UserTaskField(name="ok", type=lh.VariableType.BOOL, display_name=SCRIPT, required=True),
        lh.UserTaskField(name="why", type=lh.VariableType.STR, display_name="Why"),
    ]
    access = [("authorization", "owner")] if settings else []
    with grpc.insecure_channel(f"127.0.0.1:{node.node.settings.server.grpc_port}") as channel:
        stub = service_pb2_grpc.LittleHorseStub(channel)
        stub.PutUserTaskDef(lh.PutUserTaskDefRequest(name="approve", fields=fields), metadata=access)
        for workflow in (asks, fails):
            stub.PutWfSpec(Workflow(workflow.__name__, workflow).compile(), metadata=access)
    return node


def test_a_run_is_started_stopped_resumed_and_answered_by_forms(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    visitor, start, tenant = Visitor(node), "/console/runs/start", "?tenant=default"
    assert visitor.data(start)["workflows"] == ["asks", "fails"]
    page = f"{start}?workflow=asks"
    inputs = {field["name"]: field for field in visitor.data(page)["inputs"]}
    assert {name: field["value"] for name, field in inputs.items()} == {"count": "", "api_key": "", "note": "<none>"}
    assert inputs["count"]["required"] and inputs["api_key"]["secret"]
    refused = visitor.press(page, start + tenant)
    assert refused.status == 400 and b"count" in refused.data
    assert visitor.press(page, start + tenant, **{"input.count": "many"}).status == 400
    run = went_to(visitor.press(page, start + tenant, id="r1", **{"input.count": "3", "input.api_key": "s3"}))
    assert visitor.data(run)["run"]["status"] == "RUNNING"
    assert visitor.data(run)["variables"]["count"] == 3
    assert (
        node.pool.request("GET", f"{node.url}/console/find?q=r1", redirect=False).headers["location"]
        == run.split("&")[0]
    )
    assert visitor.press(page, start + tenant, id="r1", **{"input.count": "3"}).status == 409

    like = {field["name"]: field["value"] for field in visitor.data(f"{page}&like=r1")["inputs"]}
    assert like == {"count": "3", "api_key": "", "note": "<none>"}
    went_to(visitor.press(run, f"/console/runs/stop{tenant}"))
    assert visitor.data(run)["run"]["status"] == "HALTED"
    assert f"/console/runs/stop{tenant}" not in visitor.forms(run)
    went_to(visitor.press(run, f"/console/runs/resume{tenant}"))
    # A stop cancels the question, so the run fails when it goes on, and asks again when the step is tried again.
    answer, secret = f"/console/runs/answer{tenant}", visitor.forms(run)[f"/console/runs/rescue{tenant}"]["secret"]
    assert answer not in visitor.forms(run)
    went_to(visitor.send(f"/console/runs/rescue{tenant}", {"secret": secret, "run": "r1", "thread": "0"}))
    assert SCRIPT.encode() not in node.get(run).body
    assert visitor.press(run, answer, **{"input.ok": "perhaps"}).status == 400
    went_to(visitor.press(run, answer, **{"input.ok": "true", "input.why": "12"}))
    shown = visitor.data(run)
    assert (shown["run"]["status"], shown["questions"][-1]["status"]) == ("COMPLETED", "DONE")
    assert answer not in visitor.forms(run)
    lines = [json.loads(line) for line in (node.pond.folder / "audit.jsonl").read_text().splitlines()]
    assert [line["path"].rpartition("/")[2] for line in lines if line["status"] == 303] == [
        "start",
        "stop",
        "resume",
        "rescue",
        "answer",
    ]
    assert all(line["run"] == "r1" for line in lines if line["status"] == 303)


def test_a_run_that_failed_is_tried_again_or_goes_on_behind_its_step(serve: Callable[..., Served]) -> None:
    node = serve_runs(serve)
    visitor, tenant = Visitor(node), "?tenant=default"
    page = "/console/runs/start?workflow=fails"
    run = went_to(visitor.press(page, f"/console/runs/start{tenant}", **{"input.count": "1"}))
    assert visitor.data(run)["run"]["status"] == "ERROR"
    [secret] = {fields["secret"] for fields in visitor.forms(run).values()}
    rescue = {"secret": secret, "run": visitor.data(run)["run"]["id"], "thread": "0"}
    went_to(visitor.send(f"/console/runs/rescue{tenant}", rescue))
    assert visitor.data(run)["run"]["status"] == "ERROR" and b"begins the step anew" in node.get(run).body
    for thread in ("-1", "x", "9" * 30):
        assert visitor.send(f"/console/runs/rescue{tenant}", {**rescue, "thread": thread}).status == 400
    assert visitor.send(f"/console/runs/rescue{tenant}", {**rescue, "run": "nothing"}).status == 404
    went_to(visitor.send(f"/console/runs/rescue{tenant}", {**rescue, "skip": "yes"}))
    assert visitor.data(run)["run"]["status"] == "COMPLETED" and b"step anew" not in node.get(run).body


def test_a_run_that_ended_with_an_exception_says_why_no_step_is_tried_again(serve: Callable[..., Served]) -> None:
    from littlehorse import model as lh
    from littlehorse.workflow import Workflow

    node = serve_runs(serve)
    with grpc.insecure_channel(f"127.0.0.1:{node.node.settings.server.grpc_port}") as channel:
        stub = service_pb2_grpc.LittleHorseStub(channel)
        stub.PutWfSpec(Workflow("labelled", labelled).compile())
        given = {"count": lh.VariableValue(int=1)}
        stub.RunWf(lh.RunWfRequest(wf_spec_name="labelled", id="over", variables=given))
    visitor, run, tenant = Visitor(node), "/console/runs/run?id=over", "?tenant=default"
    assert visitor.data(run)["run"]["status"] == "EXCEPTION" and visitor.forms(run) == {}
    page = node.get(run).body
    assert b"there is no step to try again" in page and b"like=over" in page
    [secret] = {fields["secret"] for fields in visitor.forms("/console/runs/start?workflow=labelled").values()}
    rescue = {"secret": secret, "run": "over", "thread": "0"}
    assert visitor.send(f"/console/runs/rescue{tenant}", rescue).status == 409


def test_a_pipeline_that_ended_with_an_exception_has_its_step_tried_again(serve: Callable[..., Served]) -> None:
    from littlehorse import model as lh
    from littlehorse.workflow import Workflow

    def piped(wf: Any) -> None:
        for name in ("parameters", "program", "values"):
            wf.declare_json_obj(name, {})
        wf.fail("pipeline-failed", "the step load failed")

    node = serve_runs(serve)
    with grpc.insecure_channel(f"127.0.0.1:{node.node.settings.server.grpc_port}") as channel:
        stub = service_pb2_grpc.LittleHorseStub(channel)
        stub.PutWfSpec(Workflow("piped", piped).compile())
        stub.RunWf(lh.RunWfRequest(wf_spec_name="piped", id="over"))
    page = node.get("/console/runs/run?id=over").body
    assert b"begins the step anew" in page and b"there is no step" not in page


def test_the_first_page_has_the_newest_runs_that_failed(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = serve_runs(serve, server_tokens=TOKENS)
    starter, start = Visitor(node, "starter"), "/console/runs/start?tenant=default"
    for number in range(RUNS_SHOWN + 2):
        fields = {"id": f"r{number}", "input.count": "1"}
        went_to(starter.press("/console/runs/start?workflow=fails", start, **fields))
        node.clock.advance(1)

    def failed(visitor: Visitor) -> list[str]:
        wrong = visitor.data("/")["wrong"]
        assert all("divi" in fault["why"].lower() for fault in wrong if fault["what"].endswith(" of fails")), wrong
        return [fault["path"] for fault in wrong if fault["what"].startswith("run ")]

    newest = range(RUNS_SHOWN + 1, 1, -1)
    assert failed(starter) == [f"/console/runs/run?id=r{number}&tenant=default" for number in newest]
    page = node.get("/", headers=starter.headers)
    assert b"/console/runs/run?id=r2&amp;tenant=default" in page.body
    assert failed(Visitor(node, "fixer")) == []
    assert starter.data("/")["runs_by_hour"] == [0] * 23 + [RUNS_SHOWN + 2]
    assert Visitor(node, "fixer").data("/")["runs_by_hour"] is None
    monkeypatch.setattr(runs, "COUNTED_MAX", 3)
    assert starter.data("/")["runs_by_hour"] == [0] * 23 + [3]
    node.clock.advance(25 * 3_600_000)
    assert failed(starter) == [] and starter.data("/")["runs_by_hour"] == [0] * 24


def test_runs_have_buttons_for_those_who_may_run_them(serve: Callable[..., Served]) -> None:
    from littlehorse import model as lh

    node = serve_runs(serve, server_tokens=TOKENS)
    starter, reader = Visitor(node, "starter"), Visitor(node, "reader")
    page, start = "/console/runs/start?workflow=asks", "/console/runs/start?tenant=default"
    run = went_to(starter.press(page, start, **{"input.count": "3"}))
    buttons = {form.partition("?")[0].rpartition("/")[2] for form in starter.forms(run)}
    assert buttons == {"stop", "answer"}
    assert reader.forms(run) == reader.forms(page) == {}
    assert (
        starter.press(page, start, **{"input.count": "3", "tenant": "other"}).status == 303
    )  # the tenant is that of the address
    [secret] = {fields["secret"] for fields in starter.forms(run).values()}
    assert starter.send("/console/runs/start?tenant=other", {"secret": secret}).status == 403
    # A principal whose access lists only read has no buttons either, though its token may write.
    reads = lh.ServerACLs(acls=[lh.ServerACL(resources=[lh.ACL_ALL_RESOURCES], allowed_actions=[lh.ACLAction.READ])])
    with grpc.insecure_channel(f"127.0.0.1:{node.node.settings.server.grpc_port}") as channel:
        stub = service_pb2_grpc.LittleHorseStub(channel)
        stub.PutPrincipal(
            lh.PutPrincipalRequest(id="starter", global_acls=reads), metadata=[("authorization", "owner")]
        )
    assert starter.forms(run) == {}
    assert starter.send(start, {"secret": secret, "workflow": "asks", "input.count": "3"}).status == 403


def labelled(wf: Any) -> None:
    wf.declare_int("count").required().searchable()
    wf.declare_str("team").searchable()
    wf.declare_str("note")
    wf.fail("over", "over")


def test_runs_are_searched_by_tags_status_workflow_and_time_together(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    from littlehorse.workflow import Workflow

    node = serve_runs(serve, server_tokens=TOKENS)
    starter, page = Visitor(node, "starter"), "/console/runs/start"
    with grpc.insecure_channel(f"127.0.0.1:{node.node.settings.server.grpc_port}") as channel:
        stub = service_pb2_grpc.LittleHorseStub(channel)
        stub.PutWfSpec(Workflow("labelled", labelled).compile(), metadata=[("authorization", "owner")])
    for number in range(5):
        team = {"input.team": SCRIPT if number % 2 else "b c=d", "input.count": str(number // 3), "id": f"r{number}"}
        went_to(starter.press(f"{page}?workflow=labelled", f"{page}?tenant=default", **team))
        node.clock.advance(60_000)
    went_to(starter.press(f"{page}?workflow=asks", f"{page}?tenant=default", id="other", **{"input.count": "1"}))

    def listed(*tags: str, **conditions: str) -> list[str]:
        pairs = [*(("tag", tag) for tag in ("", *tags)), *conditions.items()]
        shown, names = starter.data(f"/console/runs?{urlencode(pairs)}"), []
        assert shown["problem"] is None and shown["tags"] == list(tags)
        names += [run["id"] for run in shown["runs"]]
        return names + (listed_at(shown["next"]) if shown["next"] else [])

    def listed_at(path: str) -> list[str]:
        shown = starter.data(path)
        return [run["id"] for run in shown["runs"]] + (listed_at(shown["next"]) if shown["next"] else [])

    minute = [f"2026-01-01T00:0{number}:00Z" for number in range(6)]
    for rows in (50, 1):
        monkeypatch.setattr(runs, "PAGE_ROWS", rows)
        monkeypatch.setattr(run_search, "PAGE_ROWS", rows)
        assert listed(f"team={SCRIPT}", workflow="labelled") == ["r3", "r1"]
        assert listed("team=b c=d", "count=0", workflow="labelled") == ["r2", "r0"]
        assert listed("count=1", workflow="labelled", status="EXCEPTION", since=minute[4]) == ["r4"]
        assert listed("count=1", workflow="labelled", status="RUNNING") == []
        assert listed(workflow="labelled", since=minute[1], until=minute[3]) == ["r3", "r2", "r1"]
        assert listed(status="RUNNING", since=minute[1]) == ["other"]
    assert starter.data("/console/runs")["workflows"] == ["asks", "fails", "labelled"]
    assert b'<option value="labelled">' in node.get("/console/runs", headers=starter.headers).body
    for conditions, hint in (
        ({"tag": "team=b"}, "name the workflow, too, one of: labelled"), ({"tag": "none=b"}, "name the workflow, too"),
        ({"tag": "note=x", "workflow": "labelled"}, "count, team"),
        ({"tag": SCRIPT, "workflow": "labelled"}, "count, team"), ({"tag": "count=1", "workflow": "asks"}, "has none"),
        ({"tag": "a=b", "workflow": SCRIPT}, ""), ({"since": "yesterday"}, ""), ({"after": "x"}, "first page"),
        ({"after": "00"}, "begin again"),
    ):  # fmt: skip
        path = f"/console/runs?{urlencode(conditions)}"
        assert hint in (starter.data(path)["problem"]["hint"] or ""), conditions
        shown = node.get(path, headers=starter.headers)
        assert shown.status == 200 and SCRIPT.encode() not in shown.body and b'role="alert"' in shown.body
    refused = Visitor(node, "fixer").data(f"/console/runs?{urlencode({'tag': 'count=1', 'workflow': 'labelled'})}")
    assert refused["kind"] == "right_missing"
    monkeypatch.setattr(joins, "LOOKED_MAX", 1)  # each page looks at one run, and says where to look on
    assert listed("count=1", workflow="labelled", status="RUNNING") == []
    assert listed(f"team={SCRIPT}", workflow="labelled", status="EXCEPTION") == ["r3", "r1"]
    page = f"/console/runs?{urlencode({'tag': 'count=1', 'workflow': 'labelled', 'status': 'RUNNING'})}"
    assert b"No such runs yet" in node.get(page, headers=starter.headers).body


def test_a_query_has_the_runs_and_the_refs_that_its_caller_may_read(serve: Callable[..., Served]) -> None:
    rights = {"write": ["tenant:default"], "read": ["ours", "stream:etl/*"]}
    local = {"name": "local", "sha256": hash_token("local"), "rights": rights}
    node = serve_runs(serve, server_tokens=[*TOKENS, local])
    node.pond.create_map("ours", kind="state", value="double")
    repository = node.pond.repositories.create("flights")
    repository.branch("main").commit(SCRIPT, allow_empty=True)
    for queue in ("etl", "other"):
        node.pond.events.append(queue, SCRIPT, [NewEvent(BEGIN, b"", "submitted", {"job_id": "7"})])
    owner, reader, own = (Visitor(node, name) for name in ("owner", "reader", "local"))
    page = "/console/runs/start?workflow=fails"
    for number in range(3):
        went_to(own.press(page, "/console/runs/start?tenant=default", id=f"r{number}", **{"input.count": "1"}))

    def answer(visitor: Visitor, query: str) -> list[Any]:
        shown = visitor.data(f"/console/sql?{urlencode({'q': query})}")
        assert shown["error"] is None, shown["error"]
        rows: list[Any] = shown["result"]["rows"]
        return rows

    runs = "select id, status, workflow from runs where workflow = 'fails' and status = 'ERROR' order by id"
    rows = [[f"r{number}", "ERROR", "fails"] for number in range(3)]
    assert answer(owner, runs) == answer(reader, runs) == answer(own, runs) == rows
    joined = "select count(*) from runs r join events e on e.job = '7', runs s"
    assert answer(owner, joined) == [[18]] and answer(own, joined) == [[9]]  # of one of two queues
    for table, seen in (("repositories", 1), ("refs", 1), ("commits where repository = 'flights'", 2)):
        assert answer(owner, f"select count(*) from {table}") == [[seen]]
        assert answer(own, f"select count(*) from {table}") == [[0]]
    file = node.get(f"/console/sql/export?{urlencode({'q': 'select message from commits', 'format': 'csv'})}",
                    headers=owner.headers)  # fmt: skip
    assert SCRIPT.encode() in file.body
    shown = node.get(f"/console/sql?{urlencode({'q': 'select message from commits'})}", headers=owner.headers)
    assert SCRIPT.encode() not in shown.body and b"&lt;script&gt;" in shown.body
    with millpond.open(node.url, client_token="owner") as remote:
        assert remote.sql("select repository, name from refs order by 1").to_pylist() == [
            {"repository": "flights", "name": "main"}, {"repository": "pond", "name": "main"},
        ]  # fmt: skip
        flights = "select count(*) as n from commits where repository = 'flights'"
        assert remote.sql(flights).to_pylist() == [{"n": 2}]
        assert [tuple(row.values()) for row in remote.sql(runs).to_pylist()] == [tuple(row) for row in rows]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("millpond.tables.runs.PAGE", 2)
            assert remote.sql("select count(*) as n from runs where workflow = 'fails'").to_pylist() == [{"n": 3}]
        assert remote.sql("select id from runs where id in ('r1', 'none')").to_pylist() == [{"id": "r1"}]
        assert remote.runs["r1"].status == remote.sql("select status from runs where id = 'r1'")["status"][0].as_py()
        assert {run.id for run in remote.runs.newest(2)} < {run.id for run in remote.runs}
    with millpond.open(node.url, client_token="local") as remote:
        assert remote.sql("select count(*) as n from runs").to_pylist() == [{"n": 3}]
    # A folder has the same tables, and the runs of a node that served it.
    with millpond.open(node.pond.folder) as opened:
        assert isinstance(opened, millpond.Pond)
        assert opened.sql("select id from runs where id = 'r1' or id = 'none'").to_pylist() == [{"id": "r1"}]


def test_a_node_without_workflows_says_so(serve: Callable[..., Served]) -> None:
    visitor = Visitor(serve())
    with millpond.open(visitor.node.url) as remote:
        assert remote.sql("from runs").num_rows == 0
    assert visitor.data("/console/runs")["actions"] == []
    assert visitor.node.get("/console/runs/start").status == 503


def test_queued_threads_are_shown_in_their_order_with_their_number(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    from littlehorse import model as lh
    from littlehorse.workflow import Workflow, WorkflowThread

    def waits(child: WorkflowThread) -> None:
        child.declare_str("INPUT")
        child.wait_for_event("go-on")

    def over(wf: WorkflowThread) -> None:
        wf.spawn_thread_for_each(wf.declare_json_arr("items"), waits, "child")

    monkeypatch.setattr(thread_queue, "THREADS_ACTIVE_MAX", 2)
    monkeypatch.setattr(runs, "PAGE_ROWS", 2)
    monkeypatch.setattr(command, "_NAMES_MAX", 2)
    node = serve_runs(serve)
    server = f"127.0.0.1:{node.node.settings.server.grpc_port}"
    with grpc.insecure_channel(server) as channel:
        stub = service_pb2_grpc.LittleHorseStub(channel)
        stub.PutExternalEventDef(lh.PutExternalEventDefRequest(name="go-on"))
        stub.PutWfSpec(Workflow("over", over).compile())
        items = lh.VariableValue(json_arr=json.dumps(["secret"] * 6))
        stub.RunWf(lh.RunWfRequest(wf_spec_name="over", id="wide", variables={"items": items}))
        stub.StopWfRun(lh.StopWfRunRequest(wf_run_id=lh.WfRunId(id="wide"), thread_run_number=3))
    visitor, page = Visitor(node), "/console/runs/run?id=wide"
    first = visitor.data(page)
    assert first["queue"]["count"] == 5
    assert [(own["thread"], own["status"]) for own in first["queue"]["threads"]] == [(2, "STARTING"), (3, "HALTED")]
    assert first["queue"]["threads"][0]["began_ms"] == BEGIN
    second = visitor.data(first["queue"]["next"])
    assert [own["thread"] for own in second["queue"]["threads"]] == [4, 5] and second["steps"] == first["steps"]
    last = visitor.data(second["queue"]["next"])["queue"]
    assert [own["thread"] for own in last["threads"]] == [6] and last["next"] is None
    assert visitor.data(f"{page}&queued=99")["queue"] == {"count": 5, "threads": [], "next": None}
    assert node.get(f"{page}&queued=-1").status == 400
    shown = node.get(page).body.decode()
    assert "5 queued threads" in shown and "queued=3" in shown and "secret" not in shown.partition("queued threads")[2]

    def typed(*words: str) -> str:
        done = CliRunner().invoke(app, ["run", "show", "wide", *words, "--server", server], prog_name="millpond")
        assert done.exit_code == 0, done.stderr
        return done.stdout

    assert typed().endswith(
        "├─ 5 queued threads: they begin in this order, as others end\n│    2 child  STARTING\n│    3 child  HALTED\n"
        "│      and 3 more: --json has them\n"
    )
    assert [row["thread_run"]["number"] for row in json.loads(typed("--json"))["queued"]] == [2, 3, 4, 5, 6]


def test_each_page_of_steps_has_their_attempts_and_variables_are_those_of_their_threads(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    from littlehorse import model as lh
    from littlehorse.workflow import Workflow, WorkflowThread

    def works(child: WorkflowThread) -> None:
        child.declare_str("INPUT")
        child.execute("work")

    def over(wf: WorkflowThread) -> None:
        wf.spawn_thread_for_each(wf.declare_json_arr("items"), works, "child")

    monkeypatch.setattr(runs, "_STEPS_MAX", 4)
    node = serve_runs(serve)
    with grpc.insecure_channel(f"127.0.0.1:{node.node.settings.server.grpc_port}") as channel:
        stub = service_pb2_grpc.LittleHorseStub(channel)
        stub.PutTaskDef(lh.PutTaskDefRequest(name="work"))
        stub.PutWfSpec(Workflow("over", over).compile())
        items = lh.VariableValue(json_arr=json.dumps(["a", "b", "c", "d", "e"]))
        stub.RunWf(lh.RunWfRequest(wf_spec_name="over", id="wide", variables={"items": items}))
    visitor, page, steps = Visitor(node), "/console/runs/run?id=wide", []
    shown = visitor.data(page)
    assert {name: shown["variables"][name] for name in ("INPUT of thread 1", "INPUT of thread 2")} == {
        "INPUT of thread 1": "a", "INPUT of thread 2": "b",
    }  # fmt: skip
    assert shown["more_variables"] and b"There are more" in node.get(page).body
    while page:
        data = visitor.data(page)
        steps, page = [*steps, *data["steps"]], data["next"]
    tasks = [step for step in steps if "work" in step["name"]]
    assert [len(task["attempts"]) for task in tasks] == [1] * 5
    assert {task["thread_name"] for task in tasks} == {"child"}


def test_a_status_or_a_workflow_that_is_none_is_a_problem_that_names_those_there_are(
    serve: Callable[..., Served],
) -> None:
    node = serve_runs(serve)
    visitor, start = Visitor(node), "/console/runs/start?tenant=default"
    went_to(visitor.press("/console/runs/start?workflow=fails", start, **{"input.count": "1"}))
    assert [run["status"] for run in visitor.data("/console/runs?status=error&workflow=fails")["runs"]] == ["ERROR"]
    for query, hint in (("status=nope", "one of STARTING, RUNNING"), ("workflow=nope", "one of: asks, fails")):
        data = visitor.data(f"/console/runs?{query}")
        assert data["runs"] == [] and hint in data["problem"]["hint"]
        assert hint in node.get(f"/console/runs?{query}").body.decode()
    assert visitor.data("/console/runs?workflow=asks")["problem"] is None
    for page, hint in (("run?id=nope", "list them: millpond runs"), ("start?workflow=nope", "one of: asks, fails")):
        failed = node.get(f"/console/runs/{page}")
        assert failed.status == 404 and hint in failed.body.decode()
    assert b"one of: asks, fails" in node.get("/console/workflows/workflow?name=nope").body
    large = visitor.press("/console/runs/start?workflow=fails", start, **{"input.count": "9" * 30})
    assert large.status == 400 and b"beyond 64 bits" in large.data


def test_the_runs_that_a_run_began_are_paged_and_few_buttons_rescue_many_threads(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    from littlehorse import model as lh
    from littlehorse.workflow import Workflow, WorkflowThread

    def begins(wf: WorkflowThread) -> None:
        for _number in range(5):
            wf.run_wf("fails", {"count": 1})

    def fails_too(thread: WorkflowThread) -> None:
        thread.declare_str("INPUT")
        number = thread.declare_int("number").with_default(1)
        thread.sleep(number.divide(0))

    def over(wf: WorkflowThread) -> None:
        wf.spawn_thread_for_each(wf.declare_json_arr("items"), fails_too, "child")
        wf.sleep(100)

    monkeypatch.setattr(runs, "PAGE_ROWS", 2)
    node = serve_runs(serve)
    server = f"127.0.0.1:{node.node.settings.server.grpc_port}"
    with grpc.insecure_channel(server) as channel:
        stub = service_pb2_grpc.LittleHorseStub(channel)
        for workflow in (begins, over):
            stub.PutWfSpec(Workflow(workflow.__name__, workflow).compile())
        stub.RunWf(lh.RunWfRequest(wf_spec_name="begins", id="above"))
        items = lh.VariableValue(json_arr=json.dumps(["x"] * 13))
        stub.RunWf(lh.RunWfRequest(wf_spec_name="over", id="wide", variables={"items": items}))
    visitor, page, children = Visitor(node), "/console/runs/run?id=above", []
    while page:
        assert page.partition("?")[0].encode() in node.get(page).body
        data = visitor.data(page)
        children, page = [*children, *data["children"]], data["more_children"]
    assert len(set(children)) == len(children) == 5 and all(child.startswith("above_") for child in children)
    done = CliRunner().invoke(app, ["run", "show", "above", "--server", server], prog_name="millpond")
    assert all(f"began the run {child}\n" in done.stdout for child in children)
    body = node.get("/console/runs/run?id=wide").body
    assert body.count(b"Try the failed step of thread") == 10 and b"3 more threads failed" in body
