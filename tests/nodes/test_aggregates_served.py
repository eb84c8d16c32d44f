"""A node that serves a folder makes aggregates, loads them, answers about them and tells of them as the folder does."""

from __future__ import annotations

import shutil
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import millpond
from millpond.clock import ManualClock
from millpond.errors import Corrupt, Invalid, MillpondError
from millpond.maps.inputs.normalise import normalise
from millpond.maps.model.event_digest import digest_salt
from millpond.maps.parts import part
from millpond.maps.search.rows_of_buckets import combined_rows
from millpond.maps.shard.digest import digest_of_view
from millpond.reports.alerts import read_alert
from tests.unit.test_data_starts import World

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = [{"key": "Lyon", "time": f"2024-03-30T22:{minute:02}Z", "total": 1.5} for minute in range(4)]
AT = "2024-03-30T22:30Z"


def check_tags(remote: Any) -> None:
    """Sets of tags are looked up and filtered through a node, also in wider buckets."""
    hits = remote.map("hits")
    assert hits.get({"host": "b", "dc": "x"}, AT) == {"value": 4}
    assert hits.lookup([{"host": "a", "dc": "x"}, "dc=x"], AT).to_pylist() == [{"value": 2}, None]
    assert hits.get("host=b, dc=x", AT, resolution="1 day") == {"value": 4}
    for where in ("tags['host'] = 'b'", [("tags['host']", "=", "b")], [("key", "=", {"host": "b", "dc": "x"})]):
        rows = hits.scan(where, columns=["key", "tags", "value"]).read_all().to_pylist()
        assert rows == [{"key": "dc=x,host=b", "tags": [("dc", "x"), ("host", "b")], "value": 4}]
    assert remote.sql("select tags['dc'] as dc, sum(value)::int as n from hits group by dc").to_pylist() == [
        {"dc": "x", "n": 6}
    ]
    for rows in (
        hits.scan(resolution="1 day").read_all(),
        remote.sql("select * from at_resolution('hits', '1 day')"),
    ):
        assert {row["key"]: row["value"] for row in rows.to_pylist()} == {"dc=x,host=a": 2, "dc=x,host=b": 4}
    with pytest.raises(Invalid) as caught:
        hits.scan(resolution="1 minute")
    assert caught.value.kind == "resolution_finer"


def test_a_node_answers_about_an_aggregate_of_its_folder(serve: Any, tmp_path: Path, clock: ManualClock) -> None:
    value = "orders long count, total double sum"
    with millpond.open(tmp_path / "pond", clock=clock) as pond:
        pond.create_map("sales", kind="aggregate", value=value, resolution="1 hour").load(EVENTS)
        hits = pond.create_map("hits", kind="histogram", key="tags", resolution="1 hour")
        hits.load([{"tags": {"host": host, "dc": "x"}, "time": AT, "value": 2} for host in "abb"])
    node = serve(server_data=str(tmp_path / "pond"))
    with millpond.open(node.url) as remote:
        sales = remote.map("sales")
        expected = {"orders": 4, "total": 6.0}
        assert sales.get("Lyon", at=AT) == expected
        assert sales.lookup(["Lyon", "Nice"], AT).to_pylist() == [expected, None]
        assert sales.get("Lyon", between=(EVENTS[0]["time"], "2024-03-31T00:00Z")) == expected
        assert sales.scan("orders > 3").read_all().num_rows == 1
        assert remote.sql(f"select get_state('sales', 'Lyon', '{AT}').orders as n").to_pylist() == [{"n": 4}]
        check_tags(remote)
        for act in (
            lambda: remote.create_map("more", kind="histogram", resolution="1 hour", store="shard", scheme="lookup"),
            lambda: sales.condense(AT),
        ):
            with pytest.raises(Invalid) as caught:
                act()
            assert caught.value.kind == "aggregate_unsupported"
        check_known(clock, sales)
        window, before = "window := '1 day').orders as n", clock.now_ms() - 60_000
        query = f"select get_state('sales', k, '2024-03-31T00:30Z', {window} from (values ('Lyon'), ('Nice')) q(k)"
        assert remote.sql(query).to_pylist() == [{"n": 5}, {"n": None}]
        known = f"select get_state('sales', 'Lyon', '2024-03-31T00:30Z', {before}, {window}"
        assert remote.sql(known).to_pylist() == [{"n": 4}]


def check_known(clock: ManualClock, sales: Any) -> None:
    """A node combines buckets also as they were known at a moment."""
    now = clock.now_ms()
    clock.advance(60_000)
    sales.load([{"key": "Lyon", "time": AT, "total": 9.0}])
    span, before = (EVENTS[0]["time"], "2024-03-31T00:00Z"), {"orders": 4, "total": 6.0}
    assert sales.lookup(["Lyon", "Nice"], between=span, known_at=now).to_pylist() == [before, None]
    assert sales.get("Lyon", AT, known_at=now, resolution="1 day") == before
    assert sales.get("Lyon", AT, known_at=now + 3_600_000, resolution="1 day")["orders"] == 5
    times = [datetime.fromisoformat(time) for time in span]
    columns = (times[0], [times[1], times[0]])
    assert sales.lookup(["Lyon", "Lyon"], between=columns, known_at=now).to_pylist() == [before, None]
    for act in (
        lambda: sales.lookup(["Lyon"], AT, between=span, known_at=now),
        lambda: sales.lookup(["Lyon"], AT, between=span, known_at=now, resolution="1 day"),
        lambda: sales.lookup(["Lyon"], between=AT, known_at=now),
    ):
        with pytest.raises(Invalid) as caught:
            act()
        assert caught.value.kind == "between"
    check_windows(sales, now, before)


def check_windows(sales: Any, now: int, before: dict[str, Any]) -> None:
    """Windows, of now and as they were known: at one moment, or at those of a column, also before all loads."""
    later, known = "2024-03-31T00:30Z", before | {"orders": 5, "total": 15.0}
    assert sales.get("Lyon", later, window="1 day") == known == sales.get("Lyon", later, window="2 hours")
    assert sales.get("Lyon", later, window="1 hour") is None
    assert sales.get("Lyon", later, window="1 day", known_at=now) == before
    moments = pa.array([0, now, now + 3_600_000, None], pa.timestamp("ms", "UTC"))
    assert sales.lookup(["Lyon"] * 4, later, window="1 day", known_at=moments).to_pylist() == [
        None, before, known, None
    ]  # fmt: skip
    times = [EVENTS[0]["time"], later, None, later]
    at = pa.array([time and datetime.fromisoformat(time) for time in times])
    answers = sales.lookup(["Lyon"] * 4, at, window="1 day", known_at=moments)
    assert answers.to_pylist() == [None, before, None, None]
    assert sales.lookup(["Nice", None], later, window="1 day", known_at=now).to_pylist() == [None, None]
    span = {"between": (EVENTS[0]["time"], later)}
    assert sales.lookup(["Lyon"] * 4, known_at=moments, **span).to_pylist() == [None, before, known, None]
    assert sales.lookup(["Lyon"] * 4, AT, known_at=moments, resolution="1 day").to_pylist() == [
        None, before, known, None
    ]  # fmt: skip
    columns = (at, [datetime.fromisoformat(later)] * 4)
    assert sales.lookup(["Lyon"] * 4, known_at=moments, between=columns).to_pylist() == [None, None, None, None]
    for question in ({"window": "90 minutes"}, {"window": "1 day", "resolution": "1 day"}):
        for known_at in (None, now):
            with pytest.raises(Invalid) as caught:
                sales.lookup(["Lyon"], later, known_at=known_at, **question)
            assert caught.value.kind == "window"


VALUE = "orders long count, total double sum, last string latest, users distinct, size quantiles(0.5)"


def events(count: int) -> list[dict[str, Any]]:
    return [
        {"key": "a", "time": f"2024-03-30T22:{minute:02}Z", "total": minute / 7, "last": str(minute),
         "users": f"u{minute % 3}", "size": float(minute)}
        for minute in range(count)
    ]  # fmt: skip


def test_events_count_once_by_whichever_door_they_come_and_however_they_are_cut(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = events(40)
    with millpond.open(tmp_path / "pond") as pond:
        sales = pond.create_map("sales", kind="aggregate", value=VALUE, resolution="1 hour", time_zone="Europe/Paris")
        sales.load(brought)
    node = serve(server_data=str(tmp_path / "pond"))
    with millpond.open(node.url) as remote:
        there = remote.map("sales")
        assert there.load(brought[::-1]).duplicate_parts == 1
        for rows_max in (7, 11):  # a writer with less memory seals more parts
            monkeypatch.setattr(part, "PART_ROWS_MAX", rows_max)
            batches = pa.Table.from_pylist(brought * 2).to_reader(4)  # also parts that are alike
            assert there.load(batches).parts == (1 if rows_max == 7 else 0)
        monkeypatch.undo()
        written = remote.part_writer("sales")
        written.write(normalise(pa.RecordBatch.from_pylist(brought), there.definition).rows)
        parts = written.finish()
        for epoch, orders in ((0, 160), (1, 200), (1, 200)):  # an epoch may bring what another one brought
            remote.commit_load(parts_copied(parts, tmp_path / f"{orders}"), stream=("query", epoch))
            assert there.get("a", AT)["orders"] == orders
        answer = there.get("a", AT)
        assert (answer["last"], round(answer["users"]), answer["size_p50"]) == ("39", 3, 20.0)
        assert answer["total"] == pytest.approx(5 * sum(event["total"] for event in brought))
        assert remote.verify().ok


def parts_copied(parts: list[part.PartFile], folder: Path) -> list[part.PartFile]:
    """The parts in files that a load may take away."""
    folder.mkdir(exist_ok=True)
    return [part.PartFile(shutil.copyfile(sealed.file, folder / "p"), sealed.manifest) for sealed in parts]


def test_tables_by_query_and_alerts_of_a_node(serve: Any, tmp_path: Path) -> None:
    node = serve(server_data=str(tmp_path / "pond"))
    with millpond.open(node.url) as remote:
        query = "select key, date_trunc('hour', time) as time, count(*) as n, avg(size) as mean from raw group by all"
        late = remote.create_map("late", as_=query)
        rule = late.alerts.add("n > 3", buckets=1)
        assert [*late.alerts.list()] == [rule]
        raw = [event | {"time": datetime.fromisoformat(event["time"])} for event in events(6)]
        assert [late.load(raw).parts, late.load(raw).parts] == [1, 0]
        assert late.scan().read_all()["mean"].to_pylist() == [2.5]
        [event] = remote.events.read("millpond", "alerts/late")
        assert event.headers["rule"] == rule.name
        assert len(late.alerts.try_("n > 1", since="1d").alerts) == 1
        for act, kind in (
            (lambda: late.alerts.add("m > 3"), "column_unknown"),
            (lambda: late.alerts.add("n > 9", name=rule.name), "alert_exists"),
            (lambda: late.alerts.remove("other"), "alert_not_found"),
            (lambda: remote.create_map("plain", kind="state").alerts, "alerts_unsupported"),
        ):
            with pytest.raises(MillpondError) as caught:
                act()
            assert caught.value.kind == kind
        late.alerts.remove(rule.name)
        assert [*late.alerts.list()] == []
        remote.alter_map("late", roll_up="1 day")
        late.retain(AT)
        late.load(raw, again=True)
        assert late.get("a", AT) == {"n": 12, "mean_sum": 30.0, "mean_count": 12, "mean": 2.5}


@pytest.mark.parametrize("store", ["layers", "shard"])
def test_a_load_that_a_node_takes_is_told_once_and_begins_one_run(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    node = serve(server_data=str(tmp_path / "pond"))
    monkeypatch.setattr(part, "PART_ROWS_MAX", 7)  # no part alone reaches the condition
    with millpond.open(node.url) as remote:
        made: dict[str, Any] = {"value": "orders long count", "resolution": "1 hour", "store": store}
        sales = remote.create_map("sales", kind="aggregate", **made)
        sales.alerts.add("orders > 30", name="many")
        world = World(node.pond, on="alerted:sales/many", overlap=True)
        brought = pa.Table.from_pylist([{"key": "a", "time": AT}] * 40)
        for is_new in (True, False):
            assert (sales.load(brought.to_reader(4)).parts > 0) == is_new
            node.until(lambda: [*remote.events.read("millpond", "alerts/sales")])
            world.look(times=2)
        [event] = remote.events.read("millpond", "alerts/sales")
        assert world.began() == [event.id]
        assert read_alert(remote.events, "sales", event.id)["after"] == {"orders": 40}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"time": 1}, "start of a bucket"), ({"orders": -1}, "no count"), ({"orders": None}, "no count"),
        ({"total": float("nan")}, "NaN"), ({"total": float("inf")}, "infinite"), ({"last": None}, "no instant"),
        ({"users_sketch": b"no"}, "no sketch"), ({"users_sketch": b"\xfftext"}, "no sketch"),
        ({"size_sketch": b"\0" * 16}, "no sketch"), ({"key": b"b=1,a=1"}, "no set of tags"),
    ],
)  # fmt: skip
def test_a_part_of_rows_that_no_events_make_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    """Rows that were written past the rules, as by a client of another make, never combine with what is there."""
    with millpond.open(tmp_path / "pond") as pond:
        made = {"kind": "aggregate", "value": VALUE, "resolution": "1 hour", "key": "tags"}
        sales = pond.create_map("sales", **made)
        sound = combined_rows(
            sales.definition,
            normalise(
                pa.RecordBatch.from_pylist([event | {"key": "a=1"} for event in events(9)]), sales.definition
            ).rows,
        )
        for row, refused in ((sound.to_pylist()[0], False), (changed(sound.to_pylist()[0], change), True)):
            rows = pa.RecordBatch.from_pylist([row], schema=sound.schema)
            folder = tmp_path / f"part{refused}"
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(part, "combined_rows", lambda _definition, rows: rows)
                file = part._seal(sales.definition, rows, folder, "", digest_salt(7, ""))
            if refused:
                with pytest.raises(Corrupt, match=reason):
                    pond.commit_load([file])
            else:
                assert pond.commit_load([file]).parts == 1
        assert sales.get("a=1", AT)["orders"] == 9


def changed(row: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A row with other content of some columns, or fields."""
    here = {name: value for name, value in change.items() if name in row}
    return row | here | {"value": row["value"] | {name: value for name, value in change.items() if name not in row}}


def digest_at(node: Any) -> str:
    """The digest of the map at a node."""
    with node.pond.map("sales").shard.view() as view:
        return str(digest_of_view(view))


def test_nodes_that_replicate_add_the_same(cluster_of: Any) -> None:
    """Rows of an aggregate are in shards there; the bytes of its quantiles differ, and nodes agree all the same."""
    cluster = cluster_of()
    with millpond.open(cluster.url, client_synchronise=True) as remote:
        sales = remote.create_map("sales", kind="aggregate", value=VALUE, resolution="1 hour")
        assert sales.definition.store == "shard"
        brought = events(59) * 9  # more numbers than a sketch keeps
        for number in range(3):
            sales.load([event | {"total": event["total"] + number / 3} for event in brought])
        assert sales.load([event | {"total": event["total"]} for event in brought]).parts == 0
        remote.merge()
        assert len({digest_at(node) for node in cluster.nodes}) == 1
        for node in cluster.nodes:
            assert node.pond.map("sales").get("a", AT)["orders"] == 3 * 59 * 9
        with pytest.raises(Invalid, match="one node"):
            remote.create_map("more", kind="histogram", resolution="1 hour", store="layers")
        assert remote.verify().ok


def test_nodes_that_replicate_roll_up_the_same(cluster_of: Any) -> None:
    """Each where the log says so: after one load, and before another."""
    cluster = cluster_of()
    with millpond.open(cluster.url, client_synchronise=True) as remote:
        sales = remote.create_map("sales", kind="aggregate", value=VALUE, resolution="1 hour")
        hourly = [event | {"time": f"2024-03-30T{hour:02}:10Z"} for hour in range(24) for event in events(7)]
        sales.load(hourly)
        remote.alter_map("sales", roll_up="1 day")
        cluster.nodes[0].pond.log.order_maintenance("sales", "retain", 1_711_929_600_000)
        sales.load(hourly[:5], again=True)
        remote.merge()
        assert len({digest_at(node) for node in cluster.nodes}) == 1
        for node in cluster.nodes:
            here = node.pond.map("sales")
            assert here.scan().read_all()["orders"].to_pylist() == [24 * 7 + 5]
            assert here.get("a", AT)["orders"] == 24 * 7 + 5
        assert remote.verify().ok
