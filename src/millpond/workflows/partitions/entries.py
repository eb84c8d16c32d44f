"""Entries of a partition's log, as bytes: commands, timers that fired, commands of other partitions, what was sent,
told or written.

    "command"  tenant  id  ms  request
    "timer"    tenant  ms  instant  name…
    "caused"   partition  number  tenant  id  ms  request
    "sent"     position  number
    "story"    position  number
    "output"   position  number
    "clock"    ms

Invariants:
* `decode_entry(encode_entry(entry)) == entry`;
* an entry holds all that its effect depends on besides the store: ids and instants too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, cast

from millpond.errors import Corrupt
from millpond.kernel.keys import decode, encode
from millpond.workflows.engine import Key
from millpond.workflows.processor.codec import LoggedCommand, decode_request, encode_request

__all__ = (
    "CausedEntry",
    "ClockEntry",
    "CommandEntry",
    "LogEntry",
    "OutputEntry",
    "SentEntry",
    "TimerEntry",
    "StoryEntry",
    "decode_entry",
    "encode_entry",
)


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A caller's command, and the time at which it came."""

    command: LoggedCommand
    ms: int


@dataclass(frozen=True, slots=True)
class TimerEntry:
    """A timer's instant came, at a time. It is applied if the timer is still set for that instant."""

    tenant: str
    name: Key
    at: int
    ms: int


@dataclass(frozen=True, slots=True)
class CausedEntry:
    """A command that follows from one on another partition: the `number`-th that came from there to here."""

    source: int
    number: int
    command: LoggedCommand
    ms: int


@dataclass(frozen=True, slots=True)
class SentEntry:
    """All that this partition put out up to a place is in the logs that it was for."""

    position: int
    number: int


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """All that commands told up to a place is in the streams of their runs; or it is dropped, for it had no room."""

    position: int
    number: int
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class OutputEntry:
    """All records of output up to a place are in their topics, or dropped, for they had no room."""

    position: int
    number: int


@dataclass(frozen=True, slots=True)
class ClockEntry:
    """The owner's time, when earlier entries have later ones: timers that they set are set anew."""

    ms: int


LogEntry: TypeAlias = CommandEntry | TimerEntry | CausedEntry | SentEntry | StoryEntry | OutputEntry | ClockEntry


def encode_entry(entry: LogEntry) -> bytes:
    """The bytes of an entry."""
    match entry:
        case CommandEntry(command, ms):
            return encode(("command", command.tenant, command.id, ms, encode_request(command.request)))
        case TimerEntry(tenant, name, at, ms):
            return encode(("timer", tenant, ms, at, *name))
        case CausedEntry(source, number, command, ms):
            return encode(
                ("caused", source, number, command.tenant, command.id, ms, encode_request(command.request))
            )  # fmt: skip
        case SentEntry(position, number):
            return encode(("sent", position, number))
        case StoryEntry(position, number, dropped):
            return encode(("dropped" if dropped else "story", position, number))
        case OutputEntry(position, number):
            return encode(("output", position, number))
        case ClockEntry(ms):
            return encode(("clock", ms))


def decode_entry(data: bytes) -> LogEntry:
    """The entry of some bytes.

    Raises:
        Corrupt: they are none.
    """
    try:
        kind, *parts = decode(data)
        match kind:
            case "command":
                tenant, own, ms, request = cast("tuple[str, str, int, bytes]", parts)
                return CommandEntry(LoggedCommand(tenant, own, decode_request(request)), ms)
            case "timer":
                tenant, ms, at, *name = cast("tuple[str, int, int, str]", parts)
                return TimerEntry(tenant, tuple(name), at, ms)
            case "caused":
                source, number, tenant, own, ms, request = cast("tuple[int, int, str, str, int, bytes]", parts)
                return CausedEntry(source, number, LoggedCommand(tenant, own, decode_request(request)), ms)
            case "sent":
                position, number = cast("tuple[int, int]", parts)
                return SentEntry(position, number)
            case "story" | "dropped":
                position, number = cast("tuple[int, int]", parts)
                return StoryEntry(position, number, kind == "dropped")
            case "output":
                position, number = cast("tuple[int, int]", parts)
                return OutputEntry(position, number)
            case "clock":
                (ms,) = cast("tuple[int]", parts)
                return ClockEntry(ms)
    except (ValueError, TypeError) as error:
        raise Corrupt("an entry of the log is damaged", kind="command_damaged", reason=repr(error)) from error
    raise Corrupt("an entry of the log is of no known kind", kind="command_damaged", reason=repr(kind))
