"""Merges of maps between refs: each map by key, all of them as one commit.

| | base | ours | theirs |
|---|---|---|---|
| merge | the merge base | the destination | the source |
| revert | the commit | the branch | its parent |
| cherry-pick | its parent | the branch | the commit |
| restore | the branch | the branch | the ref |

Of each map: a side that is as base is takes the other's; where both changed it, fields are merged by their ids
(`field_merges.py`), and rows by key, all with the fields of the outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from millpond.errors import Invalid
from millpond.maps.layered.head import Layers
from millpond.maps.layered.merges import Conflicts, Resolve, merge_manifests
from millpond.maps.model.alteration import alteration
from millpond.maps.model.definition import MapDefinition
from millpond.maps.model.field_merges import merged_definition
from millpond.maps.search.combining import fields_of
from millpond.maps.snapshots.manifest import SnapshotManifest, former_ids
from millpond.ranges import Choice
from millpond.refs.layers import manifest_of
from millpond.refs.map_entries import MAPS, MapEntry, map_path
from millpond.versions.merges import MergeConflict, Resolution, Strategy, Take

__all__ = ("KeyResolution", "MapMergeConflict", "MergedMap", "Sides", "merge_maps")

_NUMBER = re.compile(r"-?\d{1,19}")
_EPOCH, _TIMES = datetime(1970, 1, 1, tzinfo=UTC), ("effective_time", "start", "end", "time")
_CHOICES = {
    Take.SOURCE: Choice.THEIRS, Take.DESTINATION: Choice.OURS, Take.BASE: Choice.BASE, Take.DELETE: Choice.NONE,
}  # fmt: skip
_STRATEGIES = {
    Strategy.DEFAULT: Choice.CONFLICT, Strategy.SOURCE_WINS: Choice.THEIRS, Strategy.DEST_WINS: Choice.OURS,
}  # fmt: skip


class MapMergeConflict(MergeConflict):
    """Both sides changed addresses of maps, and not to the same. `conflicts` has the first of each map.

    Its `paths` are those of the keys: `maps/weather/JFK`. Resolve them by key, prefix or map, or choose a strategy.
    """

    conflicts: Mapping[str, Sequence[Conflicts]] = {}


@dataclass(frozen=True, slots=True)
class KeyResolution:
    """The side to take of conflicts in a map, at a key or below a prefix of keys; None: at any."""

    take: Take
    map: str
    key: str | None = None
    prefix: str | None = None

    @classmethod
    def of(cls, rule: Resolution) -> KeyResolution | None:
        """The meaning of a resolution of paths for maps; None when it is about files.

        >>> KeyResolution.of(Resolution(Take.SOURCE, path="maps/weather/JFK"))
        KeyResolution(take=<Take.SOURCE: 'source'>, map='weather', key='JFK', prefix=None)
        """
        text = rule.path if rule.path is not None else rule.prefix or ""
        name, slash, key = text.removeprefix(MAPS).partition("/")
        if not text.startswith(MAPS) or not (slash or rule.path is not None):
            return None
        if not slash:
            return cls(rule.take, name)
        return cls(rule.take, name, key=key) if rule.path is not None else cls(rule.take, name, prefix=key)

    def fits(self, definition: MapDefinition, address: Mapping[str, Any]) -> bool:
        """True when it is about an address."""
        if self.map != definition.name:
            return False
        if definition.kind.keyed:
            key = address["key"].decode()
            return (self.key is None or key == self.key) and (self.prefix is None or key.startswith(self.prefix))
        if self.key is None:
            return not self.prefix
        return bool(_NUMBER.fullmatch(self.key)) and address["key_start"] <= int(self.key) <= address["key_end"]


@dataclass(frozen=True, slots=True)
class Sides:
    """The three states of all maps, by name; and the names that people know them by."""

    base: Mapping[str, MapEntry]
    ours: Mapping[str, MapEntry]
    theirs: Mapping[str, MapEntry]
    words: tuple[str, str, str] = ("base", "ours", "theirs")


@dataclass(frozen=True, slots=True)
class MergedMap:
    """A map that a merge changes: what it was on our side, None for nothing; and its definition and manifest now.

    Without a definition the map goes.
    """

    name: str
    before: MapEntry | None
    definition: MapDefinition | None
    manifest: SnapshotManifest | None = None
    changed: int | None = None

    @property
    def gone(self) -> MapDefinition | None:
        """The map of our side that goes, perhaps for another of its name."""
        before, after = self.before, self.definition
        if before is None or (after is not None and after.incarnation == before.definition.incarnation):
            return None
        return before.definition


@dataclass(slots=True)
class _Maps:
    """A merge of maps that goes through them, one after another."""

    sides: Sides
    layers_for: Callable[[MapDefinition], Layers]
    head_of: Callable[[MapEntry], SnapshotManifest | None]
    strategy: Strategy
    resolutions: Sequence[Resolution]
    conflicts: dict[str, Sequence[Conflicts]] = field(default_factory=dict)

    def merged(self, name: str) -> MergedMap | None:
        """The change of our side of a map, None for none."""
        base, ours, theirs = (side.get(name) for side in (self.sides.base, self.sides.ours, self.sides.theirs))
        if _alike(base, theirs) or _alike(ours, theirs):
            return None
        if _alike(base, ours):
            return self._taken(name, ours, theirs)
        if ours is None or theirs is None:
            raise self._differ(name, ours, theirs)
        if base is None and ours.definition == theirs.definition:
            base = MapEntry(ours.definition)  # the map was dropped, and restored by both
        if base is None or not base.folder == ours.folder == theirs.folder:
            raise self._differ(name, ours, theirs)
        definition = merged_definition(base.definition, ours.definition, theirs.definition)
        if definition is None:
            raise self._differ(name, ours, theirs)
        return self._by_key(definition, base, ours, theirs)

    def _taken(self, name: str, ours: MapEntry | None, theirs: MapEntry | None) -> MergedMap:
        """Their state, for a map that our side did not change."""
        if theirs is None:
            return MergedMap(name, ours, None)
        layers = self.layers_for(theirs.definition)
        manifest, new = manifest_of(layers, theirs, self.sides.words[2]), ours is None or ours.folder != theirs.folder
        if manifest is None and not new:  # theirs was never loaded: ours has its rows no more
            manifest = SnapshotManifest.empty(theirs.definition, created_ms=layers.clock.now_ms())
        if manifest is not None and new and not manifest.layers:
            manifest = None  # it comes as a map that was never loaded
        if manifest is not None:
            version = 1 if ours is None or new else ours.version + 1
            manifest = _numbered(manifest, version, layers.clock.now_ms())
            layers.stored(manifest)
        return MergedMap(name, ours, theirs.definition, manifest)

    def _by_key(self, definition: MapDefinition, base: MapEntry, ours: MapEntry, theirs: MapEntry) -> MergedMap:
        layers = self.layers_for(definition)
        states = [manifest_of(layers, entry, ref) for entry, ref in zip((base, theirs), self.sides.words[::2],
                                                                        strict=True)]  # fmt: skip
        before = self.head_of(ours)
        if _returns(definition, states[1]) or _returns(definition, before):
            raise self._differ(ours.name, ours, theirs)
        if before is None and definition.value_id != ours.definition.value_id:
            before = SnapshotManifest.empty(ours.definition, created_ms=layers.clock.now_ms())
        merged = merge_manifests(
            layers.objects, definition, states[0], before, states[1], version=ours.version + 1,
            created_ms=layers.clock.now_ms(), resolve=self._resolve(definition), spill=layers.spill(),
        )  # fmt: skip
        if merged.conflicts:
            self.conflicts[definition.name] = merged.conflicts
            return MergedMap(definition.name, ours, definition)
        manifest = merged.manifest
        if manifest is not None and manifest is not before:
            layers.stored(manifest)
        return MergedMap(definition.name, ours, definition, manifest, merged.changed)

    def _differ(self, name: str, ours: MapEntry | None, theirs: MapEntry | None) -> Invalid:
        shown = ["not there" if side is None else side.definition.summary for side in (ours, theirs)]
        if ours is not None and theirs is not None and ours.folder != theirs.folder:
            incarnations = [side.definition.incarnation for side in (ours, theirs)]
            return Invalid(
                "the map was made twice, apart: these are two of one name", kind="maps_differ", map=name, ours=shown[0],
                theirs=shown[1], our_incarnation=incarnations[0], their_incarnation=incarnations[1],
                hint="restore the map of one side on the other, then load there the rows that only the other had",
            )  # fmt: skip
        difference: dict[str, str] = {}
        if ours is not None and theirs is not None:  # a summary shows the first fields
            difference = {"to_theirs": alteration(ours.definition, theirs.definition)}
        return Invalid(
            "both sides changed what the map is", kind="maps_differ", map=name, ours=shown[0], theirs=shown[1],
            **difference, hint="let both be alike first, or restore the map of one side",
        )  # fmt: skip

    def _resolve(self, definition: MapDefinition) -> Resolve:
        otherwise = _STRATEGIES[self.strategy]
        rules = [
            rule for rule in map(KeyResolution.of, self.resolutions) if rule is not None and rule.map == definition.name
        ]

        def choose(addresses: pa.RecordBatch) -> np.ndarray:
            if not rules:
                return np.full(addresses.num_rows, otherwise)
            return np.array([
                next((_CHOICES[rule.take] for rule in rules if rule.fits(definition, address)), otherwise)
                for address in addresses.to_pylist()
            ])  # fmt: skip

        return choose


def _alike(left: MapEntry | None, right: MapEntry | None) -> bool:
    if left is None or right is None:
        return left is right
    never_loaded = left.version == right.version == 0
    return left.definition == right.definition and (left.manifest == right.manifest or never_loaded)


def _returns(definition: MapDefinition, manifest: SnapshotManifest | None) -> bool:
    """True when a side dropped a field that the outcome has: what its rows had there may be gone, or not."""
    if manifest is None:
        return False
    return not (former_ids(manifest) - {*manifest.definition.field_ids}).isdisjoint(definition.field_ids)


def _numbered(manifest: SnapshotManifest, version: int, created_ms: int) -> SnapshotManifest:
    return replace(manifest, shard_version=version, created_ms=created_ms)


def merge_maps(
    sides: Sides, layers_for: Callable[[MapDefinition], Layers],
    head_of: Callable[[MapEntry], SnapshotManifest | None], *, strategy: Strategy = Strategy.DEFAULT,
    resolutions: Sequence[Resolution] = (),
) -> list[MergedMap]:  # fmt: skip
    """The maps that a merge changes on our side; their manifests are stored. Hold `writing` of all around it.

    `head_of` gives the manifest of one of our states.

    Raises: `MapMergeConflict`; `Invalid`, kind `maps_differ`, naming both definitions; `NotFound`, `Corrupt`.
    """
    merging = _Maps(sides, layers_for, head_of, strategy, resolutions)
    names = sorted({*sides.base, *sides.ours, *sides.theirs})
    merged = [merging.merged(name) for name in names]
    if merging.conflicts:
        count = sum(part.addresses.num_rows for listed in merging.conflicts.values() for part in listed)
        first, listed = next(iter(merging.conflicts.items()))
        error = MapMergeConflict(
            "both sides changed the same keys", conflicts=count, map=first, maps=", ".join(sorted(merging.conflicts)),
            key=_shown(listed[0].addresses.slice(0, 1).to_pylist()[0]), **_inexact(listed[0].ours.definition),
            hint="resolve them by key, prefix or map, or merge with a strategy",
        )  # fmt: skip
        error.conflicts = merging.conflicts
        error.paths = tuple(dict.fromkeys(
            f"{map_path(name)}/{_shown(address).partition(' ')[0]}"
            for name, listed in merging.conflicts.items() for part in listed for address in part.addresses.to_pylist()
        ))  # fmt: skip
        raise error
    return [change for change in merged if change is not None and not _is_same(change)]


def _inexact(definition: MapDefinition) -> dict[str, str]:
    """The fields of an aggregate of which nobody can tell what both sides make, or what is left, by their rules."""
    if definition.aggregation is None:
        return {}
    fields = [field for field in fields_of(definition) if not field.rule.additive]
    return {"inexact": ", ".join(f"{field.name} {field.rule}" for field in fields or fields_of(definition))}


def _is_same(change: MergedMap) -> bool:
    """True when the other side brought nothing that our side lacks."""
    return (
        change.changed == 0 and change.before is not None and change.definition == change.before.definition
    )  # fmt: skip


def _shown(address: Mapping[str, Any]) -> str:
    return " ".join(_text(name, value) for name, value in address.items())


def _text(name: str, value: Any) -> str:
    if name in _TIMES:
        return (_EPOCH + timedelta(milliseconds=value)).isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
