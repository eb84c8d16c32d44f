"""Pages from templates, and the files that they name.

A template gets what `Accept: application/json` would get, so that a page shows nothing that a program cannot have.

Invariants:
* every value is escaped, for `autoescape` is on and no template says `safe`; drawings are built by `charts.py`;
* no template has a script, a style or an address of another machine: the policy in `server/console/pages.py` holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from millpond.json_forms import to_json
from millpond.sizes import human_bytes, human_count, human_time

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from jinja2 import Environment

__all__ = ("asset", "link", "moment", "rendered", "segment")

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT_MAX = 2_000
"""The letters of one value that a page shows; JSON has all of it."""


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """The page of a template."""
    return _environment().get_template(f"{template}.html").render(values)


@lru_cache(maxsize=16)
def asset(name: str) -> tuple[bytes, str, str] | None:
    """A file of the console, its media type, and its hash; None for a name that it has not."""
    ending = name.rpartition(".")[2]
    file = _files().get(name)
    if ending not in _TYPES or file is None:
        return None
    data = file.read_bytes()
    return data, _TYPES[ending], hashlib.sha256(data).hexdigest()[:16]


@cache
def _files() -> Mapping[str, Traversable]:
    """The files of the console by their names: no other name is looked for on the disk."""
    return {file.name: file for file in (files("millpond.console") / "static").iterdir()}


def _hash_of(name: str) -> str:
    """The hash of a file, which makes its address another whenever it changes."""
    file = asset(name)
    return "" if file is None else file[2]


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("millpond.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(
        moment=moment, instant=_instant, size=_optional(human_bytes), segment=segment, value=_value,
        number=_optional(human_count), span=_optional(human_time),
    )  # fmt: skip
    environment.globals.update(link=link, hash_of=_hash_of)
    return environment


def moment(millis: int | None) -> str:
    """An instant in UTC, to the second.

    >>> moment(1_767_225_600_000), moment(None)
    ('2026-01-01 00:00:00 UTC', '')
    """
    if millis is None:
        return ""
    try:
        return f"{_EPOCH + timedelta(milliseconds=millis):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return str(millis)


def _instant(millis: int) -> str:
    """An instant as a ref by time has it.

    >>> _instant(1_767_225_600_007)
    '2026-01-01T00:00:00.007Z'
    """
    return moment(millis).replace(" UTC", f".{millis % 1000:03}Z").replace(" ", "T")


def segment(name: str) -> str:
    """A name as one segment of a path.

    >>> segment("a/b <c>")
    'a%2Fb%20%3Cc%3E'
    """
    return quote(name, safe="")


def link(path: str, /, **query: Any) -> str:
    """A path with a query; parameters without a value are left out, and one with several comes again.

    >>> link("/console/maps", after="a&b", prefix="")
    '/console/maps?after=a%26b'
    >>> link("/console/runs", tag=["day=1", "team=b"])
    '/console/runs?tag=day%3D1&tag=team%3Db'
    """
    stated = {name: value for name, value in query.items() if value not in (None, "", [])}
    return f"{path}?{urlencode(stated, doseq=True)}" if stated else path


def _value(shown: Any) -> str:
    """A value as text of bounded length.

    >>> _value({"a": 1}), _value(None), _value("x")
    ('{"a":1}', 'null', 'x')
    """
    text = shown if isinstance(shown, str) else to_json(shown).decode()
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def _optional(form: Callable[..., str]) -> Callable[..., str]:
    """A filter that shows nothing of what is not known."""
    return lambda shown, *words: "" if shown is None else form(shown, *words)
