"""Readers of blocks and filters answer as readers of whole files do, and as the model says."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import ranges
from millpond.maps.model.definition import PLAIN_KINDS, Kind
from millpond.maps.snapshots import needed_ranges, pieces
from millpond.maps.snapshots.needed_ranges import NeededRanges
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.ranges import Boundaries, blocks, index
from millpond.stores.objects import MemoryObjects
from tests.harness import strategies
from tests.harness.models import MapModel, bits_of
from tests.models.test_layers_model import aging, apply, check_times, loads, next_version, put_on
from tests.models.test_snapshots_model import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.maps.snapshots.manifest import SnapshotManifest
    from tests.harness.strategies import Question

KEYED = [kind for kind in PLAIN_KINDS if kind.keyed]


class FarObjects(MemoryObjects):
    """Objects that are taken for far away."""

    in_blocks = True


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Blocks of a few rows, of which two or three come by one request, and few that stay open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 200)
        patch.setattr(blocks, "PACKED_BYTES_MIN", 300)
        patch.setattr(needed_ranges, "HELD_BYTES_MAX", 3000)
        patch.setattr(needed_ranges, "COVERED_MIN", 2)
        patch.setattr(pieces, "GAP_BYTES_MAX", 400)
        patch.setattr(pieces, "RUN_BYTES_MAX", 2000)
        yield


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KEYED)
@given(data=st.data())
def test_blocks_answer_as_whole_files_and_as_the_model(kind: Kind, data: st.DataObject) -> None:
    definition = data.draw(aging(kind))
    pools = data.draw(strategies.pools(definition))
    model, far, near = MapModel(kind), FarObjects(), MemoryObjects()
    manifest: SnapshotManifest | None = None
    needed: NeededRanges | None = None
    with pytest.MonkeyPatch.context() as patch:
        # With few filters in an index, those of larger ones stand in the files of their ranges.
        patch.setattr(index, "FILTERS_BYTES_MAX", data.draw(st.sampled_from([0, 100, 1 << 20])))
        for _ in range(data.draw(st.integers(1, 4))):
            load = data.draw(loads(definition, pools))
            apply(model, load, next_version(manifest))
            there = put_on(near, definition, manifest, load)
            manifest = put_on(far, definition, manifest, load)
            assert [layer.index for layer in manifest.layers] == [layer.index for layer in there.layers]
            needed = NeededRanges(far, manifest, needed)
            ask(needed, model, data.draw(strategies.questions(definition, pools)), data)
    assert manifest is not None
    check_times(far, manifest, model)
    for layer in manifest.layers:
        assert not ranges.verify(far, layer.index).problems
    questions = data.draw(strategies.questions(definition, pools))
    ask(NeededRanges(far, manifest, needed), model, questions, data)
    with Snapshot.open(far, manifest, verify=True) as whole:
        check(whole, model, questions, data)


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KEYED)
@given(data=st.data())
def test_a_few_files_answer_as_all_and_as_the_model(kind: Kind, data: st.DataObject) -> None:
    """Files of this machine, of a few keys each."""
    definition = data.draw(aging(kind))
    pools = data.draw(strategies.pools(definition))
    model, near = MapModel(kind), MemoryObjects()
    manifest: SnapshotManifest | None = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "write", partial(ranges.write, boundaries=Boundaries(rows_min=1, rows_max=3, bits=1)))
        for _ in range(data.draw(st.integers(1, 4))):
            load = data.draw(loads(definition, pools))
            apply(model, load, next_version(manifest))
            manifest = put_on(near, definition, manifest, load)
        assert manifest is not None
        questions = data.draw(strategies.questions(definition, pools))
        ask(NeededRanges(near, manifest), model, questions, data)
        with Snapshot.open(near, manifest) as whole:
            for key, at in questions:
                part = NeededRanges(near, manifest).of_keys([str(key).encode()]) or whole
                assert part.get(str(key).encode(), at) == whole.get(str(key).encode(), at)
                assert bits_of(part.value(str(key).encode(), at)) == bits_of(whole.value(str(key).encode(), at))


def ask(needed: NeededRanges, model: MapModel, questions: list[Question], data: st.DataObject) -> None:
    """Ask a few keys at a time."""
    size = data.draw(st.integers(1, 4))
    for at in range(0, len(questions), size):
        these = questions[at : at + size]
        snapshot = needed.of_keys([str(question[0]).encode() for question in these])
        if snapshot is None:
            snapshot = Snapshot.open(needed.objects, needed.manifest)
        check(snapshot, model, these, data)
