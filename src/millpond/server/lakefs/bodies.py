"""The bodies of requests: dataclasses, checked in the words that clients know.

    @dataclass(frozen=True, slots=True)
    class TagCreation:
        id: str
        ref: str
        force: bool = False

    call.json(TagCreation)     400: request body has an error: doesn't match schema #/components/schemas/TagCreation:
                                    Error at "/ref": property "ref" is missing

`Annotated[str, Pattern("^[a-z]+$")]` and `Annotated[str, OneOf("reset", "object")]` say more about a text.

Invariants:
* a field that is not declared is ignored: clients of other versions send more;
* a field with a default may be null, which is the default;
* most bodies are flat and just as they should be: these are decoded in one step (`_plain_decoder`). Whatever that step
  does not take is read again field by field, which decides.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from millpond.json_forms import FormError, parse_list, parse_object, to_json
from millpond.server.lakefs.errors import ApiError

__all__ = ("OneOf", "Pattern", "body_type", "parse_body", "parse_items", "takes")

T = TypeVar("T")
_Handler = TypeVar("_Handler", bound=Callable[..., Any])
_LONG_MAX = 1 << 63
_Long: TypeAlias = Annotated[int, msgspec.Meta(ge=-_LONG_MAX, le=_LONG_MAX - 1)]
_NULLABLE = (int | None, str | None)
_PLAIN: dict[Any, Any] = {
    str: str, int: _Long, bool: bool, dict[str, str]: dict[str, str], int | None: _Long | None, str | None: str | None,
}  # fmt: skip
"""Types of fields that one step can decode, as that step checks them."""


_BODY_TYPES: dict[Callable[..., Any], Any] = {}


def takes(type_: Any) -> Callable[[_Handler], _Handler]:
    """Declare the body of a handler, for the description of the API."""

    def declare(handler: _Handler) -> _Handler:
        _BODY_TYPES[handler] = type_
        return handler

    return declare


def body_type(handler: Callable[..., Any]) -> Any:
    """The type of the body that a handler declares; None when it declares none."""
    return _BODY_TYPES.get(handler)


@dataclass(frozen=True, slots=True)
class Pattern:
    """Texts of a form."""

    expression: str

    def wrong(self, text: str) -> str | None:
        """The reason why a text is none of them."""
        if re.fullmatch(self.expression, text):
            return None
        return f'string doesn\'t match the regular expression "{self.expression}"'


@dataclass(frozen=True, slots=True, init=False)
class OneOf:
    """Some words."""

    words: tuple[str, ...]

    def __init__(self, *words: str) -> None:
        object.__setattr__(self, "words", words)

    def wrong(self, text: str) -> str | None:
        """The reason why a text is none of them."""
        if text in self.words:
            return None
        return f"value is not one of the allowed values {to_json(self.words).decode()}"


class _Wrong(Exception):
    """Ends the reading of a body at a place."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = place, reason


def parse_body(type_: type[T], data: bytes) -> T:
    """The dataclass that a body is.

    Raises: `ApiError`.
    """
    form: type = type_
    decoder = _plain_decoder(form)
    if decoder is not None:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return msgspec.convert(decoder.decode(data), type_, from_attributes=True)
    return cast(T, _parsed(type_, _schema(type_), data))


def parse_items(type_: type[T], data: bytes) -> list[T]:
    """The dataclasses of a body that is a list.

    Raises: `ApiError`.
    """
    return cast(list[T], _parsed(list[type_], _schema(type_), data))  # type: ignore[valid-type]


def _schema(type_: type) -> str:
    return type_.__name__.lstrip("_")


def _parsed(type_: Any, schema: str, data: bytes) -> Any:
    if not data.strip():
        raise ApiError(400, "request body has an error: value is required but missing")
    try:
        parsed: Any = parse_list(data) if get_origin(type_) is list else parse_object(data)
    except FormError as error:
        raise ApiError(400, f"request body has an error: failed to decode request body: {error}") from None
    try:
        return _built(type_, parsed, "")
    except _Wrong as wrong:
        where = f'Error at "{wrong.place}": ' if wrong.place else ""
        raise ApiError(
            400,
            f"request body has an error: doesn't match schema #/components/schemas/{schema}: {where}{wrong.reason}",
        ) from None


@cache
def _plain_decoder(type_: type) -> msgspec.json.Decoder[Any] | None:
    """A decoder for bodies that need no second look: each field is declared, and of its type; None for other types."""
    fields: list[tuple[str, Any, Any]] = []
    for field, hint in _fields(type_):
        checked = _PLAIN.get(hint)
        if checked is None or (hint in _NULLABLE and field.default is not None):
            return None
        default: Any = msgspec.NODEFAULT if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = msgspec.field(default_factory=field.default_factory)
        fields.append((field.name, checked, default))
    return msgspec.json.Decoder(msgspec.defstruct(type_.__name__, fields, kw_only=True, forbid_unknown_fields=True))


@cache
def _fields(type_: type) -> tuple[tuple[dataclasses.Field[Any], Any], ...]:
    hints = get_type_hints(type_, include_extras=True)
    return tuple((field, hints[field.name]) for field in dataclasses.fields(type_))


def _built(type_: Any, value: Any, place: str) -> Any:
    """A value of a type, of JSON that was parsed."""
    origin = get_origin(type_)
    if origin is Annotated:
        inner, *rules = get_args(type_)
        built = _built(inner, value, place)
        for rule in rules:
            reason = rule.wrong(built)
            if reason is not None:
                raise _Wrong(place, reason)
        return built
    if origin in (Union, types.UnionType):
        [inner] = [part for part in get_args(type_) if part is not type(None)]
        return None if value is None else _built(inner, value, place)
    if origin is list:
        return [
            _built(get_args(type_)[0], item, f"{place}/{number}")
            for number, item in enumerate(_of(list, value, place, "an array"))
        ]
    if origin is dict:
        inner = get_args(type_)[1]
        return {
            name: _built(inner, item, f"{place}/{name}") for name, item in _of(dict, value, place, "an object").items()
        }
    if dataclasses.is_dataclass(type_):
        return _built_object(cast(type, type_), _of(dict, value, place, "an object"), place)
    return _scalar(type_, value, place)


def _built_object(type_: type, value: dict[str, Any], place: str) -> Any:
    built = {}
    for field, hint in _fields(type_):
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        inner = f"{place}/{field.name}"
        if value.get(field.name) is None and optional:
            continue
        if field.name not in value:
            raise _Wrong(inner, f'property "{field.name}" is missing')
        built[field.name] = _built(hint, value[field.name], inner)
    return type_(**built)


def _scalar(type_: Any, value: Any, place: str) -> Any:
    if type_ is bool:
        return _of(bool, value, place, "a boolean")
    if type_ is int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not -_LONG_MAX <= value < _LONG_MAX:
            raise _Wrong(place, "value must be an integer")
        return value
    assert type_ is str, f"bodies have no {type_}"
    return _of(str, value, place, "a string")


def _of(type_: type[T], value: Any, place: str, words: str) -> T:
    if value is None:
        raise _Wrong(place, "Value is not nullable")
    if not isinstance(value, type_):
        raise _Wrong(place, f"value must be {words}")
    return value
