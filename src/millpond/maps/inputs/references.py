"""Elements of Stroom's XML as rows for the maps that they name.

| element | goes into maps of kind |
|---|---|
| `reference` | any but `session` |
| `state`, `temporal-state`, `range-state`, `temporal-range-state`, `session` | that kind |

`key` alone is a range of one number. A `time` that is missing is the load's effective time, when it was given one; a
session must have one. A session ends `timeout` after its `time`, or at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.errors import Invalid
from millpond.maps.inputs.arrived import Arrived, rejects_of
from millpond.maps.inputs.files import Piece, read_chunks
from millpond.maps.inputs.xml import Element, read_elements
from millpond.maps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from millpond.maps.kinds import MapDefinition

__all__ = ("read_references",)

CHUNK_BYTES = 256 << 10
BATCH_BYTES = 16 << 20
"""About as much text is kept before it is handed on."""
_OVERHEAD_BYTES = 200
_SHOWN_MAX = 500

_KINDS = {
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


@dataclass(slots=True)
class _Rows:
    """Columns of one map on their way, as text, and the line of each row."""

    definition: MapDefinition
    lines: list[int] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, line: int, row: Mapping[str, str | None]) -> None:
        self.lines.append(line)
        for name, text in row.items():
            self.columns.setdefault(name, []).append(text)

    def arrived(self, read: int) -> Arrived:
        batch = pa.RecordBatch.from_pydict({name: pa.array(told, pa.string()) for name, told in self.columns.items()})
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

    def take(self, element: Element) -> None:
        """Take one element in, or note why not."""
        name = element.fields.get("map", "").lower() or self.only
        if self.only is not None and name != self.only:
            self.passed.add(name or "")
            return
        self.taken += 1
        self.bytes += _OVERHEAD_BYTES + sum(map(len, element.fields.values()))
        definition = self.maps.get(name or "")
        fault = element.fault or self._unknown(element, name, definition)
        if fault or definition is None:
            self._reject(element, fault or "")
            return
        rows = self._rows.get(definition.name)
        if rows is None:
            rows = self._rows[definition.name] = _Rows(definition)
        rows.add(element.line, self._row(element, definition))

    def _reject(self, element: Element, fault: str) -> None:
        told = {name: text[:_SHOWN_MAX] for name, text in element.fields.items()}
        self._bad.append((element.line, fault, {element.name: told}))

    def _unknown(self, element: Element, name: str | None, definition: MapDefinition | None) -> str | None:
        """Why no map takes the element, or the one it names does not."""
        kind = _KINDS.get(element.name)
        if kind is None and element.name != "reference":
            return f"<{element.name}> is none of the elements that maps can take"
        if not name:
            return "<map> is missing"
        if definition is None:
            near = get_close_matches(name, self.maps, 1)
            return f"there is no map {name!r}" + (f", did you mean {near[0]!r}?" if near else "")
        if kind is not definition.kind and (kind is not None or definition.kind is Kind.SESSION):
            return f"map {name!r} is of kind {definition.kind}, which <{element.name}> is not"
        return self._misfit(element.fields, definition)

    def _misfit(self, fields: Mapping[str, str], definition: MapDefinition) -> str | None:
        """Why the fields are not those of the map's kind; what is merely missing is told by `normalise`."""
        bounds = "from" in fields or "to" in fields
        if definition.kind.keyed and bounds:
            return f"map {definition.name!r} has keys, not ranges"
        if bounds and "key" in fields:
            return "it has both a key and a range"
        if "timeout" in fields and definition.kind is not Kind.SESSION:
            return "only sessions have a timeout"
        if definition.kind.timed and "time" not in fields and not self._default_time(definition):
            return "time is missing (rows without one need an effective time: --effective-time TIME)"
        return None

    def _default_time(self, definition: MapDefinition) -> str | None:
        return self.effective_time if definition.kind.temporal else None

    def _row(self, element: Element, definition: MapDefinition) -> dict[str, str | None]:
        """The element's texts by the names of canonical columns."""
        fields, kind = element.fields, definition.kind
        row: dict[str, str | None] = {}
        if kind.keyed:
            row["key"] = fields.get("key")
        else:
            row["key_start"] = fields.get("from", fields.get("key"))
            row["key_end"] = fields.get("to", fields.get("key"))
        if kind.temporal:
            row["effective_time"] = fields.get("time", self._default_time(definition))
        if kind is Kind.SESSION:
            return row | {"start": fields.get("time"), "timeout": fields.get("timeout")}
        text = fields.get("value", "")
        row["value"] = None if not text.strip() else text
        if definition.value is None:
            row["value_type"] = "xml" if element.xml else "string"
        return row

    def arrived(self, read: int) -> Iterator[Arrived]:
        """What was taken since the last time, when so many bytes of the file had been read."""
        for rows in self._rows.values():
            yield rows.arrived(read)
        if self._bad:
            yield Arrived(None, rejected=rejects_of(self._bad))
        self._rows, self._bad, self.bytes = {}, [], 0
