"""Differences and merges of layered maps are those of the dictionaries that the maps stand for.

A pool of states grows: by loads that join, fill or replace whole groups, by folds, and by merges of any three states.
Each state is a manifest and a dictionary. Histories with branches, also those that cross, are among them: a merge takes
whatever base it is given.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Invalid
from millpond.maps.layered.differences import differences
from millpond.maps.layered.merges import merge_manifests
from millpond.maps.model.definition import PLAIN_KINDS, Kind
from millpond.maps.snapshots.layers import fold, fold_layers, substitute
from millpond.maps.snapshots.manifest import LayerMode, SnapshotManifest
from millpond.maps.snapshots.rows_of_groups import GroupSpan
from millpond.ranges import Choice
from millpond.stores.objects import open_objects
from tests.harness import strategies
from tests.harness.models import MapModel, bits_of
from tests.harness.rows import canonical_of
from tests.models.test_layers_model import (
    Load,
    aging,
    apply,
    check_times,
    loads,
    neighbours,
    next_version,
    plain,
    put_on,
    rows_in,
)

if TYPE_CHECKING:
    from millpond.maps.model.definition import MapDefinition
    from millpond.stores.objects import Objects
    from tests.harness.strategies import Pools

State = tuple[SnapshotManifest, MapModel]


def differing(old: MapModel, new: MapModel) -> dict[object, tuple[object, object]]:
    """The addresses that differ, with what each state has there."""
    return {
        address: (cell(old, address), cell(new, address))
        for address in {**old.rows, **new.rows} if cell(old, address) != cell(new, address)
    }  # fmt: skip


def cell(model: MapModel, address: object) -> object:
    return ("row", bits_of(model.rows[address])) if address in model.rows else None  # type: ignore[index]


def merged_model(base: MapModel, ours: MapModel, theirs: MapModel, choice: Choice) -> tuple[MapModel, set[object]]:
    """The outcome, address by address; and the conflicts."""
    merged, conflicts = deepcopy(ours), set()
    for address in {**base.rows, **theirs.rows}:
        sides = [cell(model, address) for model in (base, ours, theirs)]
        if sides[1] == sides[2] is not None:
            merged.updated[address] = merged_time(
                base.updated[address] if sides[0] == sides[2] else None, ours.updated[address], theirs.updated[address]
            )
        if sides[0] == sides[2] or sides[1] == sides[2]:
            continue
        taken: MapModel | None = theirs
        if sides[1] != sides[0]:
            conflicts.add(address)
            taken = {Choice.BASE: base, Choice.OURS: ours, Choice.THEIRS: theirs}.get(choice)
        merged.rows.pop(address, None)
        merged.updated.pop(address, None)
        if taken is not None and address in taken.rows:
            merged.rows[address], merged.updated[address] = taken.rows[address], taken.updated[address]
    return merged, conflicts


def merged_time(base: int | None, ours: int, theirs: int) -> int:
    """The update time of equal rows: what one side changed; of both changes the later."""
    if theirs == base:
        return ours
    return theirs if ours == base else max(ours, theirs)


@st.composite
def grown(draw: st.DrawFn, objects: Objects, definition: MapDefinition, pools: Pools, pool: list[State]) -> State:
    """One more state, made of one of the pool."""
    manifest, model = draw(st.sampled_from(pool))
    model = deepcopy(model)
    if manifest.layers and draw(st.booleans()):
        inputs = draw(neighbours(manifest.layers))
        return substitute(objects, manifest, fold_layers(objects, manifest, inputs), created_ms=9), model
    if manifest.layers and draw(st.integers(0, 4)) == 0:
        return fold(objects, manifest, created_ms=9, everything=True), model
    load = draw(loads(definition, pools))
    apply(model, load, next_version(manifest))
    return put_on(objects, definition, manifest, load), model


def check_difference(objects: Objects, definition: MapDefinition, old: State, new: State) -> None:
    seen: dict[object, tuple[object, object]] = {}
    for difference in differences(objects, old[0], new[0]):
        rows = [
            None if place < 0 else side.rows.slice(place, 1)
            for side, places in ((difference.old, difference.old_positions), (difference.new, difference.new_positions))
            for place in places
        ]  # fmt: skip
        count = len(difference)
        for before, after in zip(rows[:count], rows[count:], strict=True):
            either = after if before is None else before
            assert either is not None
            address = tuple(either.select(list(definition.kind.address)).to_pylist()[0].values())
            assert address not in seen, "each address once"
            seen[address] = tuple(None if row is None else plain([row])[0] for row in (before, after))  # type: ignore[assignment]
        addresses = difference.address_rows().to_pylist()
        assert [tuple(row.values()) for row in addresses] == list(seen)[len(seen) - count :]
    wanted = differing(old[1], new[1])
    both = [plain([canonical_of(definition, [(a, model.rows[a]) for a in wanted if a in model.rows])])
            for model in (old[1], new[1])]  # fmt: skip
    for side in (0, 1):
        assert sorted((row[side] for row in seen.values() if row[side] is not None), key=repr) == both[side]
    assert len(seen) == len(wanted)


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_states_differ_and_merge_as_their_dictionaries_do(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(aging(kind))
    pools = data.draw(strategies.pools(definition))
    objects = open_objects("memory://")
    first = Load(LayerMode.JOIN, [], set())
    pool: list[State] = [(put_on(objects, definition, None, first), MapModel(kind))]
    for _ in range(data.draw(st.integers(2, 6))):
        pool.append(data.draw(grown(objects, definition, pools, pool)))
    check_difference(objects, definition, data.draw(st.sampled_from(pool)), data.draw(st.sampled_from(pool)))
    for _ in range(data.draw(st.integers(1, 3))):
        base, ours, theirs = (data.draw(st.sampled_from(pool)) for _ in range(3))
        choice = data.draw(st.sampled_from(Choice))
        model, conflicts = merged_model(base[1], ours[1], theirs[1], choice)
        merged = merge_manifests(
            objects, definition, base[0], ours[0], theirs[0], version=7, created_ms=7,
            resolve=lambda addresses, choice=choice: np.full(addresses.num_rows, choice),  # type: ignore[misc]
        )  # fmt: skip
        if conflicts and choice is Choice.CONFLICT:
            assert merged.manifest is None
            assert merged.conflicting == len(conflicts)
            continue
        assert merged.manifest is not None
        expected = plain([canonical_of(definition, model.scan())])
        assert rows_in(objects, merged.manifest, [GroupSpan()]) == expected
        check_times(objects, merged.manifest, model)
        pool.append((merged.manifest, model))
        check_difference(objects, definition, data.draw(st.sampled_from(pool)), pool[-1])


def test_maps_of_another_kind_are_neither_compared_nor_merged() -> None:
    objects = open_objects("memory://")
    manifest = SnapshotManifest(
        map="m", incarnation="i", kind=Kind.STATE, value="double", hash_bits=64, shard_version=1, created_ms=1,
        layers=(),
    )  # fmt: skip
    other = replace(manifest, value="string", shard_version=2)
    with pytest.raises(Invalid, match="another kind or value type") as refused:
        list(differences(objects, manifest, other))
    assert refused.value.values["values"] == ["double", "string"]
    with pytest.raises(Invalid, match="another kind or value type"):
        merge_manifests(objects, manifest.definition, manifest, manifest, other, version=3, created_ms=3)
