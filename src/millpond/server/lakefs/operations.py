"""The words of a row of `table.py` as OpenAPI has them: its query as parameters, its answer as status and content."""

from __future__ import annotations

from typing import Any

__all__ = ("parameters", "split_answer")

_FLAGS = frozenset((
    "force", "presign", "show_hidden", "user_metadata", "first_parent", "limit", "reverse", "include_right_stats",
))  # fmt: skip
_NUMBERS = {"amount": (-1, 1000), "parts": (0, 1000)}
_REPEATED = frozenset(("objects", "prefixes"))


def parameters(query: str) -> list[dict[str, Any]]:
    """The parameters of a query.

    >>> [(found["name"], found["required"]) for found in parameters("path! force")]
    [('path', True), ('force', False)]
    """
    return [_parameter(word) for word in query.split()]


def _parameter(word: str) -> dict[str, Any]:
    name, _, choices = word.partition("=")
    required, name = name.endswith("!"), name.rstrip("!")
    schema: dict[str, Any] = {"type": "string"}
    if choices:
        schema["enum"] = choices.split("|")
    elif name in _FLAGS:
        schema["type"] = "boolean"
    elif name in _NUMBERS:
        least, most = _NUMBERS[name]
        schema = {"type": "integer", "minimum": least, "maximum": most}
    elif name in _REPEATED:
        schema = {"type": "array", "items": schema}
    elif required:
        schema["minLength"] = 1
    return {"name": name, "in": "query", "required": required, "schema": schema}


def split_answer(answer: str) -> tuple[str, str]:
    """The status of an answer, and the name of its schema or its media type; empty when it has no body.

    >>> split_answer("201 Ref"), split_answer("204")
    (('201', 'Ref'), ('204', ''))
    """
    status, _, content = answer.partition(" ")
    return status, content
