"""`api.QueueService`: queues are created, updated, listed and deleted. Older clients call the same under `api.Submit`.

To change a queue takes `write` on `QUEUE/*`; to see it, `read` on any of its job sets.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from anyio.to_thread import run_sync
from google.protobuf.empty_pb2 import Empty

from millpond.error_values import shown
from millpond.errors import Invalid, MillpondError
from millpond.events.jobs.queues import Queue
from millpond.server.armada.calls import Call, Means, Method, streaming, unary
from millpond.server.armada.wire import armada_pb2 as pb
from millpond.server.stream_rights import may_see_queue, need_queue

__all__ = ("queue_methods",)

_LISTED_AT_ONCE = 200


def queue_methods(means: Means, service: str) -> dict[str, Method]:
    """The methods of queues, under the name of a service."""
    changes: dict[str, tuple[type, Callable]] = {  # type: ignore[type-arg]
        "CreateQueue": (pb.Queue, _create), "UpdateQueue": (pb.Queue, _update),
        "CreateQueues": (pb.QueueList, _create_all), "UpdateQueues": (pb.QueueList, _update_all),
        "DeleteQueue": (pb.QueueName, _delete), "CordonQueue": (pb.QueueName, _cordon),
        "UncordonQueue": (pb.QueueName, _uncordon),
    }  # fmt: skip
    methods = {
        name: unary(means, f"/{service}/{name}", message, handler, audited=True)
        for name, (message, handler) in changes.items()
    }
    methods["GetQueue"] = unary(means, f"/{service}/GetQueue", pb.QueueName, _get, audited=False)
    methods["GetQueues"] = streaming(means, f"/{service}/GetQueues", pb.QueuesRequest, _list)
    return methods


def _create(call: Call, queue: pb.Queue) -> Empty:
    call.means.queues.create(_checked(call, queue))
    return Empty()


def _update(call: Call, queue: pb.Queue) -> Empty:
    checked = _checked(call, queue)
    call.means.queues.update(queue.name, lambda _: checked)
    return Empty()


def _create_all(call: Call, queues: pb.QueueList) -> pb.FailedQueues:
    return _all(call, queues, _create)


def _update_all(call: Call, queues: pb.QueueList) -> pb.FailedQueues:
    return _all(call, queues, _update)


def _all(call: Call, queues: pb.QueueList, change: Callable[[Call, pb.Queue], Empty]) -> pb.FailedQueues:
    """Change each of some queues; those that failed, and why."""
    failed = pb.FailedQueues()
    for queue in queues.queues:
        try:
            change(call, queue)
        except MillpondError as error:
            failed.failed_queues.add(queue=queue, error=str(error))
    call.notes = {"queues": len(queues.queues), "failed": len(failed.failed_queues)}
    return failed


def _delete(call: Call, request: pb.QueueName) -> Empty:
    _need(call, request.name)
    call.means.queues.delete(request.name)
    return Empty()


def _cordon(call: Call, request: pb.QueueName) -> Empty:
    return _set_cordoned(call, request.name, cordoned=True)


def _uncordon(call: Call, request: pb.QueueName) -> Empty:
    return _set_cordoned(call, request.name, cordoned=False)


def _set_cordoned(call: Call, name: str, *, cordoned: bool) -> Empty:
    _need(call, name)

    def changed(queue: Queue) -> Queue:
        definition = pb.Queue.FromString(queue.definition)
        definition.cordoned = cordoned
        return replace(queue, definition=definition.SerializeToString())

    call.means.queues.update(name, changed)
    return Empty()


def _get(call: Call, request: pb.QueueName) -> pb.Queue:
    if not may_see_queue(call.caller, request.name):
        need_queue(call.caller, "read", request.name)
    return _message(call.means.queues.get(request.name))


async def _list(call: Call, request: pb.QueuesRequest) -> AsyncGenerator[tuple[bytes], None]:
    means, left = call.means, request.num or math.inf
    after: str | None = None
    while left > 0 and (queues := await run_sync(lambda: means.queues.list(after, limit=_LISTED_AT_ONCE))):  # noqa: B023
        for queue in queues:
            if may_see_queue(call.caller, queue.name) and left > 0:
                left -= 1
                yield (pb.QueuesMessage(queue=_message(queue)).SerializeToString(),)
        after = queues[-1].name
    yield (pb.QueuesMessage(end=pb.QueuesMessage.End()).SerializeToString(),)


def _need(call: Call, name: str) -> None:
    """Insist on the right to change a queue, and note its name."""
    call.notes["queue"] = shown(name)
    need_queue(call.caller, "write", name)


def _checked(call: Call, queue: pb.Queue) -> Queue:
    _need(call, queue.name)
    if not 1.0 <= queue.priority_factor < math.inf:
        raise Invalid(
            "the priority factor of a queue is at least 1", kind="queue_priority_factor", queue=shown(queue.name),
            priority_factor=queue.priority_factor,
        )  # fmt: skip
    return Queue(queue.name, queue.SerializeToString())


def _message(queue: Queue) -> pb.Queue:
    return pb.Queue.FromString(queue.definition) if queue.definition else pb.Queue(name=queue.name, priority_factor=1)
