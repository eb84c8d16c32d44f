"""Workflows on partitions that several processes share: commands and reads go where their partition is.

    call ─▶ partition ─▶ owned here: the log, then its follower
                     └─▶ owned elsewhere: its owner, over gRPC
            metadata ─▶ partition 0, of which every process has all rows

Invariants:
* a command is appended by its partition's owner, once: it is sent to another process again only if nothing was done;
* a command or a read that comes while a partition moves waits for it, up to `move_seconds`.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from anyio.to_thread import run_sync
from littlehorse.model import ScheduleWfRequest, WorkflowEvent

from millpond.errors import Unavailable, Uncertain
from millpond.kernel.keys import encode
from millpond.server.routes.table import On
from millpond.server.rpc.dispatch import Call, Row, Service, method
from millpond.server.workflows.access import need_tenant
from millpond.server.workflows.event_publisher import teller_of
from millpond.server.workflows.outbox import Outbox
from millpond.server.workflows.output_relay import relay_of
from millpond.server.workflows.registrations import Registrations
from millpond.server.workflows.service import WorkflowService
from millpond.server.workflows.shared.ownership import Ownership
from millpond.server.workflows.shared.peers import METHODS, SERVICE, Elsewhere, Peers
from millpond.server.workflows.shared.rows import SharedRows, answer
from millpond.server.workflows.shared.wire import parts_of, reply_from, reply_to
from millpond.workflows.partitions import METADATA, Checkpoints, Follower, completed, partition_of_request
from millpond.workflows.partitions.entries import OutputEntry, StoryEntry
from millpond.workflows.partitions.routing import partition_of_row
from millpond.workflows.processor import Processor, ReadRows, read_rows
from millpond.workflows.processor.codec import decode_request, encode_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from google.protobuf.message import Message

    from millpond.nodes.node import Node
    from millpond.server.rpc.threads import CallThreads
    from millpond.workflows.engine import Request
    from millpond.workflows.logs import CommandLog

__all__ = ("Group", "SharedParts", "SharedWorkflows", "peer_methods")

T = TypeVar("T")
CHECKPOINT_SECONDS = 300.0
"""The time between two checkpoints of a partition that changes."""
_PAUSE_SECONDS = 0.1
_LOOK_SECONDS = 0.25
_BEHIND_SECONDS = 10.0


class Group(Protocol):
    """The processes that share partitions, as one of them sees it."""

    @property
    def own(self) -> frozenset[int]:
        """The partitions of this process."""

    def owner(self, partition: int) -> str | None:
        """The address of a partition's owner, as it was known a moment ago."""

    def start(self) -> None:
        """Take part."""

    def stop(self) -> None:
        """Take part no more: the others get the partitions."""


class SharedParts(NamedTuple):
    """A log, who of its processes owns what, the checkpoints of its partitions, and the folder of their stores here."""

    log: CommandLog
    group: Group
    checkpoints: Checkpoints
    folder: Path


class SharedWorkflows(WorkflowService):
    """The workflows of one process of several. Use it from the event loop that `join` was called in."""

    move_seconds = 20.0
    """The time that a call waits for a partition that moves: longer than a killed owner is missed."""

    def __init__(self, node: Node, threads: CallThreads) -> None:
        super().__init__(node, threads)
        settings = node.settings
        host = urlsplit(node.url).hostname or settings.server.host
        self.address = f"{host}:{settings.server.grpc_port}"
        self._peers = Peers(settings)
        self.registered = Registrations(node.clock, self._ask_others)
        self._for_peers = {"Submit": self._submitted, "Rows": self._rows_for, "Workers": self.registered.for_peer}

    async def resume(self) -> None:
        """Nothing: to `join` is to go on."""

    async def join(self) -> None:
        """Open the log, follow the metadata, join the group.

        Raises: `Unavailable` when the log or the checkpoints cannot be reached; as `open_store`.
        """
        self._loop = asyncio.get_running_loop()
        await run_sync(self._open_log)
        self._ownership.start()
        self._group.start()
        self.data.looking.begin()

    @abstractmethod
    def _open_parts(self) -> SharedParts:
        """The log, and what belongs to it."""

    def _open_log(self) -> None:
        node, settings = self._node, self._node.settings
        parts = self._open_parts()
        self._log, self._group = parts.log, parts.group
        self._ownership = Ownership(
            parts.log, parts.folder, parts.checkpoints,
            node.clock, assigned=lambda: self._group.own, passed_on=self._pass_on, workers=self.workers,
            measures=self.measures, interval=CHECKPOINT_SECONDS,
            stories=settings.workflows.events, outboxes=self._outboxes_of,
        )  # fmt: skip
        self._ownership.changed.listeners.append(self._note_moved)
        self.processors = cast("dict[int, Processor]", self._ownership.owned)

    @property
    def _has_output(self) -> bool:
        settings = self._node.settings.workflows
        return bool(settings.output or settings.log)

    def _outboxes_of(self, number: int, follower: Follower) -> list[Outbox[Any]]:
        node, settings = self._node, self._node.settings.workflows
        relay = relay_of(
            settings, number, follower.space, node.clock, dropped=self.outputs_dropped.add,
            ended=lambda place, dropped: follower.note(OutputEntry(*place), wait=dropped),
        )  # fmt: skip
        if not settings.events:
            return [relay]
        return [relay, teller_of(
            follower.space, node.clock, node.events.volumes.of("workflows"), dropped=self.stories_dropped.add,
            ended=lambda place, dropped: follower.note(StoryEntry(*place, dropped), wait=dropped),
        )]  # fmt: skip

    def _note_moved(self) -> None:
        """Called by the thread that opens partitions: whoever waits for an event looks where it comes from now."""
        assert self._loop is not None, "begun"
        for run in tuple(self._thrown):
            self._loop.call_soon_threadsafe(self._wake_thrown, *run)

    async def begin(self) -> None:  # type: ignore[override]
        """Nothing: `join` began it."""

    async def leave(self) -> None:
        """Give all partitions back, in order: the other processes have them a moment later."""
        await run_sync(self._give_back)
        await super().leave()

    def _give_back(self) -> None:
        self._ownership.stop()
        self._log.close()
        # Last: what was appended here is in the log, and nothing more can be, when the next owner hears of it.
        self._group.stop()

    async def end(self) -> None:
        """End the calls to other processes."""
        await self.lost.looking.end()
        await self.data.looking.end()
        await self._peers.close()

    async def _ask_others(self, request: bytes) -> list[bytes]:
        """The answers of the other processes about the workers of a task."""

        async def ask(address: str) -> bytes:
            try:
                return await self._peers.call(address, "Workers", request)
            except (Unavailable, Uncertain):  # it has ended: its workers register elsewhere, within a minute
                return b""

        return await asyncio.gather(*(ask(address) for address in self.members() if address != self.address))

    # -- commands -------------------------------------------------------------------------------------

    async def submit(self, tenant: str, request: Request) -> Message | None:
        """The reply of a request, from the owner of its partition.

        Raises: as `Follower.submit`; `Unavailable`, kind `partition_moving`; as the owner answers.
        """
        self._refuse_topics(request)
        if isinstance(request, ScheduleWfRequest):
            request = await self._placed(request)
        whole = completed(request, lambda: self._node.clock.random_id() + self._node.clock.random_id())
        number = partition_of_request(tenant, whole, self._log.partitions)

        async def here(follower: Follower) -> Message | None:
            return await self._posted(follower, tenant, whole)

        async def there(address: str) -> Message | None:
            data = encode((number, tenant, encode_request(whole)))
            return reply_from(await self._peers.call(address, "Submit", data))

        return await self._where(number, here, there)

    async def for_peer(self, method: str, data: bytes) -> bytes:
        """The answer to another process.

        Raises: `Elsewhere`: the partition is not here; as `submit`, and as `read`.
        """
        return await self._for_peers[method](data)

    async def _submitted(self, data: bytes) -> bytes:
        """The reply to a command that another process sent.

        Raises: `Elsewhere`: the partition is not here.
        """
        number, tenant, request = parts_of(data)
        follower = self._ownership.owned.get(number)
        if follower is None:
            raise Elsewhere("the partition is not here", partition=number, hint="ask its owner")
        return reply_to(await self._posted(follower, tenant, decode_request(request)))

    async def _where(
        self, number: int, here: Callable[[Follower], Awaitable[T]], there: Callable[[str], Awaitable[T]]
    ) -> T:
        """The result of a function of the partition's follower, or of its owner's address."""
        until = self._node.clock.monotonic() + self.move_seconds
        while True:
            follower = self._ownership.owned.get(number)
            if follower is not None:
                return await here(follower)
            owner = self._group.owner(number)
            if owner is not None and owner != self.address:
                try:
                    return await there(owner)
                except Elsewhere:
                    pass
            if self._node.clock.monotonic() > until or self._node.stopping:
                raise Unavailable("the partition is moving to another process", kind="partition_moving",
                                  partition=number, hint="send it again in a moment")  # fmt: skip
            await asyncio.sleep(_PAUSE_SECONDS)

    # -- reads ----------------------------------------------------------------------------------------

    async def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a tenant's rows, in a thread."""
        rows = SharedRows(tenant, self._log.partitions, self._is_here, self._local, self._remote)
        return await self._threads.change(lambda: act(cast("ReadRows", rows)))  # it waits for other processes

    async def get(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a row or two."""
        return await self.read(tenant, act)

    def _look_again_seconds(self, tenant: str, run: str) -> float | None:
        number = partition_of_row(tenant, WorkflowEvent, (run,), self._log.partitions)
        return None if self._is_here(number) else _LOOK_SECONDS

    def _is_here(self, number: int) -> bool:
        return number == METADATA or number in self._ownership.owned

    def _local(self, number: int, tenant: str, act: Callable[[ReadRows], Any]) -> Any:
        follower = self._ownership.metadata if number == METADATA else self._ownership.owned.get(number)
        if follower is None:
            raise Uncertain("the partition moved while it was read", kind="partition_moving", partition=number,
                            hint="read again")  # fmt: skip
        follower.wait_until(self._log.end(number), _BEHIND_SECONDS)
        return read_rows(follower, tenant, act)

    def _remote(self, number: int, tenant: str, request: bytes) -> bytes:
        async def here(follower: Follower) -> bytes:
            del follower
            return await self._answered(number, tenant, request)

        async def there(address: str) -> bytes:
            return await self._peers.call(address, "Rows", encode((number, tenant, request)))

        assert self._loop is not None, "begun"
        return asyncio.run_coroutine_threadsafe(self._where(number, here, there), self._loop).result()

    async def _answered(self, number: int, tenant: str, request: bytes) -> bytes:
        return await run_sync(lambda: self._local(number, tenant, lambda rows: answer(rows, parts_of(request))))

    async def _rows_for(self, data: bytes) -> bytes:
        """The rows that another process wants of a partition.

        Raises: `Elsewhere`: the partition is not here.
        """
        number, tenant, request = parts_of(data)
        if not self._is_here(number):
            raise Elsewhere("the partition is not here", partition=number, hint="ask its owner")
        return await self._answered(number, tenant, request)


_PEER = method("admin", On.TENANT)


def peer_methods(workflows: SharedWorkflows) -> Service[SharedWorkflows]:
    """The methods by which the processes of one group call one another."""
    return Service(SERVICE, "workflows", workflows, {name: Row(None, _for_peer, _PEER) for name in METHODS})


async def _for_peer(call: Call[SharedWorkflows], data: bytes) -> bytes:
    need_tenant(call.caller, call.right, str(parts_of(data)[1]))
    return await call.service.for_peer(call.method, data)
