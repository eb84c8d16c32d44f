"""The strategies reach the corners they promise, and their rows survive the way into Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from millpond.maps.inputs.normalise import normalise
from millpond.maps.model.columns import canonical_schema
from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, Scheme
from tests.harness import strategies
from tests.harness.models import MapModel, bits_of
from tests.harness.rows import canonical_of, presented, presented_rows, table_of
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Callable


CORNERS: dict[str, Callable[[str], bool]] = {
    "empty": lambda key: key == "",
    "one byte": lambda key: len(key.encode()) == 1,
    "NUL": lambda key: "\0" in key,
    "511 bytes": lambda key: len(key.encode()) == 511,
    "512 bytes": lambda key: len(key.encode()) == 512,
    "10 KB": lambda key: len(key) > 10_000,
    "two-byte letter": lambda key: "é" in key,
    "four-byte letter": lambda key: "\U0001f600" in key,
}


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(3)
@pytest.mark.parametrize("corner", CORNERS)
def test_keys_reach_their_corners(corner: str) -> None:
    find(strategies.keys(), CORNERS[corner], settings=settings(max_examples=20_000, database=None))


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(3)
@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_every_kind_meets_every_scheme(kind: Kind, scheme: Scheme) -> None:
    found = find(
        strategies.definitions(kind=kind), lambda candidate: candidate.scheme is scheme and candidate.hash_bits < 3
    )
    assert found.kind is kind


@pytest.mark.usefixtures("processor")
@given(st.data())
@settings(max_examples=examples(15, 60), deadline=None)
def test_rows_survive_the_way_into_arrow(data: st.DataObject) -> None:
    definition: MapDefinition = data.draw(strategies.definitions())
    if definition.kind.valued and definition.value is None:
        return
    pools = data.draw(strategies.pools(definition))
    model = MapModel(definition.kind, overwrite=definition.overwrite)
    model.put(data.draw(strategies.rows(definition, pools)))
    table = table_of(definition, model.scan())
    if definition.value is not None and definition.value.fields:
        table = table.flatten().rename_columns([name.removeprefix("value.") for name in table.flatten().column_names])
    assert presented_rows(definition, table) == presented(definition, model.scan())
    assert all(not model.holds(*question) or model.address(*question) in model.rows
               for question in data.draw(strategies.questions(definition, pools)))  # fmt: skip


@pytest.mark.usefixtures("processor")
@given(st.data())
def test_what_people_load_becomes_the_canonical_rows(data: st.DataObject) -> None:
    definition: MapDefinition = data.draw(strategies.definitions())
    pools = data.draw(strategies.pools(definition))
    rows = data.draw(strategies.rows(definition, pools))
    [batch] = table_of(definition, rows).to_batches()
    normalised = normalise(batch, definition)
    assert normalised.rejected.num_rows == 0
    assert normalised.rows.schema.equals(canonical_schema(definition))
    assert bits_of(normalised.rows.to_pylist()) == bits_of(canonical_of(definition, rows).to_pylist())
