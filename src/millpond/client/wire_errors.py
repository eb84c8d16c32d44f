"""Errors on their way between a node and who asked: one form, both directions.

    {"error": "Invalid", "kind": "map_name", "message": …, "hint": …, "values": {…}}

What a node answers is final: a *refusal*, raised as the class it was. A response that is no node's is distinguished:
a proxy that cannot reach its node (`None`: a lost connection), or something else that listens at the address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond import errors
from millpond.errors import Internal, Invalid, MillpondError
from millpond.json_forms import FormError, parse_object
from millpond.statuses import class_of_grpc

__all__ = ("ERROR_KEY", "KIND_KEY", "NODE_KEY", "from_grpc", "from_wire", "to_wire")

ERROR_KEY, KIND_KEY = "millpond-error-bin", "millpond-kind"
"""The metadata of gRPC that hold an error in this form, and its kind."""
NODE_KEY = "millpond-node"
"""The metadata of gRPC that hold the URL of the node, behind the answer to who the caller is."""
_GATEWAY = (502, 503, 504)


def to_wire(error: MillpondError) -> dict[str, Any]:
    """An error as JSON; values that JSON has no form for become text.

    >>> to_wire(Invalid("no", kind="map_name", map="1x"))["values"]
    {'map': '1x'}
    """
    return {
        "error": _named(type(error)), "kind": error.kind, "message": error.message, "hint": error.hint,
        "values": {name: _plain(value) for name, value in error.values.items()},
    }  # fmt: skip


def _named(cls: type[MillpondError]) -> str:
    """The class of the tree that an error belongs to: others are known only where they are raised."""
    return next(class_.__name__ for class_ in cls.__mro__ if getattr(errors, class_.__name__, None) is class_)


def _plain(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


def from_wire(node: str, status: int, body: bytes) -> MillpondError | None:
    """The error that a node answered; None when the answer comes from a proxy that did not reach it."""
    payload = _error_fields(body)
    cls = None if payload is None else getattr(errors, str(payload.get("error")), None)
    if payload is not None and isinstance(cls, type) and issubclass(cls, MillpondError):
        values = payload.get("values")
        values = {str(name): value for name, value in values.items()} if isinstance(values, dict) else {}
        for taken in ("kind", "hint", "message"):
            values.pop(taken, None)
        return cls(str(payload.get("message")), kind=payload.get("kind"), hint=payload.get("hint"), **values)
    if status in _GATEWAY:
        return None
    if status >= 500:
        return Internal("the node failed", kind="node_failed", node=node, status=status, hint="see the node's log")
    return Invalid(
        "what answers there is no Millpond node", kind="not_a_node", node=node, status=status,
        hint="name the address that 'millpond serve' prints, such as http://localhost:7433",
    )  # fmt: skip


def from_grpc(node: str, metadata: Mapping[str, Any], status: str, details: str, kind: str) -> MillpondError:
    """The error that a node answered over gRPC: whole, or where it was large, its details in a class of its status."""
    body = metadata.get(ERROR_KEY)
    error = from_wire(node, _GATEWAY[0], body) if isinstance(body, bytes) else None
    return error or class_of_grpc(status)(details or status, kind=str(metadata.get(KIND_KEY) or kind))


def _error_fields(body: bytes) -> Mapping[str, Any] | None:
    try:
        return parse_object(body)
    except FormError:
        return None
