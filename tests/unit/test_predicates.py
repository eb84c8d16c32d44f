"""Conditions: their syntax, the bounds they imply, and the errors when they are not understood."""

from __future__ import annotations

import doctest
import math
import operator
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.errors import Invalid
from millpond.maps.model.columns import INSTANT
from millpond.maps.model.definition import Kind, MapDefinition, parse_value_type
from millpond.maps.predicates import bounds as spans
from millpond.maps.predicates import parser
from millpond.maps.predicates.bounds import Span
from millpond.maps.predicates.predicate import predicate
from millpond.maps.predicates.to_text import scan_elsewhere
from millpond.maps.predicates.tree import All, Any_, Compare, OneOf, spans_of
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from types import ModuleType

WEATHER = MapDefinition(
    name="weather", kind=Kind.TEMPORAL_STATE, incarnation="0",
    value=parse_value_type("temp double, seats long, ok boolean, note string, seen timestamp, raw binary"),
)  # fmt: skip
IPS = MapDefinition(name="ips", kind=Kind.RANGED_STATE, incarnation="0")
DAY_MS = 86_400_000
INSTANTS = pa.array([DAY_MS], INSTANT)


def rows(**columns: Any) -> pa.RecordBatch:
    types = {"temp": pa.float64(), "seats": pa.int64(), "ok": pa.bool_(), "seen": INSTANT, "raw": pa.binary()}
    types |= {"key": pa.string(), "effective_time": INSTANT, "note": pa.string()}
    length = max(len(column) for column in columns.values())
    return pa.record_batch({name: pa.array(columns.get(name, [None] * length), kind) for name, kind in types.items()})


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("temp > 80", [False, True, False]),
        ("80 < temp", [False, True, False]),
        ("temp >= 80.0 OR temp IS NULL", [False, True, True]),
        ("not temp > 80", [True, False, False]),
        ("temp != 79.5", [False, True, False]),
        ("temp = -0.5e1 or temp in (79.5, 3)", [True, False, False]),
        ("temp not in (79.5)", [False, True, False]),
        ("temp is not null and (ok or seats = 3)", [True, True, False]),
        ("ok", [True, False, False]),
        ("ok = false", [False, True, False]),
        ("note like 'it''s %'", [True, False, False]),
        ("note not like '_t%'", [False, True, False]),
        ("note = ''", [False, True, False]),
        ("seen < timestamp '2013-02-08 12:00'", [True, False, False]),
        ("seen < '1410101200000'", [True, True, False]),
        ("seen between '2013-02-08' and '2013-02-08T23:00+01:00'", [True, True, False]),
        ("raw = x'00ff'", [True, False, False]),
        ("seats between 2 and 3.5", [False, True, False]),
        ('"seats" < +3', [True, False, False]),
        ("seats in (9007199254740993, 2.5, 1e300, 3.0)", [False, True, False]),
        ("temp in (81, 9007199254740993)", [False, True, False]),
        ("temp < 9007199254740993", [True, True, False]),
    ],
)
def test_a_condition_takes_rows(text: str, taken: list[bool]) -> None:
    table = rows(
        temp=[79.5, 81.0, None], ok=[True, False, None], seats=[1, 3, None], note=["it's hot", "", None],
        seen=[datetime(2013, 2, 8, tzinfo=UTC), datetime(2013, 2, 8, 22, tzinfo=UTC), None],
        raw=[b"\0\xff", b"", None], key=["0", "1", "2"],
    )  # fmt: skip
    expression = predicate(WEATHER, text).expression
    assert table.filter(expression).column("key").to_pylist() == [str(n) for n, take in enumerate(taken) if take]


@pytest.mark.parametrize(
    ("where", "bounds"),
    [
        ("key = 'a'", {"key": Span.of_points(["a"])}),
        ("key = 'a' or key in ('b', 'c')", {"key": Span.of_points(["a", "b", "c"])}),
        ("key = 'a' or temp > 3", {}),
        ("not key = 'a'", {}),
        ("key > 'a' and key <= 'c' and temp > 3", {"key": Span("a", "c"), "temp": Span(lower=3)}),
        ("key like 'ab%'", {"key": Span("ab", "ac")}),
        ("key like '%ab'", {}),
        ("key like 'ab'", {"key": Span.of_points(["ab"])}),
        (
            "effective_time >= '1970-01-02' and effective_time < '1970-01-03'",
            {"effective_time": Span(DAY_MS, 2 * DAY_MS)},
        ),
        (
            [("key", "in", ["b", "a"]), ("effective_time", "<=", DAY_MS)],
            {"key": Span.of_points(["a", "b"]), "effective_time": Span(upper=DAY_MS)},
        ),
        ([("effective_time", "==", date(1970, 1, 2))], {"effective_time": Span.of_points([DAY_MS])}),
        (pc.field("key") == "a", {"key": Span.of_points(["a"])}),
        (
            pc.field("key").isin(["a", "b"]) & (pc.field("temp") > 3),
            {"key": Span.of_points(["a", "b"]), "temp": Span(lower=3)},
        ),
        (pc.scalar("a") < pc.field("key"), {"key": Span(lower="a")}),
        (pc.field("effective_time") > pa.scalar(1500, pa.timestamp("us", "UTC")), {"effective_time": Span(lower=1)}),
        (pc.starts_with(pc.field("key"), "ab"), {"key": Span("ab", "ac")}),
        (pc.utf8_lower(pc.field("key")) == "a", {}),
        (~(pc.field("key") == "a"), {}),
        (pc.field("effective_time") >= pa.scalar(date(1970, 1, 2)), {}),
        ((pc.field("effective_time") >= pa.scalar(date(1970, 1, 2))) & (pc.field("effective_time") < INSTANTS[0]), {}),
        ((pc.field("key") == b"a") & (pc.field("key") > "a"), {}),
    ],
)
def test_a_condition_bounds_columns(where: Any, bounds: dict[str, Span]) -> None:
    assert predicate(WEATHER, where).spans == bounds


def test_numbers_that_could_be_seconds_are_refused_in_lists_of_times() -> None:
    times = pc.field("effective_time")
    for among in (times.isin([1_577_923_201]), (pc.field("key") == "a") & ~times.isin([0, 1_577_923_201])):
        with pytest.raises(Invalid, match="could be seconds"):
            predicate(WEATHER, among)
    for clear in ([1_577_923_201_000, 0], [INSTANTS[0]], [pa.scalar(1_577_923_201, pa.timestamp("ms", "UTC"))]):
        assert predicate(WEATHER, times.isin(clear)).expression is not None


@pytest.mark.parametrize("comparison", ["=", "!=", "<", "<=", ">", ">="])
def test_whole_numbers_compare_with_any_number(comparison: str) -> None:
    seats = [-(2**63), -2, -1, 0, 1, 2, 20_000_001, 2**53 + 1, 2**63 - 1]
    table = rows(seats=[*seats, None])
    compare = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
               ">=": operator.ge}[comparison]  # fmt: skip
    for number in (0.5, -1.5, 1.0, 2.0**53, 2.0**63, -(2.0**63), 1e300, -1e300, math.inf, -math.inf, math.nan):
        taken = table.filter(predicate(WEATHER, [("seats", comparison, number)]).expression)
        assert taken.column("seats").to_pylist() == [count for count in seats if compare(count, number)], number


EDGES = [0, 1, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**19, 10**399]
WHOLE = st.sampled_from([sign * edge for edge in EDGES for sign in (1, -1)]) | st.integers(-(2**64), 2**64)
DOUBLES = st.sampled_from([0.0, -0.0, 0.5, 2.0**53, 2.0**63, 1e300, math.inf, -math.inf, math.nan]) | st.floats()
NUMBERS = WHOLE | DOUBLES | st.decimals(allow_nan=False) | st.just(Decimal("NaN"))
SEATS = WHOLE.filter(lambda number: -(2**63) <= number < 2**63)
OPERATORS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
             ">=": operator.ge}  # fmt: skip


def as_double(number: Any) -> float:
    try:
        return math.nan if number != number else float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def model(column: str, comparison: str, cell: Any, values: list[Any]) -> bool:
    """The answer of Python, which compares numbers of all types exactly; a double with the double nearest to them."""
    read = as_double if column == "temp" else lambda number: math.nan if number != number else number
    compare = OPERATORS[{"in": "=", "not in": "!="}.get(comparison, comparison)]
    taken = [compare(cell, read(value)) for value in values]
    return all(taken) if comparison == "not in" else any(taken)


@pytest.mark.usefixtures("processor")
@given(
    st.lists(st.tuples(SEATS, DOUBLES), min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from(["seats", "temp"]), st.sampled_from([*OPERATORS, "in", "not in"]),
                       st.lists(NUMBERS, min_size=1, max_size=3)), min_size=1, max_size=6),
)  # fmt: skip
@settings(max_examples=examples(10, 100), deadline=None)
def test_numbers_compare_as_they_are_in_every_store(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[int, float]], tests: list[tuple[str, str, list[Any]]]
) -> None:
    with millpond.open(tmp_path_factory.mktemp("numbers") / "pond") as pond:
        readers = []
        for store in ("shard", "layers"):
            made = pond.create_map(store, kind="state", value="seats long, temp double", store=store)
            made.load([{"key": f"{at}", "seats": seats, "temp": temp} for at, (seats, temp) in enumerate(cells)])
            elsewhere = partial(scan_elsewhere, made.scan, made.definition)  # as nodes are asked
            readers += [made.scan, partial(elsewhere, columns=None)]
        for column, comparison, values in tests:
            several = comparison in ("in", "not in")
            where = [(column, comparison, values if several else values[0])]
            wanted = [
                f"{at}" for at, row in enumerate(cells)
                if model(column, comparison, row[column == "temp"], values if several else values[:1])
            ]  # fmt: skip
            for scan in readers:
                assert sorted(scan(where).read_all()["key"].to_pylist()) == wanted, (where, scan)


def test_what_cannot_be_is_known_to_be_empty() -> None:
    assert predicate(WEATHER, "key = 'a' and key = 'b'").impossible
    assert predicate(IPS, "key_start > 5 and key_start < 3").impossible
    assert not predicate(IPS, "key_start > 5 and key_end < 3 or key_start = 1").impossible
    assert not predicate(WEATHER, None).impossible


@pytest.mark.parametrize(
    ("where", "kind", "message"),
    [
        ("", "condition", "at=0"),
        ("key =", "condition", "at=5"),
        ("key = 'a' and", "condition", "a column was expected"),
        ("key = a", "condition", "in quotes"),
        ("key = 'a' 'b'", "condition", "at=10"),
        ("key ~ 'a'", "condition", "at=4"),
        ("(key = 'a'", "condition", ") was expected"),
        ("lower(key) = 'a'", "condition", "ask in SQL"),
        ("key = 'a'; drop table x", "condition", "at=9"),
        ("key in ()", "condition", "a value was expected"),
        ("key is 3", "condition", "null was expected"),
        ("temp between 3", "condition", "and was expected"),
        ("humidity > 3", "column_unknown", "columns: key, effective_time, temp"),
        ("temp = 'hot'", "condition_value", "column=temp"),
        ("key > 3", "condition_value", "quotes"),
        ("temp like '3%'", "condition_value", "column=temp"),
        ("temp", "condition_value", "column=temp"),
        ("ok = 1", "condition_value", "column=ok"),
        ("effective_time > 'yesterday'", "time_unknown", "yesterday"),
        ("effective_time > 1577923201", "time_unknown", "1577923201000"),
        ("effective_time > '1577923201'", "time_unknown", "1577923201"),
        ([("key", "~", "a")], "condition", "not in"),
        (["key"], "condition", "comparison"),
        ([("key", "=", None)], "condition_value", "is null"),
    ],
)
def test_a_condition_that_is_not_understood_says_why(where: Any, kind: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        predicate(WEATHER, where)
    assert refused.value.kind == kind
    assert message in str(refused.value)


class CountedText(str):  # noqa: SLOT000 - it counts
    """Text that counts the characters that are copied out of it."""

    copied = 0

    def __getitem__(self, place: Any) -> str:
        found = super().__getitem__(place)
        self.copied += len(found)
        return found


def test_a_condition_is_read_in_one_pass() -> None:
    text = CountedText("key in (" + ", ".join(f"'k{number}'" for number in range(2_000)) + ")")
    condition = parser.parse_condition(text)
    assert isinstance(condition, OneOf) and condition.values == tuple(f"k{number}" for number in range(2_000))
    assert text.copied < len(text)


def test_the_points_of_many_tests_are_put_together_once() -> None:
    compared = 0

    class Point(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __lt__(self, other: str) -> bool:
            nonlocal compared
            compared += 1
            return str.__lt__(self, other)

        def __gt__(self, other: str) -> bool:
            nonlocal compared
            compared += 1
            return str.__gt__(self, other)

    many = OneOf("key", tuple(Point(f"k{number:04}") for number in range(1_000)))
    others = tuple(Compare("key", "=", Point(f"j{number:04}")) for number in range(500))
    assert len(spans_of(Any_((many, *others)))["key"].points or ()) == 1_500
    assert spans_of(All((many, *(Compare("key", ">=", "k") for _ in others))))["key"].lower == "k0000"
    assert compared < 20_000


@pytest.mark.parametrize(
    "where", ["key in (" + "1," * 100_000 + "1)", [("key", "in", [1] * 100_001)], f"note = '{'n' * (4 << 20)}'"]
)
def test_a_condition_that_is_too_large_is_refused(where: Any) -> None:
    with pytest.raises(Invalid) as caught:
        predicate(WEATHER, where)
    assert (caught.value.kind, caught.value.hint) == (
        "condition_large", "look the keys up, or ask in several questions"
    )  # fmt: skip


@pytest.mark.parametrize("where", [f"key like '{'%a' * 5_001}'",
                                   " or ".join(f"key like '{number:099}%'" for number in range(101))])  # fmt: skip
def test_patterns_that_are_too_long_are_refused(where: Any) -> None:
    with pytest.raises(Invalid) as caught:
        predicate(WEATHER, where)
    assert (caught.value.kind, caught.value.hint) == ("condition_large", "write shorter patterns after like")


@pytest.mark.parametrize("module", [spans, parser])
def test_what_their_documentation_shows_is_so(module: ModuleType) -> None:
    tested = doctest.testmod(module)
    assert tested.attempted
    assert not tested.failed


@pytest.mark.parametrize("text", ["key = 'a' or " * 300_000, "key in (" + "1, " * 1_000_000])
def test_a_condition_that_is_too_large_is_read_no_further(text: str) -> None:
    read = parser._Parser(text)
    with pytest.raises(Invalid) as caught:
        read.condition()
    assert caught.value.kind == "condition_large" and read.at < len(text) / 5


@given(st.text('"a ', max_size=12))
def test_a_quoted_name_ends_at_its_first_single_quote(text: str) -> None:
    backtracking = re.match(r'"(?:[^"]|"")+"(?!")', text)
    match = parser._TOKEN.match(text)
    assert (match and match["quoted"]) == (backtracking and backtracking[0])


@pytest.mark.parametrize("text", ["1" * 200_000 + "a", "1" * 200_000 + "." + "1" * 200_000 + "e"])
def test_a_number_that_is_none_is_looked_at_once(text: str) -> None:
    """Each end of its digits was tried with each other end: sixteen thousand took half a minute."""
    with pytest.raises(Invalid):
        parser.parse_condition(f"n = {text}")
