"""The trace that started a run, in the messages of the run: from the request to each task that is handed out.

It is a field that LittleHorse's messages do not have: clients that know nothing of it pass it over.

Invariant: whatever bytes a client sends in its place, what is read is a `traceparent` or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, cast

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

__all__ = ("carried", "carry", "carry_on")

_FIELD: Final = 74_330
_TAG: Final = bytes((0xD2, 0xA5, 0x24))
"""The number of the field, and its type: text."""
_WRITTEN: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def carry(message: Message, traceparent: str) -> None:
    """Put a `traceparent` of W3C's Trace Context into a message that has none."""
    text = traceparent.encode()
    assert len(text) < 128, "its length is one byte"
    message.MergeFromString(_TAG + bytes((len(text),)) + text)


def carried(message: Message) -> str:
    """The `traceparent` in a message; empty without one."""
    for field in cast("Iterable[Any]", UnknownFieldSet(message)):  # its types know of no iteration
        if field.field_number == _FIELD and isinstance(field.data, bytes) and _WRITTEN.fullmatch(field.data):
            return field.data.decode()
    return ""


def carry_on(source: Message, message: Message) -> None:
    """Put that of one message into another, if it has one."""
    if text := carried(source):
        carry(message, text)
