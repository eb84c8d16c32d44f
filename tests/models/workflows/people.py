"""Verbs of scenarios for user tasks, and user tasks as text.

assign ID GUID USER|- GROUP|- [override]    save ID GUID USER [ignore] [FIELD=JSON …]
complete ID GUID USER [FIELD=JSON …]        cancel ID GUID
comment ID GUID USER TEXT                   edit ID GUID USER NUMBER TEXT · uncomment ID GUID USER NUMBER
"""

from __future__ import annotations

import json

from littlehorse.model import (
    AssignUserTaskRunRequest,
    CancelUserTaskRunRequest,
    CompleteUserTaskRunRequest,
    DeleteUserTaskRunCommentRequest,
    EditUserTaskRunCommentRequest,
    PutUserTaskRunCommentRequest,
    SaveUserTaskRunProgressRequest,
    UserTaskEvent,
    UserTaskRun,
    UserTaskRunId,
    UserTaskRunStatus,
    VariableValue,
)

from millpond.workflows.engine import Request, run_id
from millpond.workflows.engine.values.conversions import plain, value_of
from tests.models.workflows.stage import Stage

VERBS = frozenset({"assign", "save", "complete", "cancel", "comment", "edit", "uncomment"})


def _results(words: list[str]) -> dict[str, VariableValue]:
    pairs = [word.split("=", 1) for word in words if "=" in word]
    return {name: value_of(json.loads(text)) for name, text in pairs}


def user_task_request(verb: str, words: list[str]) -> Request:
    """The request of one verb."""
    name = UserTaskRunId(wf_run_id=run_id(words[0]), user_task_guid=words[1])
    rest = words[2:]
    match verb:
        case "assign":
            user, group = (None if word == "-" else word.replace("blank", " ") for word in rest[:2])
            return AssignUserTaskRunRequest(
                user_task_run_id=name, user_id=user, user_group=group, override_claim="override" in rest
            )
        case "save":
            policy = (
                SaveUserTaskRunProgressRequest.IGNORE_CLAIM
                if "ignore" in rest
                else SaveUserTaskRunProgressRequest.FAIL_IF_CLAIMED_BY_OTHER
            )
            return SaveUserTaskRunProgressRequest(
                user_task_run_id=name, user_id=rest[0], results=_results(rest), policy=policy
            )
        case "complete":
            return CompleteUserTaskRunRequest(user_task_run_id=name, user_id=rest[0], results=_results(rest))
        case "cancel":
            return CancelUserTaskRunRequest(user_task_run_id=name)
        case "comment":
            text = " ".join(rest[1:])
            return PutUserTaskRunCommentRequest(user_task_run_id=name, user_id=rest[0], comment=text)
        case "edit":
            number, text = int(rest[1]), " ".join(rest[2:])
            return EditUserTaskRunCommentRequest(
                user_task_run_id=name, user_id=rest[0], user_comment_id=number, comment=text
            )
        case _:
            number = int(rest[1])
            return DeleteUserTaskRunCommentRequest(user_task_run_id=name, user_id=rest[0], user_comment_id=number)


def user_task_lines(stage: Stage, path: str) -> list[str]:
    """The user tasks of a run: state, results, and what happened to each."""
    lines = []
    for _key, task in stage.rows.list(UserTaskRun, (path,)):
        results = {name: plain(task.results[name]) for name in sorted(task.results)}
        lines.append(
            f"  user task {task.id.user_task_guid} {UserTaskRunStatus.Name(task.status)} "
            f"user={task.user_id or '-'} group={task.user_group or '-'} epoch={task.epoch} {results}"
        )
        lines += [f"    {_event_text(event)}" for event in task.events]
    return lines


def _event_text(event: UserTaskEvent) -> str:
    kind = event.WhichOneof("event") or "?"
    text = " ".join(str(getattr(event, kind)).split())
    return f"{kind.replace('_', ' ')}: {text}" if text and kind != "task_executed" else kind.replace("_", " ")
