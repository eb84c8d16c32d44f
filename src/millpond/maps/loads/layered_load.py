"""The layers of a load to layered maps, on their way from files that nobody sees to the heads of the maps.

Parts of such maps, which tasks of Spark and clients of nodes seal, become one layer of their map first.

Invariants:
* a load is entered, with its entry in the log and with the heads of all its maps, in one transaction, or not at all;
* what came before, as a part or a layer of the same id, is not put on top again: it would hide what came in between;
* all parts of an aggregate are one content, of the events that they are of: it counts once, however they are cut;
* loads commute: one whose map has another head by now puts its layer on that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias, TypeVar

import pyarrow as pa

from millpond.errors import Conflict
from millpond.kernel.space import Space, Transaction
from millpond.kernel.steps import step
from millpond.maps.alerts.alerted import put_alerted
from millpond.maps.alerts.judging import Judged, judged
from millpond.maps.layered.head import Head, Layers
from millpond.maps.layered.row_files import RowFile
from millpond.maps.layered.share_ranges import SharesWritten, layer_of_files
from millpond.maps.layered.writer import WrittenLayer, layer_of_rows, written_layer
from millpond.maps.loads.merge import part_rows
from millpond.maps.log.log import Entry, head_of
from millpond.maps.log.queue import series_of
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.event_digest import events_of_parts
from millpond.maps.model.projection import former_of, projection
from millpond.maps.parts.part import PartFile, PartManifest
from millpond.maps.snapshots.layers import on_top
from millpond.maps.snapshots.manifest import Layer, LayerMode, SnapshotManifest, absorbing

__all__ = (
    "Brought", "LayerContent", "LayeredLoad", "LayersOf", "layer_of_parts", "layers_of_files", "parts_of",
    "place_layers",
)  # fmt: skip

LayersOf: TypeAlias = Callable[[str], Layers | None]
"""The layers of a map, by its name; None for a map in a shard."""

T = TypeVar("T")
_Part: TypeAlias = tuple[PartManifest, Path]
"""A part that is taken, and its place."""

Brought: TypeAlias = PartFile | WrittenLayer | RowFile
"""A part that was sealed, a layer that was written, or rows that are yet to become one."""


def parts_of(brought: Iterable[Brought]) -> list[PartFile]:
    """The parts among what is brought."""
    return [item for item in brought if isinstance(item, PartFile)]


def _part_rows(definition: MapDefinition, part: PartFile) -> Iterator[pa.RecordBatch]:
    """The rows of a part, which may have been written before the fields of the map changed, as rows of today."""
    written = MapDefinition.from_dict(part.manifest.definition)
    if (written.value, written.field_ids) == (definition.value, definition.field_ids):
        yield from part_rows(definition, part)
        return
    way, schema = projection(former_of(written), definition), canonical_schema(definition)
    assert way is not None, "they differ"
    for rows in part_rows(written, part):
        columns = [way.exact(column, definition.name) if name == "value" else column
                   for name, column in zip(schema.names, rows.columns, strict=True)]  # fmt: skip
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _once(definition: MapDefinition, parts: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Parts by their ids, in the order in which they count: one that comes twice in the place that counts."""
    once: dict[str, T] = {}
    for id_, part in parts:
        if definition.overwrite:
            once.pop(id_, None)
        once.setdefault(id_, part)
    return once


def layer_of_parts(layers: Layers, parts: Sequence[PartFile]) -> WrittenLayer | None:
    """The layer of verified parts of a map, each once but for those of an aggregate, which all count; None without
    rows. Hold `layers.writing()` around it until the layer is entered.

    Raises: `Corrupt` for a damaged part; `Unavailable` when the disk is full.
    """
    definition = layers.definition
    if definition.aggregation is None:
        parts = list(_once(definition, ((part.manifest.id, part) for part in parts)).values())
    rows = (_part_rows(definition, part) for part in parts)
    layer = layer_of_rows(layers, chain.from_iterable(rows))
    if layer is None:
        return None
    events = None if definition.aggregation is None else events_of_parts([part.manifest.salt for part in parts], None)
    return written_layer(layers, layer, layer.index if events is None else events)


def layers_of_files(
    layers_of: LayersOf, files: Iterable[RowFile], held: ExitStack, written: SharesWritten, salt: str
) -> list[WrittenLayer]:
    """The layers of the rows of files, one a map; what is `written` stays until what is `held` ends.

    Raises: as `layer_of_files`.
    """
    of_map: dict[str, list[RowFile]] = {}
    for file in files:
        of_map.setdefault(file.map, []).append(file)
    made = []
    for name, rows in of_map.items():
        layers = layers_of(name)
        if layers is None:
            raise Conflict(
                "the rows were written for a map in layers", kind="map_incarnation", map=name, hint="write them again"
            )
        held.enter_context(layers.loading())
        made.append(layer_of_files(layers, rows, written, salt))
    return made


@dataclass(frozen=True, slots=True)
class LayerContent:
    """The content of a layer, for the log: as much as a manifest says of a part."""

    id: str
    map: str
    incarnation: str
    rows: int
    data_bytes: int


@dataclass(frozen=True, slots=True)
class _Placed:
    """A layer on the head of its map; the contents that it is made of; and the manifest that tells its rows."""

    layers: Layers
    layer: Layer
    contents: tuple[str, ...]
    head: Head
    manifest: SnapshotManifest
    loaded: SnapshotManifest
    alerts: Judged | None = None

    def judged(self) -> _Placed:
        """The same, judged by the rules of its map, when its manifest is stored."""
        return replace(self, alerts=judged(self.layers, self.head.manifest, self.manifest, self.layer))


@dataclass(slots=True)
class LayeredLoad:
    """The layers of one load."""

    layers_of: LayersOf
    written: Sequence[WrittenLayer] = ()
    _held: ExitStack = field(default_factory=ExitStack)
    _layers: dict[str, tuple[Layers, Layer, tuple[str, ...]]] = field(default_factory=dict)
    _parts: dict[str, list[_Part]] = field(default_factory=dict)
    _stream: tuple[str, int] | None = None
    _placed: list[_Placed] = field(default_factory=list)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the files of the load until it is entered or given up."""
        with self._held:
            yield

    def take(
        self, manifests: Sequence[PartManifest], places: Mapping[str, Path], stream: tuple[str, int] | None
    ) -> list[LayerContent]:  # fmt: skip
        """Take the verified parts of layered maps, which lie in these places; the contents of all layers. Two epochs of
        a `stream` may bring the same events.
        """
        for manifest in manifests:
            self._parts.setdefault(manifest.map, []).append((manifest, places[manifest.id]))
        for name in self._parts:
            self._held.enter_context(self._layers_of(name).loading())
        for written in self.written:
            self._layers[written.map] = written.layers, written.layer, (written.id,)
        self._stream = stream
        return [
            *chain.from_iterable(map(self._contents, self._parts)),
            *(
                LayerContent(layer.id, layer.map, layer.layers.definition.incarnation, layer.rows, layer.layer.size)
                for layer in self.written
            ),
        ]

    def _contents(self, name: str) -> list[LayerContent]:
        manifests = [manifest for manifest, _ in self._parts[name]]
        if self._layers_of(name).definition.aggregation is None:
            return [LayerContent(m.id, m.map, m.incarnation, m.rows, m.data_bytes) for m in manifests]
        rows, size = sum(m.rows for m in manifests), sum(m.data_bytes for m in manifests)
        events = events_of_parts([m.salt for m in manifests], self._stream)
        return [LayerContent(events, name, manifests[0].incarnation, rows, size)]

    def _layers_of(self, name: str) -> Layers:
        layers = self.layers_of(name)
        assert layers is not None, "parts of other maps are not taken"
        return layers

    @property
    def names(self) -> set[str]:
        """The maps of its layers."""
        return {*self._parts, *self._layers}

    @property
    def watched(self) -> bool:
        """True when a map of its layers has rules of alerts."""
        return any(placed.alerts is not None and placed.alerts.rules for placed in self._placed)

    def convert(self, space: Space) -> None:
        """Make layers of the parts that are new.

        Raises: `Corrupt` for a damaged part; `Unavailable`.
        """
        for name in self._parts:
            self._convert(space, name)

    def _convert(self, space: Space, name: str) -> None:
        """Make the parts of a map that are new a layer; one that was made of the same parts stays."""
        layers = self._layers_of(name)
        contents, parts = self._fresh(space, name, layers.definition)
        if name in self._layers and self._layers[name][2] == contents:
            return
        rows = (_part_rows(layers.definition, PartFile(place, manifest)) for manifest, place in parts)
        layer = layer_of_rows(layers, chain.from_iterable(rows)) if parts else None
        if layer is None:
            self._layers.pop(name, None)
        else:
            self._layers[name] = layers, layer, contents

    def _fresh(self, space: Space, name: str, definition: MapDefinition) -> tuple[tuple[str, ...], list[_Part]]:
        """The contents of the parts that are not known, and the parts, each once: in the place that counts. All parts
        of an aggregate count, those that are alike as well, or none.
        """
        contents = tuple(content.id for content in self._contents(name))
        with space.read() as tx:
            current = series_of(name).members(tx, contents)
        if definition.aggregation is not None:
            return ((), []) if current else (contents, self._parts[name])
        fresh = _once(definition, ((part[0].id, part) for part in self._parts[name] if part[0].id not in current))
        return tuple(fresh), list(fresh.values())

    def put_on(self, heads: _Heads) -> list[_Placed]:
        """Put each layer on the head of its map, which has it from then on; what is known there is left out.

        Raises: as `place_layers`.
        """
        placed = (heads.placed(*layer) for layer in self._layers.values())
        self._placed = [layer for layer in placed if layer is not None]
        return self._placed

    def judge(self) -> None:
        """Judge what was put on heads, whose manifests are stored by now, by the rules of the maps."""
        self._placed = [placed.judged() for placed in self._placed]

    def enter(self, tx: Transaction, entry: Entry) -> None:
        """Let what was placed count, of the maps to which the entry in the log says that something new is brought.

        Raises: `Conflict`, kind `head_moved`, when it must be placed anew; `NotFound`, kind `map_dropped`.
        """
        brought = entry.body.get("layers", ())
        placed, alerts = {placed.layers.definition.name: placed for placed in self._placed}, list[Judged]()
        for name in {content["map"] for content in brought}:
            ids = {content["id"] for content in brought if content["map"] == name}
            if name not in placed or ids != set(placed[name].contents):
                raise Conflict("a part was entered meanwhile", kind="head_moved", hint="place the others anew")
            part = placed[name]
            part.layers.swap(tx, part.head, part.manifest, entry, loaded=part.loaded.id)
            if part.alerts is not None:
                alerts.append(part.alerts)
        put_alerted(tx, entry, alerts)


@dataclass(slots=True)
class _Heads:
    """The heads of maps as loads are put on them, one on another, and the contents that they have."""

    space: Space
    now_ms: int
    heads: dict[str, Head] = field(default_factory=dict)
    contents: dict[str, set[str]] = field(default_factory=dict)

    def placed(self, layers: Layers, layer: Layer, contents: tuple[str, ...]) -> _Placed | None:
        """A layer on the head of its map, which is the outcome from then on; None for one that is there.

        Raises: as `place_layers`.
        """
        name = layers.definition.name
        if name not in self.heads:
            self.heads[name], self.contents[name] = layers.head(), set()
        with self.space.read() as tx:
            there = self.contents[name] | series_of(name).members(tx, contents)
        if there.issuperset(contents):
            return None
        if not there.isdisjoint(contents):
            raise Conflict("a part was entered meanwhile", kind="head_moved", hint="place the others anew")
        head = self.heads[name]
        manifest = on_top(
            layers.objects, head.manifest, layers.definition, layer, version=head.version + 1, created_ms=self.now_ms,
            spill=layers.spill(),
        )  # fmt: skip
        manifest = loaded = absorbing(manifest, contents)
        if head.manifest is not None and not layers.definition.kind.keyed:
            # What lies on top was put together with the groups under it: the rows of the load are told apart.
            alone = replace(layer, mode=LayerMode.WHOLE, updated=self.now_ms if manifest.updates else None)
            loaded = replace(manifest, layers=(alone,), sections=None)
        self.heads[name] = head.moved(manifest)
        self.contents[name].update(contents)
        return _Placed(layers, layer, contents, head, manifest, loaded)


def place_layers(loads: Sequence[LayeredLoad], space: Space, now_ms: int) -> None:
    """Put the layers of loads on the heads of their maps as those are now, one on another: files are stored, and
    nothing is visible. A layer that is there already, or comes twice, is not put on top again.

    Raises: `Corrupt` for a damaged part, or layer; `NotFound`, kind `map_dropped`; `Unavailable`; `Conflict`, kind
    `head_moved`, when a load has some parts of another: place each alone.
    """
    for load in loads:
        load.convert(space)
    with space.read() as tx:
        heads = _Heads(space, max(now_ms, head_of(tx).stamp_ms))  # the time of their entries, when those come next
    placed: dict[str, list[_Placed]] = {}
    for load in loads:
        for layer in load.put_on(heads):
            placed.setdefault(layer.layers.definition.name, []).append(layer)
    for of_map in placed.values():
        manifests = {layer.loaded.id: layer.loaded for layer in of_map} | {
            layer.manifest.id: layer.manifest for layer in of_map
        }
        of_map[0].layers.store(list(manifests.values()))
    for load in loads:
        load.judge()
    step("load.layers_placed")
