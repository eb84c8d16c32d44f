"""`PollTask`: a worker asks for a task, gets one, asks for the next.

    request ─▶ the worker waits ─▶ the processor claims a task for it, by a command ─▶ durable ─▶ response

Invariants:
* a task is handed out after its claim is durable, so an attempt goes to one worker at most;
* a worker that is not there any more when its claim is durable costs one timeout of the task;
* a stream ends with an error, never well: a worker whose stream ended well would not come back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
from littlehorse.model import PollTaskRequest, PollTaskResponse, TaskDef

from millpond.errors import MillpondError, NotFound, Unavailable
from millpond.server.access import share_of
from millpond.server.armada.calls import Call, Context, Means, Method, abort, admit, count, known, parsed
from millpond.server.shares import Shares
from millpond.server.workflows.access import need_of
from millpond.server.workflows.rights import need_tenant, tenant_of
from millpond.workflows.tasks.queues import Worker

if TYPE_CHECKING:
    from millpond.server.workflows.service import WorkflowService

__all__ = ("POLLING_MAX", "poll_method")

POLLING_MAX = 10_000
"""The streams of workers that are open at once, shared between tokens; each takes one call of the server."""
_NEED = need_of("PollTask")


def poll_method(means: Means, service: WorkflowService, path: str) -> Method:
    """The method that workers poll."""
    polling = _Polling(means, service, path)
    return grpc.stream_stream_rpc_method_handler(polling.behaviour)


class _Polling:
    def __init__(self, means: Means, service: WorkflowService, path: str) -> None:
        self._means, self._service, self._path = means, service, path
        self._polls = Shares(POLLING_MAX)

    async def behaviour(self, requests: AsyncIterator[bytes], context: Context) -> None:
        call = Call(self._means, self._path)
        began = self._means.node.clock.monotonic()
        error: MillpondError
        try:
            admit(call, context)
            with self._polls.holding(share_of(call.caller)) as held:
                self._need_room(held=held)
                await self._poll(call, requests, context)
            error = Unavailable("the worker asks for no more tasks", kind="polling_over", hint="poll again")
        except Exception as raised:
            error = known(self._means, raised)
        count(call, began, error)
        await abort(call, context, error)

    def _need_room(self, *, held: bool) -> None:
        if not held:
            raise Unavailable("as many workers poll as may", kind="calls_full", polling_max=POLLING_MAX,
                              hint="poll again in a moment")  # fmt: skip

    async def _poll(self, call: Call, requests: AsyncIterator[bytes], context: Context) -> None:
        tenant = tenant_of(call)
        need_tenant(call.caller, "write", tenant)
        defined: set[str] = set()
        async for data in requests:
            request = parsed(PollTaskRequest, data)
            await self._service.access.check(call.caller, _NEED, tenant)
            if request.task_def_id.name not in defined:
                await self._need_definition(tenant, request.task_def_id.name)
                defined.add(request.task_def_id.name)
            response = await self._task(tenant, request)
            await context.write(response.SerializeToString())

    async def _need_definition(self, tenant: str, name: str) -> None:
        if await self._service.get(tenant, lambda rows: rows.get(TaskDef, (name,))) is None:
            raise NotFound("no task is defined by this name", kind="task_def", task=name,
                           hint="register it before its workers poll")  # fmt: skip

    async def _task(self, tenant: str, request: PollTaskRequest) -> PollTaskResponse:
        worker = Worker((tenant, request.task_def_id.name), request.client_id, request.task_worker_version)
        return PollTaskResponse(result=await self._service.task(worker))
