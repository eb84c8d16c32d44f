"""Differences of maps between two states, as a table: map, key and times, what was there and what is.

| column | |
|---|---|
| `map` | the name of the map |
| `change` | `added`, `removed` or `changed` |
| `key`, `key_start`, `key_end`, `effective_time`, `start`, `end`, `time` | the address: those that the maps have |
| `old`, `new` | the values; of one map in its type, of several, also of one name, as JSON. Sessions have none |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millpond.errors import Invalid
from millpond.json_forms import shown_json, stable_json
from millpond.kernel.keys import KeyRange, decode, encode
from millpond.kernel.page import Bookmarks
from millpond.maps.layered.differences import I64, AddressRows, Difference, changed_keys, difference_of
from millpond.maps.layered.head import Layers
from millpond.maps.model.columns import INSTANT, value_arrow
from millpond.maps.model.computed import with_computed
from millpond.maps.model.definition import MapDefinition, check_name
from millpond.maps.model.display import present
from millpond.maps.model.field_merges import with_wider_types
from millpond.maps.model.one_value import NULL
from millpond.maps.model.values import present_values
from millpond.maps.snapshots.manifest import SnapshotManifest, known_as
from millpond.refs.layers import manifest_of
from millpond.refs.map_entries import MapEntry
from millpond.refs.states import RefStates, missing_map
from millpond.versions.merges import common_base

__all__ = (
    "ADDRESS_TYPES", "Compared", "Differences", "Position", "Step", "compared", "difference_page", "differences",
    "joined_pages", "map_differences",
)  # fmt: skip

KEYS_PAGES_MAX = 4
"""The keys that are compared at once may make a page so many times as large."""

ADDRESS_TYPES = {
    "key": pa.string(), "key_start": pa.int64(), "key_end": pa.int64(), "effective_time": INSTANT, "start": INSTANT,
    "end": INSTANT, "time": INSTANT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Position:
    """The place of a key among differences: its map, and of two maps of one name the first or the second."""

    map: str
    number: int
    key: bytes

    def packed(self) -> bytes:
        """The place as bytes."""
        return encode((self.map, self.number, self.key))

    @classmethod
    def of(cls, packed: bytes) -> Position:
        """The place that bytes tell of.

        Raises: `Corrupt`.
        """
        name, number, key = decode(packed)
        return cls(name, number, key)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Step:
    """Some keys that differ, of a map, and the place of the last of them."""

    definition: MapDefinition
    difference: Difference
    position: Position


@dataclass(frozen=True, slots=True)
class Compared:
    """Two states of maps that are compared; `schema` is that of the differences of one map, None of all.

    `typed`: values have the type of the map, for there is no other of its name. `pins`: refs that name the same two
    states later on.
    """

    old: Mapping[str, MapEntry]
    new: Mapping[str, MapEntry]
    schema: pa.Schema | None
    typed: bool
    pins: tuple[str, str | None]

    def bookmarks(self) -> Bookmarks:
        """The bookmarks of pages of these differences, which another state of a map has not."""
        sides = [[side[name].folder, side[name].manifest] for side in (self.old, self.new) for name in sorted(side)]
        return Bookmarks(stable_json({"sides": sides, "only": self.typed}, compact=True))


def compared(
    states: RefStates, left: str, right: str | None, *, map: str | None, three_dots: bool,
    only_of: Callable[[str], bool],
) -> Compared:  # fmt: skip
    """The two states that a difference of refs is about, see `Refs.diff`.

    Raises: as `Refs.diff`.
    """
    pins: tuple[str, str | None] = left, None
    if right is None:
        old, new = states.maps(f"{left}@"), states.maps(left)
    else:
        before, after = states.commit(left), states.commit(right)
        pins = before.id, after.id
        if three_dots:
            before = common_base(states.repository.context, before.id, after.id)
        old, new = states.maps(before.id), states.maps(after.id)
    schema, typed = None, False
    if map is not None:
        map = check_name(map)
        was, entry = old.get(map), new.get(map) or old.get(map)
        if entry is None:
            raise missing_map(states.loading, map, left=left, right=right)
        typed = was is None or was.folder == entry.folder
        schema = _schema_of((was or entry).definition, entry.definition, typed=typed)
    names = {name for name in {*old, *new} if (map is None or name == map) and only_of(name)}
    old, new = ({name: state for name, state in side.items() if name in names} for side in (old, new))
    return Compared(old, new, schema, typed, pins)


def map_differences(
    old: Mapping[str, MapEntry], new: Mapping[str, MapEntry], layers_for: Callable[[MapDefinition], Layers],
    after: Position | None = None,
) -> Iterator[Step]:  # fmt: skip
    """The differences between two states of maps, by name, some keys at a time, from behind a place on; both with the
    fields of the new one, in the wider of their types.

    Raises: `Invalid`, kind `maps_differ`; `NotFound`, `Corrupt`.
    """
    start = Position("", 0, b"") if after is None else after
    for name in sorted({*old, *new}):
        before, now = old.get(name), new.get(name)
        apart = before is not None and now is not None and before.folder != now.folder
        for number, pair in enumerate([(before, None), (None, now)] if apart else [(before, now)]):
            either = pair[1] or pair[0]
            assert either is not None, "one side has the map"
            if (name, number) < (start.map, start.number) or _alike(*pair):
                continue
            layers = layers_for(either.definition)
            definition = with_wider_types(either.definition, (pair[0] or either).definition)
            left, right = (_manifest(layers, entry, definition) for entry in pair)
            behind = start.key + b"\0" if (name, number) == (start.map, start.number) else b""
            for changed in changed_keys(layers.objects, left, right, within=KeyRange(behind, None)):
                difference = difference_of(changed)
                if len(difference):
                    yield Step(definition, difference, Position(name, number, changed.keys[-1].as_py()))


def _alike(old: MapEntry | None, new: MapEntry | None) -> bool:
    return old is not None and new is not None and old.manifest == new.manifest


def _manifest(layers: Layers, entry: MapEntry | None, definition: MapDefinition) -> SnapshotManifest | None:
    manifest = None if entry is None else manifest_of(layers, entry, entry.manifest)
    return None if manifest is None else known_as(manifest, definition)


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences of one map as a stream: `batches` reads them anew, some keys at a time."""

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]


def differences(
    states: RefStates, left: str, right: str | None = None, *, map: str, three_dots: bool = False
) -> Differences:  # fmt: skip
    """The rows of `Refs.diff` of one map as a stream, in no promised order.

    Raises: as `Refs.diff`, some while it is read.
    """
    sides = compared(states, left, right, map=map, three_dots=three_dots, only_of=lambda _: True)
    schema = sides.schema
    assert schema is not None, "one map was named"

    def batches() -> Iterator[pa.RecordBatch]:
        for step in map_differences(sides.old, sides.new, states.layers_for):
            yield from _in_form(_table(step.definition, step.difference, typed=sides.typed), schema).to_batches()

    return Differences(schema, batches)


def difference_page(
    steps: Iterator[Step], sides: Compared, *, limit: int | None = None, bytes_max: int | None = None
) -> tuple[pa.Table, Position | None]:  # fmt: skip
    """The differences of two states as a table, in the order of maps and addresses.

    `limit`: so many rows are enough. `bytes_max`: about so many bytes; then it comes with the place to go on behind.

    Raises: `Invalid`, kind `answer_too_large`, for keys with so many rows that one page does not hold them.
    """
    tables, rows, size = list[pa.Table](), 0, 0
    for step in steps:
        tables.append(_table(step.definition, step.difference, typed=sides.typed))
        rows, size = rows + tables[-1].num_rows, size + tables[-1].nbytes
        if limit is not None and rows >= limit:
            break
        if bytes_max is not None and size >= bytes_max:
            _check_size(size, KEYS_PAGES_MAX * bytes_max)
            return _in_form(joined_pages(tables, limit), sides.schema), step.position
    return _in_form(joined_pages(tables, limit), sides.schema), None


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise Invalid(
            "the differences of a few keys are too large for one answer", kind="answer_too_large", bytes=size,
            bytes_max=bytes_max, hint="say a limit",
        )  # fmt: skip


def joined_pages(tables: Sequence[pa.Table], limit: int | None) -> pa.Table:
    """Differences of several tables as one, in the order of maps and addresses, and at most so many."""
    names = [name for name in ADDRESS_TYPES if any(name in table.column_names for table in tables)]
    table = pa.concat_tables(tables, promote_options="default") if tables else _NOTHING.empty_table()
    columns = ["map", "change", *names, *(name for name in ("old", "new") if name in table.column_names)]
    table = table.select(columns).sort_by([(name, "ascending") for name in ("map", *names)])
    return table if limit is None else table.slice(0, limit)


_NOTHING = pa.schema([("map", pa.string()), ("change", pa.string()), ("old", pa.string()), ("new", pa.string())])


def _schema_of(old: MapDefinition, new: MapDefinition, *, typed: bool) -> pa.Schema:
    """The columns of differences of a map, or of two of one name: addresses, and values."""
    definitions = (with_wider_types(new, old),) if typed else (old, new)
    names = {name for definition in definitions for name in definition.kind.address}
    address = [(name, type_) for name, type_ in ADDRESS_TYPES.items() if name in names]
    shown = definitions[0].shown if typed else None
    kind = pa.string() if shown is None else value_arrow(shown)
    valued = any(definition.kind.valued for definition in definitions)
    values = [("old", kind), ("new", kind)] if valued else []
    return pa.schema([("map", pa.string()), ("change", pa.string()), *address, *values])


def _in_form(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """The same differences with the columns of a schema, null where they have none."""
    if schema is None:
        return table
    if not table.num_rows:
        return schema.empty_table()
    names = set(table.column_names)
    return pa.table(
        [table[field.name] if field.name in names else pa.nulls(table.num_rows, field.type) for field in schema],
        schema=schema,
    )  # fmt: skip


def _table(definition: MapDefinition, difference: Difference, *, typed: bool) -> pa.Table:
    kind, count = definition.kind, len(difference)
    added, removed = difference.old_positions < 0, difference.new_positions < 0
    columns = {
        "map": pa.array([definition.name] * count, pa.string()),
        "change": pa.array(np.where(added, "added", np.where(removed, "removed", "changed")), pa.string()),
    }
    shown = present(definition, difference.address_rows(), list(kind.address))
    columns |= dict(zip(shown.schema.names, shown.columns, strict=True))
    if kind.valued:
        for name, side, positions in (
            ("old", difference.old, difference.old_positions), ("new", difference.new, difference.new_positions),
        ):  # fmt: skip
            values = _side_values(side, positions)
            columns[name] = values if typed else _as_text(values)
    return pa.table(columns)


def _side_values(side: AddressRows, positions: I64) -> pa.Array:
    """The values at some places, null where there is no row."""
    values = side.rows.column("value").take(pa.array(positions, mask=positions < 0))
    if side.definition.value is None:
        return present_values(values.fill_null(NULL))[1]
    return with_computed(side.definition, values)


def _as_text(values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type):
        return values
    return pa.array([None if value is None else shown_json(value) for value in values.to_pylist()], pa.string())
