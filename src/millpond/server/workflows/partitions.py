"""The partitions of a node's workflows, of which a process owns some or all.

| place | partitions | owner |
|---|---|---|
| the space of one folder | one, whose log is in the write of its rows | this process, from the first call on |
| a topic, a bucket: `shared` | those of the log | as the group of its processes says |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.errors import Conflict
from millpond.server.workflows.event_publisher import teller_of
from millpond.server.workflows.output_relay import relay_of
from millpond.workflows.partitions import METADATA
from millpond.workflows.processor import Processor, ReadRows, read_rows
from millpond.workflows.store.initialization import LEGACY_LOG, initialization

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from millpond.kernel.space import Space
    from millpond.nodes.node import Node
    from millpond.server.workflows.looking import Looking
    from millpond.server.workflows.outbox import Outbox
    from millpond.server.workflows.service import WorkflowService

    T = TypeVar("T")

__all__ = ("OwnPartition", "Partitions")


class Partitions(ABC):
    """The partitions of a log, and the processors of those that this process owns. Opened and closed in a thread."""

    count, shared, needed = 1, False, False
    """`shared`: other processes call this one; `needed`: a node that cannot open them does not begin."""
    move_seconds = 20.0
    """The time that a call waits for a partition that moves: longer than a killed owner is missed."""
    lookings: Sequence[Looking] = ()
    """Looks that go on while they are open."""

    def __init__(self, node: Node, service: WorkflowService) -> None:
        self._node, self._service = node, service
        self.owned: Mapping[int, Processor] = {}

    @abstractmethod
    def has_runs(self) -> bool:
        """True when there is something to go on with before anybody calls."""

    @abstractmethod
    def open(self) -> None:
        """Begin to own some."""

    @abstractmethod
    def close(self) -> None:
        """Own none any more: shared ones are given back before calls end, others are closed behind the last call."""

    def owner(self, number: int) -> str | None:
        """The address of a partition's owner, as it was known a moment ago."""
        del number
        return None

    def is_here(self, number: int) -> bool:
        """True for a partition that is read here."""
        return number in self.owned

    def local(self, number: int, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads a tenant's rows in a partition that is here."""
        return read_rows(self.owned[number], tenant, act)

    def hosts(self) -> list[str]:
        """The addresses that workers poll: the processes with tasks of their own."""
        return [self._service.address]

    def members(self) -> list[str]:
        """The addresses of all processes that serve these workflows."""
        return self.hosts()


class OwnPartition(Partitions):
    """The one partition of a node that shares nothing."""

    def has_runs(self) -> bool:
        """True for runs, also those of the legacy layout, and for a store of their own; never on a replica."""
        if self._node.role == "replica":
            return False
        with self._node.pond.space.read() as tx:
            is_there = initialization(tx) is not None or tx.get(LEGACY_LOG) is not None
        return is_there or self._node.settings.workflows.store != "pond"

    def open(self) -> None:
        """Begin the processor, and the outboxes of what it writes.

        Raises: `Conflict`, kind `not_primary`, on a replica: workflows live in the folder of one node; or
            `workflows_place`.
        """
        node, service, settings = self._node, self._service, self._node.settings.workflows
        if node.role == "replica":
            raise Conflict("workflows are served by the primary", kind="not_primary", node=node.url,
                           hint="call the primary: millpond node status")  # fmt: skip
        space = self._find_space()
        processor = Processor(
            space, node.clock, service.pass_on, service.workers, service.measures, stories=settings.events,
            outputs=bool(settings.output),
        )  # fmt: skip
        self._outboxes: list[Outbox[Any]] = []
        if settings.output:
            with space.read() as tx:
                newest = processor.partition.log.head(tx).position
            dropped = service.outputs_dropped.add
            self._outboxes.append(relay_of(settings, METADATA, space, node.clock, newest=newest, dropped=dropped))
        # Also when it was turned off since: what waits is told, and its rows are gone then.
        append, dropped = node.events.volumes.of("workflows"), service.stories_dropped.add
        self._outboxes.append(teller_of(space, node.clock, append, dropped=dropped))
        for outbox in self._outboxes:
            processor.written.listeners.append(outbox.wake)
            outbox.start()
        processor.start()
        self.owned = {METADATA: processor}

    def close(self) -> None:
        """Let the processor end; commands that wait get an error."""
        processor, self.owned = self.owned[METADATA], {}
        processor.stop()
        while self._outboxes:
            self._outboxes.pop().stop()
        if processor.space is not self._node.pond.space:
            processor.space.close()

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


def _rocks_space(folder: Path) -> Space:
    from millpond.stores.rocksdb.space import RocksSpace

    return RocksSpace(folder)


def _elsewhere(store: str) -> Conflict:
    return Conflict("the runs of this pond are in another store", kind="workflows_place", store=store,
                    hint=f"set workflows.store to {store}, or serve another folder")  # fmt: skip
