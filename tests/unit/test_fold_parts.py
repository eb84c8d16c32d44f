"""A fold by several comes to the index of a fold by one; and a frozen state is the state it was frozen from."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from millpond.kernel.keys import KeyRange
from millpond.ranges import Boundaries, fold, fold_part, join_parts, write
from millpond.ranges.spans import Spans
from millpond.stores.objects import FolderObjects
from millpond.versions.collect import collect
from millpond.versions.objects.entries import CHANGES, ENTRIES, IDENTITY, batch_of, entries_of
from millpond.versions.staging.commit_ranges import SCRATCH, drop_scratch, freeze
from millpond.versions.staging.reads import at
from tests.version_sites import TINY, CountedObjects, Place, entry, put, seal, state

RULES = [TINY, Boundaries(rows_min=4, rows_max=64, bits=3), Boundaries(rows_min=1, rows_max=9, bits=2, bytes_max=900)]


def drawn(chance: np.random.Generator, count: int) -> list[str]:
    return sorted({f"{number:03}" for number in chance.integers(0, 400, count)})


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(12)
@pytest.mark.parametrize("seed", range(60))
def test_parts_that_are_joined_are_the_index_of_the_whole(seed: int) -> None:
    chance = np.random.default_rng(seed)
    objects, rule = CountedObjects(), RULES[seed % len(RULES)]
    base = write(objects, [batch_of([entry(path) for path in drawn(chance, 150)])], rule, schema=ENTRIES)
    changed = drawn(chance, int(chance.integers(0, 120)))
    rows = batch_of([entry(path, str(chance.integers(1, 3))) for path in changed])
    changes = pa.RecordBatch.from_arrays([*rows.columns, pa.array(chance.random(len(changed)) < 0.4)], schema=CHANGES)
    spans = Spans.of([KeyRange(b"1", b"14"), KeyRange(b"390", None)] if chance.random() < 0.5 else [])
    whole = fold(objects, base, [changes], spans, same=IDENTITY).index
    cuts = [b"", *(path.encode() for path in drawn(chance, int(chance.integers(0, 7))))]
    parts = []
    for start, stop in zip(cuts, [*cuts[1:], None], strict=True):
        keys = [start <= path.encode() and (stop is None or path.encode() < stop) for path in changed]
        mine = changes.filter(pa.array(keys, pa.bool_()))
        parts.append(fold_part(objects, base, [mine], spans, within=KeyRange(start, stop), same=IDENTITY))
    assert join_parts(objects, base, pickle.loads(pickle.dumps(parts))).id == whole.id


@pytest.mark.usefixtures("processor")
def test_a_frozen_state_is_one_moment_also_in_another_process(tmp_path: object) -> None:
    place = Place(TINY)
    place.open = lambda where: place.stores.setdefault(where, FolderObjects(f"{tmp_path}/{where[8:]}"))  # type: ignore[method-assign,assignment]
    repository = place.repositories().create("behaviours")
    main = repository.branch("main")
    put(main, {f"{number:02}": "1" for number in range(40)})
    main.commit("base")
    main.staging.delete_prefix("1")
    put(main, {"15": "2", "x": "2"})
    seal(main)
    main.delete("20")
    put(main, {"y": "3"})
    expected = state(repository, "main")
    with main._reading() as (tx, view):
        frozen = freeze(repository.context, at(tx), view)
    main.commit("later")
    main.delete("y")
    place.repositories().sweep()
    frozen = pickle.loads(pickle.dumps(frozen))
    found = {row.path: row.checksum for batch in frozen.entries() for row in entries_of(batch)}
    assert found == expected
    stretches = frozen.stretches(KeyRange(b"", None), 8)
    assert len(stretches) > 3
    joined = [row.path for keys in stretches for batch in frozen.entries(keys) for row in entries_of(batch)]
    assert joined == sorted(expected)
    inside = frozen.stretches(KeyRange(b"2", b"3"), 4)
    joined = [row.path for keys in inside for batch in frozen.entries(keys) for row in entries_of(batch)]
    assert joined == [path for path in sorted(expected) if path.startswith("2")]
    assert list(repository.context.ranges.list(SCRATCH))
    assert collect(repository.context, grace_ms=0, dry_run=True).scratch == 0
    place.clock.advance(1)
    assert collect(repository.context, grace_ms=0).scratch > 0
    drop_scratch(repository.context, frozen.scratch)
    assert not list(repository.context.ranges.list(SCRATCH))
