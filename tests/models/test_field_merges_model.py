"""Merges of states whose fields changed on either side are those of rows that have every field by its own name.

The model knows a field by where it came from: one of base, or one that a side added. It shows all three states with the
fields of the outcome, and merges them address by address.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.maps.layered.fields import encoded_default
from millpond.maps.layered.merges import merge_manifests
from millpond.maps.model.field_changes import FieldChanges
from millpond.maps.model.field_merges import merged_definition
from millpond.maps.snapshots.rows_of_groups import GroupSpan
from millpond.ranges import Choice
from millpond.stores.objects import open_objects
from tests.harness import strategies
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of
from tests.models.test_fields_model import KINDS, changes, definitions, redefined
from tests.models.test_layers_model import LayerMode, Load, apply, loads, plain, put_on, rows_in
from tests.models.test_map_merges_model import merged_model
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from millpond.maps.model.definition import Kind, MapDefinition
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.stores.objects import Objects
    from tests.harness.strategies import Pools
    from tests.models.test_fields_model import Change

Id = tuple[str, ...]


@dataclass(frozen=True)
class Field:
    name: str
    type: str
    default: Any = None


@dataclass
class Side:
    manifest: SnapshotManifest
    model: MapModel
    fields: dict[Id, Field]

    def shown(self, outcome: dict[Id, Field]) -> MapModel:
        """All rows with the fields of an outcome."""
        model = deepcopy(self.model)
        model.rows.update({address: self._value(value, outcome) for address, value in self.model.rows.items()})
        return model

    def _value(self, value: Any, outcome: dict[Id, Field]) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            ((id_, field),) = self.fields.items()
            return widened(value, field.type, outcome[id_].type)
        return {
            field.name: widened(value[self.fields[id_].name], self.fields[id_].type, field.type)
            if id_ in self.fields else field.default
            for id_, field in outcome.items()
        }  # fmt: skip


def widened(value: Any, before: str, after: str) -> Any:
    if value is None or before == after:
        return value
    if after == "double":
        return float(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def changed_side(side: Side, change: Change) -> dict[Id, Field]:
    """The fields of a side after a change of those of base."""
    written = change.written
    left = {
        id_: Field(written["rename"].get(field.name, field.name), written["widen"].get(field.name, field.type))
        for id_, field in side.fields.items()
        if field.name not in written["drop"]
    }
    encoded = FieldChanges.of(written, encoded_default).default
    return left | {
        (name, kind, encoded.get(name, "none")): Field(name, kind, written["default"].get(name))
        for name, kind in written["add"].items()
    }


def merged_fields(base: dict[Id, Field], ours: dict[Id, Field], theirs: dict[Id, Field]) -> dict[Id, Field] | None:
    """The fields of the outcome; None when both sides say different things of one."""
    outcome = {}
    for id_ in [*ours, *(id_ for id_ in theirs if id_ not in ours)]:
        sides = [side.get(id_) for side in (base, ours, theirs)]
        before, mine, other = sides
        if id_ not in base or mine is None or other is None:
            if mine is not None and other is not None and mine != other and repr(mine) != repr(other):
                return None
            if id_ in base and before not in (mine, other):
                return None  # changed here, dropped there
            if id_ not in base:
                outcome[id_] = mine or other
            continue
        assert before is not None
        retained = {}
        for part in ("name", "type"):
            said = {getattr(side, part) for side in (mine, other)} - {getattr(before, part)}
            if len(said) > 1:
                return None
            retained[part] = said.pop() if said else getattr(before, part)
        outcome[id_] = Field(**retained)
    names = [field.name for field in outcome.values()]
    return outcome if names and len(set(names)) == len(names) else None


def grown(
    data: st.DataObject, objects: Objects, side: Side, pools: Pools, number: int
) -> Side | None:  # fmt: skip
    """The side after loads, a change of its fields, and loads again; None where a number has no double."""
    side = replace(side, model=deepcopy(side.model))
    for moment in range(2):
        own = data.draw(strategies.pools(side.manifest.definition))
        own = replace(own, keys=pools.keys, numbers=pools.numbers, times=pools.times)
        for load in data.draw(st.lists(loads(side.manifest.definition, own), max_size=2)):
            apply(side.model, load)
            side.manifest = put_on(objects, side.manifest.definition, side.manifest, load)
        if moment == 0 and data.draw(st.integers(0, 3)):
            change = data.draw(changes(side.manifest.definition, number))
            fields = changed_side(side, change)
            manifest = redefined(objects, side.manifest, change, side.model)
            if manifest is None:
                return None
            side.manifest, side.fields = manifest, fields
    return side


def definition_of(side: Side, born: MapDefinition) -> MapDefinition:
    return replace(born, value=side.manifest.definition.value, fields=side.manifest.fields)


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(8, 100))
@given(data=st.data())
def test_a_merge_shows_what_rows_with_all_fields_would(kind: Kind, data: st.DataObject) -> None:
    born = data.draw(definitions(kind))
    objects, pools = open_objects("memory://"), data.draw(strategies.pools(born))
    assert born.value is not None
    fields = {("base", name): Field(name, str(scalar)) for name, scalar in born.value.parts}
    base = Side(put_on(objects, born, None, Load(LayerMode.JOIN, [], set())), MapModel(kind), fields)
    for load in data.draw(st.lists(loads(born, pools), max_size=2)):
        apply(base.model, load)
        base.manifest = put_on(objects, born, base.manifest, load)
    ours, theirs = (grown(data, objects, base, pools, number) for number in (1, 2))
    if ours is None or theirs is None:
        return
    outcome = merged_fields(base.fields, ours.fields, theirs.fields)
    merged = merged_definition(*(definition_of(side, born) for side in (base, ours, theirs)))
    assert (merged is None) == (outcome is None), (outcome, merged)
    if merged is None or outcome is None:
        return
    choice = data.draw(st.sampled_from((Choice.THEIRS, Choice.OURS, Choice.BASE)))
    try:
        result = merge_manifests(
            objects, merged, base.manifest, ours.manifest, theirs.manifest, version=99, created_ms=7,
            resolve=lambda addresses: np.full(addresses.num_rows, choice),
        ).manifest  # fmt: skip
    except Invalid as error:
        assert (error.kind, "double" in {str(field.type) for field in outcome.values()}) == ("field_narrowed", True)  # noqa: PT017
        return
    model, _ = merged_model(*(side.shown(outcome) for side in (base, ours, theirs)), choice)
    assert result is not None
    assert (result.definition.value, result.fields) == (merged.value, merged.fields)
    result = result.from_bytes(result.to_bytes())  # as others read it
    assert rows_in(objects, result, [GroupSpan()]) == plain([canonical_of(result.definition, model.scan())])
