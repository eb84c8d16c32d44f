"""Rows that tasks leave in files become the layer that one writer makes of them all, however they are shared out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Conflict, Corrupt
from millpond.maps.layered import row_files, share_ranges
from millpond.maps.layered.head import Layers
from millpond.maps.layered.row_files import RowFile, RowFileWriter, rows_of_shares
from millpond.maps.layered.rows import count_layer
from millpond.maps.layered.share_ranges import ShareRanges, ShareWriter, layer_of_files, stretches
from millpond.maps.layered.writer import loaded_mode
from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, Store, parse_value_type
from millpond.maps.snapshots.layers import write_layer
from millpond.maps.snapshots.stretches import write_here
from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects, open_objects
from tests.harness import strategies
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tests.harness.models import Row

MEMORY = 1 << 24


def layers_in(folder: Path, definition: MapDefinition) -> Layers:
    return Layers(MemorySpace(), ManualClock(0), open_objects(str(folder)), definition, MEMORY, 0)


def filed(
    folder: Path, definition: MapDefinition, tasks: list[list[pa.RecordBatch]], *, packs: bool = False
) -> list[RowFile]:  # fmt: skip
    files = []
    for number, batches in enumerate(tasks):
        writer = RowFileWriter(definition, folder / str(number), packs=packs)
        for batch in batches:
            writer.write(batch)
        files += writer.finish()
    return files


@st.composite
def batches(draw: st.DrawFn, definition: MapDefinition, rows: list[Row]) -> list[pa.RecordBatch]:
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    batch = canonical_of(definition, rows)
    return [batch.slice(start, stop - start) for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_the_layer_of_the_files_of_tasks_is_that_of_all_their_rows(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    tasks = [data.draw(batches(definition, data.draw(strategies.rows(definition, pools, most=20)))) for _ in range(3)]
    rows_max = data.draw(st.sampled_from([1, 4, 1000]))
    packs = data.draw(st.booleans())

    def written(writer: ShareWriter) -> list[ShareRanges]:
        return [writer.write(stretch) for stretch in stretches(writer.files, rows_max=rows_max)]

    with TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "PACKED_ROWS_MIN", 3)
        folder = Path(scratch)
        layers, files = layers_in(folder / "map", definition), filed(folder, definition, tasks, packs=packs)
        every = [batch for task in tasks for batch in task]
        expected = write_layer(layers.objects, definition, every, loaded_mode(definition))
        if not files:
            assert expected is None
            return
        made = layer_of_files(layers, files, written)
        assert expected is not None
        assert (made.layer, made.id, made.rows) == (expected, expected.index, count_layer(layers.objects, expected))
        assert layer_of_files(layers, files, written, salt="again").id != made.id


NUMBERS = MapDefinition(
    name="numbers", kind=Kind.STATE, incarnation="0" * 16, value=parse_value_type("long"), store=Store.LAYERS
)


def numbers(count: int) -> pa.RecordBatch:
    return canonical_of(NUMBERS, [((f"k{number}",), number) for number in range(count)])


def test_stretches_hold_all_shares_once_and_about_as_many_rows(tmp_path: Path) -> None:
    files = filed(tmp_path, NUMBERS, [[numbers(4000)], [numbers(500)]])
    assert sum(file.rows for file in files) == 4500
    cut = stretches(files, rows_max=1000)
    assert [start for start, _ in cut] == [0, *(stop for _, stop in cut[:-1])]
    assert cut[-1][1] == files[0].count
    counts = [sum(batch.num_rows for batch in rows_of_shares(files, *stretch, NUMBERS)) for stretch in cut]
    assert sum(counts) == 4500
    assert len(cut) == 5
    assert max(counts) < 1100


def test_files_for_a_bucket_have_half_of_the_bytes_or_fewer(tmp_path: Path) -> None:
    near = filed(tmp_path / "near", NUMBERS, [[numbers(150_000)]])
    far = filed(tmp_path / "far", NUMBERS, [[numbers(150_000)]], packs=True)
    sizes = [sum(Path(file.path).stat().st_size for file in files) for files in (near, far)]
    assert 2 * sizes[1] < sizes[0]
    assert [*rows_of_shares(near, 3, 70, NUMBERS)] == [*rows_of_shares(far, 3, 70, NUMBERS)]


class FarObjects(MemoryObjects):
    """Objects that behave as in a bucket."""

    in_blocks = True


@pytest.mark.usefixtures("processor")
def test_stretches_that_are_written_side_by_side_make_the_same_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [numbers(30_000), numbers(500)]
    near, far = layers_in(tmp_path / "map", NUMBERS), FarObjects()
    files = []
    for number, file in enumerate(filed(tmp_path, NUMBERS, [[task] for task in tasks], packs=True)):
        far.put(f"writer/{number}", Path(file.path).read_bytes())
        files.append(replace(file, path=f"writer/{number}", lies=far))
    monkeypatch.setattr(share_ranges, "SORTED_ROWS", 2_000)
    made = layer_of_files(replace(near, objects=far), files, write_here)
    expected = write_layer(near.objects, NUMBERS, tasks, loaded_mode(NUMBERS))
    assert expected is not None
    assert (made.layer.index, made.rows) == (expected.index, 30_000)
    far.put("writer/1", b"no rows")
    with pytest.raises(Corrupt, match="cannot be read"):
        layer_of_files(replace(near, objects=far), files, write_here)


def test_rows_of_another_map_of_the_name_and_files_that_are_gone_are_errors(tmp_path: Path) -> None:
    files = filed(tmp_path, NUMBERS, [[numbers(10)]])
    other = layers_in(tmp_path / "map", replace(NUMBERS, incarnation="1" * 16))
    with pytest.raises(Conflict, match="earlier map"):
        layer_of_files(other, files, lambda writer: [])
    for content in (b"no rows", None):
        path = Path(files[0].path)
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(Corrupt, match="cannot be read"):
            list(rows_of_shares(files, 0, files[0].count, NUMBERS))


@given(
    rows=st.lists(st.integers(0, 50), min_size=1, max_size=128).filter(any), at_once=st.integers(1, 8),
    least=st.integers(1, 20), most=st.integers(20, 200),
)  # fmt: skip
def test_tasks_are_as_many_as_run_at_once_again_and_again(
    rows: list[int], at_once: int, least: int, most: int
) -> None:  # fmt: skip
    batches = tuple((share, count) for share, count in enumerate(rows) if count)
    file = RowFile("", "", "", batches, (0,) * len(batches), len(rows), 1, "")
    with pytest.MonkeyPatch.context() as environment:
        environment.setattr(share_ranges, "TASK_ROWS_MIN", least)
        environment.setattr(share_ranges, "TASK_ROWS_MAX", most)
        cut = ShareWriter(MemoryObjects(), NUMBERS, (file,), MEMORY).cut(at_once)
    assert [cut[0][0], cut[-1][1]] == [0, len(rows)]
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(cut))
    sizes = [sum(rows[start:stop]) for start, stop in cut]
    rounds = -(-sum(rows) // (most * at_once))
    assert len(cut) <= rounds * at_once
    assert max(sizes) <= most + max(rows)
