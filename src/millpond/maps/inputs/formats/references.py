"""Elements of Stroom's XML as rows for the maps that they name.

| element | goes into maps of kind |
|---|---|
| `reference` | any but `session` and `aggregate` |
| `histogram`, `metric` | aggregates of that name, with keys or tags |
| `state`, `temporal-state`, `range-state`, `temporal-range-state`, `session` | that kind |

`key` alone is a range of one number. A `time` that is missing is the load's effective time, when it was given one; a
session, a histogram and a metric must have one. A session ends `timeout` after its `time`, or at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from millpond.errors import Invalid
from millpond.maps.inputs.formats.arrived import Arrived, rejects_of
from millpond.maps.inputs.formats.files import Piece, read_chunks
from millpond.maps.inputs.formats.xml import Element, read_elements
from millpond.maps.inputs.tables import tag_sets
from millpond.maps.model.aggregation import Form
from millpond.maps.model.definition import Kind, MapDefinition

__all__ = ("read_references",)

CHUNK_BYTES = 256 << 10
BATCH_BYTES = 16 << 20
"""About as much text is kept before it is handed on."""
_OVERHEAD_BYTES = 200
_SHOWN_MAX = 500
_NAMES_MAX = 1_000

_KINDS: dict[str, Kind | Form] = {
    "histogram": Form.HISTOGRAM, "metric": Form.METRIC,
    "state": Kind.STATE, "temporal-state": Kind.TEMPORAL_STATE, "session": Kind.SESSION,
    "range-state": Kind.RANGED_STATE, "ranged-state": Kind.RANGED_STATE,
    "temporal-range-state": Kind.TEMPORAL_RANGED_STATE, "temporal-ranged-state": Kind.TEMPORAL_RANGED_STATE,
}  # fmt: skip


def read_references(
    piece: Piece, maps: Mapping[str, MapDefinition], only: str | None = None, effective_time: str | None = None
) -> Iterator[Arrived]:
    """The rows of an XML file for `maps`, or for `only` one of them: elements that name others are passed over.

    Raises: `Invalid` when the document is malformed, or holds nothing for `only`.
    """
    sorting = _Sorting(maps, only, effective_time)
    for number, elements in enumerate(read_elements(read_chunks(piece.file, CHUNK_BYTES), piece.file.path)):
        for element in elements:
            sorting.take(element)
        if sorting.bytes >= BATCH_BYTES:
            yield from sorting.arrived(0 if piece.file.compression else number * CHUNK_BYTES)
    yield from sorting.arrived(piece.file.size)
    if only is not None and sorting.passed and not sorting.taken:
        raise Invalid(
            "the file has no rows for the map", kind="xml_map", path=piece.file.path, map=only,
            hint=f"it has rows for: {', '.join(sorted(sorting.passed))}",
        )  # fmt: skip


def _fits(kind: Kind | Form | None, definition: MapDefinition) -> bool:
    """True when an element of a kind, or a `reference`, goes into a map."""
    if kind is None:
        return definition.kind not in (Kind.SESSION, Kind.AGGREGATE)
    if definition.aggregation is not None:
        return kind == definition.aggregation.form
    return kind is definition.kind


class _Rows:
    """Columns of one map on their way, as text, and the line of each row."""

    __slots__ = ("_columns", "_sources", "_typed", "definition", "lines")

    def __init__(self, definition: MapDefinition, effective_time: str | None) -> None:
        kind = definition.kind
        self.definition = definition
        self._typed = kind.valued and definition.value is None
        sources: list[tuple[str, str, str, str | None]] = []
        if kind.keyed:
            sources.append(("key", "key", "key", None))
        else:
            sources += [("key_start", "from", "key", None), ("key_end", "to", "key", None)]
        if kind.temporal:
            sources.append(("effective_time", "time", "time", effective_time))
        if kind is Kind.AGGREGATE:
            sources.append(("time", "time", "time", None))
        if not kind.valued:
            sources += [("start", "time", "time", None), ("timeout", "timeout", "timeout", None)]
        self._sources = sources
        """Column, the field it comes from, the field that may stand in for that, and what does for both."""
        self.clear()

    def clear(self) -> None:
        self.lines: list[int] = []
        self._columns: dict[str, list[Any]] = {name: [] for name, *_ in self._sources}
        if self.definition.kind.valued:
            self._columns["value"] = []
        if self._typed:
            self._columns["value_type"] = []

    def add(self, element: Element) -> None:
        """Take an element whose fields are those of the map's kind."""
        fields, columns = element.fields, self._columns
        self.lines.append(element.line)
        for column, name, other, default in self._sources:
            columns[column].append(fields.get(name) or fields.get(other, default))
        if element.tags is not None:
            columns["key"][-1] = element.tags
        if self.definition.aggregation is not None:
            columns["value"].append(fields.get("value", ""))  # nothing is no number
        elif self.definition.kind.valued:
            text = fields.get("value")
            columns["value"].append(None if not text or text.isspace() else text)
        if self._typed:
            columns["value_type"].append("xml" if element.xml else "string")

    def arrived(self, read: int) -> Arrived:
        """The rows taken by the time so many bytes of the file had been read."""
        columns = {
            name: tag_sets(texts) if name == "key" and self.definition.tagged else pa.array(texts, pa.string())
            for name, texts in self._columns.items()
        }  # fmt: skip
        batch = pa.RecordBatch.from_pydict(columns)
        return Arrived(batch, self.lines, map=self.definition.name, read=read)


class _Sorting:
    """Elements sorted by map, and those that no map takes."""

    def __init__(self, maps: Mapping[str, MapDefinition], only: str | None, effective_time: str | None) -> None:
        self.maps = maps
        self.only = only
        self.effective_time = effective_time
        self.bytes = 0
        self.taken = 0
        self.passed: set[str] = set()
        self._rows: dict[str, _Rows] = {}
        self._bad: list[tuple[int, str, object]] = []
        self._shapes: dict[tuple[str | None, ...], tuple[_Rows | None, str]] = {}

    def take(self, element: Element) -> None:
        """Take one element in, or note why not."""
        fields = element.fields
        name = fields.get("map") or self.only
        if self.only is not None and name is not None and name.lower() != self.only:
            if len(self.passed) < _NAMES_MAX:
                self.passed.add(name.lower())
            return
        self.taken += 1
        self.bytes += _OVERHEAD_BYTES + sum(map(len, fields.values()))
        # Which fields there are, not what they hold, decides whether an element fits a map.
        shape = (element.name, name, *fields)
        decision = self._shapes.get(shape)
        if decision is None:
            decision = self._decide(element, name)
            if len(self._shapes) < _NAMES_MAX and len(name or "") < _NAMES_MAX:
                self._shapes[shape] = decision
        rows, fault = decision
        if rows is None or element.fault:
            self._reject(element, element.fault or fault)
        else:
            rows.add(element)

    def _decide(self, element: Element, name: str | None) -> tuple[_Rows | None, str]:
        """The map that takes an element like this one, or the reason why none does."""
        definition = self.maps.get((name or "").lower())
        fault = self._unknown(element, name, definition)
        if fault or definition is None:
            return None, fault or ""
        if definition.name not in self._rows:
            self._rows[definition.name] = _Rows(definition, self.effective_time)
        return self._rows[definition.name], ""

    def _reject(self, element: Element, fault: str) -> None:
        fields = {name: text[:_SHOWN_MAX] for name, text in element.fields.items()}
        self._bad.append((element.line, fault, {element.name: fields}))

    def _unknown(self, element: Element, name: str | None, definition: MapDefinition | None) -> str | None:
        """The reason why no map takes the element, or why the map it names does not."""
        kind = _KINDS.get(element.name)
        if kind is None and element.name != "reference":
            return f"<{element.name}> is none of the elements that maps can take"
        if not name:
            return "<map> is missing"
        if definition is None:
            near = get_close_matches(name.lower(), self.maps, 1)
            return f"there is no map {name!r}" + (f", did you mean {near[0]!r}?" if near else "")
        if not _fits(kind, definition):
            return f"map {definition.name!r} is of kind {definition.kind_name}, which <{element.name}> is not"
        return self._misfit(element.fields, definition)

    def _misfit(self, fields: Mapping[str, str], definition: MapDefinition) -> str | None:
        """The reason why the fields are not those of the map's kind; `normalise` reports fields that are merely
        missing.
        """
        bounds = "from" in fields or "to" in fields
        if "tags" in fields and not definition.tagged:
            return f"map {definition.name!r} has no tags as keys"
        if "tags" in fields and "key" in fields:
            return "it has both a key and tags"
        if definition.kind.keyed and bounds:
            return f"map {definition.name!r} has keys, not ranges"
        if bounds and "key" in fields:
            return "it has both a key and a range"
        if "timeout" in fields and definition.kind is not Kind.SESSION:
            return "only sessions have a timeout"
        default = self.effective_time if definition.kind.temporal else None
        if definition.kind.timed and "time" not in fields and default is None:
            way_out = " (rows without one need an effective time: --effective-time TIME)"
            return f"time is missing{way_out if definition.kind.temporal else ''}"
        return None

    def arrived(self, read: int) -> Iterator[Arrived]:
        """The rows taken since the last call, up to so many bytes of the file."""
        for rows in self._rows.values():
            if rows.lines:
                yield rows.arrived(read)
            rows.clear()
        if self._bad:
            yield Arrived(None, rejected=rejects_of(self._bad))
        self._bad, self.bytes = [], 0
