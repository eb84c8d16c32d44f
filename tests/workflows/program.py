"""Workers and callers as users write them, with `littlehorse-client` as installed: `program.py SCENARIO …`.

python program.py work DONE      a worker of all tasks; each execution is a line of the file DONE
python program.py all            registers everything, and takes one run of each kind to its end
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import littlehorse
import littlehorse.worker
from google.protobuf.empty_pb2 import Empty
from littlehorse.config import LHConfig
from littlehorse.model import (
    AwaitWorkflowEventRequest,
    ExternalEventDefId,
    LHStatus,
    ListTaskRunsRequest,
    ListVariablesRequest,
    PutExternalEventRequest,
    PutWorkflowEventDefRequest,
    ReturnType,
    RunWfRequest,
    SearchWfRunRequest,
    TypeDefinition,
    VariableType,
    VariableValue,
    WfRun,
    WfRunId,
    WorkflowEventDefId,
)
from littlehorse.worker import LHTaskWorker, WorkerContext
from littlehorse.workflow import SpawnedThreads, Workflow, WorkflowThread

SECONDS = 60


async def greet(name: str, context: WorkerContext) -> str:
    """A task with an input, an output and a log."""
    note(context)
    context.log("greeting")
    return f"hello {name}"


async def fail(context: WorkerContext) -> str:
    """A task that fails."""
    note(context)
    raise RuntimeError("it cannot be done")


def note(context: WorkerContext) -> None:
    if DONE is not None:
        with DONE.open("a") as file:
            file.write(f"{context.wf_run_id.id} {context.task_run_id.task_guid} {context.attempt_number}\n")


DONE: Path | None = None


def greeting(wf: WorkflowThread) -> None:
    name = wf.declare_str("name").required().searchable()
    answer = wf.declare_str("answer")
    answer.assign(wf.execute("greet", name, retries=3, timeout_seconds=5))
    wf.complete(answer)


def everything(wf: WorkflowThread) -> None:
    """A child thread, a failure handler, an interrupt, an external event, a thrown event, a sleep."""
    name = wf.declare_str("name").required()
    alarms = wf.declare_int("alarms", 0)
    handled = wf.declare_str("handled", "no")

    def on_alarm(handler: WorkflowThread) -> None:
        handler.declare_str("INPUT")
        alarms.assign(alarms.add(1))

    wf.add_interrupt_handler("alarm", on_alarm)
    failed = wf.execute("fail", retries=1)
    wf.handle_any_failure(failed, lambda handler: handled.assign("yes"))
    child = wf.spawn_thread(lambda inner: inner.execute("greet", name), "child")
    wf.wait_for_threads(SpawnedThreads.from_list(child))
    wf.wait_for_event("ready")
    wf.throw_event("progress", name)
    wf.sleep(1)


WORKFLOWS = {"greeting": greeting, "everything": everything}


async def register(config: LHConfig) -> None:
    """Define the tasks, the events and the workflows."""
    for function in (greet, fail):
        LHTaskWorker(function, function.__name__, config).register_task_def()
    for event in ("alarm", "ready"):
        littlehorse.create_external_event_def(event, config)
    content = ReturnType(return_type=TypeDefinition(primitive_type=VariableType.STR))
    config.stub().PutWorkflowEventDef(PutWorkflowEventDefRequest(name="progress", content_type=content))
    for name, body in WORKFLOWS.items():
        littlehorse.create_workflow_spec(Workflow(name, body), config)


async def work() -> None:
    """Work on tasks until the process ends."""
    littlehorse.worker.HEARTBEAT_INTERVAL_SECONDS = 1
    config = LHConfig()
    await littlehorse.start(*(LHTaskWorker(function, function.__name__, config) for function in (greet, fail)))


async def everything_once() -> None:
    """One run of each workflow, to its end; what they came to."""
    config = LHConfig()
    await register(config)
    stub = config.stub()
    working = [asyncio.create_task(LHTaskWorker(function, function.__name__, config).start())
               for function in (greet, fail)]  # fmt: skip
    name = {"name": VariableValue(str="anna")}
    simple = stub.RunWf(RunWfRequest(wf_spec_name="greeting", variables=name))
    await ended(stub, simple.id, LHStatus.COMPLETED)
    print("greeting", [task.attempts[0].output.str for task in stub.ListTaskRuns(tasks_of(simple)).results])
    run = stub.RunWf(RunWfRequest(wf_spec_name="everything", id="all", variables=name))
    for event, content in (("alarm", "fire"), ("ready", "go")):
        stub.PutExternalEvent(
            PutExternalEventRequest(wf_run_id=run.id, external_event_def_id=ExternalEventDefId(name=event),
                                    guid=f"{event}-1", content=VariableValue(str=content))
        )  # fmt: skip
    wanted = AwaitWorkflowEventRequest(wf_run_id=run.id, event_def_ids=[WorkflowEventDefId(name="progress")])
    thrown = await asyncio.to_thread(stub.AwaitWorkflowEvent, wanted)
    print("thrown", thrown.content.str)
    await ended(stub, run.id, LHStatus.COMPLETED)
    variables = stub.ListVariables(ListVariablesRequest(wf_run_id=run.id)).results
    shown = {variable.id.name: variable.value for variable in variables if variable.id.thread_run_number == 0}
    print("alarms", shown["alarms"].int, "handled", shown["handled"].str)
    found = stub.SearchWfRun(SearchWfRunRequest(wf_spec_name="greeting", status=LHStatus.COMPLETED))
    print("found", [own.id == simple.id.id for own in found.results])
    print("caller", stub.Whoami(Empty()).id.id, "version", stub.GetServerVersion(Empty()).minor_version)
    for task in working:
        task.cancel()


def tasks_of(run: WfRun) -> ListTaskRunsRequest:
    return ListTaskRunsRequest(wf_run_id=run.id)


async def ended(stub: Any, run: WfRunId, status: int) -> None:
    """Wait until a run has a status."""
    async with asyncio.timeout(SECONDS):
        while True:
            found = await asyncio.to_thread(stub.GetWfRun, run)
            if found.status == status:
                return
            assert found.status in (LHStatus.RUNNING, LHStatus.STARTING), found
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    if sys.argv[1] == "work":
        DONE = Path(sys.argv[2])
        asyncio.run(work())
    else:
        asyncio.run(everything_once())
