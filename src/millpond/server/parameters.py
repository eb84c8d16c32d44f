"""Query, headers and JSON of a request as a form: a `msgspec.Struct` that reads them and describes them in OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from millpond.errors import Invalid

__all__ = ("described", "described_json", "header_name", "read", "read_json")

Form = TypeVar("Form", bound=msgspec.Struct)


def header_name(field: str) -> str:
    """The header that a field of a form stands for.

    >>> header_name("upload_map")
    'upload-map'
    """
    return field.replace("_", "-")


def read(form: type[Form], values: Mapping[str, str], where: str) -> Form:
    """The values that a form names.

    Raises: `Invalid`, kind `request_invalid`, naming the first that is missing or not understood.
    """
    given = {name: values[name] for name in form.__struct_encode_fields__ if name in values}
    try:
        return msgspec.convert(given, form, strict=False)
    except msgspec.ValidationError as error:
        raise _not_understood(where, error) from None


def read_json(form: type[Form], body: bytes) -> Form:
    """The form that a body is.

    Raises: as `read`.
    """
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _not_understood("body", error) from None


def _not_understood(where: str, error: Exception) -> Invalid:
    return Invalid(
        "the request is not understood", kind="request_invalid", where=where, reason=str(error),
        hint="/docs shows what this route takes",
    )  # fmt: skip


def described(form: type[msgspec.Struct], where: str) -> list[dict[str, Any]]:
    """The parameters of a form, as OpenAPI lists them; `where`: `query` or `header`."""
    schema = described_json(form)
    return [
        {
            "name": name, "in": where, "required": name in schema["required"],
            "description": value.pop("description", ""), "schema": value,
        }
        for name, value in schema["properties"].items()
    ]  # fmt: skip


def described_json(form: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a form."""
    schema: dict[str, Any] = msgspec.json.schema(form)["$defs"][form.__name__]
    return schema
