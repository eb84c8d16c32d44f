"""Messages within messages, one level at a time."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ("parts_of",)


def parts_of(message: Message) -> list[Message]:
    """The messages within a message."""
    parts: list[Message] = []
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is None:
            continue
        if not field.is_repeated:
            parts.append(value)
        elif kind.GetOptions().map_entry:
            inner = kind.fields_by_name["value"]
            parts.extend(value.values() if inner.type == FieldDescriptor.TYPE_MESSAGE else ())
        else:
            parts.extend(value)
    return parts
