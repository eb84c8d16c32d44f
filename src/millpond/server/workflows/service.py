"""Workflows of a node: its partitions, the queues of tasks, and those who wait for events, behind gRPC.

    begin ─▶ partitions open ─▶ … ─▶ no new commands ─▶ partitions close

    call ─▶ partition ─▶ owned here: its processor
                     └─▶ owned elsewhere: its owner, over gRPC

Invariants:
* all that callers wait for lives in the event loop; a processor's thread passes on what it applied, in order;
* nothing is begun before somebody calls, or there is something to go on with: a node that serves maps alone has no
  processor;
* a command is taken by its partition's owner, once: it is sent to another process again only if nothing was done;
* a command or a read that comes while a partition moves waits for it, up to `move_seconds`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from anyio.to_thread import run_sync
from littlehorse.model import (
    DeletePrincipalRequest,
    DeleteQuotaRequest,
    PutPrincipalRequest,
    PutQuotaRequest,
    PutTenantRequest,
    ScheduledTask,
    ScheduleWfRequest,
    WorkflowEvent,
)

from millpond.errors import Invalid, MillpondError, Unavailable, Uncertain
from millpond.kernel.keys import encode
from millpond.kernel.space import WouldBlock
from millpond.server.wire import stopping
from millpond.server.workflows.access import Access
from millpond.server.workflows.data_watch import DataWatch, at_cursor
from millpond.server.workflows.lost_workers import LostWorkers
from millpond.server.workflows.outbox import Tally
from millpond.server.workflows.partitions import OwnPartition, Partitions
from millpond.server.workflows.registrations import Registrations
from millpond.server.workflows.shared.peers import Elsewhere, Peers
from millpond.server.workflows.shared.rows import SharedRows, answer
from millpond.server.workflows.shared.wire import parts_of, reply_from, reply_to
from millpond.workflows.engine import EventThrown, Request, run_path
from millpond.workflows.partitions import METADATA, routed
from millpond.workflows.partitions.routing import partition_of_row
from millpond.workflows.processor import Applied, Measures, Processor, ReadRows, read_rows
from millpond.workflows.processor.codec import decode_request, encode_request
from millpond.workflows.tasks.progress import Progresses
from millpond.workflows.tasks.queues import Worker, Workers

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from millpond.nodes.node import Node
    from millpond.server.rpc.threads import CallThreads

    T = TypeVar("T")

__all__ = ("WorkflowService", "changes_cluster")

ONE_REQUEST_SECONDS = 0.1
"""A client that sends one request, and no other, has closed its side within twice this time."""
_PAUSE_SECONDS = 0.1
_LOOK_SECONDS = 0.25
_OF_CLUSTER = (PutTenantRequest, PutPrincipalRequest, DeletePrincipalRequest, PutQuotaRequest, DeleteQuotaRequest)
_LOG = logging.getLogger(__name__)


def changes_cluster(applied: Applied) -> bool:
    """True for the end of a command that may have changed a tenant, a principal or a quota."""
    return isinstance(applied.command.request, _OF_CLUSTER)


class WorkflowService:
    """The workflows of one node. Use it from the event loop that `begin` was called in."""

    def __init__(self, node: Node, threads: CallThreads) -> None:
        self._node, self.url, self.clock, self._threads = node, node.url, node.clock, threads
        host = urlsplit(node.url).hostname or node.settings.server.host
        self.address = f"{host}:{node.settings.server.grpc_port}"
        """This process, as others reach it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun, self._beginning = False, asyncio.Lock()
        self.workers, self.measures = Workers(), Measures()
        self.stories_dropped, self.outputs_dropped = Tally(), Tally()
        self.peers, self.registered = Peers(node.settings), Registrations(node.clock, self._ask_others)
        self.for_peers = {"Submit": self._submitted, "Rows": self._rows_for, "Workers": self.registered.for_peer}
        """The answers to other processes, by the methods that these call."""
        self.partitions = _partitions_of(node, self)
        self.lost = LostWorkers(self)
        self.progress = Progresses(node.clock)
        self.data = DataWatch(self, node.pond)
        self._lookings = (self.data.looking, *self.partitions.lookings)
        self.cluster_version = 0
        """A number that grows with each change of tenants, principals and quotas."""
        self.access = Access(self, node.clock)
        self._replies: dict[str, asyncio.Future[Message | None]] = {}
        self._handed: dict[Worker, asyncio.Future[Message | None]] = {}
        self._released = False
        self._thrown: dict[tuple[str, str], set[asyncio.Event]] = {}

    async def begin(self) -> Partitions:
        """The partitions, opened with the first call.

        Raises: as `Partitions.open`; `Unavailable` when the node is stopping.
        """
        if not self._begun:
            # A caller that goes away leaves them opening: the next one waits for it, and opens nothing twice.
            await asyncio.shield(asyncio.ensure_future(self._open()))
        return self.partitions

    async def _open(self) -> None:
        async with self._beginning:
            if self._begun:
                return
            if self._released:
                raise stopping()
            self._loop = asyncio.get_running_loop()
            await run_sync(self.partitions.open)
            self._begun = True
            for looking in self._lookings:
                looking.begin()

    async def resume(self) -> None:
        """Begin if there is something to go on with: timers, rows of an older layout, partitions of a group.

        Raises: as `begin`, where the node is nothing without them; elsewhere it serves all else.
        """
        try:
            if await run_sync(self.partitions.has_runs):
                await self.begin()
        except MillpondError as error:
            if self.partitions.needed:
                raise
            _LOG.error("workflows are not served: %s", error)

    async def leave(self) -> None:
        """Give back what processes share, and let workers go that wait for a task, before other calls end."""
        self._released = True
        async with self._beginning:
            if self._begun and self.partitions.shared:
                await run_sync(self.partitions.close)
        for worker, task in self._handed.items():
            if self.workers.withdraw(worker) and not task.done():  # else its task is claimed, and comes in a moment
                task.set_exception(stopping())

    async def end(self) -> None:
        """Close the partition that is this process' own; commands that wait get an error."""
        for looking in (self.lost.looking, *self._lookings):
            await looking.end()
        if self._begun and not self.partitions.shared:
            self._begun = False
            await run_sync(self.partitions.close)
        await self.peers.close()

    # -- commands and reads ---------------------------------------------------------------------------

    async def submit(self, tenant: str, request: Request) -> Message | None:
        """The reply of a request, once it is applied and durable, from the owner of its partition.

        Raises: as `Processor.submit`; `Invalid` for topics of output where no brokers are named; `Unavailable`, kind
            `partition_moving`; as the owner answers.
        """
        self._refuse_topics(request)
        if isinstance(request, ScheduleWfRequest):
            request = await self._placed(request)
        number, whole = routed(tenant, request, (await self.begin()).count, self.clock)

        async def there(address: str) -> Message | None:
            data = encode((number, tenant, encode_request(whole)))
            return reply_from(await self.peers.call(address, "Submit", data))

        return await self._where(number, lambda processor: self._posted(processor, tenant, whole), there)

    def _refuse_topics(self, request: Request) -> None:
        settings = self._node.settings.workflows
        if settings.output or settings.log:
            return
        if isinstance(request, PutTenantRequest) and request.HasField("output_topic_config"):
            raise Invalid("no brokers are named for topics of output", kind="output_topics", tenant=request.id,
                          hint="set workflows.output, or leave output_topic_config out")  # fmt: skip

    async def _placed(self, request: ScheduleWfRequest) -> ScheduleWfRequest:
        """A schedule at its place: what waits for data begins behind what is there now."""
        return await self._threads.change(lambda: at_cursor(self._node.pond, request))

    async def _posted(self, processor: Processor, tenant: str, request: Request) -> Message | None:
        command = processor.post(tenant, request)
        reply: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._replies[command] = reply
        try:
            return await reply
        finally:
            self._replies.pop(command, None)

    async def _where(
        self, number: int, here: Callable[[Processor], Awaitable[T]], there: Callable[[str], Awaitable[T]]
    ) -> T:
        """The result of a function of the partition's processor, or of its owner's address."""
        until = self.clock.monotonic() + self.partitions.move_seconds
        while True:
            processor = self.partitions.owned.get(number)
            if processor is not None:
                return await here(processor)
            owner = self.partitions.owner(number)
            if owner is not None and owner != self.address:
                with suppress(Elsewhere):
                    return await there(owner)
            if self.clock.monotonic() > until or self._node.stopping:
                raise Unavailable("the partition is moving to another process", kind="partition_moving",
                                  partition=number, hint="send it again in a moment")  # fmt: skip
            await asyncio.sleep(_PAUSE_SECONDS)

    async def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a tenant's rows, in a thread."""
        own = await self.begin()
        if own.count == 1:
            processor = own.owned[METADATA]
            return await self._threads.ask(lambda: read_rows(processor, tenant, act))
        rows = SharedRows(tenant, own.count, own.is_here, own.local, self._remote)
        return await self._threads.change(lambda: act(cast("ReadRows", rows)))  # it waits for other processes

    async def get(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a row or two: of one partition at once, unless its space is moved."""
        own = await self.begin()
        if own.count == 1:
            with suppress(WouldBlock):
                return read_rows(own.owned[METADATA], tenant, act, wait=False)
        return await self.read(tenant, act)

    # -- other processes ------------------------------------------------------------------------------

    async def _ask_others(self, request: bytes) -> list[bytes]:
        """The answers of the other processes about the workers of a task."""

        async def ask(address: str) -> bytes:
            try:
                return await self.peers.call(address, "Workers", request)
            except (Unavailable, Uncertain):  # it has ended: its workers register elsewhere, within a minute
                return b""

        return await asyncio.gather(*(ask(other) for other in self.partitions.members() if other != self.address))

    async def for_peer(self, method: str, data: bytes) -> bytes:
        """The answer to another process.

        Raises: `Elsewhere`: the partition is not here; as `submit`, and as `read`.
        """
        if not self._begun:
            raise Elsewhere("the node has no workflows yet", node=self.address, hint="ask the owner")
        return await self.for_peers[method](data)

    async def _submitted(self, data: bytes) -> bytes:
        """The reply to a command that another process sent."""
        number, tenant, request = parts_of(data)
        processor = self.partitions.owned.get(number)
        if processor is None:
            raise _elsewhere(number)
        return reply_to(await self._posted(processor, tenant, decode_request(request)))

    async def _rows_for(self, data: bytes) -> bytes:
        """The rows that another process wants of a partition."""
        number, tenant, request = parts_of(data)
        if not self.partitions.is_here(number):
            raise _elsewhere(number)
        return await self._answered(number, tenant, request)

    async def _answered(self, number: int, tenant: str, request: bytes) -> bytes:
        return await run_sync(self.partitions.local, number, tenant, lambda rows: answer(rows, parts_of(request)))

    def _remote(self, number: int, tenant: str, request: bytes) -> bytes:
        """The answer of a partition's owner, for a thread that reads."""

        async def there(address: str) -> bytes:
            return await self.peers.call(address, "Rows", encode((number, tenant, request)))

        assert self._loop is not None, "begun"
        work = self._where(number, lambda _: self._answered(number, tenant, request), there)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- tasks ----------------------------------------------------------------------------------------

    async def task(self, worker: Worker, read_next: Callable[[], asyncio.Future[Any]]) -> ScheduledTask | None:
        """The next task for a worker, claimed for it, as soon as there is one; None when the worker stops before.

        `read_next` begins to read its next request, which is None when it has closed its side. It does that to stop; a
        client that does it with its only request waits for the answer.

        Raises:
            Internal: kind `command_failed`: its claim failed.
            Unavailable: the node is stopping.
        """
        if self._released:
            raise stopping()
        await self.begin()
        loop = asyncio.get_running_loop()
        task: asyncio.Future[Message | None] = loop.create_future()
        self._handed[worker] = task
        self.workers.wait(worker)
        # Nobody stops while tasks come, and to read ahead for each of them would cost more than the look.
        timer = loop.call_later(ONE_REQUEST_SECONDS, self._notice_end, worker, task, read_next)
        try:
            result = await task
        except BaseException:
            # A task that is claimed for it already costs one timeout.
            self.workers.withdraw(worker)
            raise
        finally:
            timer.cancel()
            self._handed.pop(worker, None)
        assert result is None or isinstance(result, ScheduledTask)
        return result

    def _notice_end(
        self, worker: Worker, task: asyncio.Future[Message | None], read_next: Callable[[], asyncio.Future[Any]]
    ) -> None:
        """Hand out no task to a worker that closes its side from now on."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def look(request: asyncio.Future[Any]) -> None:
            closed = not request.cancelled() and request.exception() is None and request.result() is None
            stops = closed and loop.time() - began > ONE_REQUEST_SECONDS
            if stops and self.workers.withdraw(worker) and not task.done():
                task.set_result(None)

        read_next().add_done_callback(look)

    # -- what follows from commands -------------------------------------------------------------------

    def pass_on(self, applied: Sequence[Applied]) -> None:
        """Called by the processor's thread."""
        self.data.applied(applied)
        if any(map(changes_cluster, applied)):
            self.cluster_version += 1
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._follow, applied)

    def _follow(self, applied: Sequence[Applied]) -> None:
        for end in applied:
            if end.worker is not None:
                _settle(self._handed.get(end.worker), end)
            else:
                _settle(self._replies.get(end.command.id), end)
            for effect in end.effects:
                if isinstance(effect, EventThrown):
                    self._wake_thrown(end.command.tenant, run_path(effect.event.id.wf_run_id))

    def note_moved(self) -> None:
        """Called by the thread that opens partitions: whoever waits for an event looks where it comes from now."""
        assert self._loop is not None, "begun"
        for run in tuple(self._thrown):
            self._loop.call_soon_threadsafe(self._wake_thrown, *run)

    def _wake_thrown(self, tenant: str, run: str) -> None:
        for event in self._thrown.get((tenant, run), ()):
            event.set()

    async def thrown(
        self, tenant: str, run: str, fits: Callable[[WorkflowEvent], bool], seconds: float
    ) -> WorkflowEvent | None:  # fmt: skip
        """The first event of a run that is wanted, thrown already or within some seconds; None after that."""
        signal = asyncio.Event()
        signals = self._thrown.setdefault((tenant, run), set())
        signals.add(signal)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    signal.clear()
                    event = await self.read(tenant, lambda rows: _first(rows, run, fits))
                    if event is not None:
                        return event
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._look_again_seconds(tenant, run)):
                            await signal.wait()
        except TimeoutError:
            return None
        finally:
            signals.discard(signal)
            if not signals:
                self._thrown.pop((tenant, run), None)

    def _look_again_seconds(self, tenant: str, run: str) -> float | None:
        """The time after which whoever waits for an event of a run looks again: None, if it is known here at once."""
        number = partition_of_row(tenant, WorkflowEvent, (run,), self.partitions.count)
        return None if self.partitions.is_here(number) else _LOOK_SECONDS


def _partitions_of(node: Node, service: WorkflowService) -> Partitions:
    if node.bucket is not None:
        from millpond.server.workflows.shared.bucket import BucketPartitions

        return BucketPartitions(node, service)
    if node.settings.workflows.log:
        from millpond.server.workflows.shared.kafka import TopicPartitions

        return TopicPartitions(node, service)
    return OwnPartition(node, service)


def _elsewhere(number: int) -> Elsewhere:
    return Elsewhere("the partition is not here", partition=number, hint="ask its owner")


def _settle(future: asyncio.Future[Message | None] | None, end: Applied) -> None:
    if future is None or future.done():
        return
    if end.error is not None:
        future.set_exception(end.error)
    else:
        future.set_result(end.reply)


def _first(rows: ReadRows, run: str, fits: Callable[[WorkflowEvent], bool]) -> WorkflowEvent | None:
    events = [event for _, event in rows.list(WorkflowEvent, (run,)) if fits(event)]
    return min(events, key=lambda event: (event.created_at.ToNanoseconds(), event.id.number), default=None)
