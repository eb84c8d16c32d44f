"""A scan gives the rows a condition takes, and no others: every kind, every scheme, conditions of any shape.

And so does SQL, which hands its conditions down to a scan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.maps.model.columns import INSTANT, presented_schema
from millpond.maps.model.definition import PLAIN_KINDS, Kind, MapDefinition, Scheme
from millpond.maps.predicates.predicate import predicate
from millpond.maps.predicates.to_text import scan_elsewhere, worded
from millpond.maps.scan import candidate_rows, rows_of_shard, scan
from millpond.maps.shard.shard import Shard
from millpond.maps.sql import query
from tests.harness import strategies
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of, presented, presented_rows
from tests.harness.strategies import EPOCH
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from millpond.maps.predicates.predicate import Where
    from millpond.maps.snapshots.snapshot import Snapshot
    from tests.harness.models import Row
    from tests.harness.strategies import Pools

Truth = bool | None
Condition = tuple[str, "Callable[[dict[str, object]], Truth]"]
"""A condition as text, and what it says of a row: true, false or unknown."""

COMPARED: dict[str, Callable[[int], bool]] = {
    "=": lambda order: order == 0, "!=": lambda order: order != 0, "<>": lambda order: order != 0,
    "<": lambda order: order < 0, "<=": lambda order: order <= 0, ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}  # fmt: skip
FLIPPED = {"=": "=", "!=": "!=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def literal(value: object) -> str:
    if isinstance(value, datetime):
        return f"'{value.isoformat()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


def address_values(definition: MapDefinition, pools: Pools) -> dict[str, st.SearchStrategy[object]]:
    beside = st.sampled_from(pools.times).flatmap(lambda ms: st.integers(ms - 1, ms + 1))
    inside = beside.filter(lambda ms: strategies.TIME_MIN <= ms <= strategies.TIME_MAX)
    times = inside.map(lambda ms: EPOCH + timedelta(milliseconds=ms))
    keys = st.sampled_from(pools.keys) | strategies.keys()
    numbers = st.sampled_from(pools.numbers) | strategies.numbers()
    columns = {"key": keys, "key_start": numbers, "key_end": numbers}
    return {name: columns.get(name, times) for name in definition.kind.address}


def comparisons(definition: MapDefinition, pools: Pools) -> st.SearchStrategy[Condition]:
    valued = address_values(definition, pools)

    def compare(column: str, sign: str, value: object, flip: bool) -> Condition:
        text = f'{literal(value)} {FLIPPED[sign]} "{column}"' if flip else f'"{column}" {sign} {literal(value)}'
        return text, lambda row: COMPARED[sign]((row[column] > value) - (row[column] < value))  # type: ignore[operator]

    def one_of(column: str, values: list[object], negated: bool) -> Condition:
        text = f'"{column}" {"not " * negated}in ({", ".join(map(literal, values))})'
        return text, lambda row: (row[column] in values) != negated

    def between(column: str, lower: object, upper: object) -> Condition:
        text = f'"{column}" between {literal(lower)} AND {literal(upper)}'
        return text, lambda row: lower <= row[column] <= upper  # type: ignore[operator]

    column, sign = st.sampled_from(sorted(valued)), st.sampled_from(sorted(COMPARED))
    choices = [
        column.flatmap(lambda name: st.builds(compare, st.just(name), sign, valued[name], st.booleans())),
        column.flatmap(
            lambda name: st.builds(one_of, st.just(name), st.lists(valued[name], min_size=1, max_size=3), st.booleans())
        ),
        column.flatmap(lambda name: st.builds(between, st.just(name), valued[name], valued[name])),
    ]
    if definition.kind.keyed:
        plain = st.text(st.sampled_from("abkz"), max_size=2)
        choices.append(plain.map(lambda word: (f"key like '{word}%'", lambda row: str(row["key"]).startswith(word))))
    shown = [name for name in presented_schema(definition).names if name not in definition.kind.address]
    if shown:
        choices.append(st.sampled_from(shown).map(lambda name: (f"{name} is null", lambda row: row[name] is None)))
    return st.one_of(choices)


def conditions(definition: MapDefinition, pools: Pools) -> st.SearchStrategy[Condition]:
    def every(parts: list[Condition]) -> Condition:
        text = " and ".join(f"({part})" for part, _ in parts)
        return text, lambda row: all(says(row) for _, says in parts)

    def some(parts: list[Condition]) -> Condition:
        text = " OR ".join(f"({part})" for part, _ in parts)
        return text, lambda row: any(says(row) for _, says in parts)

    def negated(part: Condition) -> Condition:
        return f"not ({part[0]})", lambda row: not part[1](row)

    def grown(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
        several = st.lists(inner, min_size=2, max_size=3)
        return several.map(every) | several.map(some) | inner.map(negated)

    return st.recursive(comparisons(definition, pools), grown, max_leaves=5)


def scan_shard(
    shard: Shard, definition: MapDefinition, where: Where = None, columns: Sequence[str] | None = None
) -> pa.RecordBatchReader:
    return scan(partial(rows_of_shard, shard, definition), definition, where, columns)


@dataclass
class OneMap:
    """As much of a pond with one map as SQL asks for."""

    definition: MapDefinition
    shard: Shard
    clock: ManualClock = field(default_factory=ManualClock)
    name: str = "m"

    def maps(self) -> list[OneMap]:
        return [self]

    def scan(self, where: Where = None, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        return scan_shard(self.shard, self.definition, where, columns)

    def snapshot(self) -> Snapshot:
        raise AssertionError("nothing is looked up here")


def rows_of(definition: MapDefinition, row: Row) -> dict[str, object]:
    """A row as people see it, but for the values: those are there or null."""
    address, value = row
    cells: dict[str, object] = dict(zip(definition.kind.address, address, strict=True))
    for name in cells.keys() & {"effective_time", "start", "end"}:
        cells[name] = EPOCH + timedelta(milliseconds=int(cells[name]))  # type: ignore[call-overload]
    fields = [] if definition.value is None else [name for name, _ in definition.value.fields]
    if fields:
        return cells | {name: None if value is None else value[name] for name in fields}  # type: ignore[index]
    return cells | {"value": value, "value_type": ""}


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@settings(max_examples=examples(5, 15))
@given(data=st.data())
def test_a_scan_gives_the_rows_a_condition_takes(
    kind: Kind, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    definition = data.draw(strategies.definitions(kind=kind))
    pools = data.draw(strategies.pools(definition))
    model = MapModel(kind)
    model.put(data.draw(strategies.rows(definition, pools, most=30)))
    shard = Shard(tmp_path_factory.mktemp("shard"), definition)
    rows = canonical_of(definition, model.scan())
    longest = max((int(row[2]) - int(row[1]) for row in model.rows), default=0) if kind is Kind.SESSION else 0
    shard.change(lambda tx: shard.put_rows(tx, rows, 0, overwrite=True), None, longest=longest)
    for text, says in data.draw(st.lists(conditions(definition, pools), min_size=1, max_size=6)):
        taken = [row for row in model.scan() if says(rows_of(definition, row))]
        expected = presented(definition, taken)
        assert presented_rows(definition, scan_shard(shard, definition, text).read_all()) == expected, text
        expression = predicate(definition, text).expression
        assert presented_rows(definition, scan_shard(shard, definition, expression).read_all()) == expected, expression
        scanned = scan_elsewhere(partial(scan_shard, shard, definition), definition, expression, None).read_all()
        assert presented_rows(definition, scanned) == expected, worded(definition, expression)
    if "\0" not in text:
        answer = query(OneMap(definition, shard), f"select * from m where {text}")
        assert presented_rows(definition, answer.cast(presented_schema(definition))) == expected, text
    shard.close()


@pytest.mark.usefixtures("processor")
@pytest.mark.parametrize("scheme", ["auto", "direct", "hash", "lookup"])
def test_conditions_on_keys_and_times_read_just_those_rows(
    scheme: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    definition = MapDefinition(name="m", kind=Kind.TEMPORAL_STATE, incarnation="0", scheme=Scheme(scheme))
    numbered: list[Row] = [((f"key{key:03d}", 1000 * time), key) for key in range(200) for time in range(-5, 5)]
    shard = Shard(tmp_path_factory.mktemp("shard"), definition)
    shard.change(lambda tx: shard.put_rows(tx, canonical_of(definition, numbered), 0, overwrite=True), None)

    def read(text: str) -> int:
        with shard.view() as view:
            return sum(rows.num_rows for rows in candidate_rows(view, definition, predicate(definition, text)))

    everything = 2000
    assert read("value = '7'") == everything
    assert read("key = 'key007'") == 10
    assert read("key = 'nobody'") == 0
    assert read("key in ('key007', 'key008', 'nobody')") == 20
    assert read("key = 'key007' and effective_time >= '1970-01-01T00:00:02Z'") == 3
    assert read("key = 'key007' and effective_time between '1969-12-31T23:59:58Z' and '1970-01-01T00:00:01Z'") == 4
    assert read("(key = 'key007' or key = 'key009') and effective_time < '1969-12-31 23:59:56'") <= 4
    assert read("key = 'key007' and key = 'key008'") == 0
    assert read("key = 'key007' or value = '8'") == everything
    stretch = 11 * 10 if scheme in ("auto", "direct") else everything
    assert read("key between 'key010' and 'key020'") == stretch
    assert read("key like 'key01%'") == (100 if scheme in ("auto", "direct") else everything)
    shard.close()


@pytest.mark.parametrize("scheme", ["auto", "hash", "lookup"])
def test_conditions_on_numbers_and_sessions_read_just_those_rows(
    scheme: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ranges = MapDefinition(name="m", kind=Kind.RANGED_STATE, incarnation="0", scheme=Scheme(scheme))
    sessions = MapDefinition(name="m", kind=Kind.SESSION, incarnation="0", scheme=Scheme(scheme))
    spans: list[Row] = [((start, start + 9), "v") for start in range(-500, 500, 10)]
    visits: list[Row] = [((key, 10 * n, 10 * n + 15), None) for key in "ab" for n in range(-50, 50)]

    def read(definition: MapDefinition, plain_rows: list[Row], text: str, longest: int) -> int:
        shard = Shard(tmp_path_factory.mktemp("shard"), definition)
        rows = canonical_of(definition, plain_rows)
        shard.change(lambda tx: shard.put_rows(tx, rows, 0, overwrite=True), None, longest=longest)
        with shard.view() as view:
            count = sum(rows.num_rows for rows in candidate_rows(view, definition, predicate(definition, text)))
        shard.close()
        return count

    assert read(ranges, spans, "key_start between -20 and 20", 0) == 5
    assert read(ranges, spans, "key_start >= -20 and key_end <= 29", 0) == 5
    assert read(ranges, spans, "key_start <= -495 and key_end >= -495", 0) == 1
    assert read(ranges, spans, "key_start = 3", 0) == 0
    assert read(sessions, visits, "key = 'a'", 15) == 100
    held = "key = 'a' and start <= '1970-01-01T00:00:00.100Z' and \"end\" >= '1970-01-01T00:00:00.100Z'"
    assert read(sessions, visits, held, 15) == 2


def test_only_the_wanted_columns_are_given(tmp_path_factory: pytest.TempPathFactory) -> None:
    definition = MapDefinition(name="m", kind=Kind.TEMPORAL_STATE, incarnation="0")
    shard = Shard(tmp_path_factory.mktemp("shard"), definition)
    rows: list[Row] = [(("a", 0), 1), (("b", 5), "x")]
    shard.change(lambda tx: shard.put_rows(tx, canonical_of(definition, rows), 0, overwrite=True), None)
    reader = scan_shard(shard, definition, "value_type = 'long'", ["effective_time", "key"])
    assert reader.schema.names == ["effective_time", "key"]
    assert reader.schema.field("effective_time").type == INSTANT
    assert reader.read_all().to_pylist() == [{"effective_time": EPOCH, "key": "a"}]
    assert scan_shard(shard, definition, [("key", "in", ["b"]), ("effective_time", ">", 4)]).read_all().num_rows == 1
    shard.close()
