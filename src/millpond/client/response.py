"""The whole answer of a node, and its forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from millpond.client.wire_errors import from_wire
from millpond.errors import Invalid, MillpondError
from millpond.json_forms import FormError, JsonForm, parse_object

__all__ = ("Response",)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    node: str
    status: int
    headers: Mapping[str, str]
    data: bytes

    def json(self) -> dict[str, Any]:
        """The body, understood.

        Raises: `Invalid` when it is no JSON object: it does not come from a node.
        """
        try:
            return parse_object(self.data)
        except FormError:
            raise _no_node(self.node, self.status) from None

    def read(self, form: JsonForm[T]) -> T:
        """The body as a form.

        Raises: `Invalid` when it is of another form: the node has another version of Millpond, or is none.
        """
        payload = self.json()
        try:
            return form.build(payload)
        except FormError as error:
            raise Invalid(
                "the node's response is not understood", kind="response_form", node=self.node, reason=error,
                hint="run the same version of Millpond here and on the nodes",
            ) from error  # fmt: skip


def _no_node(node: str, status: int) -> MillpondError:
    error = from_wire(node, 400, b"")
    assert error is not None
    error.values["status"] = status
    return error
