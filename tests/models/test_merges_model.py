"""Parts written in any order of rows and merged in staging order answer as the model does."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.maps.loads.merge import Arrived, merge_loads, part_rows
from millpond.maps.model.definition import PLAIN_KINDS, Kind
from millpond.maps.parts.part import PartWriter, verify_part
from millpond.maps.shard.shard import Shard
from tests.harness import strategies
from tests.harness.audit import audit_shard, canonical_bits
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of
from tests.harness.scratch import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.parts.part import PartFile
    from tests.harness.models import Row


def write(definition: MapDefinition, folder: Path, rows: list[Row]) -> PartFile:
    """One part, brought to the writer in two batches."""
    writer = PartWriter(definition, folder)
    half = len(rows) // 2
    writer.write(canonical_of(definition, rows[:half]))
    writer.write(canonical_of(definition, rows[half:]))
    [part] = writer.finish()
    assert verify_part(part.file) == part.manifest
    return part


def check_part(definition: MapDefinition, part: PartFile, rows: list[Row]) -> None:
    unique = MapModel(definition.kind, overwrite=definition.overwrite)
    unique.put(rows)
    bits = canonical_bits(part_rows(definition, part), definition)
    assert bits == canonical_bits([canonical_of(definition, unique.scan())], definition)
    assert part.manifest.rows == len(unique.rows)
    lengths = [int(row[2]) - int(row[1]) for row in unique.rows] if definition.kind is Kind.SESSION else [0]
    assert part.manifest.longest_session == max(lengths)


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_merged_parts_answer_as_the_model(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    model = MapModel(kind, overwrite=definition.overwrite)
    with scratch_folder() as folder, closing(Shard(folder / "shard", definition)) as shard:
        for load in range(1, data.draw(st.integers(2, 4))):
            parts = []
            for number in range(data.draw(st.integers(1, 3))):
                rows = data.draw(strategies.rows(definition, pools))
                parts.append(write(definition, folder / f"{load}-{number}", rows))
                check_part(definition, parts[-1], rows)
                model.put(rows)
            arrived = [Arrived(load, 0, definition.overwrite, tuple(parts))]
            merge_loads(shard, arrived)
            audit_shard(shard, model, data.draw(strategies.questions(definition, pools)))
            assert merge_loads(shard, arrived).repeated
        assert shard.stats().rows == len(model.rows)


@pytest.mark.usefixtures("processor")
@given(data=st.data())
def test_the_same_rows_are_the_same_part_however_they_are_batched(data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions())
    pools = data.draw(strategies.pools(definition))
    rows = data.draw(strategies.rows(definition, pools))
    unique, fewer = (MapModel(definition.kind, overwrite=definition.overwrite) for _ in range(2))
    unique.put(rows)
    fewer.put(unique.scan()[1:])
    with scratch_folder() as folder:
        part = write(definition, folder / "one", rows)
        again = write(definition, folder / "again", list(reversed(unique.scan())))
        assert again.manifest.id == part.manifest.id
        if fewer.rows:
            assert write(definition, folder / "fewer", fewer.scan()).manifest.id != part.manifest.id
