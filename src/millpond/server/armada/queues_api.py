"""`api.QueueService`: queues are created, updated, listed and deleted. Older clients call the same under `api.Submit`.

To change a queue takes `write` on `QUEUE/*`; to see it, `read` on any of its job sets.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any, Final

from anyio.to_thread import run_sync
from google.protobuf.empty_pb2 import Empty

from millpond.error_values import SHOWN_MAX, shown
from millpond.errors import Invalid, MillpondError
from millpond.events.jobs.queues import Queue
from millpond.server.armada.means import Means
from millpond.server.armada.wire import armada_pb2 as pb
from millpond.server.routes.table import On, Work
from millpond.server.rpc.dispatch import Call, Row, method
from millpond.server.stream_rights import may_see_queue, need_queue

__all__ = ("QUEUE_ROWS",)

_LISTED_AT_ONCE = 200


def _create(call: Call[Means], queue: pb.Queue) -> Empty:
    call.service.queues.create(_checked(call, queue))
    return Empty()


def _update(call: Call[Means], queue: pb.Queue) -> Empty:
    checked = _checked(call, queue)
    call.service.queues.update(queue.name, lambda _: checked)
    return Empty()


def _create_all(call: Call[Means], queues: pb.QueueList) -> pb.FailedQueues:
    return _all(call, queues, _create)


def _update_all(call: Call[Means], queues: pb.QueueList) -> pb.FailedQueues:
    return _all(call, queues, _update)


def _all(call: Call[Means], queues: pb.QueueList, change: Callable[[Call[Means], pb.Queue], Empty]) -> pb.FailedQueues:
    """Change each of some queues; those that failed, and why."""
    failed = pb.FailedQueues()
    for queue in queues.queues:
        try:
            change(call, queue)
        except MillpondError as error:
            failed.failed_queues.add(queue=queue, error=str(error))
    call.notes = {"queues": len(queues.queues), "failed": len(failed.failed_queues)}
    return failed


def _delete(call: Call[Means], request: pb.QueueName) -> Empty:
    _need(call, request.name)
    call.service.queues.delete(request.name)
    return Empty()


def _cordon(call: Call[Means], request: pb.QueueName) -> Empty:
    return _set_cordoned(call, request.name, cordoned=True)


def _uncordon(call: Call[Means], request: pb.QueueName) -> Empty:
    return _set_cordoned(call, request.name, cordoned=False)


def _set_cordoned(call: Call[Means], name: str, *, cordoned: bool) -> Empty:
    _need(call, name)

    def changed(queue: Queue) -> Queue:
        definition = pb.Queue.FromString(queue.definition)
        definition.cordoned = cordoned
        return replace(queue, definition=definition.SerializeToString())

    call.service.queues.update(name, changed)
    return Empty()


def _get(call: Call[Means], request: pb.QueueName) -> pb.Queue:
    if not may_see_queue(call.caller, request.name):
        need_queue(call.caller, call.right, request.name)
    return _message(call.service.queues.get(request.name))


async def _list(call: Call[Means], request: pb.QueuesRequest) -> AsyncGenerator[tuple[bytes], None]:
    means, room = call.service, request.num or math.inf
    after: str | None = None
    while room > 0 and (queues := await run_sync(lambda: means.queues.list(after, limit=_LISTED_AT_ONCE))):  # noqa: B023
        for queue in queues:
            if may_see_queue(call.caller, queue.name) and room > 0:
                room -= 1
                yield (pb.QueuesMessage(queue=_message(queue)).SerializeToString(),)
        after = queues[-1].name
    yield (pb.QueuesMessage(end=pb.QueuesMessage.End()).SerializeToString(),)


def _need(call: Call[Means], name: str) -> None:
    """Insist on the right to change a queue, and note its name."""
    call.notes["queue"] = name[:SHOWN_MAX]
    need_queue(call.caller, call.right, name)


def _checked(call: Call[Means], queue: pb.Queue) -> Queue:
    _need(call, queue.name)
    if not 1.0 <= queue.priority_factor < math.inf:
        raise Invalid(
            "the priority factor of a queue is at least 1", kind="queue_priority_factor", queue=shown(queue.name),
            priority_factor=queue.priority_factor,
        )  # fmt: skip
    return Queue(queue.name, queue.SerializeToString())


def _message(queue: Queue) -> pb.Queue:
    return pb.Queue.FromString(queue.definition) if queue.definition else pb.Queue(name=queue.name, priority_factor=1)


_CHANGE: Final = method("write", On.QUEUE, audited=True)
QUEUE_ROWS: Final[dict[str, Row[Means, Any]]] = {
    "CreateQueue": Row(pb.Queue, _create, _CHANGE),
    "UpdateQueue": Row(pb.Queue, _update, _CHANGE),
    "CreateQueues": Row(pb.QueueList, _create_all, _CHANGE),
    "UpdateQueues": Row(pb.QueueList, _update_all, _CHANGE),
    "DeleteQueue": Row(pb.QueueName, _delete, _CHANGE),
    "CordonQueue": Row(pb.QueueName, _cordon, _CHANGE),
    "UncordonQueue": Row(pb.QueueName, _uncordon, _CHANGE),
    "GetQueue": Row(pb.QueueName, _get, method("read", On.QUEUE)),
    "GetQueues": Row(pb.QueuesRequest, _list, method("read", On.SHOWN_STREAMS, Work.WATCH)),
}
"""The methods of queues."""
