"""Events as a table of SQL: what is in it, what a condition leaves to be read, and a map that has its name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock
from millpond.errors import Corrupt, Invalid
from millpond.event_table import EventTable
from millpond.events.days import DAY_MS
from millpond.events.event import Event, EventBatch, NewEvent
from millpond.events.names import StreamName
from millpond.events.rows import TABLE, read_rows
from millpond.maps.sql import query

if TYPE_CHECKING:
    from millpond import Pond
    from millpond.events.events import Events
    from millpond.events.index import StreamIndex

NOON = 20_000 * DAY_MS + DAY_MS // 2
KINDS = ("submitted", "running", "failed")


@pytest.fixture(scope="module")
def pond(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pond]:
    """Three days of four streams; two events of each on each day."""
    clock = ManualClock(now=NOON)
    with millpond.open(tmp_path_factory.mktemp("sql") / "pond", clock=clock) as opened:
        assert isinstance(opened, millpond.Pond)
        for kind in KINDS:
            events = [NewEvent(clock.now - 5, job.encode(), kind, {"job_id": job} if job else {}) for job in ("x", "")]
            for name in (("etl", "a"), ("etl", "b"), ("ops", "a"), ("ops", "é'")):
                opened.events.append(*name, events)
            clock.now += DAY_MS
        opened.events.compress("1d")
        yield opened


def rows(pond: Pond, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pond.sql(text).to_pylist()]


def test_every_event_is_a_row(pond: Pond) -> None:
    assert rows(pond, "select count(*), count(job), count(distinct id) from events") == [(24, 12, 6)]
    assert pond.sql("from events limit 0").schema.names == TABLE.names
    found = rows(
        pond, "select job_set, kind, payload, headers['job_id'], day from Events where queue = 'etl' order by id"
    )
    assert len(found) == 12 and found[0][1:] == ("submitted", b"x", "x", date(2024, 10, 4))
    first = (
        "select min(time), min(appended) from events where job_set = 'é''' and queue = 'ops' and kind <> 'submitted'"
    )
    assert rows(pond, first) == [
        (datetime(2024, 10, 5, 11, 59, 59, 995_000, UTC), datetime(2024, 10, 5, 12, tzinfo=UTC))
    ]
    assert rows(pond, "select count(*) from events e join millpond.events m using (queue, job_set, id)") == [(24,)]


class Recording:
    """The events of a pond, and what was asked of them."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.listed = self.looked_up = 0
        self.read_streams: list[str] = []
        self.read_events = 0

    def index(self, queue: str, job_set: str) -> StreamIndex | None:
        self.looked_up += 1
        return self._events.index(queue, job_set)

    def indexes(self, queue: str | None = None) -> Iterator[StreamIndex]:
        self.listed += 1
        return self._events.indexes(queue)

    def read(self, queue: str, job_set: str, after: str = "", *, filters: Any = None) -> Iterator[Event]:
        self.read_streams.append(f"{queue}/{job_set}")
        for event in self._events.read(queue, job_set, after, filters=filters):
            self.read_events += 1
            yield event


@pytest.mark.parametrize(
    ("where", "count", "streams", "events_max"),
    [
        ("queue = 'etl' and job_set = 'a'", 6, ["etl/a"], 6),
        ("queue = 'etl' and job_set in ('a', 'none')", 6, ["etl/a"], 6),
        ("queue = 'none'", 0, [], 0),
        ("queue >= 'f' and job_set >= 'b'", 6, ["ops/é'"], 6),
        ("queue = 'etl' and job_set = 'a' and appended >= '2024-10-06'", 2, ["etl/a"], 2),
        ("queue = 'etl' and job_set = 'a' and appended < '2024-10-05'", 2, ["etl/a"], 3),
        ("queue = 'etl' and job_set = 'a' and appended between '2024-10-05' and '2024-10-06'", 2, ["etl/a"], 3),
        ("queue = 'etl' and job_set = 'a' and day = '2024-10-05'", 2, ["etl/a"], 3),
        ("queue = 'etl' and job_set = 'a' and day >= '2024-10-07'", 0, [], 0),
        ("queue = 'etl' and job_set = 'a' and time >= '2024-10-06'", 2, ["etl/a"], 6),
        ("queue = 'etl' and job_set = 'a' and kind = 'failed' and job = 'x'", 1, ["etl/a"], 1),
        ("queue = 'etl' and job_set = 'a' and kind in ('failed', 'running')", 4, ["etl/a"], 4),
        ("queue = 'etl' and job_set = 'a' and (kind = 'failed' or job = 'x')", 4, ["etl/a"], 6),
        ("queue = 'etl' and job_set = 'a' and job is null and appended < '2024-10-06'", 2, ["etl/a"], 5),
        ("queue = 'etl' and job_set = 'a' and id > '' and payload = 'x'::blob", 3, ["etl/a"], 6),
        ("queue = 'etl' and id >= 'zzz'", 0, ["etl/a", "etl/b"], 12),
        ("queue = 'etl' or job_set = 'a'", 18, ["etl/a", "etl/b", "ops/a", "ops/é'"], 24),
    ],
)
def test_a_condition_limits_what_is_read(
    pond: Pond, where: str, count: int, streams: list[str], events_max: int
) -> None:
    seen = Recording(pond.events)
    table = query(pond, f"select count(*) from events where {where}", [EventTable(lambda: seen)])  # type: ignore[arg-type,return-value]
    assert table.column(0).to_pylist() == [count]
    assert sorted(seen.read_streams) == streams and seen.read_events <= events_max
    if where.startswith("queue = 'etl' and job_set"):
        assert seen.listed == 0, "one stream is looked up, whatever others there are"


@pytest.mark.usefixtures("processor")
@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(
            [
                "queue = 'etl'", "job_set = 'a'", "job_set > 'a'", "day >= '2024-10-05'", "job = 'x'", "job is null",
                "day in ('2024-10-04', '2024-10-06')", "kind = 'failed'", "kind in ('failed', 'running', 'é')",
                "appended > '2024-10-05 12:00Z'", "appended <= '2024-10-05 12:00Z'", "time < '2024-10-05'",
                "day < '2024-10-06'", "queue <> 'ops'",
            ]
        ),
        min_size=1, max_size=4,
    ),
    words=st.lists(st.sampled_from([" and ", " or ", " and not "]), min_size=3, max_size=3),
)  # fmt: skip
def test_conditions_take_the_events_that_they_say(pond: Pond, parts: list[str], words: list[str]) -> None:
    """DuckDB finds the same in a copy of all events, where nothing is left out."""
    where = "".join(part + word for part, word in zip(parts, [*words[: len(parts) - 1], ""], strict=True))
    copied = "with copied as materialized (from events) select queue, job_set, id from copied where {} order by all"
    assert rows(pond, f"select queue, job_set, id from events where {where} order by all") == rows(
        pond, copied.format(where)
    )


def test_a_map_named_events_is_the_table_events(tmp_path: Any) -> None:
    with millpond.open(tmp_path / "pond") as pond:
        pond.create_map("events", kind="state", value="long").load([{"key": "a", "value": 1}])
        pond.events.append("etl", "nightly", [b"10 rows"])
        assert pond.sql("from events").to_pylist() == [{"key": "a", "value": 1}]
        assert pond.sql("select payload from millpond.events").to_pylist() == [{"payload": b"10 rows"}]
        pond.drop_map("events")
        assert pond.sql("select count(*) as n from events").to_pylist() == [{"n": 1}]
        with pytest.raises(Invalid) as refused:
            pond.sql("insert into events values (1)")
        assert refused.value.kind == "sql_not_a_query"
        with pytest.raises(Invalid) as unknown:
            pond.sql("from evnts")
        assert "events" in str(unknown.value.hint)


def test_what_fails_below_is_raised_as_it_was(pond: Pond) -> None:
    class Broken(Recording):
        def read(self, *names: Any, **more: Any) -> Iterator[Event]:
            raise Corrupt("a batch is damaged", kind="events_damaged")

    broken = EventTable(lambda: Broken(pond.events))  # type: ignore[arg-type,return-value]
    with pytest.raises(Corrupt):
        query(pond, "select count(*) from events", [broken])
    with pytest.raises(Invalid) as refused:
        pond.sql(f"from events where queue = '{'q' * 300}' and job_set = 'a'")
    assert refused.value.kind == "stream_name"


def test_events_are_read_page_by_page_and_no_more_than_a_query_takes(pond: Pond) -> None:
    name = StreamName("large", "one")
    pond.events.store.append([EventBatch(name, [NewEvent(NOON, b"%d" % number) for number in range(50_000)])])
    seen = Recording(pond.events)
    limited = "select payload from events where queue = 'large' limit 10"
    assert query(pond, limited, [EventTable(lambda: seen)]).num_rows == 10  # type: ignore[arg-type,return-value]
    assert seen.read_events < 50_000
    index = pond.events.index(*name)
    assert index is not None
    assert max(batch.num_rows for batch in read_rows(pond.events, index, 0, index.last_id)) == 10_000
    pond.events.store.expire(name, index.last_day)
