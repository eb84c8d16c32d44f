"""The parameters of a handler, taken from a request by their names and types.

    def scan(request: Request, name: str, wanted: Scan, limit: Annotated[int, Meta(ge=1)] = 100) -> Response

| parameter | comes from |
|---|---|
| of a name in the path's template | the path |
| `Request`, `Caller`, or a value of the dialect | the request; the sender |
| a struct, a list of them, or a dict | the body, which is JSON |
| annotated with `IN_HEADER` | the header of its name |
| any other | the query; of one that is repeated, the last counts, unless it is a list |

Text of the query and of headers becomes numbers and truth values where the type says so. A body is decoded as it
stands; where that fails, once more with Python's integers and text, and `"5"` for 5: such was taken ever since. Where
the dialect says so, blanks are left out first, and null in a body.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request

from millpond.errors import Invalid
from millpond.json_forms import FormError, parse_object
from millpond.nodes.tokens import Caller
from millpond.server.access import caller_in
from millpond.server.dialect import Dialect

__all__ = ("IN_HEADER", "Field", "Parameters", "names_in", "not_understood", "typed", "typed_json")

IN_HEADER: Final = "in the header"
"""In the annotation of a parameter: it comes from a header."""
T = TypeVar("T")
_HINT = "/docs shows what this route takes"
_FIELDS_MAX = 10_000
_MISSING = re.compile(r"(?:required|unknown) field `(.*?)`")


def names_in(template: str) -> list[str]:
    """The names that the template of a path has.

    >>> names_in("/v1/maps/{name}/objects/{file:path}")
    ['name', 'file']
    """
    return re.findall(r"\{(\w+)", template)


class Field(NamedTuple):
    """A parameter: its name, its type, and its default, which is `NODEFAULT` where there is none."""

    name: str
    type: Any
    default: Any


class Parameters:
    """The parameters of one handler."""

    def __init__(self, handler: Callable[..., Any], template: str, dialect: Dialect) -> None:
        hints = get_type_hints(handler, include_extras=True)
        self.answer = hints.pop("return", Any)
        self.body: Field | None = None
        self.query: list[Field] = []
        self.headers: list[Field] = []
        self._blank_is_default = dialect.blank_is_default
        self._values: dict[str, Callable[[Request], Any]] = {}
        values = {Request: _same, Caller: caller_in, **dialect.values}
        for name, parameter in inspect.signature(handler).parameters.items():
            hint, default = hints[name], parameter.default
            field = Field(name, hint, msgspec.NODEFAULT if default is inspect.Parameter.empty else default)
            if hint in values:
                self._values[name] = values[hint]
            elif name in names_in(template):
                self._values[name] = partial(_in_path, name)
            elif _is_body(hint):
                self.body = field
            elif IN_HEADER in getattr(hint, "__metadata__", ()):
                self.headers.append(field)
            else:
                self.query.append(field)
        self._query = msgspec.defstruct("Query", self.query, kw_only=True)
        self._needed = {field.name for field in self.query if field.default is msgspec.NODEFAULT}
        self._lists = [field.name for field in self.query if _is_list(field.type)]
        renamed = {field.name: field.name.replace("_", "-") for field in self.headers}
        self._headers = msgspec.defstruct("Headers", self.headers, kw_only=True, rename=renamed)
        self._decoder = None if self.body is None else msgspec.json.Decoder(self.body.type)

    @property
    def schema(self) -> str:
        """The name of the type of the body, or of its items."""
        assert self.body is not None
        name: str = (get_args(self.body.type) or (self.body.type,))[0].__name__
        return name

    async def of(self, request: Request) -> dict[str, Any]:
        """The arguments that a request gives.

        Raises: `Invalid`, kind `request_invalid`; as `Request.body`.
        """
        arguments = self.of_head(request)
        if self.body is not None:
            arguments[self.body.name] = await self._body(request, self.body)
        return arguments

    def of_head(self, request: Request) -> dict[str, Any]:
        """The arguments that the head of a request gives.

        Raises: `Invalid`, kind `request_invalid`.
        """
        arguments: dict[str, Any] = {}
        for name, value in self._values.items():  # a comprehension is one more call of each request
            arguments[name] = value(request)
        if self.query:
            arguments |= _fields("query", self._in_query(request), self._query)
        if self.headers:
            arguments |= _fields("header", dict(request.headers), self._headers)
        return arguments

    def _in_query(self, request: Request) -> dict[str, Any]:
        try:
            query = request.scope["query_string"].decode("ascii")
            pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX)
        except ValueError:
            raise not_understood("query", "it is no escaped UTF-8, or too long", "escape its text as UTF-8") from None
        if self._blank_is_default:
            pairs = [(name, value) for name, value in pairs if value or name in self._needed]
        values: dict[str, Any] = dict(pairs)
        for name in self._lists:
            if name in values:
                values[name] = [value for other, value in pairs if other == name]
        return values

    async def _body(self, request: Request, field: Field) -> Any:
        assert self._decoder is not None
        body = await request.body()
        if not body.strip():
            if field.default is not msgspec.NODEFAULT:
                return field.default
            raise not_understood("body", "it is missing", _HINT)
        if not _is_json(request.headers.get("content-type", "")):
            hint = "send the body with Content-Type: application/json"
            raise not_understood("body", "it is no JSON", hint)
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return typed("body", await _parsed(request, nulls=not self._blank_is_default), field.type)


def _in_path(name: str, request: Request) -> Any:
    return request.scope["path_params"][name]


def _same(request: Request) -> Request:
    return request


def _is_list(hint: Any) -> bool:
    return any(get_origin(option) is list for option in (hint, *get_args(hint)))


def _is_body(hint: Any) -> bool:
    """True for a struct, for a list of them, for a dict, and for one of them or None."""
    options = get_args(hint) if type(None) in get_args(hint) or get_origin(hint) is list else (hint,)
    return any(
        get_origin(option) is dict or (isinstance(option, type) and issubclass(option, msgspec.Struct))
        for option in options
    )


def _is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


async def _parsed(request: Request, *, nulls: bool) -> Any:
    try:
        parsed = await request.json()
        return parsed if nulls else _without_nulls(parsed)
    except (ValueError, RecursionError) as error:
        raise not_understood("body", f"it is no JSON: {error}") from None


def _without_nulls(parsed: Any) -> Any:
    """JSON without the fields that are null."""
    if isinstance(parsed, dict):
        return {name: _without_nulls(value) for name, value in parsed.items() if value is not None}
    return list(map(_without_nulls, parsed)) if isinstance(parsed, list) else parsed


def _fields(location: str, values: Mapping[str, str], type_: type[msgspec.Struct]) -> dict[str, Any]:
    return msgspec.structs.asdict(typed(location, values, type_))


def typed(location: str, values: Any, type_: Any) -> Any:
    """The value of a type that was sent in the query, a header or the body.

    Raises: `Invalid`, kind `request_invalid`.
    """
    try:
        return msgspec.convert(values, type_, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        reason, _, path = str(error).partition(" - at `$")
        match = _MISSING.search(reason)
        where = f"{location}{path.rstrip('`')}{f'.{match[1]}' if match else ''}"
        raise not_understood(where, reason) from None


def typed_json(location: str, data: str, type_: type[T]) -> T:
    """The value of a type that was sent as JSON.

    Raises: as `typed`.
    """
    try:
        parsed = parse_object(data)
    except FormError as error:
        raise not_understood(location, f"it is no JSON: {error}") from None
    value: T = typed(location, parsed, type_)
    return value


def not_understood(where: str, reason: str, hint: str = _HINT) -> Invalid:
    """The error for a part of a request that is none."""
    return Invalid("the request is not understood", kind="request_invalid", where=where, reason=reason, hint=hint)
