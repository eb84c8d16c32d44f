"""The parameters of a handler, taken from a request by their names and types.

    def scan(request: Request, name: str, wanted: Scan, limit: Annotated[int, Meta(ge=1)] = 100) -> Response

| parameter | comes from |
|---|---|
| of a name in the path's template | the path |
| `Request`, `Caller` | the request; the sender |
| a struct, or a dict | the body, which is JSON |
| annotated with `IN_HEADER` | the header of its name |
| any other | the query; of one that is repeated, the last counts |

Text of the query and of headers becomes numbers and truth values where the type says so. A body is decoded as it
stands; where that fails, once more with Python's integers and text, and `"5"` for 5: such was taken ever since.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from starlette.requests import Request

from millpond.errors import Invalid
from millpond.nodes.tokens import Caller
from millpond.server.access import caller_in

__all__ = ("IN_HEADER", "Field", "Parameters", "names_in")

IN_HEADER: Final = "in the header"
"""In the annotation of a parameter: it comes from a header."""
_HINT = "/docs shows what this route takes"
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

    def __init__(self, handler: Callable[..., Any], template: str) -> None:
        hints = get_type_hints(handler, include_extras=True)
        self.answer = hints.pop("return", Any)
        self.path = names_in(template)
        self.body: Field | None = None
        self.query: list[Field] = []
        self.headers: list[Field] = []
        self._given: dict[str, Callable[[Request], Any]] = {}
        for name, parameter in inspect.signature(handler).parameters.items():
            hint, default = hints[name], parameter.default
            field = Field(name, hint, msgspec.NODEFAULT if default is inspect.Parameter.empty else default)
            if hint is Request:
                self._given[name] = _same
            elif hint is Caller:
                self._given[name] = caller_in
            elif name in self.path:
                continue
            elif _is_body(hint):
                self.body = field
            elif IN_HEADER in getattr(hint, "__metadata__", ()):
                self.headers.append(field)
            else:
                self.query.append(field)
        self._query = msgspec.defstruct("Query", self.query, kw_only=True)
        renamed = {field.name: field.name.replace("_", "-") for field in self.headers}
        self._headers = msgspec.defstruct("Headers", self.headers, kw_only=True, rename=renamed)
        self._decoder = None if self.body is None else msgspec.json.Decoder(self.body.type)

    async def of(self, request: Request) -> dict[str, Any]:
        """The arguments that a request gives.

        Raises: `Invalid`, kind `request_invalid`; as `Request.body`.
        """
        arguments = dict(request.scope["path_params"])
        for name, values in self._given.items():
            arguments[name] = values(request)
        if self.body is not None:
            arguments[self.body.name] = await self._body(request, self.body)
        if self.query:
            arguments |= _fields("query", dict(request.query_params), self._query)
        if self.headers:
            arguments |= _fields("header", dict(request.headers), self._headers)
        return arguments

    async def _body(self, request: Request, field: Field) -> Any:
        assert self._decoder is not None
        body = await request.body()
        if not body and field.default is not msgspec.NODEFAULT:
            return field.default
        if not _is_json(request.headers.get("content-type", "")):
            hint = "send the body with Content-Type: application/json"
            raise _not_understood("body", "it is no JSON", hint)
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _taken("body", await _parsed(request), field.type)


def _same(request: Request) -> Request:
    return request


def _is_body(hint: Any) -> bool:
    """True for a struct, for a dict, and for one of them or None."""
    options = get_args(hint) if type(None) in get_args(hint) else (hint,)
    return any(
        get_origin(option) is dict or (isinstance(option, type) and issubclass(option, msgspec.Struct))
        for option in options
    )


def _is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


async def _parsed(request: Request) -> Any:
    try:
        return await request.json()
    except (ValueError, RecursionError) as error:
        raise _not_understood("body", f"it is no JSON: {error}") from None


def _fields(place: str, values: Mapping[str, str], type_: type[msgspec.Struct]) -> dict[str, Any]:
    return msgspec.structs.asdict(_taken(place, values, type_))


def _taken(place: str, values: Any, type_: Any) -> Any:
    try:
        return msgspec.convert(values, type_, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        reason, _, path = str(error).partition(" - at `$")
        match = _MISSING.search(reason)
        where = f"{place}{path.rstrip('`')}{f'.{match[1]}' if match else ''}"
        raise _not_understood(where, reason) from None


def _not_understood(where: str, reason: str, hint: str = _HINT) -> Invalid:
    return Invalid("the request is not understood", kind="request_invalid", where=where, reason=reason, hint=hint)
