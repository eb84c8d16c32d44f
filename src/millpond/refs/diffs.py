"""Differences of maps between two states, as a table: map, key and times, what was there and what is.

| column | |
|---|---|
| `map` | the name of the map |
| `change` | `added`, `removed` or `changed` |
| `key`, `key_start`, `key_end`, `effective_time`, `start`, `end`, `time` | the address: those that the maps have |
| `old`, `new` | the values; of one map in its type, of several as JSON. Sessions have none |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from millpond.errors import Invalid
from millpond.json_forms import shown_json
from millpond.maps.layered.differences import I64, AddressRows, Difference, differences
from millpond.maps.model.columns import INSTANT, value_arrow
from millpond.maps.model.computed import with_computed
from millpond.maps.model.display import present
from millpond.maps.model.field_merges import with_wider_types
from millpond.maps.model.one_value import NULL
from millpond.maps.model.values import present_values
from millpond.refs.layers import manifest_of

if TYPE_CHECKING:
    from millpond.maps.layered.head import Layers
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.refs.map_entries import MapEntry

__all__ = ("ADDRESS_TYPES", "difference_table", "map_differences")

ADDRESS_TYPES = {
    "key": pa.string(), "key_start": pa.int64(), "key_end": pa.int64(), "effective_time": INSTANT, "start": INSTANT,
    "end": INSTANT, "time": INSTANT,
}  # fmt: skip


def map_differences(
    old: Mapping[str, MapEntry], new: Mapping[str, MapEntry], layers_for: Callable[[MapDefinition], Layers]
) -> Iterator[tuple[MapDefinition, Difference]]:
    """The differences between two states of maps, by name, some keys at a time; both with the fields of the new one,
    in the wider of their types.

    Raises: `Invalid`, kind `maps_differ`; `NotFound`, `Corrupt`.
    """
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        apart = before is not None and after is not None and before.folder != after.folder
        for pair in [(before, None), (None, after)] if apart else [(before, after)]:
            either = pair[1] or pair[0]
            assert either is not None, "one side has the map"
            if pair[0] is not None and pair[1] is not None and pair[0].manifest == pair[1].manifest:
                continue
            layers = layers_for(either.definition)
            definition = with_wider_types(either.definition, (pair[0] or either).definition)
            left, right = (_manifest(layers, entry, definition) for entry in pair)
            for difference in differences(layers.objects, left, right):
                yield definition, difference


def _manifest(layers: Layers, entry: MapEntry | None, definition: MapDefinition) -> SnapshotManifest | None:
    manifest = None if entry is None else manifest_of(layers, entry, entry.manifest)
    return None if manifest is None else manifest.shown_as(definition)


def difference_table(
    changes: Iterator[tuple[MapDefinition, Difference]], only: MapDefinition | None, limit: int | None = None,
    bytes_max: int | None = None,
) -> pa.Table:  # fmt: skip
    """The differences as a table, in the order of maps and addresses; of `only` one map, if that is all.

    `limit`: so many rows are enough.

    Raises: `Invalid`, kind `answer_too_large`, for more than `bytes_max`.
    """
    tables, rows, size = list[pa.Table](), 0, 0
    for definition, difference in changes:
        tables.append(_table(definition, difference, typed=only is not None))
        rows, size = rows + len(difference), size + tables[-1].nbytes
        if limit is not None and rows >= limit:
            break
        _check_size(size, bytes_max)
    if only is not None and not tables:
        return pa.schema(_fields(only)).empty_table()
    names = [name for name in ADDRESS_TYPES if any(name in table.column_names for table in tables)]
    table = pa.concat_tables(tables, promote_options="default") if tables else _NOTHING.empty_table()
    columns = ["map", "change", *names, *(name for name in ("old", "new") if name in table.column_names)]
    table = table.select(columns).sort_by([(name, "ascending") for name in ("map", *names)])
    table = table if limit is None else table.slice(0, limit)
    _check_size(table.nbytes, bytes_max)
    return table


def _check_size(size: int, bytes_max: int | None) -> None:
    if bytes_max is not None and size > bytes_max:
        raise Invalid(
            "the differences are too large for one answer", kind="answer_too_large", bytes=size, bytes_max=bytes_max,
            hint="name a map, or a limit",
        )  # fmt: skip


_NOTHING = pa.schema([("map", pa.string()), ("change", pa.string()), ("old", pa.string()), ("new", pa.string())])


def _fields(definition: MapDefinition) -> list[pa.Field]:
    address = [(name, ADDRESS_TYPES[name]) for name in definition.kind.address]
    kind = pa.string() if definition.value is None else value_arrow(definition.shown)
    values = [("old", kind), ("new", kind)] if definition.kind.valued else []
    return [pa.field(name, type_) for name, type_ in [("map", pa.string()), ("change", pa.string()), *address, *values]]


def _table(definition: MapDefinition, difference: Difference, *, typed: bool) -> pa.Table:
    kind, count = definition.kind, len(difference)
    added, removed = difference.old_places < 0, difference.new_places < 0
    columns = {
        "map": pa.array([definition.name] * count, pa.string()),
        "change": pa.array(np.where(added, "added", np.where(removed, "removed", "changed")), pa.string()),
    }
    shown = present(definition, difference.address_rows(), list(kind.address))
    columns |= dict(zip(shown.schema.names, shown.columns, strict=True))
    if kind.valued:
        for name, side, places in (
            ("old", difference.old, difference.old_places), ("new", difference.new, difference.new_places),
        ):  # fmt: skip
            values = _side_values(side, places)
            columns[name] = values if typed else _as_text(values)
    return pa.table(columns)


def _side_values(side: AddressRows, places: I64) -> pa.Array:
    """The values at some places, null where there is no row."""
    values = side.rows.column("value").take(pa.array(places, mask=places < 0))
    if side.definition.value is None:
        return present_values(values.fill_null(NULL))[1]
    return with_computed(side.definition, values)


def _as_text(values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type):
        return values
    return pa.array([None if value is None else shown_json(value) for value in values.to_pylist()], pa.string())
