"""Changing the fields of a layered map, or its settings: a manifest and a definition that say so, and
an entry of the log, in one write.

Invariants:
* no row is rewritten: `projection.py` shows those of former definitions, and folding rewrites them when it is due;
* a load that was written under a former definition is put on top as it is: its layer names the value type it has;
* what the wider type does not tell exactly is refused, of rows that are there, and of such a load.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.errors import Conflict, Invalid
from millpond.kernel.steps import step
from millpond.maps.inputs.scalars import to_scalar
from millpond.maps.log.apply import record
from millpond.maps.model.catalogue import altered, find_map
from millpond.maps.model.definition import MapDefinition, ScalarType, Store, ValueType
from millpond.maps.model.field_changes import FieldChanges, changed_fields, need_layers
from millpond.maps.model.store_limits import tracks_updates
from millpond.maps.model.values import encode_values
from millpond.maps.snapshots.layer_times import with_updates
from millpond.maps.snapshots.layers import check_exact
from millpond.maps.snapshots.manifest import SnapshotManifest, former_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from millpond.kernel.space import Transaction
    from millpond.maps.layered.head import Head, Layers
    from millpond.maps.loads.loading import Loading

__all__ = ("alter_fields", "alter_settings", "encoded_default", "stored_change")


def alter_fields(loading: Loading, name: str, changes: Mapping[str, Any]) -> MapDefinition:
    """Change the fields of a map, see `Pond.alter_map`.

    Raises: `Invalid` naming the field, kind `field_narrowed` for a number that a wider type does not tell; `NotFound`.
    """
    change = FieldChanges.of(changes, encoded_default)

    def changed(before: MapDefinition, ids: Collection[int]) -> MapDefinition:
        need_layers(before, "fields")
        return changed_fields(before, change, ids)

    return _alter(loading, name, changed)


def alter_settings(loading: Loading, name: str, settings: Mapping[str, Any]) -> None:
    """Change settings of a layered map, which its history tells of; of another map none.

    Raises: `Invalid` for a setting that is none; `NotFound`.
    """

    def changed(before: MapDefinition, _: Collection[int]) -> MapDefinition:
        after = altered(before, settings)
        return after if before.store is Store.LAYERS else before

    _alter(loading, name, changed)


def _alter(
    loading: Loading, name: str, changed: Callable[[MapDefinition, Collection[int]], MapDefinition]
) -> MapDefinition:  # fmt: skip
    with loading.writing():
        while True:
            with loading.space.read() as tx:
                before = find_map(tx, name)
            layers = None if changed(before, ()) == before else loading.layers_of(before.name)
            if layers is None:
                return before
            with layers.writing():
                head = layers.head()
                after = changed(before, former_ids(head.manifest))
                entered = _entered(loading, layers, head, before, after)
            if entered:
                loading.loads.announce()
                return after


def _entered(loading: Loading, layers: Layers, head: Head, before: MapDefinition, after: MapDefinition) -> bool:
    """Let another definition be in force over the head of a map; False when it is to be looked at again."""
    manifest = stored_change(layers, head, before, after)

    def enter(tx: Transaction) -> None:
        if find_map(tx, before.name) != before:
            raise Conflict("the map was altered meanwhile", kind="head_moved", hint="look at it again")
        body = {"definition": after.to_dict(), "former": before.to_dict()}
        entry = record(tx, "alter", (after.name,), body, loading.clock.now_ms())
        layers.swap(tx, head, manifest, entry)

    try:
        loading.space.write(enter)
    except Conflict as error:
        if error.kind != "head_moved":
            raise
        return False
    step("alter.entered")
    return True


def stored_change(layers: Layers, head: Head, before: MapDefinition, after: MapDefinition) -> SnapshotManifest:
    """The next manifest, which lets another definition be in force over the layers of a head."""
    now = layers.clock.now_ms()
    manifest = head.manifest or SnapshotManifest.empty(before, created_ms=now)
    if (before.value, before.fields) == (after.value, after.fields):
        changed = replace(manifest, shard_version=manifest.shard_version + 1, created_ms=now)
    else:
        changed = manifest.redefined(after, created_ms=now)
    changed = with_updates(changed, tracks_updates(after), now)
    for layer in changed.layers:
        check_exact(layers.objects, changed, layer)
    layers.stored(changed)
    step("alter.stored")
    return changed


def encoded_default(value: Any, scalar: ScalarType, field: str) -> bytes:
    """The bytes of a default.

    Raises: `Invalid` when it is no value of the field's type.
    """
    try:
        converted = to_scalar(pa.array([value]), scalar)
        faults = [problem for _, problem in converted.faults]
    except (Invalid, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        faults = [str(error)]
    if faults:
        raise Invalid(
            "the default is no value of the field", kind="field_default", field=field, type=str(scalar),
            default=repr(value)[:100], reason=faults[0], hint=f"write a {scalar}",
        )  # fmt: skip
    return encode_values(converted.values, ValueType(scalar=scalar)).to_arrow()[0].as_py()
