"""Events of an aggregate that a task combines before others read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import millpond
from millpond.maps.inputs.mapping import mapping_of
from millpond.maps.inputs.normalise import normalise
from millpond.maps.layered.row_files import RowFileWriter, rows_of_shares
from millpond.maps.model.event_digest import digest_of
from millpond.maps.snapshots.groups_of_rows import freeze_groups
from tests.unit.test_aggregates import COLUMNS, VALUE, at, event

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.usefixtures("process")
def test_a_task_combines_its_events_before_others_read_them(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        sales = pond.create_map("sales", kind="aggregate", value=VALUE, resolution="1 hour")
    for keys, rows in ((3, 6), (500, 500)):
        events = [event(f"k{number % keys}", at(number % 60, 10 + number % 2), number) for number in range(500)]
        canonical = normalise(pa.RecordBatch.from_pylist(events), sales.definition, mapping_of(COLUMNS)).rows
        writer = RowFileWriter(sales.definition, tmp_path / str(keys))
        writer.write(canonical)
        (written,) = writer.finish()
        assert (written.rows, written.digest) == (rows, digest_of(sales.definition, canonical))
        taken = list(rows_of_shares([written], 0, written.count, sales.definition))
        groups = pa.Table.from_batches(list(freeze_groups(sales.definition, taken)))
        assert groups == pa.Table.from_batches(list(freeze_groups(sales.definition, [canonical])))
