"""Maps in XSLT: the extension function `stroom:lookup`, so that stylesheets written for Stroom ask a pond.

    from lxml import etree
    from millpond import xslt

    transform = etree.XSLT(etree.parse("events.xsl"), extensions=xslt.functions(pond))
    transform(etree.parse("events.xml"))

    stroom:lookup(map, key[, time[, ignoreWarnings[, trace]]])

| the map's value | the answer |
|---|---|
| XML | its top nodes, a node set |
| a struct | an element called as the map, with a child for each field that has a value |
| anything else | its text |
| the key is in a session | the text of the key |
| there is none | the empty node set |

`map1/map2` asks `map2` with the text of `map1`'s answer as its key. Times are instants; left out, it is now: one now
for all lookups of a transformation, so that the same question has the same answer from its first line to its last.

Invariants:
* A miss is no error; a map that does not exist and a time that is not understood are, unless warnings are ignored.
* No value is ever parsed with a document type, an entity or a fetch.
* Answers are remembered for one transformation, at most `ANSWERS_MAX` of them.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from millpond.clock import Clock, SystemClock
from millpond.errors import Invalid, NotFound
from millpond.extras import need
from millpond.kernel.cache import Cache
from millpond.maps.model.definition import Kind
from millpond.times.instants import clear_instant, parse_instant

need("lxml")

from lxml import etree  # noqa: E402

__all__ = ("ANSWERS_MAX", "NAMESPACE", "functions")

NAMESPACE = "stroom"
"""The namespace of the functions, which is the word itself."""

ANSWERS_MAX = 1_000
_STATE = "millpond.xslt"

_log = logging.getLogger("millpond.xslt")

Answer = str | list[Any]
"""Text, or nodes: elements and texts between them."""


class _LookupMap(Protocol):
    """A map as a lookup needs it, here or on a node."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Kind: ...
    def get(self, key: Any, at: Any = None) -> Any: ...


class _Holder(Protocol):
    def map(self, name: str, /) -> Any: ...


def functions(
    pond: _Holder, *, at: object = None, clock: Clock | None = None
) -> dict[tuple[str, str], Callable[..., Answer]]:
    """The extensions to hand to `lxml.etree.XSLT`: `stroom:lookup`, asking a pond in a folder or on nodes.

    `at` is the time of lookups that name none, in place of now: that of the stream which is transformed, say.

    Raises: `Invalid` for an `at` that is no instant. A transformation raises what a lookup does: `NotFound` for a map,
        `Invalid` for a time, `Unavailable` when no node answers.
    """
    dated = clock or SystemClock()
    instant = None if at is None else parse_instant(at)

    def lookup(context: Any, *arguments: Any) -> Answer:
        run = context.eval_context.get(_STATE)
        if run is None:
            run = context.eval_context[_STATE] = _Run(pond, dated.now_ms() if instant is None else instant)
        return run.answer(_question(arguments))

    return {(NAMESPACE, "lookup"): lookup}


# -- the question -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Question:
    maps: str
    key: str | None
    time: str | None
    timed: bool
    ignore_warnings: bool
    trace: bool


def _question(arguments: Sequence[Any]) -> _Question:
    if not 2 <= len(arguments) <= 5:
        raise Invalid(
            "stroom:lookup takes 2 to 5 arguments", kind="lookup_arguments", found=len(arguments),
            hint="write stroom:lookup(map, key, time, ignoreWarnings, trace); the last three may be left out",
        )  # fmt: skip
    maps, key, time, ignore_warnings, trace = (*arguments, None, None, None)[:5]
    return _Question(
        maps=_text(maps) or "", key=_text(key), time=_text(time), timed=len(arguments) > 2,
        ignore_warnings=_is_true(ignore_warnings), trace=_is_true(trace),
    )  # fmt: skip


def _text(value: Any) -> str | None:
    """The text that XPath's `string()` makes of an argument; None for an empty node set."""
    if isinstance(value, list):
        return _text(value[0]) if value else None
    if etree.iselement(value):
        return "".join(value.itertext())
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return None if value is None else str(value)


def _is_true(value: Any) -> bool:
    return value is True or _text(value) == "true"


# -- one transformation -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    """The lookups of one transformation so far."""

    pond: _Holder
    now_ms: int
    maps: dict[str, _LookupMap] = field(default_factory=dict)
    answers: Cache[tuple[str, str, int], Answer] = field(default_factory=lambda: Cache(ANSWERS_MAX))

    def answer(self, question: _Question) -> Answer:
        """The answer; empty for a fault whose warnings are ignored."""
        try:
            at = self._instant(question)
            values = [] if question.key is None else self._chained(question.maps, question.key, at)
        except (Invalid, NotFound) as error:
            if not question.ignore_warnings:
                raise
            _log.warning("lookup left empty: %s", error)
            return []
        if question.trace:
            _log.info(
                "lookup: map=%s key=%s at=%s %s", question.maps, question.key, question.time or _iso(at),
                "found" if values else "not found",
            )  # fmt: skip
        return values

    def _instant(self, question: _Question) -> int:
        if not question.timed:
            return self.now_ms
        try:
            return parse_instant(question.time)
        except Invalid as error:
            raise Invalid(
                "stroom:lookup does not understand its time", kind="lookup_time", map=question.maps, key=question.key,
                time=repr(question.time or ""), hint="write an instant with a zone, such as 2013-02-08T18:00:00.000Z",
            ) from error  # fmt: skip

    def _chained(self, maps: str, key: str, at: int) -> Answer:
        names = maps.lower().split("/")  # no map has a capital in its name
        if not all(names):
            raise Invalid(
                "stroom:lookup needs the name of a map", kind="lookup_map", map=repr(maps),
                hint="write 'map', or 'map1/map2' to ask map2 with what map1 answers",
            )  # fmt: skip
        for name in names[:-1]:
            value = self._remembered(name, key, at)
            if not value:
                return []
            key = value if isinstance(value, str) else "".join(_text(node) or "" for node in value)
        return self._remembered(names[-1], key, at)

    def _remembered(self, name: str, key: str, at: int) -> Answer:
        return self.answers.get_or_make((name, key, at), lambda: self._look_up(name, key, at))

    def _look_up(self, name: str, key: str, at: int) -> Answer:
        map = self.maps.get(name)
        if map is None:
            map = self.maps[name] = self.pond.map(name)
        try:
            value = map.get(key, at=clear_instant(at))
        except Invalid as error:
            if error.kind == "key_number":  # a text is in no range of numbers
                return []
            raise
        if value is None:
            return []
        return key if map.kind is Kind.SESSION else _answer(map.name, value)


# -- the answer ---------------------------------------------------------------------------------------


def _answer(name: str, value: Any) -> Answer:
    if isinstance(value, dict):
        return [_struct(name, value)]
    if isinstance(value, str):
        return _nodes(value) or value
    return _scalar(value)


def _struct(name: str, value: dict[str, Any]) -> Any:
    element = etree.Element(name)
    for field_name, content in value.items():
        if content is not None:
            etree.SubElement(element, _element_name(field_name)).text = (
                content if isinstance(content, str) else _scalar(content)
            )
    return element


def _element_name(name: str) -> str:
    """A field's name with `_` for what the name of an element cannot hold.

    >>> _element_name("wind speed"), _element_name("3d")
    ('wind_speed', '_3d')
    """
    name_ = re.sub(r"[^\w.-]", "_", name)
    return name_ if re.match(r"[^\W\d]", name_) else f"_{name_}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        precision = "microseconds" if value.microsecond % 1000 else "milliseconds"
        return value.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _nodes(text: str) -> list[Any]:
    """The nodes of a value that is XML; none when it is text that only looks like it."""
    trimmed = text.strip()
    if not (trimmed.startswith("<") and trimmed.endswith(">")):
        return []
    # Inside an element a document type is malformed, so there are no entities to expand.
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    try:
        holder = etree.fromstring(f"<value>{trimmed}</value>", parser)
    except etree.XMLSyntaxError:
        return []
    return [piece for element in holder for piece in (element, element.tail) if piece is not None]


def _iso(millis: int) -> str:
    return _scalar(datetime.fromtimestamp(millis / 1000, UTC))
