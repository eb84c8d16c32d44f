"""Workflows of a node: the processor, the queues of tasks, and those who wait for events, behind gRPC.

    begin ─▶ processor starts ─▶ … ─▶ no new commands ─▶ processor ends

Invariants:
* all that callers wait for lives in the event loop; the processor's thread passes on what it applied, in order;
* nothing is begun before somebody calls: a node that serves maps alone has no processor.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyio.to_thread import run_sync
from littlehorse.model import WorkflowEvent

from millpond.errors import Conflict, Invalid
from millpond.kernel.space import WouldBlock
from millpond.workflows.engine import EventThrown, TaskQueued, run_path
from millpond.workflows.processor import Applied, Processor, ReadRows
from millpond.workflows.processor.rows import queued_after
from millpond.workflows.tasks.queues import Place, TaskQueues

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from google.protobuf.message import Message

    from millpond.nodes.node import Node
    from millpond.workflows.engine import Request

    T = TypeVar("T")

__all__ = ("DEFAULT_TENANT", "WorkflowService", "check_tenant")

DEFAULT_TENANT = "default"
_TENANT = re.compile(r"[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?")


def check_tenant(name: str) -> str:
    """The name of a tenant, as it came.

    >>> check_tenant("etl")
    'etl'

    Raises: `Invalid`.
    """
    if len(name) > 100 or not _TENANT.fullmatch(name):
        raise Invalid("not a name of a tenant", kind="tenant_name", tenant=name[:100],
                      hint="use a letter, then letters, digits and inner hyphens")  # fmt: skip
    return name


class WorkflowService:
    """The workflows of one node. Use it from the event loop that `begin` was called in."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._processor: Processor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beginning = asyncio.Lock()
        self.queues = TaskQueues(self._queued)
        self._thrown: dict[tuple[str, str], set[asyncio.Event]] = {}

    async def begin(self) -> Processor:
        """The processor, begun with the first call.

        Raises: `Conflict`, kind `not_primary`, on a replica: workflows live in the folder of one node.
        """
        async with self._beginning:
            if self._processor is None:
                if self._node.role == "replica":
                    raise Conflict("workflows are served by the primary", kind="not_primary", node=self._node.url,
                                   hint="call the primary: millpond node status")  # fmt: skip
                self._loop = asyncio.get_running_loop()
                space, clock = self._node.pond.space, self._node.clock
                processor = await run_sync(lambda: Processor(space, clock, self._pass_on))
                processor.start()
                self._processor = processor
        return self._processor

    async def end(self) -> None:
        """Let the processor end; commands that wait get an error."""
        async with self._beginning:
            if self._processor is not None:
                await run_sync(self._processor.stop)
                self._processor = None

    async def submit(self, tenant: str, request: Request) -> Message | None:
        """The reply of a request, once it is applied and durable.

        Raises: as `Processor.submit`.
        """
        processor = self._processor or await self.begin()
        return await asyncio.wrap_future(processor.submit(tenant, request))

    async def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a tenant's rows, in a thread."""
        processor = self._processor or await self.begin()

        def reading() -> T:
            with self._node.pond.space.read() as tx:
                return act(processor.partition.reads(tx, tenant))

        return await run_sync(reading)

    async def get(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a row or two: at once, unless the space is being moved."""
        processor = self._processor or await self.begin()
        try:
            with self._node.pond.space.read(wait=False) as tx:
                return act(processor.partition.reads(tx, tenant))
        except WouldBlock:
            return await self.read(tenant, act)

    async def _queued(
        self, tenant: str, definition: str, after: Place | None, limit: int
    ) -> list[tuple[Place, str, str]]:  # fmt: skip
        def reading() -> list[tuple[Place, str, str]]:
            with self._node.pond.space.read() as tx:
                return queued_after(tx, tenant, definition, after, limit)

        return await run_sync(reading)

    # -- what follows from commands -------------------------------------------------------------------

    def _pass_on(self, applied: Sequence[Applied]) -> None:
        """Called by the processor's thread."""
        if self._loop is not None and any(end.effects for end in applied):
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._follow, applied)

    def _follow(self, applied: Sequence[Applied]) -> None:
        for end in applied:
            for effect in end.effects:
                match effect:
                    case TaskQueued():
                        self.queues.queued(end.tenant, effect.task_def_id.name)
                    case EventThrown():
                        run = run_path(effect.event.id.wf_run_id)
                        for event in self._thrown.get((end.tenant, run), ()):
                            event.set()

    async def thrown(
        self, tenant: str, run: str, wanted: Callable[[WorkflowEvent], bool], seconds: float
    ) -> WorkflowEvent | None:  # fmt: skip
        """The first event of a run that is wanted, thrown already or within some seconds; None after that."""
        signal = asyncio.Event()
        signals = self._thrown.setdefault((tenant, run), set())
        signals.add(signal)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    signal.clear()
                    found = await self.read(tenant, lambda rows: _first(rows, run, wanted))
                    if found is not None:
                        return found
                    await signal.wait()
        except TimeoutError:
            return None
        finally:
            signals.discard(signal)
            if not signals:
                self._thrown.pop((tenant, run), None)


def _first(rows: ReadRows, run: str, wanted: Callable[[WorkflowEvent], bool]) -> WorkflowEvent | None:
    found = [event for _, event in rows.list(WorkflowEvent, (run,)) if wanted(event)]
    return min(found, key=lambda event: (event.created_at.ToNanoseconds(), event.id.number), default=None)
