"""Aggregates read in wider buckets than those they have: by key, by scan, by SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.errors import Invalid, MillpondError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Map, Pond

VALUE = "orders long count, total double sum, units long sum"


def at(minute: int, hour: int = 10) -> str:
    return f"2024-01-01T{hour:02}:{minute:02}Z"


def event(key: str, time: str, total: float = 1.0, *, units: int = 1) -> dict[str, Any]:
    return {"key": key, "time": time, "total": total, "units": units}


def load(target: Map, *events: dict[str, Any]) -> None:
    target.load(list(events))


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond") as opened:
        yield opened


@pytest.fixture
def sales(pond: Pond) -> Map:
    return pond.create_map("sales", kind="aggregate", value=VALUE, resolution="1 hour")


@pytest.mark.usefixtures("process")
def test_buckets_are_read_together_at_a_coarser_resolution(pond: Pond, sales: Map) -> None:
    load(sales, event("a", at(5)), event("a", at(15, 11), 3), event("b", at(15, 12)))
    load(sales, event("a", at(5), 2), event("a", "2024-01-02T00:00Z", 9))
    days = sales.scan("orders > 1", columns=["key", "orders", "total"], resolution="day").read_all()
    assert days.to_pylist() == [{"key": "a", "orders": 3, "total": 6.0}]
    assert sales.get("a", at(0), resolution="6 hours")["orders"] == 3
    assert sales.get("a", at(0), resolution="none")["total"] == 15.0
    assert sales.get("a", "2023-12-31T23:59Z", resolution="1 month") is None
    answers = sales.lookup(["a", "b", None, "a"], [at(0), at(0), at(0), None], resolution="year")
    assert answers.field("orders").to_pylist() == [4, 1, None, None]
    table = "AT_RESOLUTION ( 'Sales', 'day' )"
    query = f"select key, sum(orders)::int as n from {table} where time < '2024-01-02' group by 1 order by 1"
    assert pond.sql(query).to_pylist() == [{"key": "a", "n": 3}, {"key": "b", "n": 1}]
    assert pond.sql("select count(*) as n from at_resolution('sales', '1 year') a, sales").to_pylist() == [{"n": 8}]
    assert pond.sql("select 'at_resolution(''sales'', ''1 day'')' as text").num_rows == 1
    for wrong, kind in (
        ("'sales', '1 minute'", "resolution_finer"),
        ("'nobody', '1 day'", "map_not_found"),
        ("'sales'", "sql"),
    ):
        with pytest.raises(MillpondError) as refused:
            pond.sql(f"select * from at_resolution({wrong})")
        assert refused.value.kind == kind
    state = pond.create_map("state", kind="state")
    for wrong, kind in (("15 minutes", "resolution_finer"), ("7 hours", "resolution")):
        with pytest.raises(Invalid) as caught:
            sales.scan(resolution=wrong)
        assert caught.value.kind == kind
    for question in (lambda: state.get("a", resolution="1 day"), lambda: state.scan(resolution="1 day")):
        with pytest.raises(Invalid, match="only aggregates combine"):
            question()
    with pytest.raises(Invalid, match="leave one out"):
        sales.get("a", between=(at(0), at(1)), resolution="1 day")
    load(sales, event("a", at(1), units=2**62), event("a", at(1, 12), units=2**62))
    with pytest.raises(Invalid, match="a sum is larger than its type holds") as caught:
        sales.scan(resolution="1 day").read_all()
    assert (caught.value.values["key"], caught.value.values["bucket"][:10]) == ("a", "2024-01-01")
    assert sales.scan("key = 'b'", resolution="1 day").read_all().num_rows == 1


@pytest.mark.parametrize("store", ["layers", "shard"])
def test_an_event_whose_bucket_begins_before_the_year_1_is_rejected_by_its_time(tmp_path: Path, store: str) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        made: dict[str, Any] = {"kind": "histogram", "resolution": "1 day", "time_zone": "Asia/Tokyo", "store": store}
        counts = pond.create_map("counts", **made)
        with pytest.raises(Invalid, match=r"time 0001-01-01T00:20:00.* begins before the year 1"):
            counts.load([{"key": "a", "time": "0001-01-01T00:20Z"}])
        assert not counts.scan().read_all().num_rows
