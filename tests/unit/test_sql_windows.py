"""`get_state(…, window := '7 days')` in SQL: the answers of Python, on a branch and as it was known, and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid, MillpondError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from millpond import Pond

HOUR, DAY = 3_600_000, 86_400_000
FIRST = 1_699_920_000_000
VALUE = "n long count, total long sum"


def events(*hours: int) -> list[dict[str, Any]]:
    return [{"key": "a", "time": FIRST + hour * HOUR, "total": hour} for hour in hours]


@pytest.fixture(params=["layers", "shard"])
def pond(tmp_path: Path, request: Any) -> Iterator[Pond]:
    with millpond.open(tmp_path / "pond", clock=ManualClock(now=FIRST + DAY)) as opened:
        sales = opened.create_map("sales", kind="aggregate", value=VALUE, resolution="1 hour", store=request.param)
        sales.load(events(1, 2, 30))
        yield opened


def test_a_window_may_stand_behind_any_arguments(pond: Pond) -> None:
    two = {"n": 2, "total": 3}
    for call in (
        "'a', window := '1 day'",
        "'a', greatest(timestamptz '2023-11-15', null), WINDOW => '24 hours'",
        f"'a', {FIRST + DAY}, window\n:=  '1' || ' day'",
    ):
        assert pond.sql(f"select get_state('sales', {call}) as sold").to_pylist() == [{"sold": two}], call
    query = """
        select n, unnest(get_state('Sales', key, t, window := '1 day')) /* window := '2 days' */
        from (values (1, 'a', timestamptz '2023-11-15'), (2, 'b', timestamptz '2023-11-15'), (3, null, null))
        as q(n, key, t)
        window w as (order by n) order by n
    """
    rows = [{"n": 1, "n_1": 2, "total": 3}, {"n": 2, "n_1": None, "total": None}, {"n": 3, "n_1": None, "total": None}]
    table = pond.sql(query)
    assert [dict(zip(("n", "n_1", "total"), row.values(), strict=True)) for row in _rows(table)] == rows
    both = "select get_state('sales', 'a', t, window := '2 hours').total as few, get_state('sales', 'a', t).n as own"
    assert pond.sql(f"{both} from (select {FIRST + 3 * HOUR} as t)").to_pylist() == [{"few": 3, "own": None}]
    nested = "get_state('sales', get_state('sales', 'a', window := '1 day').n || '', window := '1 day')"
    assert pond.sql(f"select {nested} as none").to_pylist() == [{"none": None}]
    named = pond.sql("select get_state('sales', 'a', window := '1 day')").column_names
    assert named[0].startswith("get_state('sales', 'a'")
    summed = (
        f"select sum(get_state('sales', 'a', t, window := '1 day').n)::int as n from range({FIRST}, {FIRST} + 1) r(t)"
    )
    assert pond.sql(summed).to_pylist() == [{"n": None}]


def _rows(table: Any) -> list[dict[str, Any]]:
    names = [f"{number}" for number in range(table.num_columns)]
    rows: list[dict[str, Any]] = table.rename_columns(names).to_pylist()
    return rows


def test_windows_on_a_branch_and_as_they_were_known(tmp_path: Path) -> None:
    clock = ManualClock(now=FIRST + DAY)
    with millpond.open(tmp_path / "pond", clock=clock) as pond:
        sales = pond.create_map("sales", kind="aggregate", value=VALUE, resolution="1 hour", store="layers")
        sales.load(events(1))
        before = clock.now_ms()
        clock.advance(1000)
        sales.load(events(2))
        clock.advance(1000)
        fix = pond.branch("fix", source="main")
        fix.map("sales").load(events(3, 4))
        clock.advance(1000)
        question = f"select get_state('sales', 'a', {FIRST + DAY}, window := '1 day').n as n"
        then = f"select get_state('sales', 'a', {FIRST + DAY}, {before}, window := '1 day').n as n"
        assert [door.sql(question).to_pylist() for door in (pond, fix)] == [[{"n": 2}], [{"n": 4}]]
        assert [door.sql(then).to_pylist() for door in (pond, fix)] == [[{"n": 1}], [{"n": 1}]]
        assert pond.sql(question, known_at=before).to_pylist() == [{"n": 1}]
        assert pond.at("main~1").sql(question).to_pylist() == [{"n": 1}]


@pytest.mark.parametrize(("call", "kind", "way_out"), [
    ("'sales', 'a', window := '90 minutes'", "window", "multiple of the map's resolution"),
    ("'sales', 'a', window := 'soon'", "window", "multiple of the map's resolution"),
    ("'sales', 'a', now(), window := w", "window", "write it as text"),
    ("'sales', 'a', window := null", "window", "write it as text"),
    ("'sale', 'a', window := '1 day'", "map_not_found", "sales"),
    ("'planes', 'a', window := '1 day'", "between_unsupported", ""),
    ("'sales', time '10:00', window := '1 day'", "key_type", "cast it to text"),
    ("'sales', 'a', true, window := '1 day'", "time_type", "timestamptz"),
    ("'sales', 'a', now(), now(), now(), window := '1 day'", "sql", ""),
    ("sales, 'a', window := '1 day'", "sql_get_state", "in quotes"),
])  # fmt: skip
def test_what_is_no_window_is_refused_with_the_way_out(pond: Pond, call: str, kind: str, way_out: str) -> None:
    pond.create_map("planes", kind="state", value="string")
    with pytest.raises(MillpondError) as caught:
        pond.sql(f"select get_state({call}) from (values ('1 day'), ('2 days')) windows(w)")
    assert caught.value.kind == kind
    assert way_out in (caught.value.hint or "")


def test_a_subset_of_an_aggregate_refuses_keys_outside(pond: Pond) -> None:
    with pond.map("sales").snapshot(keys=("a", "b")) as some:
        assert some.lookup(["a"], between=(FIRST, FIRST + DAY)).to_pylist() == [{"n": 2, "total": 3}]
        for question in ({"between": (FIRST, FIRST + DAY)}, {"at": FIRST, "window": "1 day"}):
            with pytest.raises(Invalid) as caught:
                some.lookup(["c"], **question)
            assert caught.value.kind == "outside_snapshot"
