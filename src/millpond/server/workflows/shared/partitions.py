"""The partitions of a log that several processes share, as one of them has them: metadata, and those it owns.

Invariants:
* partition 0, the metadata, is read here whoever owns it;
* a process that ends gives its partitions back before it leaves the group: nothing is appended for them afterwards.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from millpond.errors import Uncertain
from millpond.server.workflows.event_publisher import teller_of
from millpond.server.workflows.output_relay import relay_of
from millpond.server.workflows.partitions import Partitions
from millpond.server.workflows.shared.ownership import Ownership
from millpond.workflows.partitions import METADATA, Checkpoints, Follower
from millpond.workflows.partitions.entries import OutputEntry, StoryEntry
from millpond.workflows.processor import ReadRows, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from millpond.server.workflows.outbox import Outbox
    from millpond.workflows.logs import CommandLog

    T = TypeVar("T")

__all__ = ("Group", "SharedParts", "SharedPartitions")

CHECKPOINT_SECONDS = 300.0
"""The time between two checkpoints of a partition that changes."""
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


class SharedPartitions(Partitions):
    """The partitions of a log of several processes."""

    shared = True

    @abstractmethod
    def _open_parts(self) -> SharedParts:
        """The log, and what belongs to it."""

    def open(self) -> None:
        """Open the log, follow the metadata, join the group.

        Raises: `Unavailable` when the log or the checkpoints cannot be reached; as `open_store`.
        """
        service = self._service
        self._log, self._group, checkpoints, folder = self._open_parts()
        self._ownership = Ownership(
            self._log, folder, checkpoints, self._node.clock, assigned=lambda: self._group.own,
            passed_on=service.pass_on, workers=service.workers, measures=service.measures, interval=CHECKPOINT_SECONDS,
            stories=self._node.settings.workflows.events, outboxes=self._outboxes_of,
        )  # fmt: skip
        self._ownership.changed.listeners.append(service.note_moved)
        self.owned, self.count = self._ownership.owned, self._log.partitions
        self._ownership.start()
        self._group.start()

    def _outboxes_of(self, number: int, follower: Follower) -> list[Outbox[Any]]:
        node, service, settings = self._node, self._service, self._node.settings.workflows
        relay = relay_of(
            settings, number, follower.space, node.clock, dropped=service.outputs_dropped.add,
            ended=lambda position, dropped: follower.note(OutputEntry(*position), wait=dropped),
        )  # fmt: skip
        if not settings.events:
            return [relay]
        return [relay, teller_of(
            follower.space, node.clock, node.events.volumes.of("workflows"), dropped=service.stories_dropped.add,
            ended=lambda position, dropped: follower.note(StoryEntry(*position, dropped), wait=dropped),
        )]  # fmt: skip

    def close(self) -> None:
        """Give all partitions back: the other processes have them a moment later."""
        self._ownership.stop()
        self._log.close()
        # Last: what was appended here is in the log, and nothing more can be, when the next owner hears of it.
        self._group.stop()

    def owner(self, number: int) -> str | None:
        """See `Partitions`."""
        return self._group.owner(number)

    def is_here(self, number: int) -> bool:
        """See `Partitions`."""
        return number == METADATA or number in self.owned

    def local(self, number: int, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """See `Partitions`.

        Raises: `Uncertain`, kind `partition_moving`; `Unavailable`, kind `partition_behind`.
        """
        follower = self._ownership.metadata if number == METADATA else self._ownership.owned.get(number)
        if follower is None:
            raise Uncertain("the partition moved while it was read", kind="partition_moving", partition=number,
                            hint="read again")  # fmt: skip
        follower.wait_until(self._log.end(number), _BEHIND_SECONDS)
        return read_rows(follower, tenant, act)
