"""Three-way merge: key by key as over three dicts, id for id what a fresh write makes, opening little."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond import ranges
from millpond.errors import Invalid, NotFound
from millpond.ranges import Boundaries, Choice, Conflicts, Index
from tests.rings.sampling import examples
from tests.unit.range_entries import (
    SMALL,
    Model,
    Watched,
    batch_of,
    boundaries,
    check_index,
    keys,
    model_of,
    models,
    plain,
)

MERGES = settings(max_examples=examples(8, 500))
ROW = {n: {"hash": n, "rows": [{"at": n, "value": str(n)}] * n, "flag": None, "size": 0.5 * n} for n in range(4)}
edits = st.dictionaries(keys, st.none() | st.sampled_from(sorted(ROW)), max_size=12)
spans = st.lists(st.tuples(keys, keys, st.none() | st.sampled_from(sorted(ROW))), max_size=2)
bases = st.lists(keys, max_size=200, unique=True).map(lambda held: {key: ROW[len(key) % 4] for key in held})


@st.composite
def changed(draw: st.DrawFn, base: Model) -> Model:
    """A changed base: single keys, and whole spans of it removed or rewritten."""
    made = dict(base)
    for first, last, value in draw(spans):
        for key in [key for key in made if first <= key <= last]:
            _put(made, key, value)
    for key, value in draw(edits).items():
        _put(made, key, value)
    return made


def _put(model: Model, key: bytes, value: int | None) -> None:
    if value is None:
        model.pop(key, None)
    else:
        model[key] = ROW[value]


@st.composite
def forks(draw: st.DrawFn) -> tuple[Model, Model, Model]:
    base = draw(bases)
    ours = draw(changed(base))
    theirs = draw(changed(draw(st.sampled_from([base, base, ours]))))
    return base, ours, theirs


def written(objects: Watched, model: Model, limits: Boundaries = SMALL) -> Index:
    return ranges.write(objects, [batch_of(model)], limits)


def expected_of(base: Model, ours: Model, theirs: Model, choose: Any = None) -> tuple[Model, list[bytes]]:
    """The rule, key by key: the merged entries and the keys that are conflicts."""
    merged: Model = {}
    left: list[bytes] = []
    for key in sorted({*base, *ours, *theirs}):
        held = [model.get(key) for model in (base, ours, theirs)]
        if held[1] == held[2]:
            value = held[1]
        elif held[0] == held[1]:
            value = held[2]
        elif held[0] == held[2]:
            value = held[1]
        else:
            chosen = Choice.CONFLICT if choose is None else choose(key)
            if chosen is Choice.CONFLICT:
                left.append(key)
            value = held[chosen] if chosen < 3 else None
        if value is not None:
            merged[key] = value
    return merged, left


def by_hash(key: bytes) -> Choice:
    return (Choice.BASE, Choice.OURS, Choice.THEIRS, Choice.NONE)[sum(key) % 4]


def resolve(found: Conflicts) -> list[Choice]:
    return [by_hash(key) for key in found.keys.to_pylist()]


@pytest.mark.usefixtures("processor")
@MERGES
@given(forks(), boundaries)
def test_every_key_by_the_rule(models_: tuple[Model, Model, Model], limits: Boundaries) -> None:
    objects = Watched()
    indexes = [written(objects, model, limits) for model in models_]
    expected, _ = expected_of(*models_, by_hash)
    merged = ranges.merge_three_way(objects, *indexes, resolve)
    assert merged.conflicts == ()
    assert merged.index == written(Watched(), expected, limits)
    assert model_of(ranges.open_index(objects, merged.index.id)) == expected
    check_index(ranges.open_index(objects, merged.index.id))


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
def test_every_case_beside_every_other(seed: int) -> None:
    """All 64 ways that three sides can hold one of three values or none, 30 times each, in chance's order."""
    cases = np.random.default_rng(seed).permutation(np.tile(np.arange(64), 30))
    held: list[Model] = [{}, {}, {}]
    for at, case in enumerate(cases.tolist()):
        for side, model in enumerate(held):
            _put(model, b"%05d" % at, (None, 1, 2, 3)[case >> 2 * side & 3])
    objects = Watched()
    indexes = [written(objects, model) for model in held]
    merged = ranges.merge_three_way(objects, *indexes, resolve)
    assert merged.index == written(Watched(), expected_of(held[0], held[1], held[2], by_hash)[0])
    left = [key for found in ranges.conflicts(objects, *indexes) for key in found.keys.to_pylist()]
    assert left == expected_of(held[0], held[1], held[2])[1]


def test_a_range_that_reaches_past_the_end_of_the_others() -> None:
    """The rows of one side, in one range, go on behind the last key of base, which the other side left alone."""
    base = {b"0158": ROW[1]}
    ours = {**base, b"0045": ROW[2], b"0116": ROW[2]}
    theirs = {**base, b"0017": ROW[3], b"0034": ROW[0], b"0062": ROW[1], b"0198": ROW[3]}
    for one, other in ((ours, theirs), (theirs, ours)):
        objects = Watched()
        merged = ranges.merge_three_way(objects, *[written(objects, model) for model in (base, one, other)])
        assert merged.index == written(Watched(), {**ours, **theirs})


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
def test_small_changes_everywhere(seed: int) -> None:
    """Single keys of both sides, also behind the last of base, so that ranges of the three overlap in all ways."""
    chance = np.random.default_rng(seed)
    for _ in range(50):
        numbers = chance.choice(200, chance.integers(1, 40), replace=False)
        base: Model = {b"%04d" % number: ROW[int(chance.integers(4))] for number in numbers}
        held = [base, dict(base), dict(base)]
        for side in held[1:]:
            for number, value in chance.integers((0, -1), (220, 4), (chance.integers(1, 6), 2)).tolist():
                _put(side, b"%04d" % number, None if value < 0 else value)
        objects = Watched()
        merged = ranges.merge_three_way(objects, *[written(objects, model) for model in held], resolve)
        assert merged.index == written(Watched(), expected_of(held[0], held[1], held[2], by_hash)[0])


@pytest.mark.usefixtures("processor")
@MERGES
@given(forks(), boundaries)
def test_conflicts_are_listed_and_nothing_is_merged(models_: tuple[Model, Model, Model], limits: Boundaries) -> None:
    objects = Watched()
    indexes = [written(objects, model, limits) for model in models_]
    expected, left = expected_of(*models_)
    merged = ranges.merge_three_way(objects, *indexes)
    assert [key for found in merged.conflicts for key in found.keys.to_pylist()] == left
    assert (merged.index is None) == bool(left)
    if merged.index is not None:
        assert merged.index == written(Watched(), expected, limits)
    found = list(ranges.conflicts(objects, *indexes))
    assert [key for conflict in found for key in conflict.keys.to_pylist()] == left
    for side, model in (("base", models_[0]), ("ours", models_[1]), ("theirs", models_[2])):
        rows = [row for conflict in found for row in getattr(conflict, side).entries().to_pylist()]
        assert rows == [{"key": key, **model[key]} for key in left if key in model]


@pytest.mark.usefixtures("processor")
@given(models, models, models, boundaries, boundaries, boundaries, boundaries)
def test_any_three_under_any_boundaries(
    base: Model, ours: Model, theirs: Model, a: Boundaries, b: Boundaries, c: Boundaries, wanted: Boundaries
) -> None:
    objects = Watched()
    indexes = [written(objects, model, limits) for model, limits in ((base, a), (ours, b), (theirs, c))]
    # -0.0 is not 0.0 to a merge, but it is to a dict: what is written says which was taken
    merged = ranges.merge_three_way(objects, *indexes, Choice.THEIRS, boundaries=wanted)
    expected, _ = expected_of(base, ours, theirs, lambda _key: Choice.THEIRS)
    assert merged.index is not None
    assert model_of(ranges.open_index(objects, merged.index.id)) == expected
    again = ranges.write(Watched(), ranges.scan(objects, merged.index), wanted, schema=merged.index.schema)
    assert merged.index == again


@pytest.mark.usefixtures("processor")
@given(forks())
def test_sides_may_be_exchanged_and_a_side_of_its_own_wins(models_: tuple[Model, Model, Model]) -> None:
    objects = Watched()
    base, ours, theirs = (written(objects, model) for model in models_)
    one = ranges.merge_three_way(objects, base, ours, theirs, Choice.OURS)
    assert one == ranges.merge_three_way(objects, base, theirs, ours, Choice.THEIRS)
    assert ranges.merge_three_way(objects, base, base, theirs).index == theirs
    assert ranges.merge_three_way(objects, base, ours, base).index == ours
    assert ranges.merge_three_way(objects, base, ours, ours).index == ours


# -- what it costs ------------------------------------------------------------------------------------


NUMBERED: Model = {b"%06d" % n: plain(n) for n in range(1200)}


def merged_of(objects: Watched, *models_: Model, choose: Any = Choice.CONFLICT) -> Index:
    indexes = [written(objects, model) for model in models_]
    objects.forget()
    merged = ranges.merge_three_way(objects, *indexes, choose)
    assert merged.index is not None
    assert merged.index == written(Watched(), expected_of(*models_, lambda _: choose)[0])
    return merged.index


@pytest.mark.usefixtures("processor")
def test_what_one_side_changed_alone_is_never_opened() -> None:
    """A fork changed other ranges, inserted, removed a long stretch and one end: ids settle it all."""
    objects = Watched()
    ours = {**NUMBERED, b"000100": plain(-1), b"000100+": plain(-2)}
    theirs = {key: row for key, row in NUMBERED.items() if not (b"000500" <= key < b"000700" or key >= b"001150")}
    merged = merged_of(objects, NUMBERED, ours, theirs)
    assert merged.count == 951
    # at most where a new end and an old one must be brought into step
    assert len(objects.ranges_read()) <= 3
    assert len(objects.ranges_written()) <= 2


@pytest.mark.usefixtures("processor")
def test_sides_that_made_the_same_change_are_not_opened() -> None:
    objects = Watched()
    both = {**NUMBERED, b"000500": plain(-5), b"001100+": plain(-6)}
    merged_of(objects, NUMBERED, both, both)
    assert objects.ranges_read() == objects.ranges_written() == []


@pytest.mark.usefixtures("processor")
def test_only_ranges_that_both_changed_are_opened() -> None:
    objects = Watched()
    ours = {**NUMBERED, **{b"%06d" % n: plain(-n) for n in (10, 1000, 1150)}}
    theirs = {**NUMBERED, b"001001": plain(-7), b"000700": plain(-8)}
    merged = merged_of(objects, NUMBERED, ours, theirs)
    torn = [entry for entry in merged.entries if entry.first <= b"001001" and entry.last >= b"001000"]
    assert len(objects.ranges_read()) <= 3 * len(torn)
    assert len(objects.ranges_written()) <= len(torn)


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(4, 50))
@given(st.integers(0, 2**32 - 1), st.integers(0, 20), st.integers(0, 20))
def test_a_merge_costs_what_changed(seed: int, mine: int, other: int) -> None:
    objects = Watched()
    rng = np.random.default_rng(seed)
    ours = {**NUMBERED, **{b"%06d" % n: plain(-n - 1) for n in rng.integers(0, 1200, mine).tolist()}}
    theirs = {**NUMBERED, **{b"%06d+" % n: plain(-n - 2) for n in rng.integers(0, 1200, other).tolist()}}
    merged_of(objects, NUMBERED, ours, theirs)
    assert len(objects.ranges_read()) <= 3 * 2 * min(mine, other)
    assert len(objects.ranges_written()) <= 2 * min(mine, other)


@pytest.mark.usefixtures("processor")
def test_deleting_all_meets_a_change() -> None:
    """Absence is a value: deleted on one side and changed on the other is a conflict, unchanged it is not."""
    objects = Watched()
    base = {key: NUMBERED[key] for key in sorted(NUMBERED)[:300]}
    ours = {**base, b"000150": plain(-1)}
    assert merged_of(objects, base, base, {}).count == 0
    assert objects.ranges_read() == []
    found = ranges.merge_three_way(objects, *(written(objects, model) for model in (base, ours, {})))
    ((conflict,),) = [found.conflicts]
    assert conflict.keys.to_pylist() == [b"000150"]
    assert conflict.theirs.present.tolist() == [False]
    assert conflict.ours.entries().column("size").to_pylist() == [-0.5]


# -- conflicts and errors -----------------------------------------------------------------------------


@pytest.mark.usefixtures("processor")
def test_only_so_many_conflicts_are_listed() -> None:
    objects = Watched()
    ours, theirs = ({key: plain(n) for key in NUMBERED} for n in (-1, -2))
    indexes = [written(objects, model) for model in (NUMBERED, ours, theirs)]
    objects.forget()
    found = ranges.merge_three_way(objects, *indexes, conflicts_max=30)
    assert found.index is None
    assert [key for conflict in found.conflicts for key in conflict.keys.to_pylist()] == sorted(NUMBERED)[:30]
    assert len(objects.ranges_read()) < 60
    assert [name for name in objects.written if name.startswith("indexes/")] == []


def test_some_may_be_chosen_and_others_left() -> None:
    objects = Watched()
    base, ours, theirs = ({b"%d" % at: plain(n) for at in range(9)} for n in range(3))
    indexes = [written(objects, model) for model in (base, ours, theirs)]

    def even(found: Conflicts) -> Any:
        return np.where([int(key) % 2 for key in found.keys.to_pylist()], Choice.CONFLICT, Choice.OURS)

    left = ranges.merge_three_way(objects, *indexes, even).conflicts
    assert [key for conflict in left for key in conflict.keys.to_pylist()] == [b"1", b"3", b"5", b"7"]


def test_a_choice_that_is_none_is_refused() -> None:
    objects = Watched()
    indexes = [written(objects, {b"a": plain(n), b"b": plain(n)}) for n in range(3)]
    for wrong in (7, [1], [1, 9], [1, 1, 1]):
        with pytest.raises(Invalid, match="no choice"):
            ranges.merge_three_way(objects, *indexes, lambda _, wrong=wrong: wrong)  # type: ignore[misc]


def test_other_columns_and_missing_ranges_are_errors() -> None:
    objects = Watched()
    index = written(objects, {b"a": plain(1)})
    other = ranges.write(objects, [pa.record_batch({"key": pa.array([b"a"], pa.binary())})])
    with pytest.raises(Invalid, match="different columns"):
        ranges.merge_three_way(objects, index, index, other)
    with pytest.raises(Invalid, match="different columns"):
        list(ranges.conflicts(objects, index, other, index))
    sides = [written(objects, {b"a": plain(n)}) for n in (2, 3)]
    objects.delete(ranges.range_name(sides[0].entries[0].id))
    with pytest.raises(NotFound, match="range is missing"):
        ranges.merge_three_way(objects, index, *sides)
