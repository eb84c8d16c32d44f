"""JSON paths, in Jayway's syntax as far as they name one place: `$.a.b`, `$['a b']`, `$.list[-1]`, `$.list.length()`.
`$.` may be left out at the beginning.

A path whose last place is missing gives None; one that goes on behind a missing place, or behind null, is an error,
for reading and for writing alike. Wildcards, filters and recursive descent name many places
and are not supported: they raise.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from littlehorse.model import VariableValue

from millpond.workflows.engine.failures import substitution
from millpond.workflows.engine.values.conversions import kind_of, plain, value_of, value_type_name

__all__ = (
    "LENGTH",
    "at_json_path",
    "steps_of",
    "read",
    "write",
)

_STEP = re.compile(
    r"""\.(?P<call>length|size)\(\) | \.(?P<name>[^.\[\]'"*()?@\s]+) | \[(?P<index>-?\d{1,18})\]
    | \['(?P<single>[^']*)'\] | \["(?P<double>[^"]*)"\]""",
    re.VERBOSE,
)


class _Length:
    """The step `length()`."""


LENGTH = _Length()


@lru_cache(maxsize=4096)
def steps_of(path: str) -> tuple[str | int | _Length, ...]:
    """The steps of a path.

    >>> steps_of("$.a['b c'][0]")
    ('a', 'b c', 0)
    """
    if not path.startswith("$"):
        path = f"${path}" if path.startswith("[") else f"$.{path}"
    steps: list[str | int | _Length] = []
    position = 1
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise substitution(f"JSON path {path[:80]!r} cannot be read from {path[position : position + 20]!r} on")
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> str | int | _Length:
    if match["call"]:
        return LENGTH
    if match["index"]:
        return int(match["index"])
    return next(text for text in (match["name"], match["single"], match["double"]) if text is not None)


def read(document: Any, path: str) -> Any:
    """The value at a path, or None.

    >>> read({"a": [1, 2]}, "$.a[-1]"), read({"a": {}}, "$.a.b")
    (2, None)
    """
    for at, step in enumerate(steps_of(path)):
        if at and document is None:
            raise _missing(path)
        if step is LENGTH:
            document = len(document) if isinstance(document, list | dict | str) else None
        elif isinstance(step, int):
            inside = isinstance(document, list) and -len(document) <= step < len(document)
            document = document[step] if inside else None
        else:
            document = document.get(step) if isinstance(document, dict) else None
    return document


def at_json_path(value: VariableValue, path: str) -> VariableValue:
    """The value at a JSON path inside a JSON value.

    Raises:
        NodeFailed: VAR_SUB_ERROR; the value is not JSON, or the path leads nowhere in it.
    """
    if kind_of(value) not in ("json_obj", "json_arr"):
        raise substitution(f"JSON path {path!r} looks into {value_type_name(value)}, which is not JSON")
    return value_of(read(plain(value), path))


def write(document: Any, path: str, value: Any) -> Any:
    """The document with a value at a path: the last place may be new."""
    steps = steps_of(path)
    if not steps:
        return value
    parent = document
    for step in steps[:-1]:
        if not _writable(parent, step) or (isinstance(step, str) and parent.get(step) is None):
            raise _missing(path)
        parent = parent[step]
    last = steps[-1]
    if not _writable(parent, last):
        raise substitution(f"JSON path {path!r} names no place to write to")
    parent[last] = value
    return document


def _writable(parent: Any, step: str | int | _Length) -> bool:
    """True when a value has, or may get, an entry under a step."""
    if isinstance(step, int):
        return isinstance(parent, list) and -len(parent) <= step < len(parent)
    return isinstance(step, str) and isinstance(parent, dict)


def _missing(path: str) -> Exception:
    return substitution(f"Missing property in path {path[:80]!r}: it goes on behind what is not there")
