"""Sets of tags in every shape are the keys that a plain function makes of dicts, or are refused as it says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import Invalid
from millpond.maps.inputs.key_columns import key_array, query_keys
from millpond.maps.inputs.tags import to_tags
from millpond.maps.model.new_map import new_map
from millpond.maps.model.tags import TAGS_MAX, shown_tags
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

Pair = tuple[str, str | None]

EXAMPLES = examples(12, 1500)
DEFINITION = new_map("m", "histogram", None, "i", {}, key="tags", resolution="1 hour")
good = st.text(st.sampled_from("abé'\"{}] :"), max_size=3)
bad = st.text(st.sampled_from("a=,\n\x85 "), max_size=2)
texts = st.one_of(good, good, good, bad)
pairs = st.lists(st.tuples(texts, st.none() | texts), max_size=4)
many = st.integers(TAGS_MAX - 1, TAGS_MAX + 1).map(lambda count: [(f"n{number}", "x") for number in range(count)])
sets = st.none() | pairs | pairs | pairs | many


def stored(tags: Sequence[Pair] | None) -> str | None:
    """The key of a set, None for one that is none."""
    if tags is None:
        return None
    stated = [(name.strip(), value.strip()) for name, value in tags if value is not None]
    wrong = any(sign in text or not text.isprintable() for pair in stated for text in pair for sign in "=,")
    names = {name for name, _ in stated}
    if wrong or "" in names or len(names) != len(stated) or not 1 <= len(stated) <= TAGS_MAX:
        return None
    return ",".join(f"{name}={value}" for name, value in sorted(stated, key=lambda pair: pair[0].encode()))


def keys(array: pa.Array[Any], rows: Sequence[Sequence[Pair] | None]) -> list[str | None]:
    """The keys that are read; rows that are no set have a fault each, and others none."""
    converted = to_tags(array)
    faulty = [any(mask[row] for mask, _ in converted.faults) for row in range(len(rows))]
    made = [None if key is None else key.decode() for key in converted.values.to_pylist()]
    assert faulty == [row is not None and key is None for row, key in zip(rows, made, strict=True)]
    return made


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(sets, max_size=6), st.integers(0, 2))
def test_sets_of_every_shape_are_the_keys_of_the_model(rows: list[list[Pair] | None], cut: int) -> None:
    expected = [stored(row) for row in rows]
    maps = pa.array(rows, pa.map_(pa.string(), pa.string()))
    assert keys(maps, rows) == expected
    assert keys(maps.slice(cut), rows[cut:]) == expected[cut:]
    structs = [None if row is None else [{"name": name, "is": value} for name, value in row] for row in rows]
    kind = pa.list_(pa.struct([("name", pa.string()), ("is", pa.string())]))
    assert keys(pa.array(structs, kind), rows) == expected
    requested = query_keys(DEFINITION, key_array(DEFINITION, rows)).values
    assert [None if key is None else key.decode() for key in requested.to_pylist()] == expected
    right = pa.array([key for key in expected if key is not None], pa.binary())
    assert [key.decode() for key in to_tags(shown_tags(right)).values.to_pylist()] == [
        key.decode() for key in right.to_pylist()
    ]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.none() | st.dictionaries(good, st.none() | good, max_size=4), max_size=6))
def test_dicts_and_structs_are_sets_without_their_nulls(rows: list[dict[str, str | None] | None]) -> None:
    sets = [None if row is None else list(row.items()) for row in rows]
    expected = [stored(row) for row in sets]
    names = sorted({name for row in rows if row for name in row})
    if names:
        struct = pa.struct([(name, pa.string()) for name in names])
        assert keys(pa.array(rows, struct), sets) == expected
    mixed = [rows[place] if key is None or place % 2 else key for place, key in enumerate(expected)]
    assert keys(key_array(DEFINITION, mixed), sets) == expected


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.none() | st.text(st.sampled_from("ab=, \n"), max_size=9), max_size=6))
def test_text_is_its_pairs(rows: list[str | None]) -> None:
    def pairs_of(text: str) -> list[Pair]:
        parts = [part.split("=") for part in text.split(",")]
        return [(part[0], part[1]) if len(part) == 2 else ("=", "") for part in parts]

    sets = [None if text is None else pairs_of(text) for text in rows]
    expected = [stored(row) for row in sets]
    for kind in (pa.string(), pa.large_string(), pa.binary()):
        assert keys(pa.array(rows, pa.string()).cast(kind), sets) == expected
    assert keys(pa.array(rows, pa.string()).dictionary_encode(), sets) == expected


names_of_tags = st.sampled_from(("host", "dc", "é", "it's"))
few = st.dictionaries(names_of_tags, st.sampled_from("abc"), min_size=1, max_size=3)
hits = st.lists(st.tuples(few, st.integers(0, 5)), min_size=1, max_size=6)


def test_loads_of_tagged_events_are_counted_and_filtered_as_dicts(tmp_path_factory: pytest.TempPathFactory) -> None:
    with millpond.open(tmp_path_factory.mktemp("tags") / "pond") as pond:

        @settings(max_examples=examples(6, 120), deadline=None)
        @given(st.lists(hits, min_size=1, max_size=3), names_of_tags, st.sampled_from("abcd"))
        def run(loads: list[list[tuple[dict[str, str], int]]], name: str, value: str) -> None:
            hits_of = pond.create_map("hits", kind="histogram", key="tags", resolution="1 hour")
            counts: dict[str | None, int] = {}
            for number, load in enumerate(loads):
                rows = [
                    {"tags": tags, "time": f"2024-01-01T10:0{number}Z", "value": count, "beside": place}
                    for place, (tags, count) in enumerate(load)
                ]
                hits_of.load(rows, extra="ignore", again=True)
                for tags, count in load:
                    key = stored(list(tags.items()))
                    counts[key] = counts.get(key, 0) + count
            rows_held = hits_of.scan(columns=["key", "value"]).read_all().to_pylist()
            assert {row["key"]: row["value"] for row in rows_held} == counts
            every = [dict(reversed(tags.items())) for load in loads for tags, _ in load]
            answers = hits_of.lookup(every, "2024-01-01T10:30Z").field("value").to_pylist()
            assert answers == [counts[stored(list(tags.items()))] for tags in every]
            quoted = name.replace("'", "''")
            taken = {stored(list(tags.items())) for tags in every if tags.get(name) == value}
            for found in (
                hits_of.scan(f"tags['{quoted}'] = '{value}'").read_all(),
                hits_of.scan([(f"tags['{quoted}']", "=", value)]).read_all(),
                pond.sql(f"select key from hits where tags['{quoted}'] = '{value}'"),
            ):
                assert set(found["key"].to_pylist()) == taken
            pond.drop_map("hits")

        run()


def test_rows_of_other_types_are_told_by_column_and_value() -> None:
    numbers = to_tags(pa.array([{"port": 80}, {"port": 1.5}, {"port": None}]))
    assert (numbers.values.to_pylist(), [problem for mask, problem in numbers.faults if mask.any()]) == (
        [b"port=80", None, None],
        ["has a tag whose value is a float, which has no one way of being written", "has no tags"],
    )
    for wrong in (pa.array([1]), pa.array([["a=b"]]), pa.array([{"a": {"b": 1}}])):
        with pytest.raises(Invalid) as caught:
            to_tags(wrong)
        assert caught.value.kind == "key_type"
    assert json.loads(json.dumps(DEFINITION.to_dict()))["aggregation"]["tagged"]
    assert type(DEFINITION).from_dict(DEFINITION.to_dict()) == DEFINITION
