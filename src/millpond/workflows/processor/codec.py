"""Requests and commands as bytes: those of the log, and of timers.

A message of the client is its type and its own bytes. A request of the system is its type and its fields, of which
those that are messages are their bytes.

Invariants:
* `decode_request(encode_request(request)) == request`, and equal requests have equal bytes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final, cast, get_type_hints

from google.protobuf.message import DecodeError, Message

from millpond.errors import Corrupt
from millpond.kernel.keys import Part, decode, encode
from millpond.workflows.engine import COMMANDS, Request

__all__ = ("LoggedCommand", "decode_command", "decode_request", "encode_command", "encode_request")

_TYPES: Final[dict[str, type]] = {kind.__name__: kind for kind in COMMANDS}
_FIELDS: Final[dict[type, tuple[tuple[str, type], ...]]] = {
    kind: tuple((field.name, get_type_hints(kind)[field.name]) for field in dataclasses.fields(kind))
    for kind in COMMANDS if dataclasses.is_dataclass(kind)
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoggedCommand:
    """A command as the log holds it: its tenant, the id from which all ids that it makes are derived, its request."""

    tenant: str
    id: str
    request: Request


def encode_request(request: Request) -> bytes:
    """The bytes of a request."""
    name = type(request).__name__
    if isinstance(request, Message):
        return encode((name, request.SerializeToString(deterministic=True)))
    return encode((name, *(_part(getattr(request, field)) for field, _ in _FIELDS[type(request)])))


def _part(value: Any) -> Part:
    return value.SerializeToString(deterministic=True) if isinstance(value, Message) else value


def decode_request(data: bytes) -> Request:
    """The request of some bytes.

    Raises:
        Corrupt: they are none.
    """
    try:
        name, *parts = decode(data)
        kind = _TYPES[cast("str", name)]
        if kind not in _FIELDS:
            return cast("Request", kind.FromString(parts[0]))  # type: ignore[attr-defined]
        fields = zip(_FIELDS[kind], parts, strict=True)
        return cast("Request", kind(*(_value(type_, part) for (_, type_), part in fields)))
    except (KeyError, ValueError, TypeError, IndexError, DecodeError) as error:
        raise Corrupt("a request of the command log is damaged", kind="command_damaged", reason=repr(error)) from error


def _value(type_: type, part: Part) -> object:
    return type_.FromString(part) if issubclass(type_, Message) else part  # type: ignore[arg-type]


def encode_command(command: LoggedCommand) -> bytes:
    """The bytes of a command."""
    return encode((command.tenant, command.id, encode_request(command.request)))


def decode_command(data: bytes) -> LoggedCommand:
    """The command of some bytes.

    Raises:
        Corrupt: they are none.
    """
    parts = decode(data)
    if len(parts) != 3 or not isinstance(parts[2], bytes):
        raise Corrupt("a command of the log is damaged", kind="command_damaged", reason=f"{len(parts)} parts")
    return LoggedCommand(str(parts[0]), str(parts[1]), decode_request(parts[2]))
