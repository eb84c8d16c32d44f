"""Queries of the console: they answer as those of a pond do, from a process that hostile ones may end."""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.arrays.arrow_streams import stream_of
from millpond.errors import Invalid, MillpondError, Unavailable
from millpond.events.event import NewEvent
from millpond.json_forms import parse_object, to_json
from millpond.maps.sql import Bounds, query
from millpond.nodes.tokens import TokenFile
from millpond.server.confined import confined
from millpond.server.console import queries
from millpond.server.console.queries import Tables, answer_of, condition_of
from millpond.server.console.query_work import Define, Lookup, Next, Open, bounds_of
from millpond.server.console.sql import ROWS_MAX
from millpond.server.console.tables import shown_rows
from millpond.tables import RowTable
from millpond.tables.rows import Left
from tests.nodes.conftest import BEGIN, Served

JSON = {"Accept": "application/json"}
TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema([("text", pa.string()), ("whole", pa.int64()), ("real", pa.float64()), ("day", pa.date32()),
                    ("at", TIME), ("micro", pa.timestamp("us", "UTC")), ("yes", pa.bool_())])  # fmt: skip
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(["", "a", "b", "é", "a%"]), "whole": st.integers(-3, 3) | st.just(2**63 - 1),
    "real": st.sampled_from([-1.5, 0.0, 2.0, float("inf")]),
    "day": st.dates(datetime.date(1969, 12, 30), datetime.date(1970, 1, 3)),
    "at": st.integers(-2, 2), "micro": st.integers(-2_500, 2_500), "yes": st.booleans(),
}  # fmt: skip
ROW = st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()})


@st.composite
def conditions(draw: st.DrawFn) -> pc.Expression:
    """Conditions as DuckDB hands them down."""
    name = draw(st.sampled_from(SCHEMA.names))
    column, kind = pc.field(name), SCHEMA.field(name).type

    def literal() -> pa.Scalar:
        return pa.scalar(draw(VALUES[name]), kind)

    match draw(st.sampled_from(["compare", "in", "null", "and", "or", "not"])):
        case "compare":
            word = draw(st.sampled_from(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"]))
            compared: pc.Expression = getattr(column, word)(pc.scalar(literal()))
            return compared
        case "in":
            return column.isin(pa.array([draw(VALUES[name]) for _ in range(draw(st.integers(0, 3)))], kind))
        case "null":
            return column.is_null()
        case "and":
            return draw(conditions()) & draw(conditions())
        case "or":
            return draw(conditions()) | draw(conditions())
    return ~draw(conditions())


@given(rows=st.lists(ROW, max_size=8), where=conditions())
def test_bounds_leave_out_no_row_that_a_condition_takes(rows: list[dict[str, Any]], where: pc.Expression) -> None:
    table = pa.table({name: pa.array([row[name] for row in rows], SCHEMA.field(name).type) for name in SCHEMA.names})
    sent = condition_of(bounds_of(where, SCHEMA), SCHEMA)
    taken = table.filter(where)
    assert (table if sent is None else table.filter(sent)).filter(where).equals(taken)
    if sent is not None:  # and they bound as much for who reads them
        assert condition_of(bounds_of(sent, SCHEMA), SCHEMA).equals(sent)


QUERIES = (
    "select key, temp, n from weather order by key, effective_time",
    "select key from weather where key = 'b' and effective_time >= '2026-01-01T00:00:00Z'",
    "select count(*) from weather where key in ('a', 'c') or temp is null",
    "select max(temp) from weather where temp > 1.0 and n < 10",
    "select key, get_state('weather', key).temp as temp from weather order by all",
    "select get_state('weather', k, t).n from (values ('a', timestamptz '2026-01-01 00:00:30'), ('z', null)) x(k, t)",
    "select get_state('weather', 'a', 1767225600000).n, get_state('numbers', 5), get_state('numbers', '7'::varchar)",
    "select get_state('sums', 'a', timestamptz '2026-01-01T00:30:00Z', timestamptz '2030-01-01')",
    "select * from at_resolution('sums', '1 day')",
    "select get_state('sums', 'a', timestamptz '2026-01-02T00:00Z', window := '1 day')",
    "select get_state('sums', 'a', timestamptz '2026-01-02', timestamptz '2030-01-01', window := '1 day')",
    "select * from sums where time >= '2026-01-01T01:00:00Z'",
    "select * from numbers where key_start <= 5 and key_end >= 5",
    "select key from events", "select kind, job, payload from millpond.events where queue = 'etl'",
    "select count(*) from millpond.events where day >= '2026-01-01' and kind in ('submitted', 'x')",
    "select name from repositories", "select count(*) from refs where repository = 'files' and type = 'branch'",
    "select id, parents from commits where repository = 'files' and ref = 'main' limit 1", "from runs",
    "pivot (select key, n from weather) on key using sum(n)", "explain select key from weather", "show tables",
    "select table_name from information_schema.tables order by all", "select 170141183460469231731687303715884105727",
    "select 'nan'::double, 'inf'::float, date '20000-01-01', interval '1 day', [1, 2], {'a': 'ab'::blob}",
    "select", "drop table weather", "select 1; select 2", "select * from wether", "select * from 'a.csv'",
    "select get_state(key) from weather", "select get_state('none', 'a')", "select get_state('weather', [1])",
    "select get_state('weather', 'a', 12345)", "select get_state('numbers', 'x')", "select error('ours')",
    "select read_text('/etc/passwd')", "set threads = 3", "select get_state('weather', 'a', 'no time')",
)  # fmt: skip


def fill(node: Served) -> None:
    minutes = [{"effective_time": BEGIN + 60_000 * minute} for minute in range(3)]
    weather = node.pond.create_map("weather", kind="temporal_state", value="struct<temp: double, n: long>")
    weather.load([{"key": key, "temp": float(number) if number else None, "n": number} | minutes[number]
                  for number, key in enumerate("abc")])  # fmt: skip
    node.pond.create_map("numbers", kind="ranged_state", value="string").load(
        [{"key_start": 1, "key_end": 6, "value": "low"}, {"key_start": 7, "key_end": 9, "value": "high"}]
    )
    sums = node.pond.create_map("sums", kind="aggregate", value="n long sum", resolution="1 hour", store="layers")
    sums.load([{"key": key, "time": BEGIN + 3_600_000 * hour, "n": 1 << hour} for key in "ab" for hour in range(3)])
    node.pond.create_map("events", kind="state", value="long").load([{"key": "mine", "value": 1}])
    node.pond.events.append("etl", "night", [NewEvent(BEGIN, b"a", "submitted", {"job_id": "7"})])
    node.pond.repositories.create("files").branch("main").put("a", b"1")


def test_a_page_answers_as_the_pond_does(serve: Callable[..., Served]) -> None:
    node = serve()
    fill(node)
    for text in QUERIES:
        page = node.get(f"/console/sql?{urlencode({'q': text})}", headers=JSON).json()
        assert (page["result"], page["error"]) == answered_here(node, text), text


def test_a_page_shows_what_differs_between_refs(serve: Callable[..., Served]) -> None:
    node = serve()
    many = [{"key": f"k{number}", "value": number} for number in range(2_500)]
    node.pond.create_map("m", kind="state", value="long", store="layers").load(many)
    fix = node.pond.branch("fix", source="main")
    fix.map("m").load([{**row, "value": -1} for row in many])
    for text in (
        "select change, count(*), sum(old), sum(new) from map_diff('m', 'main', 'fix') group by 1",
        "select * from map_diff('m', 'main', 'fix') where key = 'k7'", "from map_diff('m', 'main', 'nope')",
        "from map_diff('nope', 'main', 'fix')", "from map_diff('m')",
    ):  # fmt: skip
        page = node.get(f"/console/sql?{urlencode({'q': text})}", headers=JSON).json()
        assert (page["result"], page["error"]) == answered_here(node, text), text


def answered_here(node: Served, text: str) -> tuple[Any, str | None]:
    """The rows and the error of a page, as the pond itself answers."""
    try:
        return parse_object(to_json(shown_rows(node.pond.sql(text), ROWS_MAX))), None
    except MillpondError as error:
        return None, str(error)


def test_a_process_gets_no_table_that_its_caller_may_not_read() -> None:
    tables, columns = Tables([], []), bytes(stream_of(pa.record_batch([pa.array(["a"])], ["keys"])))
    opens = (Open(1, "theirs", other, {}, ["key"]) for other in (True, False))
    for question in (Define("theirs"), *opens, Next(1), Lookup("theirs", columns, None)):
        with pytest.raises(KeyError):
            tables.answer(msgspec.msgpack.encode(question))
    for wrong in (b"", b"\xff", msgspec.msgpack.encode({"type": "Other"})):
        with pytest.raises(msgspec.MsgspecError):
            tables.answer(wrong)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("keys", pa.null())])) as writer:
        writer.write_batch(pa.record_batch([pa.nulls(1 << 26)], ["keys"]))
    with pytest.raises(Invalid) as error:
        tables.answer(msgspec.msgpack.encode(Lookup("theirs", bytes(sink.getvalue()), None)))
    assert error.value.kind == "lookup_too_large"


@pytest.mark.parametrize(("sizes", "expected"), [
    ([1] * 7, [7]), ([], []), ([400] * 5, [1_200, 800]), ([5_000, 1, 1], [5_000, 2]), ([0, 0], [0]),
])  # fmt: skip
def test_small_batches_come_at_one_question(sizes: list[int], expected: list[int]) -> None:
    numbers = RowTable("numbers", pa.schema([("n", pa.int64())]), lambda _left: ([(1,)] * size for size in sizes))
    tables = Tables([], [numbers])
    questions = [Open(1, "numbers", True, {}, ["n"]), *(Next(1) for _ in expected)]
    answers = [bytes(tables.answer(msgspec.msgpack.encode(question))) for question in questions]
    assert answers[-1] == b""
    assert [pa.ipc.open_stream(answer).read_all().num_rows for answer in answers[:-1]] == expected


def test_large_rows_come_one_by_one() -> None:
    texts = RowTable("texts", pa.schema([("t", pa.string())]), lambda _left: ([("x" * (1 << 20),)] for _ in range(3)))
    tables = Tables([], [texts])
    for question in (Open(1, "texts", True, {}, ["t"]), Next(1), Next(1)):
        assert pa.ipc.open_stream(bytes(tables.answer(msgspec.msgpack.encode(question)))).read_all().num_rows == 1


def test_a_query_has_a_bound_in_rows_and_memory(serve: Callable[..., Served]) -> None:
    node = serve()
    bounds = Bounds(3, 64 << 20, 1)
    assert query(node.pond, "select * from range(1000000000000)", (), bounds).num_rows == 3
    groups = "pivot (select range % 2 as a, range as b from range(1000)) on a using count(*) group by b"
    assert query(node.pond, groups, (), bounds).num_rows == 3
    for large in ("select list(range) from range(100000000)", "select range from range(30000000) order by hash(range)"):
        with pytest.raises(Unavailable, match="more memory than there is"):
            query(node.pond, large, (), replace(bounds, rows_max=30_000_000))
    page = node.get("/console/sql?q=select+*+from+range(10000)", headers=JSON).json()
    shown = page["result"]
    assert (len(shown["rows"]), shown["more"]) == (ROWS_MAX, True)


HOSTILE_QUERIES = (
    "select repeat('x', 4000000) from range(500)",
    "select range(20000000) from range(20)",
    "select list(range) from range(30000000)",
    "select a.range, list(b.range) from range(20000000) a, range(20) b group by all",
    "select repeat('x', 40000) from range(500)",
)


def test_a_hostile_query_is_refused_by_its_limit(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    node = serve()
    for number, text in enumerate(HOSTILE_QUERIES):
        error = node.get(f"/console/sql?{urlencode({'q': text})}", headers=JSON).json()["error"]
        assert ("memory_max=384MiB" if number < 4 else "bytes_max=8388608") in error, text
    monkeypatch.setattr(queries, "SECONDS_MAX", 1)
    slow = urlencode({"q": "select sum(range * range) from range(100000000000000)"})
    assert "seconds_max=1" in node.get(f"/console/sql?{slow}", headers=JSON).json()["error"]
    file = node.get(f"/console/sql/export?{slow}", headers=JSON)
    assert (file.status, file.json()["kind"]) == (503, "question_slow")


@pytest.mark.usefixtures("process")
def test_a_table_that_takes_too_long_is_ended_between_two_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = 0

    def read(_left: Left) -> Iterator[list[tuple[int]]]:
        nonlocal pages
        while True:
            pages += 1
            yield [(pages,)]

    def page(text: str) -> Any:
        tables = Tables([], [RowTable("endless", pa.schema([("n", pa.int64())]), read)])
        return parse_object(answer_of(tables, text, now_ms=BEGIN, form="page", rows_max=10))

    assert page("from endless")["rows"] == [[number] for number in range(1, 11)]
    monkeypatch.setattr(queries, "SECONDS_MAX", 1)
    with pytest.raises(Unavailable, match="longer than one may"):
        page("select count(*) from endless where n < 0")


def test_a_query_ends_with_its_reader(serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    node = serve()
    begun, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(queries, "SECONDS_MAX", 600)

    def watched(*args: Any, **options: Any) -> bytes:
        begun.set()
        try:
            return confined(*args, **options)
        finally:
            ended.set()

    monkeypatch.setattr(queries, "confined", watched)
    slow = urlencode({"q": "select sum(range * range) from range(100000000000000)"})
    host, port = node.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as reader:
        reader.sendall(f"GET /console/sql?{slow} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert begun.wait(60)
    assert ended.wait(60)


def test_as_many_queries_go_on_at_once_as_large_questions(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = serve(limits={"large_threads": 2}, server_max_request_memory="4GiB")
    going, most, lock, full = 0, 0, threading.Lock(), threading.Event()

    def counted(*args: Any, **options: Any) -> bytes:
        nonlocal going, most
        with lock:
            going += 1
            most = max(most, going)
            if going == 2:
                full.set()
        assert full.wait(60)
        try:
            return confined(*args, **options)
        finally:
            with lock:
                going -= 1

    monkeypatch.setattr(queries, "confined", counted)
    with ThreadPoolExecutor(6) as pool:
        pages = list(pool.map(lambda _: node.get("/console/sql?q=select+1+as+one", headers=JSON), range(6)))
    assert most == 2
    assert [page.json()["result"]["rows"] for page in pages] == [[[1]]] * 6


def test_a_token_finds_a_query_and_a_scan_beside_the_queries_of_another(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = serve()
    node.pond.create_map("weather", kind="state", value="temp double")
    begun, go_on = threading.Semaphore(0), threading.Event()

    def held(confines: Any, *args: Any, **options: Any) -> bytes:
        if "slow" in args[2]:
            begun.release()
            assert go_on.wait(60)
        return confined(confines, *args, **options)

    monkeypatch.setattr(queries, "confined", held)
    for name in ("many", "other"):
        TokenFile(node.pond.folder).add(name, f"secret-{name}", {"read": ["map:*"]})
    many, other = ({**JSON, "Authorization": f"Bearer secret-{name}"} for name in ("many", "other"))
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(node.get, "/console/sql?q=select+1+as+slow", headers=many) for _ in range(4)]
        try:
            assert begun.acquire(timeout=60)
            assert node.get("/console/sql?q=select+1+as+one", headers=other).json()["result"]["rows"] == [[1]]
            assert node.post("/v1/maps/weather/scan", {}, headers=other).status == 200
            assert not begun.acquire(timeout=0.1)
        finally:
            go_on.set()
        assert {page.result().status for page in slow} == {200}
