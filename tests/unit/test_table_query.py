"""Tables by query: what is understood, what is refused by its name, and raw rows that cannot be told."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millpond
from millpond import Pond
from millpond.errors import AlreadyExists, Invalid
from millpond.maps.model.table_query import table_query

LATE = """select origin as key, time_hour as time, count(*) as flights, avg(delay) as delay from events
    group by 1, 2"""


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond") as opened:
        yield opened


def row(hour: int, delay: Any, origin: str | None = "JFK", **more: Any) -> dict[str, Any]:
    return {"origin": origin, "time_hour": datetime(2024, 1, 1, hour, tzinfo=UTC), "delay": delay, **more}


def test_a_query_says_the_fields_the_resolution_and_what_rows_bring(pond: Pond) -> None:
    made = pond.create_map("late", as_=LATE)
    assert made.definition.to_dict()["query"] == LATE
    assert made.definition.aggregation is not None
    assert made.definition.aggregation.resolution == "1 second"
    made.load([row(3, 10.0, tail="x"), row(3, None), row(3, 20.0)])
    assert made.get("JFK", datetime(2024, 1, 1, 3, tzinfo=UTC)) == {
        "flights": 3, "delay_sum": 30.0, "delay_count": 2, "delay": 15.0,
    }  # fmt: skip
    assert pond.create_map("late", as_=LATE, exist_ok=True).definition == made.definition
    with pytest.raises(AlreadyExists):
        pond.create_map("late", as_=LATE.replace("avg", "max"), exist_ok=True)
    hours = pond.create_map("hours", as_=LATE, resolution="1 hour", roll_up="1 day")
    assert hours.definition.aggregation is not None
    assert hours.definition.aggregation.resolution == "1 hour"
    with millpond.open(pond.folder) as again:
        assert again.map("late").definition == made.definition


def test_tables_without_a_time_are_totals_and_keys_may_be_tags(pond: Pond) -> None:
    totals = pond.create_map(
        "totals", as_="select origin as key, arg_max(tail, time_hour) as tail, approx_quantile(delay, 0.5) as middle, "
        "approx_quantile(delay, [0, 1]) as ends, sum(delay)::bigint as total from r group by all",
    )  # fmt: skip
    totals.load([row(hour, float(hour), tail=f"N{hour}") for hour in range(5)])
    assert totals.definition.aggregation is not None
    assert totals.definition.aggregation.resolution == "none"
    found = totals.get("JFK")
    assert (found["tail"], found["middle"], found["ends_p0"], found["ends_p100"]) == ("N4", 2.0, 0.0, 4.0)
    assert found["total"] == 10
    tagged = pond.create_map(
        "tagged", key="tags", as_="select {'o': origin, 't': tail} as key, count(*) as n from r group by 1"
    )
    tagged.load([row(1, 1.0, tail="x"), row(2, 1.0, tail="x"), row(2, 1.0, tail="y")])
    assert tagged.get({"t": "x", "o": "JFK"})["n"] == 2
    whole = pond.create_map("whole", as_="select 'all' as key, max(time_hour::timestamptz) as newest from r group by 1")
    whole.load([row(1, 1.0), row(7, 1.0)])
    assert whole.get("all")["newest"] == datetime(2024, 1, 1, 7, tzinfo=UTC)


def test_other_rows_with_the_same_events_count_and_the_same_rows_do_not(pond: Pond, tmp_path: Path) -> None:
    totals = pond.create_map("totals", as_="select origin as key, count(*) as n from r group by 1")
    first, second = (
        [row(hour, None, tail=tail, seats=[1, seat]) for hour in range(3)] for tail, seat in (("x", 1), ("x", 2))
    )
    for rows, count in [(first, 3), (first[::-1], 3), (second, 6), (pa.Table.from_pylist(second), 6)]:
        totals.load(rows)
        assert totals.get("JFK") == {"n": count}
    for number, count in [(1, 7), (1, 7), (2, 8)]:
        (tmp_path / "day.csv").write_text(f"origin,number\nJFK,{number}\n")
        pond.load_files(tmp_path / "day.csv", "totals")
        assert totals.get("JFK") == {"n": count}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select a as key, median(x) as m from r group by 1", "aggregate=median"),
        ("select a as key, count(distinct x) as m from r group by 1", "approx_count_distinct"),
        ("select a as key, sum(x) / count(*) as m from r group by 1", "column=m"),
        ("select a as key, sum(x + random()) as m from r group by 1", "function=random"),
        ("select a as key, sum(now() - x) as m from r group by 1", "function=now"),
        ("select a as key, sum(nosuch(x)) as m from r group by 1", "function=nosuch"),
        ("select a as key, sum(sum(x)) as m from r group by 1", "aggregate=sum"),
        ("select a as key, sum((select 1)) as m from r group by 1", "subquery"),
        ("select a as key, sum(x) over () as m from r", "grouped by its key"),
        ("select a as key, sum(x) as m from r join s using (x) group by 1", "one SELECT of one table"),
        ("select a as key, sum(x) as m from r group by 1 having sum(x) > 1 limit 3", "having, limit"),
        ("with r as (select 1) select a as key, sum(x) as m from r group by 1", "found=with"),
        ("select a as key, b, sum(x) as m from r group by 1, 2", "groups=a, b"),
        ("select a as key, b, sum(x) as m from r group by all", "column=b"),
        ("select a as key, sum(x) as m from r", "grouped by its key"),
        ("select a as key, sum(x) from r group by 1", "has a name"),
        ("select a as key, sum(x) as m, sum(y) as M from r group by 1", "given twice"),
        ("select a as key from r group by 1", "an aggregate at least"),
        ("select sum(x) as m from r", "has a key"),
        ("select a as key, date_trunc('decade', t) as time, count(*) as n from r group by 1, 2", "unit=decade"),
        ("select a as key, t as time, arg_max(x, u) as l from r group by 1, 2", "by=u"),
        ("select a as key, string_agg(x) as l from r group by 1", "aggregate=string_agg"),
        ("select a as key, sum(x)::date as l from r group by 1", "type=date"),
        ("select a as key, approx_quantile(x, 7) as q from r group by 1", "fraction=7"),
        ("select", "not understood"),
        ("select 1; select 2", "one SELECT"),
        ("drop table r", "not understood"),
    ],
)
def test_what_has_no_rule_is_refused_by_its_name(pond: Pond, query: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        pond.create_map("m", as_=query)
    assert message in str(refused.value), str(refused.value)
    assert pond.maps() == []


def test_options_that_contradict_the_query_are_refused(pond: Pond) -> None:
    truncated = "select a as key, date_trunc('quarter', t) as time, count(*) as n from r group by 1, 2"
    assert table_query(truncated).resolution == "3 months"
    for options in ({"kind": "state"}, {"value": "n long count"}):
        with pytest.raises(Invalid, match="a query says what the map is"):
            pond.create_map("m", as_=truncated, **options)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="another resolution"):
        pond.create_map("m", as_=truncated, resolution="1 hour")
    with pytest.raises(Invalid, match="kind is not known"):
        pond.create_map("m")


def test_rows_that_cannot_be_told_are_rejected_with_reasons(pond: Pond, tmp_path: Path) -> None:
    query = """select origin as key, time_hour as time, sum(delay::double) as delay from events
        where flag = 'y' group by 1, 2"""
    made = pond.create_map("m", as_=query)
    rejects = tmp_path / "rejects.jsonl"
    rows = [row(hour, "1.5", flag="y") for hour in range(9)]
    rows[2]["delay"], rows[7]["delay"] = "much", "nan"
    rows[3] |= {"delay": "odd", "flag": "n"}
    rows[5]["origin"] = None
    result = made.load(rows, max_rejects=3, rejects=rejects)
    assert (result.rows, result.rejected) == (5, 3)
    bad = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [reject["row"] for reject in bad] == [2, 5, 7]
    assert "Could not convert string 'much'" in bad[0]["reason"]
    assert bad[1]["reason"] == "key is missing"
    assert bad[2]["record"]["flag"] == "y"
    none = made.load(rows[2:3], max_rejects=1)
    assert (none.rows, none.rejected) == (0, 1)
    with pytest.raises(Invalid, match="cannot be stored, nothing was loaded"):
        made.load(rows[2:3])


def test_columns_are_found_or_named(pond: Pond) -> None:
    made = pond.create_map("late", as_=LATE)
    with pytest.raises(Invalid, match="no such column") as refused:
        made.load([{"origin": "a", "time_hour": 0, "delai": 1.0}])
    assert refused.value.values["column"] == "delay"
    with pytest.raises(Invalid, match="the query of the table names the columns"):
        made.load([row(1, 1.0)], columns={"key": "origin"})
    upper = pa.table({"ORIGIN": ["a"], "Time_Hour": [datetime(2024, 1, 1, tzinfo=UTC)], "DELAY": [1]})
    assert made.load(upper).rows == 1
    doubled = pond.create_map("doubled", as_=LATE.replace("avg(delay)", "avg(delay * 2)"))
    with pytest.raises(Invalid, match="does not fit the columns"):
        doubled.load([row(1, "1.0")])
    assert doubled.load(upper).rows == 1
    assert doubled.load(upper.slice(0, 0)).rows == 0
    with pytest.raises(Invalid, match="does not do this"):
        made.load([row(1, 1.0, tail="x")], extra="add")


def test_raw_rows_are_evaluated_without_a_folder(pond: Pond, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = pond.create_map("late", as_=LATE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert made.load([row(3, 10.0)]).rows == 1
