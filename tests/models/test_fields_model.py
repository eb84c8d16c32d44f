"""Fields change as if every row were rewritten: added with a default, dropped, renamed, widened.

The model rewrites its rows at each change. Maps rewrite none, until a fold does; loads that began before a change may
come after it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid
from millpond.maps.layered.fields import encoded_default
from millpond.maps.layered.maintenance import fold_due
from millpond.maps.model.definition import PLAIN_KINDS, Kind, ScalarType, ValueType
from millpond.maps.model.field_changes import WIDER, FieldChanges, changed_fields
from millpond.maps.snapshots.layers import check_exact, fold, fold_layers, substitute
from millpond.stores.objects import open_objects
from tests.harness import strategies
from tests.harness.models import MapModel, bits_of
from tests.harness.rows import table_of
from tests.models.test_layers_model import LayerMode, Load, apply, check_all, loads, neighbours, put_on
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.stores.objects import Objects

KINDS = [kind for kind in PLAIN_KINDS if kind.valued]


@dataclass(frozen=True)
class Change:
    """A change as people write it, and what it makes of a value."""

    written: Mapping[str, Any]
    types: Mapping[str, ScalarType]

    def of(self, value: object) -> object:
        if not isinstance(value, dict):
            return self.widened("value", value)
        left = {
            self.written["rename"].get(name, name): self.widened(name, field)
            for name, field in value.items()
            if name not in self.written["drop"]
        }
        return left | {name: self.written["default"].get(name) for name in self.written["add"]}

    def widened(self, name: str, value: object) -> object:
        wider = self.written["widen"].get(name)
        if value is None or wider is None:
            return value
        if wider == "double":
            return float(value)  # type: ignore[arg-type]
        return str(value).lower() if isinstance(value, bool) else str(value)


@st.composite
def changes(draw: st.DrawFn, definition: MapDefinition, number: int) -> Change:
    assert definition.value is not None
    types = dict(definition.value.parts)
    widen = {
        name: str(draw(st.sampled_from(WIDER[scalar])))
        for name, scalar in types.items()
        if scalar in WIDER and draw(st.booleans())
    }
    written: dict[str, Any] = {"add": {}, "default": {}, "drop": [], "rename": {}, "widen": widen}
    if definition.value.fields:
        drop = draw(st.lists(st.sampled_from(list(types)), unique=True, max_size=2))
        left = [name for name in types if name not in drop]
        names = draw(st.permutations(left))
        rename = dict(zip(left, names, strict=True)) if draw(st.booleans()) else {}
        # A name that was dropped is taken again, by a field that is not the old one.
        add = {name: str(draw(st.sampled_from(ScalarType))) for name in [*drop, f"n{number}"] if draw(st.booleans())}
        if not left and not add:
            drop = []
        default = {
            name: draw(strategies.scalars(ScalarType(scalar))) for name, scalar in add.items() if draw(st.booleans())
        }
        widen = {name: scalar for name, scalar in widen.items() if name not in drop}
        written = {"add": add, "default": default, "drop": drop, "rename": rename, "widen": widen}
    return Change(written, types)


def definitions(kind: Kind) -> st.SearchStrategy[MapDefinition]:
    return st.builds(
        lambda definition, value: replace(definition, value=value),
        strategies.definitions(kind=kind), strategies.value_types(),
    )  # fmt: skip


def redefined(
    objects: Objects, manifest: SnapshotManifest, change: Change, model: MapModel
) -> SnapshotManifest | None:  # fmt: skip
    """The manifest after a change, and the model rewritten; None where a number has no double."""
    after = changed_fields(manifest.definition, FieldChanges.of(change.written, encoded_default))
    if after == manifest.definition:
        return manifest
    changed = manifest.redefined(after, created_ms=5)
    with suppress(Invalid):
        for layer in changed.layers:
            check_exact(objects, changed, layer)
        model.rows.update({address: change.of(value) for address, value in model.rows.items()})
        return changed
    assert "double" in change.written["widen"].values()
    return None


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_layers_show_what_rewriting_every_row_would(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(definitions(kind))
    model, objects = MapModel(kind), open_objects("memory://")
    manifest = put_on(objects, definition, None, Load(LayerMode.JOIN, [], set()))
    late: list[tuple[MapDefinition, Load, list[Change]]] = []
    for number in range(data.draw(st.integers(2, 5))):
        pools = data.draw(strategies.pools(manifest.definition))
        for load in data.draw(st.lists(loads(manifest.definition, pools), max_size=2)):
            if data.draw(st.integers(0, 3)) == 0:
                late.append((manifest.definition, load, []))
                continue
            apply(model, load)
            manifest = put_on(objects, manifest.definition, manifest, load)
        inputs = data.draw(neighbours(manifest.layers)) if manifest.layers and data.draw(st.booleans()) else None
        done = None if inputs is None else fold_layers(objects, manifest, inputs)
        change = data.draw(changes(manifest.definition, number))
        changed = redefined(objects, manifest, change, model)
        if changed is not None:
            manifest = changed
            for _, _, missed in late:
                missed.append(change)
        if done is not None:  # a fold that began before the change
            manifest = substitute(objects, manifest, done, created_ms=9)
        while late and data.draw(st.booleans()):
            manifest = put_late(objects, manifest, model, *late.pop(0))
        check_all(objects, manifest, model, data.draw(strategies.pools(manifest.definition)), data)
    manifest = fold(objects, manifest, created_ms=9, everything=True)
    assert len(manifest.layers) == bool(model.rows)
    assert {layer.value for layer in manifest.layers} <= {manifest.definition.value_id} or all(
        manifest.projection(layer) is None for layer in manifest.layers
    )
    check_all(objects, manifest, model, data.draw(strategies.pools(manifest.definition)), data)


def put_late(
    objects: Objects, manifest: SnapshotManifest, model: MapModel, definition: MapDefinition, load: Load,
    missed: list[Change],
) -> SnapshotManifest:  # fmt: skip
    """A load that was written under a former definition, on top of a head that has another."""
    rows = load.rows
    for change in missed:
        rows = [(address, change.of(value)) for address, value in rows]
    with suppress(Invalid):
        put = put_on(objects, definition, manifest, load)
        apply(model, replace(load, rows=rows))
        return put
    assert any("double" in change.written["widen"].values() for change in missed)
    return manifest


@pytest.mark.usefixtures("processor", "process")
@settings(max_examples=examples(3, 15))
@given(data=st.data())
def test_a_map_answers_alike_by_every_reader(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder: Path = tmp_path_factory.mktemp("fields") / "pond"
    value = data.draw(st.builds(lambda kinds: ValueType(fields=tuple((f"f{i}", kind) for i, kind in enumerate(kinds))),
                                st.lists(st.sampled_from(ScalarType), min_size=1, max_size=3)))  # fmt: skip
    with millpond.open(folder, clock=ManualClock(now=1_700_000_000_000)) as pond:
        held = pond.create_map("m", kind="temporal_state", value=value, store="layers")
        model = MapModel(Kind.TEMPORAL_STATE)
        for number in range(3):
            pools = data.draw(strategies.pools(held.definition))
            rows = data.draw(strategies.rows(held.definition, pools))
            held.load(table_of(held.definition, rows), again=True)
            model.put(rows)
            change = data.draw(changes(held.definition, number))
            with suppress(Invalid):  # of a number that has no double
                pond.alter_map("m", **change.written)
                model.rows.update({address: change.of(row) for address, row in model.rows.items()})
            if data.draw(st.booleans()):
                layers = held.layers
                assert layers is not None
                fold_due(layers, everything=True)
            if data.draw(st.booleans()):
                before = data.draw(strategies.times())
                held.condense(before)
                model.condense(before)
            current = pond.map("m")
            for other in (held, current):
                shown = sorted(repr(bits_of(row)) for row in other.scan().read_all().to_pylist())
                assert shown == sorted(repr(bits_of(row)) for row in pond.sql("select * from m").to_pylist())
                assert len(shown) == len(model.rows)
                pairs = [(str(key), int(at)) for key, at in model.rows]
                answers = other.lookup([key for key, _ in pairs], at=[at for _, at in pairs]).to_pylist()
                for (key, at), answer in zip(pairs, answers, strict=True):
                    expected = bits_of(model.answer(key, at))
                    assert bits_of(answer) == expected
                    assert bits_of(other.get(key, at)) == expected
        assert pond.verify().ok
