"""Messages of processes to one another: commands, replies, and rows of a partition, as bytes.

Workers  partition  tenant  task                ─▶  worker, began and seen, UTC milliseconds, and again
Members  partition  tenant  address             ─▶  the addresses of all processes
Submit   partition  tenant  request             ─▶  type and bytes of the reply, or nothing
Rows     partition  tenant  "get"   kind  key   ─▶  the row, or nothing
                            "list"  kind  key  after  ─▶  key and row, key and row, …
                            "count" search  ─▶  a number
                            "nodes" search  ─▶  the number of node runs of its runs
                            "tags"  search  limit  bookmark  ─▶  keys of tags
"""

from __future__ import annotations

from typing import Any, Final, cast

from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from millpond.errors import Corrupt, Invalid
from millpond.kernel.keys import Part, decode, encode
from millpond.workflows.engine import Key
from millpond.workflows.processor.rows import DEFINITIONS, RUN_KINDS
from millpond.workflows.store.addresses import Kind
from millpond.workflows.store.joins import Index
from millpond.workflows.store.search import TagQuery
from millpond.workflows.store.unscoped_tags import FreeKind

__all__ = ("KINDS", "key_from", "key_to", "parts_of", "reply_from", "reply_to", "query_from", "query_to")

KINDS: Final[dict[str, type[Message]]] = {kind.DESCRIPTOR.name: kind for kind in (*RUN_KINDS, *DEFINITIONS)}


def parts_of(data: bytes) -> tuple[Any, ...]:
    """The parts of a request of another process.

    Raises: `Invalid`.
    """
    try:
        return decode(data)
    except Corrupt as error:
        raise Invalid("the request is not understood", kind="request_invalid", reason=str(error)) from error


def reply_to(reply: Message | None) -> bytes:
    """The bytes of a reply."""
    return b"" if reply is None else encode((type(reply).DESCRIPTOR.full_name, reply.SerializeToString()))


def reply_from(data: bytes) -> Message | None:
    """The reply of some bytes."""
    if not data:
        return None
    name, message = cast("tuple[str, bytes]", decode(data))
    return GetMessageClass(Default().FindMessageTypeByName(name)).FromString(message)


def key_to(key: Key) -> bytes:
    """The bytes of a key of a row."""
    return encode(tuple(key))


def key_from(data: bytes) -> Key:
    """The key of some bytes."""
    return cast("Key", decode(data))


def query_to(query: TagQuery) -> bytes:
    """The bytes of a search."""
    free = isinstance(query.kind, FreeKind)
    attributes = cast("tuple[Part, ...]", tuple(query.attributes))
    also = encode(tuple(index.packed() for index in query.also))
    how = query.newest, encode(query.rest), also
    return encode((free, int(query.kind), query.start_ms, query.stop_ms, *how, *attributes))


def query_from(data: bytes) -> TagQuery:
    """The search of some bytes."""
    free, kind, start_ms, stop_ms, newest, rest, also, *attributes = cast("tuple[Any, ...]", decode(data))
    kind = FreeKind(kind) if free else Kind(kind)
    indexes = tuple(Index.unpacked(cast("bytes", index)) for index in decode(also))
    return TagQuery(kind, tuple(attributes), start_ms, stop_ms, newest, cast("tuple[Any, ...]", decode(rest)), indexes)
