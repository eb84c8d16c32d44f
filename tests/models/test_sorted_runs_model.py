"""A freeze whose rows wait on the disk writes, byte by byte, the files of one in memory."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.maps.model.definition import PLAIN_KINDS, Kind
from millpond.maps.snapshots import groups_of_rows
from millpond.maps.snapshots.freeze import freeze
from millpond.maps.snapshots.sorted_runs import ALL, SortedRuns, SpillTo
from millpond.stores.objects import open_objects
from tests.harness import strategies
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of
from tests.models.test_snapshots_model import group_of, touched_column

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.arrays.radix import U64


def pieces(batch: pa.RecordBatch, cuts: list[int]) -> list[pa.RecordBatch]:
    """The rows of a batch in several."""
    edges = [0, *sorted(min(cut, batch.num_rows) for cut in cuts), batch.num_rows]
    return [batch.slice(low, high - low) for low, high in itertools.pairwise(edges)]


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_a_freeze_with_runs_on_the_disk_writes_the_same_files(
    kind: Kind, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        compare(kind, data, tmp_path_factory.getbasetemp(), patch)


def compare(kind: Kind, data: st.DataObject, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Freeze the same rows, held and spilled, in one block and in many."""
    definition = data.draw(strategies.definitions(kind=kind))
    model = MapModel(kind)
    model.put(data.draw(strategies.rows(definition, data.draw(strategies.pools(definition)), most=40)))
    rows = list(model.scan())
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=4))
    order = data.draw(st.one_of(st.just(range(len(rows))), st.permutations(range(len(rows)))))
    bytes_max = data.draw(st.sampled_from((1, 50, 400)))
    gone = sorted({group_of(address) for address, _ in rows[::3]}, key=repr)
    found = []
    block_rows = data.draw(st.sampled_from((1, 5, 1 << 30)))
    for spill, rows_min in ((None, 1 << 30), (SpillTo(folder, bytes_max), block_rows), (None, block_rows)):
        patch.setattr(groups_of_rows, "BLOCKS_ROWS_MIN", rows_min)
        objects = open_objects("memory://")
        batches = pieces(canonical_of(definition, [rows[number] for number in order]), cuts)
        base = freeze(objects, definition, batches, shard_version=1, created_ms=1, spill=spill)
        rest = [row for row in rows if group_of(row[0]) in gone][1:]
        top = freeze(
            objects, definition, pieces(canonical_of(definition, rest), cuts), base=base, shard_version=2,
            touched=touched_column(definition, gone), created_ms=2, spill=spill,
        )  # fmt: skip
        found.append((base, top, sorted(info.name for info in objects.list())))
    assert found[0] == found[1] == found[2]
    assert not list(folder.glob("run-*"))


@pytest.mark.usefixtures("processor")
@given(
    batches=st.lists(st.lists(st.integers(0, ALL - 1), max_size=9), max_size=6),
    cuts=st.lists(st.integers(1, ALL - 1), unique=True, max_size=4), bytes_max=st.sampled_from((1, 40, 1 << 20)),
)  # fmt: skip
def test_every_row_comes_out_of_the_span_of_its_major(
    batches: list[list[int]], cuts: list[int], bytes_max: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ThreadPoolExecutor(1) as thread:
        runs = SortedRuns(major_of, SpillTo(tmp_path_factory.getbasetemp(), bytes_max), thread)
        for batch in batches:
            runs.add(pa.record_batch({"n": pa.array(batch, pa.uint64())}))
        runs.end()
    edges = [0, *sorted(cuts), ALL]
    for low, high in itertools.pairwise(edges):
        found = [number for rows, _ in runs.between(low, high) for number in rows.column("n").to_pylist()]
        assert sorted(found) == sorted(number for batch in batches for number in batch if low <= number < high)
        assert all(major_of(rows).tolist() == major.tolist() for rows, major in runs.between(low, high))
    assert runs.spilled <= len(batches)
    assert bytes_max > 1 or runs.spilled == sum(map(bool, batches))


def major_of(batch: pa.RecordBatch) -> U64:
    found: U64 = batch.column("n").to_numpy()
    return found
