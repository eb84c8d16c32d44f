"""Merging indexes: as a newest-first overlay of dicts, id for id what a fresh write makes, touching little."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond import ranges
from millpond.errors import Invalid, NotFound
from millpond.ranges import Boundaries, FoldedPart, Index, RangeWriter
from millpond.ranges.merge import write_merged
from tests.rings.sampling import examples
from tests.unit.range_entries import (
    SMALL,
    Model,
    Watched,
    batch_of,
    boundaries,
    check_index,
    keys,
    large_models,
    model_of,
    models,
    plain,
    plain_values,
    tombstone,
)

layers_of_entries = st.lists(st.dictionaries(keys, plain_values, max_size=60), max_size=3)


def written(objects: Watched, model: Model, limits: Boundaries = SMALL) -> Index:
    return ranges.write(objects, [batch_of(model)], limits)


def tombstones(batch: pa.RecordBatch) -> pa.Array:
    return pc.fill_null(pc.equal(pc.list_value_length(batch.column("rows")), 0), False)


def overlaid(newest_first: list[Model]) -> Model:
    merged: Model = {}
    for model in reversed(newest_first):
        merged.update(model)
    return merged


@pytest.mark.usefixtures("processor")
@given(layers_of_entries, large_models, boundaries)
def test_the_newest_row_of_a_key_counts(newer: list[Model], oldest: Model, limits: Boundaries) -> None:
    objects = Watched()
    layers = [written(objects, model, limits) for model in [*newer, oldest]]
    merged = ranges.merge(objects, layers)
    expected = overlaid([*newer, oldest])
    assert model_of(ranges.open_index(objects, merged.id)) == expected
    assert merged == written(Watched(), expected, limits)
    check_index(ranges.open_index(objects, merged.id))


@pytest.mark.usefixtures("processor")
@example([], {b"k%03d" % n: tombstone(n) for n in range(99)}, Boundaries(), [b"k050"], False)
@settings(max_examples=examples(20, 150))
@given(layers_of_entries, large_models, boundaries, st.lists(keys, max_size=6), st.booleans())
def test_stretches_that_are_joined_are_the_merge_id_for_id(
    newer: list[Model], oldest: Model, limits: Boundaries, cuts: list[bytes], drop: bool
) -> None:
    objects = Watched()
    if drop:
        newer = [{key: value if key[-1:] < b"5" else tombstone() for key, value in model.items()} for model in newer]
        oldest = {key: value for key, value in oldest.items() if value["rows"] != []}
    layers = [written(objects, model, limits) for model in [*newer, oldest]]
    lasts = [entry.last for index in layers for entry in index.entries]  # most cuts are where a range ends
    ends = sorted({*cuts, *lasts[::3]})
    parts = []
    for after, upto in zip([None, *ends], [*ends, None], strict=True):
        with RangeWriter(objects, layers[-1].columns, limits) as writer:
            write_merged(
                writer, objects, layers, drop_tombstones=tombstones if drop else None, after=after, upto=upto
            )  # fmt: skip
            ended = writer.at_boundary
            parts.append(FoldedPart(tuple(writer.end()), ended))
    whole = ranges.merge(objects, layers, drop_tombstones=tombstones if drop else None)
    assert ranges.join_parts(objects, layers[-1], parts) == whole


@pytest.mark.usefixtures("processor")
@given(layers_of_entries, models, boundaries)
def test_tombstones_are_dropped_on_request(newer: list[Model], oldest: Model, limits: Boundaries) -> None:
    objects = Watched()
    oldest = {key: row for key, row in oldest.items() if row["rows"] != []}
    layers = [written(objects, model, limits) for model in [*newer, oldest]]
    expected = {key: row for key, row in overlaid([*newer, oldest]).items() if row["rows"] != []}
    merged = ranges.merge(objects, layers, drop_tombstones=tombstones)
    assert model_of(ranges.open_index(objects, merged.id)) == expected
    assert merged == written(Watched(), expected, limits)
    as_numpy = ranges.merge(objects, layers, drop_tombstones=lambda b: tombstones(b).to_numpy(zero_copy_only=False))
    assert as_numpy == merged


@pytest.mark.usefixtures("processor")
@given(layers_of_entries, large_models, boundaries, boundaries)
def test_other_boundaries_may_be_requested(newer: list[Model], oldest: Model, old: Boundaries, new: Boundaries) -> None:
    objects = Watched()
    layers = [written(objects, model, old) for model in [*newer, oldest]]
    merged = ranges.merge(objects, layers, boundaries=new)
    assert merged == written(Watched(), overlaid([*newer, oldest]), new)


@pytest.mark.usefixtures("processor")
@given(layers_of_entries, large_models)
def test_merging_in_steps_is_merging_at_once(newer: list[Model], oldest: Model) -> None:
    objects = Watched()
    layers = [written(objects, model) for model in [*newer, oldest]]
    folded = layers[-1]
    for layer in reversed(layers[:-1]):
        folded = ranges.merge(objects, [layer, folded])
    assert folded == ranges.merge(objects, layers)


def numbered(count: int) -> Model:
    return {b"%06d" % n: plain(n) for n in range(count)}


@pytest.mark.usefixtures("processor")
def test_one_changed_key_rewrites_one_range() -> None:
    objects = Watched()
    base = written(objects, numbered(2000))
    assert len(base.entries) > 200
    overlay = written(objects, {b"001000": plain(7)})
    objects.forget()
    merged = ranges.merge(objects, [overlay, base])
    assert len(objects.ranges_read()) == 2
    assert len(objects.ranges_written()) == 1
    assert len(set(merged.entries) - set(base.entries)) == 1


@pytest.mark.usefixtures("processor")
def test_changes_to_few_keys_rewrite_few_ranges() -> None:
    """New keys, changed keys and deletions in 10 places of 300 ranges; far from them every id stays."""
    objects = Watched()
    base = written(objects, numbered(3000))
    changes: Model = {}
    for place in range(10):
        at = place * 300
        changes[b"%06d+new" % at] = plain(at)
        changes[b"%06d" % (at + 1)] = plain(-at)
        changes[b"%06d" % (at + 2)] = tombstone()
    overlay = written(objects, changes)
    objects.forget()
    merged = ranges.merge(objects, [overlay, base], drop_tombstones=tombstones)
    rewritten = set(merged.entries) - set(base.entries)
    assert merged.count == 3000
    assert 10 <= len(rewritten) <= 40
    assert len(objects.ranges_written()) == len(rewritten)
    assert len(objects.ranges_read()) <= len(overlay.entries) + 40


@pytest.mark.usefixtures("processor")
def test_what_lies_apart_is_joined_unread() -> None:
    """Two indexes one behind the other: only where they meet is something read."""
    objects = Watched()
    model = numbered(1000)
    ordered = sorted(model)
    parts = [{key: model[key] for key in ordered[start : start + 250]} for start in range(0, 1000, 250)]
    layers = [written(objects, part) for part in parts]
    objects.forget()
    merged = ranges.merge(objects, layers)
    assert merged == written(Watched(), model)
    assert len(objects.ranges_read()) <= 8


def test_merging_one_index_is_that_index() -> None:
    objects = Watched()
    base = written(objects, numbered(100))
    objects.forget()
    assert ranges.merge(objects, [base]) == base
    assert objects.read == objects.written == []


def test_an_empty_overlay_changes_nothing() -> None:
    objects = Watched()
    base = written(objects, numbered(100))
    assert ranges.merge(objects, [written(objects, {}), base]) == base
    assert ranges.merge(objects, [base, written(objects, {})]) == base


def test_all_may_be_deleted() -> None:
    objects = Watched()
    base = written(objects, numbered(100))
    gone = written(objects, {key: tombstone() for key in numbered(100)})
    merged = ranges.merge(objects, [gone, base], drop_tombstones=tombstones)
    assert merged.entries == ()


def test_fat_rows_keep_their_boundaries_too() -> None:
    """Ranges that end for their bytes come back into step after a change: few ends are forced."""
    objects = Watched()
    limits = Boundaries(rows_min=1000, rows_max=10_000, bits=12, bytes_max=1 << 16)
    text = "x" * 500
    model = {b"%05d" % n: {**plain(n), "rows": [{"at": n, "value": text}]} for n in range(4000)}
    base = written(objects, model, limits)
    assert len(base.entries) > 25
    shorter = {b"00100": {**plain(1), "rows": [{"at": 1, "value": "short"}]}, b"00101+": plain(2)}
    merged = ranges.merge(objects, [written(objects, shorter, limits), base])
    assert len(set(merged.entries) - set(base.entries)) <= 6


def test_what_cannot_be_merged_is_refused() -> None:
    objects = Watched()
    base = written(objects, numbered(10))
    with pytest.raises(Invalid, match="nothing to merge"):
        ranges.merge(objects, [])
    other = ranges.write(objects, [pa.record_batch({"key": pa.array([b"a"], pa.binary())})])
    with pytest.raises(Invalid, match="different columns"):
        ranges.merge(objects, [other, base])


def test_a_missing_range_stops_a_merge() -> None:
    objects = Watched()
    base = written(objects, numbered(1000))
    overlay = written(objects, {b"000500": plain(1)})
    (hit,) = [entry for entry in base.entries if entry.first <= b"000500" <= entry.last]
    objects.delete(ranges.range_name(hit.id))
    before = {found.name for found in objects.list("indexes")}
    with pytest.raises(NotFound, match=hit.id):
        ranges.merge(objects, [overlay, base])
    assert {found.name for found in objects.list("indexes")} == before


NUMBERED = batch_of(numbered(1500))


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(5, 15))
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_random_edits_cost_what_they_touch(seed: int, edits: int) -> None:
    """Each edit rewrites its range, and at most a few more until the boundaries are in step again."""
    objects = Watched()
    rng = np.random.default_rng(seed)
    base = ranges.write(objects, [NUMBERED], SMALL)
    chosen = rng.integers(0, 1500, edits).tolist()
    overlay = written(objects, {b"%06d" % n: plain(-n - 1) for n in chosen})
    objects.forget()
    merged = ranges.merge(objects, [overlay, base])
    edited = {b"%06d" % n for n in chosen}
    hit = {entry for entry in base.entries if any(entry.first <= key <= entry.last for key in edited)}
    assert set(base.entries) - set(merged.entries) == hit
    # a range of edited keys alone is the overlay's own, and lies there already
    assert len(objects.ranges_written()) <= len(hit)
    assert set(objects.ranges_written()) <= {ranges.range_name(entry.id) for entry in merged.entries}
