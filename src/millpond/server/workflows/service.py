"""Workflows of a node: the processor, the queues of tasks, and those who wait for events, behind gRPC.

    begin ─▶ processor starts ─▶ … ─▶ no new commands ─▶ processor ends

Invariants:
* all that callers wait for lives in the event loop; the processor's thread passes on what it applied, in order;
* nothing is begun before somebody calls: a node that serves maps alone has no processor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
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

from millpond.errors import Conflict, Invalid
from millpond.kernel.space import Space, WouldBlock
from millpond.server.wire import stopping
from millpond.server.workflows.access import Access
from millpond.server.workflows.data_watch import DataWatch, at_cursor
from millpond.server.workflows.event_publisher import teller_of
from millpond.server.workflows.lost_workers import LostWorkers
from millpond.server.workflows.outbox import Outbox, Tally
from millpond.server.workflows.output_relay import relay_of
from millpond.server.workflows.registrations import Registrations
from millpond.workflows.engine import EventThrown, Request, run_path
from millpond.workflows.processor import Applied, Measures, Processor, ReadRows, read_rows
from millpond.workflows.store.initialization import LEGACY_LOG, initialization
from millpond.workflows.tasks.progress import Progresses
from millpond.workflows.tasks.queues import Worker, Workers

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message

    from millpond.nodes.node import Node
    from millpond.server.rpc.threads import CallThreads

    T = TypeVar("T")

__all__ = ("WorkflowService", "changes_cluster")

OWN = 0
"""The number of the partition of a pond that shares nothing."""
ONE_REQUEST_SECONDS = 0.1
"""A client that sends one request, and no other, has closed its side within twice this time."""
_OF_CLUSTER = (PutTenantRequest, PutPrincipalRequest, DeletePrincipalRequest, PutQuotaRequest, DeleteQuotaRequest)


def changes_cluster(applied: Applied) -> bool:
    """True for the end of a command that may have changed a tenant, a principal or a quota."""
    return isinstance(applied.command.request, _OF_CLUSTER)


class WorkflowService:
    """The workflows of one node. Use it from the event loop that `begin` was called in."""

    def __init__(self, node: Node, threads: CallThreads) -> None:
        self._node, self.url, self.clock, self._threads = node, node.url, node.clock, threads
        self._outboxes: list[Outbox[Any]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beginning = asyncio.Lock()
        self.workers = Workers()
        self.members: Callable[[], list[str]] = self.hosts
        """The addresses of all processes that serve these workflows; `hosts` are those with tasks of their own."""
        self.stories_dropped, self.outputs_dropped = Tally(), Tally()
        self.registered = Registrations(node.clock)
        self.lost = LostWorkers(self)
        self.progress = Progresses(node.clock)
        self.data = DataWatch(self, node.pond)
        self.cluster_version = 0
        """A number that grows with each change of tenants, principals and quotas."""
        self.processors: dict[int, Processor] = {}
        """The processors of the partitions that this process owns: one, by default, from the first call on."""
        self.measures = Measures()
        self.access = Access(self, node.clock)
        self._replies: dict[str, asyncio.Future[Message | None]] = {}
        self._handed: dict[Worker, asyncio.Future[Message | None]] = {}
        self._released = False
        self._thrown: dict[tuple[str, str], set[asyncio.Event]] = {}

    async def begin(self) -> Processor:
        """The processor, begun with the first call.

        Raises: `Conflict`, kind `not_primary`, on a replica: workflows live in the folder of one node.
        """
        async with self._beginning:
            if not self.processors:
                if self._node.role == "replica":
                    raise Conflict("workflows are served by the primary", kind="not_primary", node=self._node.url,
                                   hint="call the primary: millpond node status")  # fmt: skip
                self._loop = asyncio.get_running_loop()
                self.processors[OWN] = await run_sync(self._open)
                self.data.looking.begin()
        return self.processors[OWN]

    def _open(self) -> Processor:
        space, settings = self._find_space(), self._node.settings.workflows
        processor = Processor(
            space, self.clock, self._pass_on, self.workers, self.measures, stories=settings.events,
            outputs=bool(settings.output),
        )  # fmt: skip
        if settings.output:
            with space.read() as tx:
                newest = processor.partition.log.head(tx).position
            relay = relay_of(settings, OWN, space, self.clock, newest=newest, dropped=self.outputs_dropped.add)
            self._outboxes.append(relay)
        # Also when it was turned off since: what waits is told, and its rows are gone then.
        append, dropped = self._node.events.volumes.of("workflows"), self.stories_dropped.add
        self._outboxes.append(teller_of(space, self.clock, append, dropped=dropped))
        for outbox in self._outboxes:
            processor.written.listeners.append(outbox.wake)
            outbox.start()
        processor.start()
        return processor

    def _find_space(self) -> Space:
        pond = self._node.pond
        folder = pond.folder / "workflows"
        if self._node.settings.workflows.store == "pond":
            if folder.exists():
                raise _elsewhere("rocksdb")
            return pond.space
        with pond.space.read() as tx:
            if initialization(tx) is not None:
                raise _elsewhere("pond")
        return _rocks_space(folder)

    async def resume(self) -> None:
        """Begin if there are runs already: their timers go on, and what was legacy moves."""
        if self._node.role == "replica":
            return
        with self._node.pond.space.read() as tx:
            is_there = initialization(tx) is not None or tx.get(LEGACY_LOG) is not None
        if is_there or self._node.settings.workflows.store != "pond":
            await self.begin()

    async def join(self) -> None:
        """Take part in what processes share: nothing, here."""

    async def leave(self) -> None:
        """Give back what processes share, and let workers go that wait for a task, before other calls end."""
        self._released = True
        for worker, task in self._handed.items():
            if self.workers.withdraw(worker) and not task.done():  # else its task is claimed, and comes in a moment
                task.set_exception(stopping())

    async def end(self) -> None:
        """Let the processor end; commands that wait get an error."""
        await self.lost.looking.end()
        await self.data.looking.end()
        async with self._beginning:
            if self.processors:
                processor = self.processors.pop(OWN)
                await run_sync(processor.stop)
                while self._outboxes:
                    await run_sync(self._outboxes.pop().stop)
                if processor.space is not self._node.pond.space:
                    await run_sync(processor.space.close)

    async def submit(self, tenant: str, request: Request) -> Message | None:
        """The reply of a request, once it is applied and durable.

        Raises: as `Processor.submit`; `Invalid` for topics of output where no brokers are named.
        """
        self._refuse_topics(request)
        if isinstance(request, ScheduleWfRequest):
            request = await self._placed(request)
        return await self._posted(await self._own(), tenant, request)

    def _refuse_topics(self, request: Request) -> None:
        if isinstance(request, PutTenantRequest) and request.HasField("output_topic_config") and not self._has_output:
            raise Invalid("no brokers are named for topics of output", kind="output_topics", tenant=request.id,
                          hint="set workflows.output, or leave output_topic_config out")  # fmt: skip

    async def _placed(self, request: ScheduleWfRequest) -> ScheduleWfRequest:
        """A schedule at its place: what waits for data begins behind what is there now."""
        return await self._threads.change(lambda: at_cursor(self._node.pond, request))

    @property
    def _has_output(self) -> bool:
        return bool(self._node.settings.workflows.output)

    async def _own(self) -> Processor:
        return self.processors.get(OWN) or await self.begin()

    async def _posted(self, processor: Processor, tenant: str, request: Request) -> Message | None:
        command = processor.post(tenant, request)
        reply: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        self._replies[command] = reply
        try:
            return await reply
        finally:
            self._replies.pop(command, None)

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
        if not self.processors:
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

    def hosts(self) -> list[str]:
        """The addresses that workers poll: this node, as others reach it."""
        settings = self._node.settings
        return [f"{urlsplit(self._node.url).hostname or settings.server.host}:{settings.server.grpc_port}"]

    async def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a tenant's rows, in a thread."""
        processor = await self._own()
        return await self._threads.ask(lambda: read_rows(processor, tenant, act))

    async def get(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a row or two: at once, unless the space is being moved."""
        try:
            return read_rows(await self._own(), tenant, act, wait=False)
        except WouldBlock:
            return await self.read(tenant, act)

    # -- what follows from commands -------------------------------------------------------------------

    def _pass_on(self, applied: Sequence[Applied]) -> None:
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
        del tenant, run
        return None


def _rocks_space(folder: Path) -> Space:
    from millpond.stores.rocksdb.space import RocksSpace

    return RocksSpace(folder)


def _elsewhere(store: str) -> Conflict:
    return Conflict("the runs of this pond are in another store", kind="workflows_place", store=store,
                    hint=f"set workflows.store to {store}, or serve another folder")  # fmt: skip


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
