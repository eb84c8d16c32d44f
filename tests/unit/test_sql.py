"""SQL over maps: tables, lookups, what is handed down to a scan, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, Never

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Invalid, NotFound
from millpond.maps.model.columns import INSTANT
from millpond.maps.sql import query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond import Map, Pond

DAY = datetime(2013, 2, 8, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    clock = ManualClock(now=int(DAY.timestamp() * 1000) + 18 * 3_600_000)
    with millpond.open(tmp_path_factory.mktemp("sql") / "pond", clock=clock) as opened:
        weather = opened.create_map("weather", kind="temporal_state", value="temp double, note string")
        fill_weather(weather)
        planes = opened.create_map("planes", kind="state")
        planes.load(pa.table({"key": ["N1", "N2"], "value": pa.array([150, 300])}))
        countries = opened.create_map("countries", kind="ranged_state", value="string")
        countries.load(pa.table({"key_start": [0, 10, 12], "key_end": [99, 19, 13], "value": ["a", "b", "c"]}))
        flights = opened.create_map("flights", kind="session")
        start = pa.array([DAY, DAY + 5 * HOUR], INSTANT)
        flights.load(
            pa.table({"key": ["N1", "N1"], "start": start, "end": pa.array([DAY + HOUR, DAY + 6 * HOUR], INSTANT)})
        )
        yield opened


def fill_weather(weather: Map) -> None:
    hours = [DAY + n * HOUR for n in range(24)]
    for key, sign in (("JFK", 1.0), ("LGA", -1.0), ("EWR", 0.0)):
        notes = [None if n % 2 else f"{key} {n}" for n in range(24)]
        temps = [sign * n for n in range(24)]
        times = pa.array(hours, INSTANT)
        weather.load(pa.table({"key": [key] * 24, "effective_time": times, "temp": temps, "note": notes}))


def rows(pond: Pond, text: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in pond.sql(text).to_pylist()]


@pytest.mark.usefixtures("processor")
def test_every_map_is_a_table_in_any_case_of_letters(pond: Pond) -> None:
    assert rows(pond, "select count(*) from weather") == [(72,)]
    assert rows(pond, "from Planes order by key") == [("N1", "long", "150"), ("N2", "long", "300")]
    assert rows(pond, "select max(key_end) from COUNTRIES") == [(99,)]
    joined = "select key, count(*) from weather join flights using (key) group by all"
    assert rows(pond, joined) == []


@pytest.mark.parametrize("text", [
    "select table_name from information_schema.tables where table_type = 'LOCAL TEMPORARY' or table_name <> ''",
    "select view_name from duckdb_views() where not internal", "show tables",
    "select distinct view_name from duckdb_views() join planes on true",
])  # fmt: skip
def test_every_map_is_listed_whatever_else_a_query_names(pond: Pond, text: str) -> None:
    assert {"weather", "planes", "countries", "flights"} <= {row[0] for row in rows(pond, text)}


@pytest.mark.parametrize("text", [
    "with w as (from weather) select count(*) from w", "select count(*) from query_table('weather')",
    "select count(*) from query('from weather')", "select count(*) from planes right join weather on false",
    "select (select count(*) from main.weather)", 'select count(*) from "Weather" as planes',
])  # fmt: skip
def test_a_map_is_a_table_wherever_a_query_names_it(pond: Pond, text: str) -> None:
    assert rows(pond, text) == [(72,)]


class Untouched:
    """A map that no query here needs."""

    name = "untouched"

    @property
    def definition(self) -> Never:
        raise AssertionError(self.name)


class Beside:
    """A pond that has a map beside that map."""

    def __init__(self, pond: Pond) -> None:
        self.clock, self._maps = pond.clock, [pond.map("planes"), Untouched()]

    def maps(self) -> list[Any]:
        return self._maps


@pytest.mark.parametrize(
    "text", ["select 1 as one", "select count(*) from range(1)", "select get_state('planes', 'N1')",
             "select count(*) from planes"],
)  # fmt: skip
def test_no_table_is_made_of_a_map_that_a_query_does_not_name(pond: Pond, text: str) -> None:
    assert query(Beside(pond), text).num_rows == 1


def test_times_are_aware_and_utc(pond: Pond) -> None:
    assert pond.sql("select effective_time from weather limit 1").schema.types == [pa.timestamp("us", tz="UTC")]
    assert rows(pond, "select min(effective_time) from weather") == [(DAY,)]
    assert rows(pond, "select count(*) from weather where effective_time < '2013-02-08 02:00'") == [(6,)]


@pytest.mark.usefixtures("processor")
def test_get_state_gives_the_maps_own_type(pond: Pond) -> None:
    table = pond.sql("select get_state('weather', 'JFK', '2013-02-08T17:59:59.999Z') as state")
    assert table.schema.field("state").type == pa.struct([("temp", pa.float64()), ("note", pa.string())])
    assert table.to_pylist() == [{"state": {"temp": 17.0, "note": None}}]
    assert rows(pond, "select get_state('weather', 'JFK').temp") == [(18.0,)], "without a time: now"
    assert rows(pond, "select get_state('planes', 'N2'), get_state('planes', 'N3', now())") == [("300", None)]
    session = rows(pond, "select get_state('flights', 'N1', '2013-02-08T05:30Z')")
    assert session == [({"start": DAY + 5 * HOUR, "end": DAY + 6 * HOUR},)]


@pytest.mark.usefixtures("processor")
def test_get_state_is_evaluated_for_every_row(pond: Pond) -> None:
    statement = "select n, get_state('Countries', n) from unnest([9, 12, 14, 100, null]) t(n)"
    assert rows(pond, statement) == [(9, "a"), (12, "c"), (14, "b"), (100, None), (None, None)]
    before = (
        "select effective_time, get_state('weather', key, effective_time - interval 1 hour).temp as before "
        "from weather where key = 'JFK' order by 1 limit 3"
    )
    assert rows(pond, before) == [(DAY, None), (DAY + HOUR, 0.0), (DAY + 2 * HOUR, 1.0)]
    many = "select count(*), count(get_state('countries', n % 200)) from range(100_000) t(n)"
    assert rows(pond, many) == [(100_000, 50_000)]


def test_get_state_within_strings_and_comments_is_left_alone(pond: Pond) -> None:
    assert rows(pond, "select 'get_state(x)' /* get_state(y) */ as \"get_state(z)\" -- get_state(w)") == [
        ("get_state(x)",)
    ]
    dollars = "select 1 as a$b$, $$get_state(x)$$ as €$c$, get_state('planes', 'N1') as d$b$, 2 as e$c$"
    assert rows(pond, dollars) == [(1, "get_state(x)", "150", 2)], "a dollar within a name begins no string"
    named = pond.sql("select get_state('planes', 'N1')")
    assert named.column_names == ["get_state('planes', 'N1')"]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("select * from weather where key = 'JFK'", 24),
        ("select temp from weather where key in ('JFK', 'EWR', 'XXX') and temp > 3", 48),
        ("select * from weather where key = 'JFK' and effective_time >= '2013-02-08T20:00Z'", 4),
        ("select * from weather a join weather b using (key) where key = 'LGA'", 48),
        ("select * from weather where key between 'F' and 'K'", 24),
        ("select * from weather where temp > 3", 72),
        ("select * from countries where key_start between 10 and 11", 1),
    ],
)
def test_conditions_become_reads_of_fewer_rows(
    pond: Pond, text: str, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    real = millpond.maps.scan.candidate_rows

    def counting(*arguments: object) -> Iterator[pa.RecordBatch]:
        for batch in real(*arguments):  # type: ignore[arg-type]
            counted.append(batch.num_rows)
            yield batch

    monkeypatch.setattr("millpond.maps.scan.candidate_rows", counting)
    pond.sql(text)
    assert sum(counted) == read


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("selec 1", "sql"),
        ("select 1; select 2", "sql"),
        ("", "sql"),
        ("select nokey from weather", "sql"),
        ("select * from nosuchmap", "sql"),
        ("select get_state(key, 'a') from weather", "sql_get_state"),
        ("select get_state('weather')", "sql"),
        ("select get_state('weather', 'JFK', 'yesterday')", "sql"),
        ("select get_state('weather', 'JFK', 1360346400)", "time_unknown"),
        ("select get_state('weather', key, epoch(effective_time)::bigint) from weather", "time_unknown"),
        ("select get_state('weather', 'JFK', 1360346400000000)", "time_range"),
        ("create table x (a int)", "sql_not_a_query"),
        ("drop view weather", "sql_not_a_query"),
        ("insert into weather select * from weather", "sql_not_a_query"),
        ("delete from weather", "sql_not_a_query"),
        ("copy (select 1) to 'x.csv'", "sql_not_a_query"),
        ("attach 'x.db'", "sql_not_a_query"),
        ("set threads = 1", "sql_not_a_query"),
        ("install httpfs", "sql_not_a_query"),
        ("select * from read_csv('/etc/passwd')", "sql_not_a_map"),
        ("select * from read_text('/etc/hostname')", "sql_not_a_map"),
        ("select * from glob('/*')", "sql_not_a_map"),
        ("select * from '/etc/passwd'", "sql"),
        ("select * from DAY", "sql"),
    ],
)
def test_what_is_not_a_question_to_maps_is_refused(pond: Pond, text: str, kind: str) -> None:
    with pytest.raises(Invalid) as refused:
        pond.sql(text)
    assert refused.value.kind == kind
    assert "\n" not in str(refused.value)


def test_a_whole_number_is_milliseconds(pond: Pond) -> None:
    moment = DAY + 3 * HOUR
    number, text = int(moment.timestamp() * 1000), moment.isoformat()
    request = f"select get_state('weather', 'JFK', {number}) = get_state('weather', 'JFK', timestamptz '{text}')"
    assert rows(pond, f"{request}, get_state('weather', 'JFK', 0) is null") == [(True, True)]


def test_a_map_that_is_not_there_is_named_with_those_that_are(pond: Pond) -> None:
    with pytest.raises(NotFound, match=r"there is: weather\)"):
        pond.sql("select get_state('wether', 'JFK')")
    with pytest.raises(Invalid, match=r"there is: weather\)"):
        pond.sql("select * from wether")
    with pytest.raises(Invalid, match=r"there is: countries, flights, planes, weather, events\)"):
        pond.sql("select * from zzz")


@pytest.mark.usefixtures("processor")
def test_a_query_that_has_enough_lets_go_of_the_map(tmp_path: Path) -> None:
    with millpond.open(tmp_path / "pond") as opened:
        many = opened.create_map("many", kind="state", value="long")
        many.load(pa.table({"key": [f"key{n:06d}" for n in range(200_000)], "value": pa.array(range(200_000))}))
        assert opened.sql("select value from many limit 3").num_rows == 3
        with many.shard.view() as view:
            assert view.generation.env is not None
            assert sum(view.generation.env._open.values()) == 1, "of all transactions, this test's own is left"


def test_a_query_keeps_what_it_spills_and_no_secrets(pond: Pond) -> None:
    query = (
        "select value from duckdb_settings() where name in ('temp_directory', 'allow_persistent_secrets') order by name"
    )
    secrets, spilled = pond.sql(query).column("value").to_pylist()
    folder = Path(spilled)
    assert (secrets, folder.parent) == ("false", Path(gettempdir()))
    assert not folder.exists(), "it goes with the query"
