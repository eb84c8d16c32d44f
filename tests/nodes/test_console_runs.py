"""Runs in the console: they are started, stopped, resumed, tried again and answered by forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from millpond.server.console import runs
from millpond.server.console.faults import RUNS_SHOWN
from tests.nodes.conftest import Served
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
    from littlehorse.model import service_pb2_grpc
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
    assert visitor.data(run)["run"]["status"] == "ERROR"
    for thread in ("-1", "x", "9" * 30):
        assert visitor.send(f"/console/runs/rescue{tenant}", {**rescue, "thread": thread}).status == 400
    assert visitor.send(f"/console/runs/rescue{tenant}", {**rescue, "run": "nothing"}).status == 404
    went_to(visitor.send(f"/console/runs/rescue{tenant}", {**rescue, "skip": "yes"}))
    assert visitor.data(run)["run"]["status"] == "COMPLETED"


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
        assert all("divi" in fault["why"].lower() for fault in wrong if fault["what"] == "run of fails"), wrong
        return [fault["path"] for fault in wrong if fault["what"].startswith("run of")]

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
    from littlehorse.model import service_pb2_grpc

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


def test_a_node_without_workflows_says_so(serve: Callable[..., Served]) -> None:
    visitor = Visitor(serve())
    assert visitor.data("/console/runs")["actions"] == []
    assert visitor.node.get("/console/runs/start").status == 503
