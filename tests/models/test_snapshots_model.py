"""Bulk lookups answer as the model does: every kind, layers and tombstones, clashing hashes, any form of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import PLAIN_KINDS, Kind
from millpond.maps.snapshots.freeze import freeze
from millpond.maps.snapshots.groups_of_rows import range_order_keys
from millpond.maps.snapshots.snapshot import Snapshot, answer_type
from millpond.stores.objects import open_objects
from tests.harness import strategies
from tests.harness.models import MapModel, bits_of
from tests.harness.rows import canonical_of, presented

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.snapshots.freeze import SnapshotManifest
    from millpond.stores.objects import Objects
    from tests.harness.models import Address
    from tests.harness.strategies import Pools, Question

KEY_TYPES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view())


def group_of(address: Address) -> tuple[object, ...]:
    return address[:1] if isinstance(address[0], str) else address[:2]


def touched_column(definition: MapDefinition, groups: Sequence[tuple[object, ...]]) -> pa.Array:
    if definition.kind.keyed:
        return pa.array([str(key).encode() for (key,) in groups], pa.binary())
    bounds = [pa.array([group[side] for group in groups], pa.int64()).to_numpy() for side in (0, 1)]
    return range_order_keys(*bounds)


def refrozen(
    objects: Objects, definition: MapDefinition, model: MapModel, base: SnapshotManifest | None,
    touched: set[tuple[object, ...]], version: int,
) -> SnapshotManifest:  # fmt: skip
    """Freeze the model as the shard would be: all of it, or what was touched since `base`."""
    known = [row for row in model.scan() if base is None or group_of(row[0]) in touched]
    batch = canonical_of(definition, known)
    cut = len(known) // 2
    return freeze(
        objects, definition, [batch.slice(cut), batch.slice(0, cut)], base=base,
        touched=None if base is None else touched_column(definition, sorted(touched, key=repr)),
        shard_version=version, created_ms=version,
    )  # fmt: skip


def expected(definition: MapDefinition, model: MapModel, question: Question) -> object:
    """The model's answer in the form of a lookup."""
    answer = model.answer(*question)
    if answer is None:
        return None
    if definition.kind is Kind.SESSION:
        assert isinstance(answer, tuple)
        start, end = pa.array(answer[1:] if len(answer) > 2 else answer, pa.int64()).cast(INSTANT).to_pylist()
        return {"start": start, "end": end}
    if definition.value is None:
        address = model.address(*question)
        assert address is not None
        shown = presented(definition, [(address, answer)])[0]
        assert isinstance(shown, tuple)
        return shown[-1][1]
    return answer


@st.composite
def key_columns(draw: st.DrawFn, definition: MapDefinition, keys: list[object]) -> pa.Array | pa.ChunkedArray:
    """Keys as some column: of any type that holds them, whole, sliced, in chunks or dictionary-encoded."""
    array = pa.array(keys, pa.string() if definition.kind.keyed else pa.int64())
    if definition.kind.keyed:
        kind = draw(st.sampled_from(KEY_TYPES))
        array = array.cast(kind)
        if kind not in KEY_TYPES[-2:] and draw(st.booleans()):
            array = array.dictionary_encode()
    form = draw(st.sampled_from(("whole", "sliced", "chunks")))
    if form == "sliced":
        return pa.concat_arrays([array, array]).slice(len(array))
    if form == "chunks":
        cut = draw(st.integers(0, len(array)))
        return pa.chunked_array([array.slice(0, cut), array.slice(0, 0), array.slice(cut)])
    return array


@st.composite
def time_columns(draw: st.DrawFn, times: list[object]) -> object:
    array = pa.array(times, pa.int64())
    return draw(
        st.sampled_from((array, array.cast(INSTANT), times, pa.chunked_array([array.slice(0, 1), array.slice(1)])))
    )


def check(snapshot: Snapshot, model: MapModel, questions: list[Question | None], data: st.DataObject) -> None:
    definition = snapshot.definition
    known = [None if question is None else expected(definition, model, question) for question in questions]
    keys = data.draw(key_columns(definition, [question and question[0] for question in questions]))
    # A null key has a time, a null time a key: both are misses.
    times = [7 if question is None else question[1] for question in questions]
    if definition.kind.timed and data.draw(st.booleans()):
        times[-1], known[-1] = None, None  # type: ignore[call-overload]
    answers = snapshot.lookup(keys, at=data.draw(time_columns(times)) if definition.kind.timed else None)
    answers.validate(full=True)
    assert answers.type == answer_type(definition)
    assert [bits_of(answer) for answer in answers.to_pylist()] == [bits_of(answer) for answer in known]


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_lookups_answer_as_the_model(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    model = MapModel(kind)
    manifest: SnapshotManifest | None = None
    objects = open_objects("memory://")
    for version in range(1, data.draw(st.integers(2, 4))):
        part = data.draw(strategies.rows(definition, pools, most=12 if version == 1 else 4))
        model.put(part)
        gone = data.draw(st.lists(st.sampled_from(sorted(model.rows)), max_size=3, unique=True))
        for address in gone:
            del model.rows[address]
        touched = {group_of(address) for address in [*gone, *(address for address, _ in part)]}
        manifest = refrozen(objects, definition, model, manifest, touched, version)
        with Snapshot.open(objects, manifest) as snapshot:
            questions = data.draw(questions_and_nulls(definition, pools))
            check(snapshot, model, questions, data)


@st.composite
def questions_and_nulls(draw: st.DrawFn, definition: MapDefinition, pools: Pools) -> list[Question | None]:
    questions: list[Question | None] = list(draw(strategies.questions(definition, pools)))
    return draw(st.permutations([*questions, *[None] * draw(st.integers(0, 2))]))
