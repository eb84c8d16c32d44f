"""The manifest of a snapshot: the list of its files, as one small JSON file named by its content.

    manifests/<id>.json      what this module reads and writes
    indexes/<id>.arrow       one per layer, see `ranges/index.py`
    ranges/<id>.arrow        the groups themselves
    intervals/<id>.arrow     maps of ranges: which range answers for each number, see `section_list.py`
    subsets/<spec>/…         the same again, for snapshots of some keys or of a window of time, see `subset.py`

Invariants:
* A manifest is written after all files it names, and none of them is ever written again: who can read the manifest
  can read the snapshot.
* Layers are newest first; the last is the base: it is whole and holds no tombstones.
* Each layer names the value type that its rows were written under; all that ever were in force are there.
* Of a map that keeps update times each layer has one for all its rows, or its rows have one each.

`docs/format/snapshot.md` draws it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import pyarrow as pa

from millpond.errors import Corrupt, Invalid, NotFound
from millpond.json_forms import FormError, JsonForm, OtherFormat, format_of, stable_json
from millpond.maps.model.aggregation import Aggregation
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.model.field_ids import FieldIds, FormerValue
from millpond.maps.model.projection import Projection, former_of, projection
from millpond.maps.model.rolled_up import is_rolled_up
from millpond.maps.snapshots.bounds import SnapshotBounds
from millpond.ranges.files import content_id
from millpond.ranges.index import Index, Source
from millpond.stores.objects import Objects, hold_read, read_once

__all__ = (
    "NO_TIMES", "Layer", "LayerMode", "LayerTimes", "SnapshotManifest", "absorbing", "former_ids",
    "known_as", "list_manifests", "load_manifest", "manifest_name", "store_manifest",
)  # fmt: skip

FORMAT = 1
SUBSET_FORMAT = 2
"""Readers that know nothing of bounds must not take a subset for the whole."""
SECTIONS_FORMAT = 3
"""Ranged maps, whole or subsets; keyed ones stay as they were."""
LAYERS_FORMAT = 4
"""Keyed maps with a layer that is not whole: a reader that takes each for whole would miss rows."""
FIELDS_FORMAT = 5
"""Maps whose fields changed: a reader that takes all layers for alike would show other fields."""
UPDATES_FORMAT = 6
"""Maps that keep update times: an older reader knows no rows that have one, and would fold them without."""
AGGREGATES_FORMAT = 7
"""Aggregates: a reader that lets the newest row of an address count would show a part for the whole."""
ROLLED_UP_FORMAT = 8
"""Aggregates whose older rows are in wider buckets: an older reader would look for them in narrow ones."""

TICKETS_MAX = 256
"""The newest loads that the manifest of an aggregate remembers: more would be written anew with each load."""


class LayerMode(StrEnum):
    """The meaning of a layer for the rows under it, see `docs/format/layers.md`."""

    WHOLE = "whole"
    JOIN = "join"
    FILL = "fill"


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """The update times of a layer: one `instant` for all rows, or with `updates` a column of the rows; or none."""

    instant: int | None = None
    updates: bool = False


NO_TIMES = LayerTimes()
"""Nobody keeps when the rows were put, or it is not known yet."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: the id of its index, how many groups it holds, the bytes of their files, and what they mean.

    `value` is the id of the value type that its rows were written under: `MapDefinition.value_id`. `updates` says that
    its rows have a column of update times; it does not count where `updated` says when all were put. `reach` says how
    far the largest sum of an aggregate reaches into its type, where that is worth a note; `extremes`, of its first
    fields of numbers, the name, the least and the greatest value.
    """

    index: str
    groups: int
    size: int
    mode: LayerMode = LayerMode.WHOLE
    value: str = ""
    updated: int | None = None
    updates: bool = False
    reach: float = 0.0
    extremes: tuple[tuple[str, float, float], ...] = ()

    @classmethod
    def of(
        cls, index: Index, definition: MapDefinition, mode: LayerMode = LayerMode.WHOLE,
        times: LayerTimes = NO_TIMES,
    ) -> Layer:  # fmt: skip
        """The layer of an index that was written under a definition."""
        value = definition.value_id
        return cls(index.id, index.count, index.size, mode, value, updated=times.instant, updates=times.updates)


@dataclass(frozen=True, kw_only=True)
class SnapshotManifest:
    """The files of a snapshot, and the map and position it was made of.

    `shard_version` is the version of the shard it was frozen from; `sections` the id of the list of
    sections of a ranged map; those that were written in format 1 and 2 have one index over all their ranges instead,
    `intervals`. `bounds` are those of a snapshot that is a subset. `value` and `fields` are in force; `formers` were.
    `updates`: it is known when each row was put. `tickets` are the ids of the newest loads that an aggregate absorbed,
    the newest first.
    """

    map: str
    incarnation: str
    kind: Kind
    value: str | None
    hash_bits: int
    shard_version: int
    created_ms: int
    layers: tuple[Layer, ...]
    intervals: str | None = None
    bounds: SnapshotBounds | None = None
    sections: str | None = None
    fields: FieldIds | None = None
    formers: tuple[FormerValue, ...] = ()
    updates: bool = False
    aggregation: Aggregation | None = None
    tickets: tuple[str, ...] = ()

    @classmethod
    def empty(cls, definition: MapDefinition, *, shard_version: int = 0, created_ms: int) -> SnapshotManifest:
        """The manifest of a map without rows."""
        return cls(
            map=definition.name, incarnation=definition.incarnation, kind=definition.kind,
            value=None if definition.value is None else str(definition.value), hash_bits=definition.hash_bits,
            shard_version=shard_version, created_ms=created_ms, layers=(), fields=definition.fields,
            aggregation=definition.aggregation,
        )  # fmt: skip

    @cached_property
    def id(self) -> str:
        """The name of this content: worked out once, because every lookup compares it."""
        return content_id(self.to_bytes())

    @property
    def groups(self) -> int:
        """Groups of all layers; hidden ones and tombstones count too."""
        return sum(layer.groups for layer in self.layers)

    @property
    def size(self) -> int:
        """Bytes of all range files."""
        return sum(layer.size for layer in self.layers)

    @cached_property
    def definition(self) -> MapDefinition:
        """As much of the map's definition as reading needs."""
        return MapDefinition(
            name=self.map, kind=self.kind, incarnation=self.incarnation, hash_bits=self.hash_bits,
            value=None if self.value is None else parse_value_type(self.value), fields=self.fields,
            aggregation=self.aggregation,
        )  # fmt: skip

    def redefined(self, definition: MapDefinition, *, created_ms: int) -> SnapshotManifest:
        """The next manifest of a map with another value type in force; its layers stay as they are."""
        former = former_of(self.definition)
        formers = tuple(other for other in self.formers if other.id != former.id)
        return replace(
            self, value=str(definition.value), fields=definition.fields, formers=(*formers, former),
            shard_version=self.shard_version + 1, created_ms=created_ms,
        )  # fmt: skip

    def shown_as(self, definition: MapDefinition) -> SnapshotManifest:
        """The same rows with the fields of a later definition; itself where they are the same. It is not stored."""
        if self.definition.value_id == definition.value_id:
            return self
        return self.redefined(definition, created_ms=self.created_ms)

    def projection(self, layer: Layer) -> Projection | None:
        """The way from the rows of a layer to the value type in force; None where they are of it.

        Raises: `Corrupt` for a value type that the manifest does not name.
        """
        if layer.value == self.definition.value_id:
            return None
        for former in self.formers:
            if former.id == layer.value:
                return projection(former, self.definition)
        raise Corrupt(
            "a layer has a value type that was never in force", kind="snapshot_damaged", map=self.map,
            index=layer.index, value=layer.value,
        )  # fmt: skip

    @property
    def whole(self) -> bool:
        """True when every group of a layer hides those under it: the first that is met answers."""
        return all(layer.mode is LayerMode.WHOLE for layer in self.layers)

    @property
    def format(self) -> int:
        """The least format that says all of this."""
        if self.aggregation is not None:
            return ROLLED_UP_FORMAT if is_rolled_up(self.aggregation) else AGGREGATES_FORMAT
        if self.updates or any(layer.updates for layer in self.layers):
            return UPDATES_FORMAT
        if self.fields is not None or self.formers:
            return FIELDS_FORMAT
        if not self.whole:
            return LAYERS_FORMAT
        return SECTIONS_FORMAT if self.sections is not None else FORMAT if self.bounds is None else SUBSET_FORMAT

    def to_bytes(self) -> bytes:
        """JSON with one way to be: names in order, no spaces."""
        payload = _FORMS[self.format].plain(self)
        for layer in payload["layers"]:
            if layer["mode"] == LayerMode.WHOLE:
                del layer["mode"]
            if not layer["value"]:
                del layer["value"]
            if layer["updated"] is None:
                del layer["updated"]
            if not layer["updates"]:
                del layer["updates"]
            if not layer["reach"]:
                del layer["reach"]
            if not layer["extremes"]:
                del layer["extremes"]
        if self.aggregation is None:
            del payload["aggregation"], payload["tickets"]
        else:
            payload["aggregation"] = self.aggregation.to_dict()
        if self.format < UPDATES_FORMAT:
            del payload["updates"]
        if self.format < FIELDS_FORMAT:
            del payload["fields"], payload["formers"]
        if self.format < SECTIONS_FORMAT:
            del payload["sections"]
        if self.format == FORMAT:
            del payload["bounds"]
        return stable_json(payload, compact=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> SnapshotManifest:
        """Parse the bytes written by `to_bytes`.

        Raises: `Corrupt` naming the file; `Invalid` for a format that is newer than this reader.
        """
        try:
            version = format_of(data)
            form = next((form for number, form in _FORMS.items() if number == version), _FORMS[FORMAT])
            manifest = form.decode(data)
        except OtherFormat as error:
            raise _other_format(error.format, ROLLED_UP_FORMAT) from error
        except FormError as error:
            raise Corrupt(
                "the manifest of a snapshot cannot be read", kind="snapshot_damaged",
                object=manifest_name(content_id(data)), reason=error,
            ) from error  # fmt: skip
        if form.format != manifest.format:
            raise _other_format(form.format, manifest.format)
        if manifest.updates and any(layer.updated is None and not layer.updates for layer in manifest.layers):
            raise Corrupt(
                "a layer does not tell when its rows were put", kind="snapshot_damaged",
                object=manifest_name(content_id(data)), map=manifest.map,
            )  # fmt: skip
        return manifest


_FORMS = {
    number: JsonForm(SnapshotManifest, format=number)
    for number in (
        FORMAT,
        SUBSET_FORMAT,
        SECTIONS_FORMAT,
        LAYERS_FORMAT,
        FIELDS_FORMAT,
        UPDATES_FORMAT,
        AGGREGATES_FORMAT,
        ROLLED_UP_FORMAT,
    )
}


def absorbing(manifest: SnapshotManifest, loads: tuple[str, ...]) -> SnapshotManifest:
    """The manifest of an aggregate with these loads absorbed, last; itself for another kind."""
    if manifest.aggregation is None:
        return manifest
    return replace(manifest, tickets=tuple(dict.fromkeys((*loads, *manifest.tickets)))[:TICKETS_MAX])


def _other_format(version: object, supported: int) -> Invalid:
    return Invalid(
        "the snapshot has a format this version does not know", kind="snapshot_format", found=version, known=supported,
        hint="read it with the version that wrote it, or a newer one",
    )  # fmt: skip


def former_ids(manifest: SnapshotManifest | None) -> frozenset[int]:
    """The ids of all fields that were in force before, which no new field gets."""
    return frozenset() if manifest is None else frozenset(id_ for former in manifest.formers for id_ in former.ids)


def known_as(manifest: SnapshotManifest, definition: MapDefinition) -> SnapshotManifest:
    """As `shown_as`, but a field that was not in force in this state shows what rows without it show, though layers
    have it from before it was dropped. It is not stored.
    """
    shown, before = manifest.shown_as(definition), manifest.definition.field_ids
    hidden = sorted(id_ for id_ in former_ids(shown) if id_ in definition.field_ids and id_ not in before)
    if not hidden:
        return shown
    mark = "".join(f"-{id_}" for id_ in hidden)  # layers that hide others are others: states are opened together
    formers = tuple(
        FormerValue(former.id + mark, former.value, tuple(-id_ if id_ in hidden else id_ for id_ in former.ids))
        for former in shown.formers
    )
    layers = tuple(replace(layer, value=layer.value + mark) for layer in shown.layers)
    return replace(shown, formers=formers, layers=layers)


def manifest_name(id_: str) -> str:
    """The name of a manifest's object."""
    return f"manifests/{id_}.json"


def store_manifest(objects: Objects, manifest: SnapshotManifest) -> None:
    """Write a manifest whose files are all there."""
    data = manifest.to_bytes()
    objects.put(manifest_name(manifest.id), data)
    hold_read(objects, manifest_name(manifest.id), manifest, len(data))


def load_manifest(objects: Source, id_: str) -> SnapshotManifest:
    """The manifest of that id, its checksum verified.

    Raises: `NotFound`, `Corrupt`; `Invalid` for a format that is newer than this reader.
    """
    name = manifest_name(id_)

    def read(data: pa.Buffer) -> SnapshotManifest:
        if content_id(data) != id_:
            raise Corrupt(
                "the manifest is not what was written", kind="snapshot_damaged", object=name, where=objects.where
            )
        return SnapshotManifest.from_bytes(data.to_pybytes())

    try:
        return read_once(objects, name, lambda: objects.get(name), read)
    except NotFound as error:
        raise NotFound(
            "there is no such snapshot", kind="snapshot_not_found", object=name, where=objects.where,
            hint="it was replaced: ask for the one that counts now",
        ) from error  # fmt: skip


def list_manifests(objects: Objects) -> Iterator[SnapshotManifest]:
    """All manifests that can be read; one that vanishes meanwhile, or is damaged, is passed over."""
    for info in list(objects.list("manifests")):
        try:
            yield load_manifest(objects, info.name.removeprefix("manifests/").removesuffix(".json"))
        except (NotFound, Corrupt):
            continue
