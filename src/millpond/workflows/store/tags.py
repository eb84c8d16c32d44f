"""Tags: a secondary index over the objects of runs.

    TAG · tenant · kind · attributes · milliseconds · run · rest of the object's address

The attributes of a kind are a row of fixed length; None stands for one that a search leaves open, so an object has a
tag for each set of attributes that may be asked for together.

Invariants:
* An object's tags are a function of the object, so they are replaced when it changes.
* They are listed beside the run, each without the object's address: no object is read to delete its tags.
* Objects that agree in their attributes come in the order of their times; those of one time by their addresses.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import lru_cache
from itertools import islice, product
from typing import TYPE_CHECKING, TypeAlias

from littlehorse.model import (
    ExternalEvent,
    NodeRun,
    TaskRun,
    UserTaskRun,
    Variable,
    VariableValue,
    WfRun,
    WorkflowEvent,
)

from millpond.errors import Corrupt
from millpond.kernel.keys import Part, Prefix, encode
from millpond.workflows.engine.failures import NodeFailed
from millpond.workflows.engine.values.conversions import plain, value_of
from millpond.workflows.engine.values.json_paths import at_json_path
from millpond.workflows.keyspaces import TAG
from millpond.workflows.store.addresses import Address, RunPath, path_of

if TYPE_CHECKING:
    from enum import IntEnum

    from google.protobuf.timestamp_pb2 import Timestamp

    from millpond.workflows.store.messages import Stored

__all__ = (
    "TEXT_CHARACTERS_MAX",
    "VALUES_INDEXED_MAX",
    "Attributes",
    "index_of",
    "list_tags",
    "listed_tags",
    "parent_part",
    "shortened",
    "tag_keys",
    "tags_of",
    "value_part",
)

Attributes: TypeAlias = tuple[Part, ...]

VALUES_INDEXED_MAX = 100
"""The different values that one variable is found by; those behind them are not indexed."""
TEXT_CHARACTERS_MAX = 64
"""The characters of a text in a tag; a longer one is its beginning and a hash of the whole."""

_LENGTH = struct.Struct(">H")
_NO_TAGS: AbstractSet[bytes] = frozenset()


def tags_of(message: Stored, *, paths: Collection[str] = ()) -> AbstractSet[bytes]:
    """The tags of an object, each without its address. A variable has those of its values at some `paths`; the empty
    path is the whole of it, of a list each item."""
    kind = type(message)
    if kind is NodeRun and not message.HasField("external_event"):  # most rows of a run
        return _NO_TAGS
    if isinstance(message, WfRun):  # with the most tags, of which few differ from run to run
        spec, path = message.wf_spec_id, path_of(message.id)
        codes = _run_codes(message.status, spec.name, spec.major_version, spec.revision, path[:-1])
        at = _ms(message.start_time)
    elif isinstance(message, TaskRun):
        codes, at = _task_codes(message.task_def_id.name, message.status), _ms(message.scheduled_at)
    else:
        attributes, at = _attributes(message, paths)
        codes = tuple(_code(*parts) for parts in attributes)
    if not codes:
        return _NO_TAGS
    time = encode((at,))
    return {code + time for code in codes}


@lru_cache(4096)
def _task_codes(definition: str, status: int) -> tuple[bytes, ...]:
    return tuple(encode(parts) for parts in _open((definition,), (int(status),)))


@lru_cache(4096, typed=True)  # 1 and True are equal, and have different codes
def _code(*attributes: Part) -> bytes:
    return encode(attributes)


@lru_cache(4096)
def _run_codes(status: int, name: str, major: int, revision: int, parent: RunPath) -> tuple[bytes, ...]:
    parents = (None, parent_part(parent)) if parent else (None,)
    specs = ((None, None, None), *_specs(name, major, revision))
    return tuple(encode((state, *spec, part)) for state, spec, part in product((None, status), specs, parents))


def _attributes(message: Stored, paths: Collection[str]) -> tuple[Iterable[Attributes], int]:
    """The sets of attributes that an object is found by, and its time; runs and tasks have functions of their own."""
    match message:
        case NodeRun():
            name = message.external_event.external_event_def_id.name
            return _open((name,), (int(message.status),)), _ms(message.arrival_time)
        case UserTaskRun():
            own = (message.user_task_def_id.name, message.user_id or None, message.user_group or None)
            sets = set(product((None, int(message.status)), *((None, _text(part)) for part in own)))
            return sets - {(None,) * 4}, _ms(message.scheduled_time)
        case Variable() if paths:
            tails = islice(dict.fromkeys(_found_by(message, paths)), VALUES_INDEXED_MAX)
            spec = message.wf_spec_id
            specs = _specs(spec.name, spec.major_version, spec.revision)
            return [(*own, *tail) for tail in tails for own in specs], _ms(message.created_at)
        case ExternalEvent():
            name = message.id.external_event_def_id.name
            return _open((name,), (message.claimed,)), _ms(message.created_at)
        case WorkflowEvent():
            return [(_text(message.id.workflow_event_def_id.name),)], _ms(message.created_at)
    return [], 0


def _found_by(variable: Variable, paths: Collection[str]) -> Iterator[tuple[Part, Part]]:
    """The names and values that a variable is found by."""
    with suppress(NodeFailed):  # JSON that is none, or a path that leads nowhere in it
        for path in paths:
            value = at_json_path(variable.value, path) if path else variable.value
            items = map(value_of, plain(value)) if value.WhichOneof("value") == "json_arr" else (value,)
            name = f"{variable.id.name}_{path}" if path else variable.id.name
            yield from ((_text(name), part) for part in map(value_part, items) if part is not None)


def _open(texts: tuple[str, ...], states: tuple[Part, ...]) -> list[Attributes]:
    """The texts with a state, and with any."""
    names = tuple(_text(text) for text in texts)
    return [(*names, None), (*names, *states)]


def parent_part(path: RunPath) -> bytes:
    """The parent of a run as an attribute."""
    return encode(path)


def _specs(name: str, major: int, revision: int) -> list[tuple[Part, Part, Part]]:
    text = _text(name)
    return [(text, None, None), (text, major, None), (text, major, revision)]


def shortened(part: Part) -> Part:
    """An attribute as it stands in tags.

    >>> shortened("short"), len(shortened("long" * 100))
    ('short', 128)
    """
    return _text(part) if isinstance(part, str) else part


def _text(text: str | None) -> str | None:
    if text is None or len(text) <= TEXT_CHARACTERS_MAX:
        return text
    return text[:TEXT_CHARACTERS_MAX] + hashlib.sha256(text.encode()).hexdigest()


def value_part(value: VariableValue) -> Part:
    """The value of a variable as an attribute; None for those that are not indexed: none, JSON, bytes."""
    match value.WhichOneof("value"):
        case "str":
            return _text(value.str)
        case "int":
            return value.int
        case "bool":
            return value.bool
        case "double":
            return encode((repr(value.double),))  # bytes: a text "1.5" is another value
    return None


def _ms(time: Timestamp) -> int:
    return time.seconds * 1000 + time.nanos // 1_000_000


@lru_cache(1024)
def index_of(tenant: str, kind: IntEnum) -> Prefix:
    """The tags of all objects of a kind."""
    return TAG[tenant][int(kind)]


def tag_keys(tenant: str, address: Address, tags: Collection[bytes]) -> list[bytes]:
    """The keys of tags of an object, in their order."""
    if not tags:
        return []
    before, behind = index_of(tenant, address.kind).packed, address.trail()
    return [before + tag + behind for tag in sorted(tags)]


def list_tags(tags: Iterable[bytes]) -> bytes:
    """The list of an object's tags, as it stands beside its run."""
    return b"".join([_LENGTH.pack(len(tag)) + tag for tag in sorted(tags)])


def listed_tags(value: bytes) -> set[bytes]:
    """The tags of a list.

    Raises:
        Corrupt: it is damaged.
    """
    tags, at = set(), 0
    while at < len(value):
        (length,) = _LENGTH.unpack_from(value.ljust(at + 2, b"\0"), at)
        at += _LENGTH.size + length
        if not length or at > len(value):
            raise Corrupt("a list of tags is damaged", kind="run_row_damaged", of=value[:32].hex())
        tags.add(value[at - length : at])
    return tags
