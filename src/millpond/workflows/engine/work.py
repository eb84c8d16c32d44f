"""Work: all that one command has read, written and caused so far. It is dropped when the command fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from littlehorse.model import MetadataStatus, WfSpec

from millpond.workflows.engine.commands import Command, Request, derived_id
from millpond.workflows.engine.keys import Key
from millpond.workflows.engine.limits import INSTANT_MS_MAX
from millpond.workflows.engine.outcome import Effect, Outcome, TimerCancelled, TimerSet
from millpond.workflows.engine.rows import Overlay, Rows

__all__ = (
    "Work",
    "instant",
    "copied",
    "is_retired",
    "newest_spec",
    "find_spec",
)

M = TypeVar("M", bound=Message)


class Work:
    """The overlay of one command, its instant, its ids and its effects."""

    def __init__(self, rows: Rows, command: Command, now: int) -> None:
        self.rows = Overlay(rows)
        self.now = now
        self._instant: Timestamp | None = None
        self.child_runs_started = 0
        self.ahead: list[tuple[str, list[int] | None]] = []
        self._seed = command.id
        self._ids = 0
        self._effects: list[Effect] = []

    def forget(self) -> None:
        """Forget all that was read, written and caused, as if the command began now."""
        self.rows = Overlay(self.rows.below)
        self.ahead.clear()
        self._effects.clear()

    def instant(self) -> Timestamp:
        """The instant of the command as a message, for others to copy."""
        if self._instant is None:
            self._instant = instant(self.now)
        return self._instant

    def new_id(self) -> str:
        """An id that no other command makes, and this one makes at every replay."""
        self._ids += 1
        return derived_id(self._seed, self._ids)

    def cause(self, effect: Effect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def set_timer(self, name: Key, at: int, request: Request) -> None:
        """Set a timer, in place of the one with its name.

        A delay may be any number of a client's; an instant is one that a key of 64 bits can hold.
        """
        self.cause(TimerSet(name, min(max(at, 0), INSTANT_MS_MAX), request))

    def cancel_timer(self, name: Key) -> None:
        self.cause(TimerCancelled(name))

    def outcome(self, reply: Message | None) -> Outcome:
        """The outcome of the command."""
        return Outcome(self.rows.writes(), tuple(self._effects), reply)


def instant(ms: int) -> Timestamp:
    """An instant as a message."""
    return Timestamp(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def copied(row: M) -> M:
    """A message of its own with the same content."""
    copy = type(row)()
    copy.CopyFrom(row)
    return copy


def is_retired(row: Message) -> bool:
    """True for a specification that was deleted: the runs that began with it have it still, and nobody else."""
    return isinstance(row, WfSpec) and row.status == MetadataStatus.ARCHIVED


def newest_spec(specs: Iterable[WfSpec]) -> WfSpec | None:
    """The specification with the greatest version, or None."""
    return max(specs, key=lambda spec: (spec.id.major_version, spec.id.revision), default=None)


def find_spec(work: Work, name: str, major: int | None = None, revision: int | None = None) -> WfSpec | None:
    """The newest specification with a name that may be used, of the given version as far as one is given."""
    if major is not None and revision is not None:
        exact = work.rows.get(WfSpec, (name, major, revision))
        return None if exact is None or is_retired(exact) else exact
    listed = work.rows.list(WfSpec, (name,) if major is None else (name, major))
    return newest_spec(spec for spec in listed if not is_retired(spec))
