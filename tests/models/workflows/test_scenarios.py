"""Scenarios: text files of commands and the state that they lead to.

A file is a list of blocks: commands, `----`, the state after them, an empty line. `WORKFLOW_SCENARIOS=rewrite` writes
the states anew; the difference is then for a reader to judge.

    run SPEC ID [NAME=JSON …]            claim TASK                       done ID GUID ATTEMPT [JSON]
    failed ID GUID ATTEMPT TEXT          thrown ID GUID ATTEMPT NAME      event ID NAME GUID [JSON]
    stop ID THREAD · resume ID THREAD    rescue ID THREAD · skip ID THREAD
    pass SECONDS                         delete ID · show ID · status ID · archived ID

The verbs of user tasks are in `people`, those of correlated events and schedules in `free`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import (
    DeleteWfRunRequest,
    PutExternalEventDefRequest,
    PutTaskDefRequest,
    PutUserTaskDefRequest,
    PutWorkflowEventDefRequest,
    RescueThreadRunRequest,
    ResumeWfRunRequest,
    ReturnType,
    StopWfRunRequest,
    TypeDefinition,
    UserTaskField,
    VariableDef,
    VariableType,
    VariableValue,
)

from millpond.errors import MillpondError
from millpond.workflows.engine import run_id
from millpond.workflows.engine.values.conversions import value_of
from tests.models.workflows.free import FREE_VERBS, define_correlated, perform_free
from tests.models.workflows.people import VERBS, user_task_lines, user_task_request
from tests.models.workflows.specs import SPECS, request
from tests.models.workflows.stage import START, Stage, archived_lines

FOLDER = Path(__file__).parents[2] / "data" / "workflows"
REWRITE = os.environ.get("WORKFLOW_SCENARIOS") == "rewrite"
STR = TypeDefinition(primitive_type=VariableType.STR)


def prepared() -> Stage:
    """A stage on which all tasks, events and specifications are defined."""
    stage = Stage()
    greeted = [VariableDef(name="name", type_def=STR)]
    stage.do(PutTaskDefRequest(name="greet", input_vars=greeted, return_type=ReturnType(return_type=STR)))
    for task in ("work", "repair"):
        stage.do(PutTaskDefRequest(name=task))
    for event in ("ready", "alarm", "moved", "other"):
        content = TypeDefinition(primitive_type=VariableType.INT) if event == "moved" else STR
        stage.do(PutExternalEventDefRequest(name=event, content_type=ReturnType(return_type=content)))
    define_correlated(stage)
    stage.do(PutWorkflowEventDefRequest(name="progress"))
    fields = [
        UserTaskField(name="approved", type=VariableType.BOOL, required=True),
        UserTaskField(name="remark", type=VariableType.STR),
    ]
    stage.do(PutUserTaskDefRequest(name="approval", fields=fields))
    for name in SPECS:
        stage.do(request(name))
    return stage


def parsed(text: str) -> VariableValue:
    """A value in a scenario: JSON, or `@SECONDS` for the milliseconds of an instant after the start."""
    if text.startswith("@"):
        return VariableValue(int=START + int(1000 * float(text[1:])))
    return value_of(json.loads(text))


def perform(stage: Stage, command: str) -> str | None:
    """Do one command; what it shows, if it shows anything."""
    verb, *words = command.split()
    match verb:
        case "run":
            inputs = dict(word.split("=", 1) for word in words[2:])
            stage.run(words[0], words[1], {name: parsed(text) for name, text in inputs.items()})
        case "claim":
            task = stage.claim(words[0])
            return f"{words[0]}: " + (
                "nothing" if task is None else f"{task.task_run_id.task_guid} attempt {task.attempt_number}"
            )
        case "done":
            stage.report(words[0], words[1], int(words[2]), "done", parsed("".join(words[3:]) or "null"))
        case "failed":
            stage.report(words[0], words[1], int(words[2]), "failed", VariableValue(), " ".join(words[3:]))
        case "thrown":
            stage.report(words[0], words[1], int(words[2]), words[3], VariableValue(str="content"), "thrown")
        case "event":
            stage.event(words[0], words[1], parsed(" ".join(words[3:]) or "null"), words[2])
        case "stop":
            stage.do(StopWfRunRequest(wf_run_id=run_id(words[0]), thread_run_number=int(words[1])))
        case "resume":
            stage.do(ResumeWfRunRequest(wf_run_id=run_id(words[0]), thread_run_number=int(words[1])))
        case "rescue" | "skip":
            name, thread = run_id(words[0]), int(words[1])
            stage.do(RescueThreadRunRequest(wf_run_id=name, thread_run_number=thread, skip_current_node=verb == "skip"))
        case "pass":
            stage.pass_time(int(1000 * float(words[0])))
        case "delete":
            stage.do(DeleteWfRunRequest(id=run_id(words[0])))
        case "status":
            first = stage.show(words[0]).split("\n")
            return "\n".join([*first[:2], *(line for line in first if "handler" in line)])
        case "show":
            return stage.show(words[0])
        case "archived":
            return "\n".join(archived_lines(stage, words[0])) or "none"
        case "user-tasks":
            return "\n".join(user_task_lines(stage, words[0]))
        case _ if verb in FREE_VERBS:
            return perform_free(stage, verb, words)
        case _ if verb in VERBS:
            stage.do(user_task_request(verb, words))
        case _:
            raise AssertionError(f"no such command: {command}")
    return None


def played(text: str) -> str:
    """A scenario with the states that its commands lead to."""
    stage, blocks = prepared(), []
    for block in text.strip().split("\n\n"):
        commands = block.split("\n----")[0]
        shown = []
        for command in commands.split("\n"):
            if command.startswith("#"):
                continue
            before = dict(stage.rows.bytes)
            try:
                result = perform(stage, command)
            except MillpondError as error:
                assert stage.rows.bytes == before
                result = f"{type(error).__name__} {error.kind}: {error}"
            shown += [] if result is None else [result]
        blocks.append("\n".join([commands, "----", *shown]) if shown else commands)
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text()
    found = played(text)
    if REWRITE:
        path.write_text(found)
    assert found == text or REWRITE
