"""Dataclasses as JSON, by their types: one codec for every form that is stored or sent.

    _FORM = JsonForm(PartManifest)
    _FORM.decode(b'{"id": 1}')              raises FormError: Expected `str`, got `int` - at `$.id`
    JsonForm(Clone, format=1).decode(data)  raises OtherFormat when `"format"` in the data is not 1

Invariants:
* What `encode` writes, `decode` reads as an equal value.
* Every field has the type it is declared with: nothing is converted, a missing field without a default is an error.
* A field that is not declared is refused, at every depth. Our formats have numbers (`docs/formats.md`), and a reader
  compares the number before it reads the rest; so under its own number an unknown field is damage, or the file of
  another program. To ignore it could mean to answer from the wrong rows.
* The number of a format is compared first: of a newer format the error says so, whatever else is in it.

msgspec ignores unknown fields of dataclasses. A form is therefore decoded as a struct of the same fields, which refuses
them, and that becomes the dataclass. The caller names the file or the key, in `stored` or in its own error.

Bytes that are hashed are written by `stable_json`, whose output never changes. `docs/decisions/0013-one-json-codec.md`
says which modules read and write JSON by other means, and why.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import types
from functools import cached_property
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from millpond.errors import Corrupt

__all__ = (
    "ABSENT",
    "FormError",
    "JsonForm",
    "OtherFormat",
    "format_of",
    "parse_list",
    "parse_object",
    "plain",
    "ready",
    "shown_json",
    "stable_json",
    "to_json",
)

T = TypeVar("T")
_FORMAT = "format"
ABSENT: Any = msgspec.UNSET
"""The default of a field that is left out of the JSON, where null would be a value."""


_LEARNING = threading.RLock()


def ready(type_: Any) -> Any:
    """The type, when msgspec has learnt it: two threads that are the first to use one at once would crash in it."""
    with _LEARNING:
        msgspec.json.Decoder(type_)
    return type_


_NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec for damaged JSON; the last of them for JSON that is nested too deeply."""


class FormError(ValueError):
    """JSON that is not of a form; the message names the field."""


class OtherFormat(FormError):
    """JSON of a form under another number; `found` is that number, None when there is none."""

    def __init__(self, stored: object, expected: int) -> None:
        super().__init__(f"the format is {stored}, not {expected}")
        self.format = stored


class JsonForm(Generic[T]):
    """The JSON form of a dataclass; `format` is the number that is stored with it, if one is."""

    def __init__(self, type_: type[T], *, format: int | None = None) -> None:
        self.type = type_
        self.format = format

    # Made with the first use: not every process reads every form.
    @cached_property
    def _strict(self) -> Any:
        ready(self.type)
        return ready(_strict_type(self.type, numbered=self.format is not None))

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._strict)

    def encode(self, value: T) -> bytes:
        """The JSON of a value, its fields in their order, then its format."""
        return msgspec.json.encode(value if self.format is None else self.plain(value))

    def checked(self, value: T) -> bytes:
        """As `encode`, of a value that somebody else made: his texts and numbers may be anything.

        Raises: `FormError` when nobody could read it.
        """
        try:
            data = self.encode(value)
            self.decode(data)
        except (*_NO_JSON, TypeError, UnicodeEncodeError, OverflowError) as error:
            raise FormError(str(error)) from None
        return data

    def plain(self, value: T) -> Any:
        """The value as dicts and lists, as `encode` writes them."""
        payload = plain(value)
        return payload if self.format is None else payload | {_FORMAT: self.format}

    def decode(self, data: bytes | memoryview | str) -> T:
        """The value that was encoded.

        Raises: `FormError`; `OtherFormat` for another number.
        """
        if self.format is not None and (stored := format_of(data)) != self.format:
            raise OtherFormat(stored, self.format)
        try:
            return self._typed(self._decoder.decode(data))
        except _NO_JSON as error:
            raise FormError(str(error)) from None

    def build(self, parsed: Any) -> T:
        """The value of JSON that was parsed already, into dicts and lists.

        Raises: `FormError`; `OtherFormat` for another number.
        """
        if self.format is not None and isinstance(parsed, dict) and (stored := parsed.get(_FORMAT)) != self.format:
            raise OtherFormat(stored, self.format)
        try:
            return self._typed(msgspec.convert(parsed, self._strict, from_attributes=True))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise FormError(str(error)) from None

    def stored(self, data: bytes | memoryview, message: str, *, kind: str, hint: str | None = None, **values: Any) -> T:
        """The value of a row or a file of our own.

        Raises: `Corrupt` of the message, kind and values, with the `reason`, when it is not of the form.
        """
        try:
            return self.decode(data)
        except FormError as error:
            raise Corrupt(message, kind=kind, hint=hint, **values, reason=error) from error

    def _typed(self, strict: Any) -> T:
        return msgspec.convert(strict, self.type, from_attributes=True)


class _Numbered(msgspec.Struct):
    format: Any = None


_OBJECTS: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])
_LISTS: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[Any])
_NUMBERS = msgspec.json.Decoder(_Numbered)
_SHOWN = msgspec.json.Encoder(order="sorted")


def format_of(data: bytes | memoryview | str) -> object:
    """The number of the format that a JSON object says it has; None when it says none.

    Raises: `FormError` when it is no JSON object.
    """
    try:
        return _NUMBERS.decode(data).format
    except _NO_JSON as error:
        raise FormError(str(error)) from None


def parse_object(data: bytes | memoryview | str) -> dict[str, Any]:
    """A JSON object without a declared form.

    Raises: `FormError` when it is none.
    """
    try:
        return _OBJECTS.decode(data)
    except _NO_JSON as error:
        raise FormError(str(error)) from None


def parse_list(data: bytes | str) -> list[Any]:
    """A JSON list without a declared form.

    Raises: `FormError` when it is none.
    """
    try:
        return _LISTS.decode(data)
    except _NO_JSON as error:
        raise FormError(str(error)) from None


def to_json(value: object, *, indent: int = 0) -> bytes:
    """The JSON of a value without a declared form: dataclasses, dicts, lists and scalars."""
    data = msgspec.json.encode(value)
    return msgspec.json.format(data, indent=indent) if indent else data


def shown_json(value: object) -> str:
    """The JSON of a value to look at, its names in order; of many values sooner than `stable_json`.

    >>> shown_json({"b": 1.5, "a": None})
    '{"a":null,"b":1.5}'
    """
    return _SHOWN.encode(value).decode()


def plain(value: object) -> Any:
    """A value as dicts, lists and scalars, for a response or for more JSON around it."""
    return msgspec.to_builtins(value)


def stable_json(payload: Any, *, compact: bool = False) -> bytes:
    """The bytes that are hashed: names in order, and the same bytes in every version of Millpond and of its libraries.

    `compact`: without spaces, and text as UTF-8; otherwise with spaces, and text in ASCII.

    >>> stable_json({"b": "é", "a": (1, 2)})
    b'{"a": [1, 2], "b": "\\\\u00e9"}'
    """
    separators = (",", ":") if compact else None
    return json.dumps(payload, sort_keys=True, separators=separators, ensure_ascii=not compact).encode()


def _strict_type(type_: Any, *, numbered: bool = False) -> Any:
    """A type in which every dataclass is a struct of the same fields that refuses others."""
    if dataclasses.is_dataclass(type_):
        assert isinstance(type_, type)
        hints = get_type_hints(type_)
        fields = [_field(field, _strict_type(hints[field.name])) for field in dataclasses.fields(type_)]
        assert not numbered or _FORMAT not in hints, "the format is the form's, or the dataclass's"
        more = [(_FORMAT, Any, None)] if numbered else []
        return msgspec.defstruct(type_.__name__, [*fields, *more], kw_only=True, forbid_unknown_fields=True)
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
