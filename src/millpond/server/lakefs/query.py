"""The query of a request, its parameters checked in the words that clients know.

    call.query.text("prefix")          ""
    call.query.needed("path")          400: parameter "path" in query has an error: value is required but missing
    call.query.amount()                100; at most 1,000

Of a parameter that is repeated, the first one counts, where only one is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from urllib.parse import unquote_to_bytes

from millpond.json_forms import to_json
from millpond.server.lakefs.errors import ApiError

__all__ = ("AMOUNT_MAX", "Query", "wrong_parameter")

AMOUNT_MAX = 1000
_AMOUNT = 100
_FIELDS_MAX = 10_000
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_FLAGS = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}


def wrong_parameter(name: str, reason: str, place: str = "query") -> ApiError:
    """The error for a parameter that cannot be taken."""
    return ApiError(400, f'parameter "{name}" in {place} has an error: {reason}')


def _not_understood() -> ApiError:
    return ApiError(400, "the query is not understood: escape its text as UTF-8")


def _unescaped(text: bytes) -> str:
    """A name or a value of a query.

    Raises: `ApiError` for what is not ASCII, or no UTF-8 when its escapes are read.
    """
    if not text.isascii():
        raise _not_understood()
    try:
        return unquote_to_bytes(text.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise _not_understood() from None


class Query:
    """The parameters of one request."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    @cached_property
    def _fields(self) -> dict[str, list[str]]:
        fields: dict[str, list[str]] = {}
        parts = self._raw.split(b"&", _FIELDS_MAX)
        if len(parts) > _FIELDS_MAX:
            raise _not_understood()
        for part in filter(None, parts):
            name, _, value = part.partition(b"=")
            fields.setdefault(_unescaped(name), []).append(_unescaped(value))
        return fields

    def texts(self, name: str) -> list[str]:
        """All values of a parameter that may be repeated."""
        return self._fields.get(name, [])

    def text(self, name: str, default: str = "") -> str:
        """A text, or the default."""
        text = self._fields.get(name)
        return text[0] if text else default

    def needed(self, name: str) -> str:
        """A text that must be given.

        Raises: `ApiError`.
        """
        text = self._fields.get(name)
        if not text:
            raise wrong_parameter(name, "value is required but missing")
        if not text[0]:
            raise wrong_parameter(name, "empty value is not allowed")
        return text[0]

    def flag(self, name: str, default: bool = False) -> bool:
        """A truth value.

        Raises: `ApiError`.
        """
        text = self.text(name)
        if not text:
            return default
        if text.lower() not in _FLAGS:
            raise wrong_parameter(name, f"value {text}: an invalid boolean: invalid syntax")
        return _FLAGS[text.lower()]

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number between two.

        Raises: `ApiError`.
        """
        text = self.text(name)
        if not text:
            return default
        if not _INTEGER.fullmatch(text):
            raise wrong_parameter(name, f"value {text}: an invalid integer: invalid syntax")
        if int(text) > most:
            raise wrong_parameter(name, f"number must be at most {most}")
        if int(text) < least:
            raise wrong_parameter(name, f"number must be at least {least}")
        return int(text)

    def amount(self) -> int:
        """The number of results that a page should have.

        Raises: `ApiError`.
        """
        amount = self.number("amount", _AMOUNT, -1, AMOUNT_MAX)
        return amount if amount > 0 else _AMOUNT

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of some words.

        Raises: `ApiError`.
        """
        text = self.text(name) or default
        allowed = list(choices)
        if text not in allowed:
            raise wrong_parameter(name, f"value is not one of the allowed values {to_json(allowed).decode()}")
        return text
