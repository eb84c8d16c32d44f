"""`millpond runs`, `run` and `migration`: what they say of mistakes, and runs of a pond that no node serves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from littlehorse import model as lh
from littlehorse.model import service_pb2_grpc
from littlehorse.workflow import Workflow, WorkflowThread
from typer.testing import CliRunner

from millpond.cli.main import app
from millpond.cli.workflows.runs import _LETTERS_MAX
from tests.nodes.conftest import Served
from tests.nodes.test_console_runs import serve_runs

HOSTILE = "\x1b[31mred\x07 \u202eevil"


class Typed:
    """Commands, as somebody types them for a server."""

    def __init__(self, node: Served) -> None:
        self.node = node
        self.server = f"127.0.0.1:{node.node.settings.server.grpc_port}"

    def __call__(self, *words: str, code: int = 0) -> str:
        return typed(*words, "--server", self.server, code=code)

    def error(self, *words: str) -> dict[str, Any]:
        """The error of a command, as JSON has it."""
        done = CliRunner().invoke(app, [*words, "--json", "--server", self.server], prog_name="millpond")
        assert done.exit_code, done.stdout
        error: dict[str, Any] = json.loads(done.stderr)["error"]
        return error


def typed(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words], prog_name="millpond")
    assert done.exit_code == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def millpond(serve: Callable[..., Served]) -> Typed:
    """A node with the workflow of `serve_runs`, and one in two versions."""
    typed_at = Typed(serve_runs(serve))

    def first(wf: WorkflowThread) -> None:
        wf.declare_str("text")
        wf.wait_for_event("go-on")

    def second(wf: WorkflowThread) -> None:
        first(wf)
        wf.sleep(5)

    with grpc.insecure_channel(typed_at.server) as channel:
        stub = service_pb2_grpc.LittleHorseStub(channel)
        stub.PutExternalEventDef(lh.PutExternalEventDefRequest(name="go-on"))
        stub.PutWfSpec(Workflow("waits", first).compile())
        for number in range(2):
            stub.RunWf(lh.RunWfRequest(wf_spec_name="waits", id=f"w-{number}"))
        stub.PutWfSpec(Workflow("waits", second).compile())
    return typed_at


def test_errors_of_a_server_have_their_values_and_their_way_out_as_all_others(millpond: Typed) -> None:
    error = millpond.error("run", "stop", "w-0", "--thread", "7")
    assert error["message"] == "no thread with this number"
    assert (error["values"], error["hint"]) == ({"run": "w-0", "thread": 7}, "its threads are 0 to 0")
    assert "no thread with this number (run=w-0, thread=7); its threads are 0 to 0" in millpond(
        "run", "stop", "w-0", "--thread", "7", code=5
    )
    large = millpond.error("run", "start", "waits", "--id", "k" * 3_000)
    assert large["kind"] == "workflow_name" and "a name is too long" in large["message"]


@pytest.mark.parametrize("order", ["stop", "resume", "rescue", "delete", "show", "logs"])
def test_orders_to_no_run_say_how_to_find_one(millpond: Typed, order: str) -> None:
    for name in ("nope", "a_b", "_", HOSTILE, "k" * 1_000):
        error = millpond.error("run", order, name)
        assert (error["message"], error["hint"]) == ("no run has this id", "list them: millpond runs")
        assert "\x1b" not in millpond("run", order, name, code=3)


def test_orders_to_a_thread_that_has_ended_are_refused(millpond: Typed) -> None:
    millpond("run", "start", "fails", "--input", "count=1", "--id", "bad")
    for order in ("stop", "resume"):
        error = millpond.error("run", order, "bad")
        assert error["message"] == "the thread has ended" and error["hint"].endswith("millpond run rescue bad")
    assert "millpond run rescue bad; --skip" in millpond("run", "show", "bad")
    assert "only threads in ERROR are rescued" in millpond("run", "rescue", "w-0", code=6)
    assert "2147483647" in millpond("run", "stop", "w-0", "--thread", "99999999999", code=2)
    millpond("run", "stop", "w-0")
    assert "millpond run resume w-0" in millpond("run", "show", "w-0")


def test_inputs_that_are_none_are_refused(millpond: Typed) -> None:
    start = ("run", "start", "asks", "--input")
    assert "an input is given twice (input=count)" in millpond(*start, "count=1", "--input", "count=2", code=5)
    assert "is beyond 64 bits" in millpond(*start, f"count={10**22}", code=5)

    def over(wf: WorkflowThread) -> None:
        wf.spawn_thread_for_each(wf.declare_json_arr("items").required(), lambda child: child.sleep(1), "child")

    with grpc.insecure_channel(millpond.server) as channel:
        service_pb2_grpc.LittleHorseStub(channel).PutWfSpec(Workflow("over", over).compile())
    assert millpond("run", "start", "over", code=5).endswith("its inputs are: items (required)\n")
    again = ("run", "start", "waits", "--id", "w-0")
    assert "go on with the run that is there" in millpond(*again, code=4)
    assert millpond.error("runs", "--tenant", "a\x1b[31m")["kind"] == "tenant_name"


def test_a_long_value_is_cut_in_the_tree_and_whole_in_json(millpond: Typed) -> None:
    text = HOSTILE + "x" * 5_000
    millpond("run", "start", "waits", "--id", "long", "--input", f"text={text}")
    tree = millpond("run", "show", "long")
    assert "x" * (_LETTERS_MAX + 1) not in tree and "letters more: --json has them" in tree and "\x1b" not in tree
    variables = json.loads(millpond("run", "show", "long", "--json"))["variables"]
    assert text in [variable["value"].get("str") for variable in variables]

    def fails(wf: WorkflowThread) -> None:
        wf.fail("broken", f"the first line {text}\n    at the second one")

    with grpc.insecure_channel(millpond.server) as channel:
        service_pb2_grpc.LittleHorseStub(channel).PutWfSpec(Workflow("breaks", fails).compile())
    millpond("run", "start", "breaks", "--id", "broken")
    tree = millpond("run", "show", "broken")
    assert "failed: broken the first line" in tree and "letters more" in tree and "second" not in tree
    assert millpond("run", "logs", "long") == "no attempt has written anything yet\n"


def test_a_plan_that_is_not_there_or_fits_no_run_is_an_error(millpond: Typed) -> None:
    put = ("migration", "put", "fix", "--workflow", "waits", "--from", "0.0", "--to")
    assert "there are: 0.0, 0.1" in millpond(*put, "7.7", code=5)
    node = millpond(*put, "0.1", "--node", "entrypoint/nope=2-sleep-SLEEP", code=5)
    assert "there are: 0-entrypoint-ENTRYPOINT, 1-go-on-EXTERNAL_EVENT, 2-exit-EXIT" in node
    assert "there are: entrypoint" in millpond(*put, "0.1", "--thread", "nope=entrypoint", code=5)
    for words in (("apply",), ("delete",)):
        assert "list them: millpond migration list" in millpond("migration", *words, "nope", code=3)
    millpond(*put, "0.1")
    apply = ("migration", "apply", "fix")
    assert "no run has this id" in millpond(*apply, "--run", "nope", code=3)
    assert millpond(*apply, "--run", "w-0", "--dry-run") == "1 run would go on with the new version\n"
    assert millpond(*apply, "--run", "w-0") == "1 run goes on with the new version\n"
    assert "follows another version" in millpond(*apply, "--run", "w-0", code=6)
    assert millpond(*apply) == "1 run goes on with the new version\n"
    millpond("principal", "put", "nightly", "--allow", "WORKFLOW:RUN")
    again = millpond("principal", "put", "nightly", "--allow", "WORKFLOW:RUN", code=4)
    assert "--overwrite gives it other rights" in again
    for words in (("principal", "delete", "nope"), ("quota", "delete", "nope")):
        assert "show what there is" in millpond(*words, code=3)


def test_a_deletion_of_many_runs_says_where_to_look(millpond: Typed) -> None:
    words = ("run", "delete-many", "waits", "--status")
    assert "those in COMPLETED, ERROR or EXCEPTION" in millpond(*words, "RUNNING", code=5)
    assert millpond(*words, "ERROR").endswith("left: millpond runs --workflow waits --status ERROR\n")
    assert "one of: asks, fails, waits" in millpond("run", "delete-many", "nope", code=3)


def test_runs_of_a_folder_are_listed_and_shown_without_a_node(millpond: Typed, tmp_path: Path) -> None:
    millpond("run", "start", "fails", "--input", "count=1", "--id", "bad")
    place = ("--pond", str(millpond.node.pond.folder))
    for words in (("runs", "--json"), ("run", "show", "bad", "--json"), ("run", "logs", "bad", "--json")):
        assert typed(*words, *place) == millpond(*words)
    millpond.node.close()
    listed = [json.loads(line)["id"]["id"] for line in typed("runs", "--json", *place).splitlines()]
    assert sorted(listed) == ["bad", "w-0", "w-1"]
    assert "no run has this id" in typed("run", "show", "nope", *place, code=3)
    assert "one of: asks, fails, waits" in typed("runs", "--workflow", "nope", *place, code=3)
    nowhere = tmp_path / "nowhere"
    for words in (("runs",), ("run", "show", "bad"), ("run", "logs", "bad")):
        assert "there is no pond here" in typed(*words, "--pond", str(nowhere), code=3)
        assert "the node cannot be reached" in typed(*words, "--pond", "http://127.0.0.1:1", code=7)
    assert not nowhere.exists()


def test_the_id_of_a_run_is_whole_on_a_narrow_terminal(millpond: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    run = millpond("run", "start", "waits").split()[1]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run in millpond("runs")
