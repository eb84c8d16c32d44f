"""Values in errors: short, and whatever they are. Tables for notebooks: whatever they hold is text."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

__all__ = (
    "ROWS_SHOWN",
    "SHOWN_MAX",
    "ShownAsTable",
    "html_bars",
    "html_facts",
    "html_rows",
    "html_table",
    "shown",
    "shown_address",
    "some_of",
    "without_password",
)

SHOWN_MAX = 200
"""Characters of a value in an error."""
ROWS_SHOWN = 50
"""Rows of a table in a notebook."""
_NAMES_SHOWN = 20
_BAR_HEIGHT = 32


def some_of(names: Iterable[str]) -> str:
    """Names in their order, as a hint lists them: the first some.

    >>> some_of({"b", "a"})
    'a, b'
    """
    listed = sorted(names)
    return ", ".join(listed[:_NAMES_SHOWN]) + (", …" if len(listed) > _NAMES_SHOWN else "")


def shown(value: object) -> str:
    """The repr of any value, in ASCII and cut short; its type where it has none.

    >>> shown("caf\\u00e9")
    "'caf\\\\xe9'"
    """
    try:
        return ascii(value)[:SHOWN_MAX]
    except Exception:  # a number of thousands of digits, or an object that belies what it looks like
        return f"a value of type {type(value).__name__}"


def shown_address(address: str) -> str:
    """An address without what may be a secret in it: the name and password before its host, and its query.

    >>> shown_address("http://ann:secret@n1:7433/a?token=secret#b")
    'http://***@n1:7433/a?***'
    """
    scheme, slashes, rest = address.partition("://")
    credentials, at, host = rest.rpartition("@")
    if at and any(letter in credentials for letter in "/?#"):  # nobody can say where they end
        return f"{scheme}{slashes}***"
    host, query, _ = host.partition("#")[0].partition("?")
    return f"{scheme}{slashes}{'***@' if at else ''}{host}{'?***' if query else ''}"


def without_password(url: str) -> str:
    """A URL of a database without its password.

    >>> without_password("postgresql://ann:secret@db:5432/millpond?sslmode=require#flights")
    'postgresql://ann@db:5432/millpond?sslmode=require#flights'
    >>> without_password("postgresql://db/millpond?password=secret#flights")
    'postgresql://db/millpond#flights'
    """
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != "password"])
    return urlunsplit(parts._replace(netloc=user.partition(":")[0] + at + host, query=query))


def html_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table of HTML; every cell is text, none is markup.

    >>> html_table("one", ["a"], [["<b>"]])
    '<table><caption>one</caption><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    lines = ("".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in (head, *lines) if line)
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"


def html_bars(title: str, values: Sequence[float], words: Sequence[str] = ()) -> str:
    """A drawing of bars, each with its words, or its number, as its title; a style sheet may give it size and colour.

    >>> html_bars("one", [0, 4], ["none", "four"])[-72:]
    '<rect x="8" y="0" width="7" height="32"><title>four</title></rect></svg>'
    """
    top, titles = max(values, default=0) or 1, words or [f"{value:,.10g}" for value in values]
    heights = [max(1, round(_BAR_HEIGHT * value / top, 1)) if value > 0 else 0 for value in values]
    drawn = (
        f'<rect x="{8 * host}" y="{_BAR_HEIGHT - high:g}" width="7" height="{high:g}">'
        f"<title>{html.escape(text)}</title></rect>"
        for host, (high, text) in enumerate(zip(heights, titles, strict=True))
        if high
    )
    width = 8 * len(values)
    return (
        f'<svg role="img" aria-label="{html.escape(title)}" width="{width}" height="{_BAR_HEIGHT}" class="bars" '
        f'viewBox="0 0 {width} {_BAR_HEIGHT}" preserveAspectRatio="none" fill="currentColor">{"".join(drawn)}</svg>'
    )


def html_rows(title: str, rows: Sequence[Any]) -> str:
    """A table of the first of some dataclasses, or named tuples, with a column for each field."""
    shown = rows[:ROWS_SHOWN]
    columns = list(dict.fromkeys(name for row in shown for name in _fields_of(row)))
    cells = ([str(getattr(row, column, ""))[:SHOWN_MAX] for column in columns] for row in shown)
    return html_table(title, columns, cells)


def _fields_of(row: Any) -> Iterable[str]:
    return [own.name for own in dataclasses.fields(row)] if dataclasses.is_dataclass(row) else row._fields


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """A table of names and values."""
    return html_table(title, (), facts.items())


class ShownAsTable:
    """A result, a dataclass, that a notebook shows as a table of those of its fields that say something."""

    __slots__ = ()

    def _repr_html_(self: Any) -> str:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        facts = {name: str(value)[:SHOWN_MAX] for name, value in fields.items() if value not in ("", (), [])}
        return html_facts(type(self).__name__, facts)
