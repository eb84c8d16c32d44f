"""Stroom's XML, `reference-data:2` and `plan-b:1` / `plan-b:2`, as a stream of elements that maps can take.

    <referenceData>  reference*, session*              the map's own kind tells what a reference is
    <plan-b>         state*, temporal-state*, range-state*, temporal-range-state*, session*, histogram*, metric*

Expat reads, so no tree is ever built: memory holds the elements of one batch, whatever the size of the file.

Names are matched as Plan B matches them: local, without case, in any namespace. Map names are lower case. Text in `key`
and `value` is kept as it stands; a blank `value` is null; a `value` with elements in it is XML, with the namespaces it
uses declared in it.

Invariants:
* Every element below the root is handed on, or rejected with its line and the reason.
* A document type declaration is refused where it begins, so no entity is ever expanded or fetched.
* An element of more than `ELEMENT_BYTES_MAX`, or deeper than `DEPTH_MAX`, ends the reading; so do more than `NAMES_MAX`
  different names, or one that is longer than that: the parser remembers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import StringIO
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from millpond.errors import Invalid

__all__ = ("DEPTH_MAX", "ELEMENT_BYTES_MAX", "NAMES_MAX", "Element", "read_elements")

ELEMENT_BYTES_MAX = 16 << 20
DEPTH_MAX = 256
NAMES_MAX = 1_000

_TOO_LONG = f"an element has more than {ELEMENT_BYTES_MAX:,} bytes"
_ROOTS = frozenset(("referencedata", "plan-b"))
_FIELDS = frozenset(("map", "key", "tags", "time", "value", "from", "to", "timeout", "range"))
_RANGE = frozenset(("from", "to"))
_TAG = ("name", "value")


@dataclass(slots=True)
class Element:
    """One element below the root: its local name in lower case, its fields' texts, and what is wrong with its form."""

    name: str
    line: int
    fields: dict[str, str] = field(default_factory=dict)
    xml: bool = False
    """True when `fields["value"]` is XML."""
    tags: list[tuple[str, str]] | None = None
    """The names and values of `tags`."""
    fault: str | None = None


def read_elements(chunks: Iterable[bytes], path: str) -> Iterator[list[Element]]:
    """The elements of a document, a list for each chunk of its bytes.

    Raises: `Invalid` with the line and column where the document is malformed or not one of those we read.
    """
    reader = _Reader(path)
    for chunk in chunks:
        yield reader.feed(chunk, last=False)
    yield reader.feed(b"", last=True)


@lru_cache(maxsize=512)
def _local(name: str) -> str:
    return name.rpartition(":")[2].lower()


class _Reader:
    """Expat's handlers, and where in the document they are."""

    __slots__ = (
        "_depth",
        "_done",
        "_element",
        "_fed",
        "_field",
        "_fragment",
        "_last",
        "_parser",
        "_path",
        "_scopes",
        "_tag",
        "_text",
    )

    def __init__(self, path: str) -> None:
        self._path = path
        self._depth = 0
        self._done: list[Element] = []
        self._element: Element | None = None
        self._field: str | None = None
        self._text: list[str] = []
        self._tag: dict[str, str] = {}
        self._scopes: list[tuple[int, dict[str, str]]] = [(0, {"xml": ""})]
        self._fragment: _Fragment | None = None
        self._fed = 0
        self._last = 0
        parser = self._parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype

    def feed(self, chunk: bytes, *, last: bool) -> list[Element]:
        """Read on; answers the elements that ended."""
        self._fed += len(chunk)
        try:
            self._parser.Parse(chunk, last)
        except expat.ExpatError as error:
            reason = f"the XML is malformed: {expat.ErrorString(error.code)}"
            raise self._invalid(reason, error.lineno, error.offset) from error
        if self._fed - self._last > ELEMENT_BYTES_MAX:
            raise self._here(_TOO_LONG)
        if len(self._parser.intern) > NAMES_MAX:
            raise self._here(f"elements and attributes have more than {NAMES_MAX:,} different names")
        done, self._done = self._done, []
        return done

    def _invalid(self, reason: str, line: int, column: int) -> Invalid:
        return Invalid(
            reason, kind="xml_malformed", path=self._path, line=line, column=column + 1,
            hint="nothing of the load was stored: mend the file, or leave it out",
        )  # fmt: skip

    def _here(self, reason: str) -> Invalid:
        return self._invalid(reason, self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber)

    def _doctype(self, *_: object) -> None:
        raise self._here("the XML declares a document type, which could define entities: refused")

    # -- elements ---------------------------------------------------------------------------------

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        depth = self._depth
        if len(name) > NAMES_MAX:
            raise self._here(f"an element's name is longer than {NAMES_MAX:,} characters")
        if depth > DEPTH_MAX:
            raise self._here(f"elements are nested more than {DEPTH_MAX} deep")
        if attributes:
            self._declare(attributes)
        element = self._element
        if self._fragment is not None:
            self._fragment.start(name, attributes, self._characters_so_far())
        elif depth == 3 and element is not None:
            self._start_field(element, _local(name))
        elif depth == 2:
            self._element = Element(_local(name), self._parser.CurrentLineNumber)
        elif depth == 1:
            self._root(name)
        elif element is not None:
            self._start_inner(element, name, attributes)

    def _root(self, name: str) -> None:
        if _local(name) not in _ROOTS:
            raise self._here(f"the root element is <{name}>, neither <referenceData> nor <plan-b>")

    def _start_field(self, element: Element, name: str) -> None:
        self._text.clear()
        self._field = name
        if name not in _FIELDS:
            element.fault = element.fault or f"<{name}> is no part of a <{element.name}> that maps can take"
        elif name in element.fields:
            element.fault = element.fault or f"<{name}> is given twice"

    def _start_inner(self, element: Element, name: str, attributes: dict[str, str]) -> None:
        """An element within a field: bounds within a range, XML within a value."""
        if self._field == "value" and self._depth == 4:
            self._fragment = _Fragment(self._namespaces())
            self._fragment.start(name, attributes, self._characters_so_far())
        elif self._field == "range" and self._depth == 4 and _local(name) in _RANGE:
            self._start_field(element, _local(name))
        elif self._field == "tags" and self._depth == 4 and _local(name) == "tag":
            self._tag = {}
        elif self._field == "tags" and self._depth == 5 and _local(name) in _TAG:
            self._text.clear()
        else:
            element.fault = element.fault or f"<{name}> is no part of <{self._field}>"

    def _end(self, name: str) -> None:
        depth = self._depth
        self._depth = depth - 1
        element = self._element
        if self._fragment is not None and depth > 3:
            self._fragment.end(name, self._characters_so_far())
            if self._fragment.size > ELEMENT_BYTES_MAX:
                raise self._here(_TOO_LONG)
        elif depth == 3 and element is not None:
            self._end_field(element)
        elif depth == 4 and self._field in _RANGE and element is not None:
            element.fields[self._field] = "".join(self._text).strip()
            self._field = "range"
        elif self._field == "tags" and element is not None and depth > 3:
            self._end_tag(element, _local(name))
        elif depth == 2 and element is not None:
            self._done.append(element)
            self._element = None
            self._last = self._fed
        if self._scopes[-1][0] == depth:
            self._scopes.pop()

    def _end_tag(self, element: Element, name: str) -> None:
        if self._depth == 4:
            self._tag[name] = "".join(self._text)
        elif all(part in self._tag for part in _TAG):
            element.tags = element.tags or []
            element.tags.append((self._tag["name"], self._tag["value"]))
        else:
            element.fault = element.fault or "a <tag> has a <name> and a <value>"

    def _end_field(self, element: Element) -> None:
        name, self._field = self._field, None
        if name == "tags":
            element.fields[name] = ", ".join(map("=".join, element.tags or ()))
        if name in (None, "range", "tags"):
            return
        if self._fragment is not None:
            element.fields[name] = self._fragment.finish(self._characters_so_far())
            element.xml = True
            self._fragment = None
            return
        text = "".join(self._text)
        element.fields[name] = text if name in ("key", "value") else text.strip()

    # -- text and namespaces ----------------------------------------------------------------------

    def _characters(self, text: str) -> None:
        if self._field is not None:
            self._text.append(text)

    def _characters_so_far(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        return text

    def _declare(self, attributes: Mapping[str, str]) -> None:
        """Remember namespaces that an element declares, until it ends."""
        declared = {name[6:]: uri for name, uri in attributes.items() if name == "xmlns" or name.startswith("xmlns:")}
        if declared:
            self._scopes.append((self._depth, self._scopes[-1][1] | declared))

    def _namespaces(self) -> dict[str, str]:
        return self._scopes[-1][1]


class _Fragment:
    """XML within a value, written anew: its outermost elements declare what was declared around them."""

    __slots__ = ("_around", "_declared", "_depth", "_head", "_inner", "_used", "_written")

    def __init__(self, around: Mapping[str, str]) -> None:
        self._around = around
        self._written = StringIO()
        self._inner = StringIO()
        self._head = ""
        self._depth = 0
        self._declared: set[str] = set()
        self._used: set[str] = set()

    @property
    def size(self) -> int:
        """Bytes written: more than were read, when a namespace is declared again and again."""
        return self._written.tell() + self._inner.tell()

    def start(self, name: str, attributes: Mapping[str, str], before: str) -> None:
        (self._inner if self._depth else self._written).write(escape(before))
        self._depth += 1
        # What an inner element declares counts for it alone; that the outermost then declares it too is harmless.
        declared = {attribute[6:] for attribute in attributes if attribute == "xmlns" or attribute.startswith("xmlns:")}
        used = {
            attribute.partition(":")[0]
            for attribute in attributes
            if ":" in attribute and not attribute.startswith("xmlns:")
        }
        used.add(name.partition(":")[0] if ":" in name else "")
        self._used |= used - self._declared - declared
        tag = f"<{name}" + "".join(f" {attribute}={quoteattr(value)}" for attribute, value in attributes.items())
        if self._depth == 1:
            self._head, self._declared = tag, declared
        else:
            self._inner.write(f"{tag}>")

    def end(self, name: str, before: str) -> None:
        self._depth -= 1
        self._inner.write(f"{escape(before)}</{name}>")
        if self._depth == 0:
            self._written.write(f"{self._head}{self._namespaces()}>{self._inner.getvalue()}")
            self._inner, self._used = StringIO(), set()

    def _namespaces(self) -> str:
        namespaces = ((prefix, self._around.get(prefix)) for prefix in sorted(self._used))
        return "".join(f" xmlns{':' if prefix else ''}{prefix}={quoteattr(uri)}" for prefix, uri in namespaces if uri)

    def finish(self, after: str) -> str:
        self._written.write(escape(after))
        return self._written.getvalue().strip()
