"""Frozen dataclasses as JSON, by their types: one codec for every form that is stored or sent.

    _FORM = JsonForm(PartManifest)
    _FORM.decode(b'{"id": 1}')        raises FormError: Expected `str`, got `int` - at `$.id`

Invariants:
* What `encode` writes, `decode` reads as an equal value.
* Every field has the type it is declared with: nothing is converted, a missing field without a default is an error.
* A field that is not declared is refused, at every depth. Our formats have numbers (`docs/formats.md`), and a reader
  refuses other numbers before it decodes; so under its own number an unknown field is damage, or the file of another
  program. To ignore it could mean to answer from the wrong rows.

msgspec ignores unknown fields of dataclasses. A form is therefore decoded as a struct of the same fields, which refuses
them, and that becomes the dataclass. The caller names the file or the key in its own error.
"""

from __future__ import annotations

import dataclasses
import types
from functools import cached_property
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

__all__ = ("FormError", "JsonForm")

T = TypeVar("T")


class FormError(ValueError):
    """JSON that is not of a form; the message names the field."""


class JsonForm(Generic[T]):
    """The JSON form of a dataclass."""

    def __init__(self, type_: type[T]) -> None:
        self.type = type_

    # Made with the first use: not every process reads every form.
    @cached_property
    def _strict(self) -> Any:
        return _strict_type(self.type)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._strict)

    def encode(self, value: T) -> bytes:
        """The JSON of a value, its fields in their order."""
        return msgspec.json.encode(value)

    def decode(self, data: bytes | memoryview | str) -> T:
        """The value that was encoded.

        Raises: `FormError`.
        """
        try:
            return msgspec.convert(self._decoder.decode(data), self.type, from_attributes=True)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FormError(str(error)) from None

    def build(self, parsed: Any) -> T:
        """The value of JSON that was parsed already, into dicts and lists.

        Raises: `FormError`.
        """
        try:
            return msgspec.convert(msgspec.convert(parsed, self._strict), self.type, from_attributes=True)
        except msgspec.MsgspecError as error:
            raise FormError(str(error)) from None


def _strict_type(type_: Any) -> Any:
    """A type in which every dataclass is a struct of the same fields that refuses others."""
    if dataclasses.is_dataclass(type_):
        assert isinstance(type_, type)
        hints = get_type_hints(type_)
        fields = [_field(field, _strict_type(hints[field.name])) for field in dataclasses.fields(type_)]
        return msgspec.defstruct(type_.__name__, fields, kw_only=True, forbid_unknown_fields=True)
    parts = tuple(part if part is Ellipsis else _strict_type(part) for part in get_args(type_))
    if not parts:
        return type_
    origin = get_origin(type_)
    return Union[parts] if origin in (Union, types.UnionType) else origin[parts]  # noqa: UP007


def _field(field: dataclasses.Field[Any], type_: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.name, type_, field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.name, type_, msgspec.field(default_factory=field.default_factory)
    return field.name, type_
