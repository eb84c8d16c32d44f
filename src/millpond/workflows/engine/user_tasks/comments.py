"""Comments on user tasks: they are events of the task; an edit or a deletion is an event more."""

from __future__ import annotations

from littlehorse.model import (
    DeleteUserTaskRunCommentRequest,
    EditUserTaskRunCommentRequest,
    PutUserTaskRunCommentRequest,
    UserTaskEvent,
    UserTaskRun,
)

from millpond.errors import Conflict, Invalid, NotFound
from millpond.workflows.engine.user_tasks.commands import find_user_task, put_user_task
from millpond.workflows.engine.work import Work

__all__ = (
    "put_comment",
    "edit_comment",
    "delete_comment",
)


def put_comment(work: Work, request: PutUserTaskRunCommentRequest) -> UserTaskRun:
    """Add a comment. The comments of a user task are numbered from 1."""
    _check_text(user=request.user_id, comment=request.comment)
    task = find_user_task(work, request.user_task_run_id)
    number = 1 + sum(event.HasField("comment_added") for event in task.events)
    added = UserTaskEvent.UTECommented(user_comment_id=number, user_id=request.user_id, comment=request.comment)
    task.events.append(UserTaskEvent(time=work.instant(), comment_added=added))
    put_user_task(work, task)
    return task


def edit_comment(work: Work, request: EditUserTaskRunCommentRequest) -> UserTaskRun:
    """Change the text of a comment."""
    task = find_user_task(work, request.user_task_run_id)
    _check_comment(task, request.user_comment_id)
    _check_text(user=request.user_id, comment=request.comment)
    edited = UserTaskEvent.UTECommented(
        user_comment_id=request.user_comment_id, user_id=request.user_id, comment=request.comment
    )
    task.events.append(UserTaskEvent(time=work.instant(), comment_edited=edited))
    put_user_task(work, task)
    return task


def delete_comment(work: Work, request: DeleteUserTaskRunCommentRequest) -> UserTaskRun:
    """Delete a comment; its number is not given again."""
    task = find_user_task(work, request.user_task_run_id)
    _check_comment(task, request.user_comment_id)
    _check_text(user=request.user_id)
    deleted = UserTaskEvent.UTECommentDeleted(user_comment_id=request.user_comment_id, user_id=request.user_id)
    task.events.append(UserTaskEvent(time=work.instant(), comment_deleted=deleted))
    put_user_task(work, task)
    return task


def _check_text(**texts: str) -> None:
    for name, text in texts.items():
        if not text.strip():
            raise Invalid(f"the {name} of a comment is blank", kind="user_task_comment")


def _check_comment(task: UserTaskRun, number: int) -> None:
    """Raise unless a user task has a comment with a number, which nobody has deleted."""
    if number == 0:
        raise Conflict("no comment is named", kind="failed_precondition", user_task=task.id.user_task_guid)
    added = {event.comment_added.user_comment_id for event in task.events if event.HasField("comment_added")}
    if number not in added:
        raise NotFound("no comment with this number", kind="user_task_comment", comment=number)
    for event in task.events:
        if event.HasField("comment_deleted") and event.comment_deleted.user_comment_id == number:
            raise Conflict("the comment was deleted", kind="failed_precondition", comment=number)
