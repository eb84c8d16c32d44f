"""Single events in Redis: rows that are deflated with the first of their day, shared calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
import pytest

pytest.importorskip("redis")

from millpond.clock import ManualClock
from millpond.errors import Corrupt, Invalid, NotFound, Uncertain
from millpond.events.compress import compress_stream
from millpond.events.days import DAY_MS
from millpond.events.deletion import delete_job
from millpond.events.event import Event, EventBatch, NewEvent
from millpond.events.names import StreamName
from millpond.events.redis.connections import Connections
from millpond.events.redis.keys import PondKeys
from millpond.events.redis.store import RedisStore
from millpond.events.single import is_deflated
from tests.contracts.test_redis_store import STREAM, delivered, keys_left, numbers, opened, own_server
from tests.data import make_redis_streams as golden
from tests.harness.call_counts import counted_calls
from tests.harness.contracts.stream_site import NOON, TODAY, everything
from tests.redis_servers import new_place, server

pytestmark = pytest.mark.usefixtures("process", "redis_server")


@pytest.fixture
def store() -> Iterator[RedisStore]:
    with opened(server().url(new_place())) as store:
        yield store


def alike(number: int, job: str = "7") -> EventBatch:
    """An event that differs from the others of its stream in little."""
    payload = b'{"cluster":"one","node":"gke-pool-097","namespace":"etl-nightly","number":%d}' % number
    return EventBatch(STREAM, [NewEvent(NOON, payload, "running", {"job_id": job})], "kafka:jobs/0", [number])


def numbers_of(events: Sequence[Event]) -> list[int]:
    return [msgspec.json.decode(event.payload)["number"] for event in events]


def rows_of(place: str) -> list[bytes]:
    with server().client() as client:
        return [fields[b"e"] for _, fields in client.xrange(PondKeys(place).keys_of(STREAM).raw)]


def test_single_events_are_deflated_with_the_first_of_their_day() -> None:
    place, clock = new_place(), ManualClock(now=NOON)
    url = server().url(place)
    with opened(url, clock) as store, opened(url, clock) as other:
        for number in range(3):
            store.append([alike(number)])
        for number in range(3, 6):
            other.append([alike(number)])
        clock.now += DAY_MS
        store.close_day(STREAM, TODAY)
        store.append([alike(6)])
        store.append([alike(7)])
        whole = [0, 3, 6]  # the first of a day, and the first of a process that does not know it
        rows = rows_of(place)
        assert [is_deflated(row) for row in rows] == [number not in whole for number in range(8)]
        assert max(len(rows[number]) for number in (1, 2, 4, 5, 7)) < len(rows[0]) / 3
        events = everything(store)
        assert [(event.payload, event.kind, dict(event.headers)) for event in events] == [
            (batch.events[0].payload, "running", {"job_id": "7"}) for batch in map(alike, range(8))
        ]
        for place_, event in enumerate(events):
            assert everything(other, after=event.number) == events[place_ + 1 :]
        assert store.append([alike(7)])[0].repeated == 1
        assert compress_stream(store, STREAM, TODAY + 1).days == 2 and everything(other) == events


def test_an_event_is_sent_whole_when_its_reference_is_not_there_any_more() -> None:
    """A server took over that lacks the first row of the day, and has got another one."""
    place = new_place()
    with opened(server().url(place)) as store, opened(server().url(place)) as other, server().client() as client:
        store.append([alike(0)])
        store.append([alike(1)])
        client.delete(*keys_left(place))
        other.append([EventBatch(STREAM, [NewEvent(NOON, b"another")])])
        assert store.append([alike(2)])[0].count == 1
        assert [is_deflated(row) for row in rows_of(place)] == [False, False]
        assert [event.payload for event in everything(store)] == [b"another", alike(2).events[0].payload]


@pytest.mark.parametrize("sent_alone", [True, False])
def test_what_is_sent_again_is_stored_also_where_replicas_are_lacking(
    monkeypatch: pytest.MonkeyPatch, sent_alone: bool
) -> None:
    """The day that a process knows was deleted by another: it sends an event twice, and is uncertain at the end."""
    monkeypatch.setattr("millpond.events.redis.servers.REPLICAS_MS", 1)
    soon = "--repl-diskless-sync-delay", "0"
    with own_server(*soon) as own, own_server("--replicaof", "127.0.0.1", str(own.port)) as replica:
        url = own.url("p").replace("#", "?replicas=1#")
        with opened(url) as store, opened(own.url("p")) as other, replica.client() as client:
            while client.info("replication")["master_link_status"] != "up":
                with suppress(Uncertain):
                    store.append([alike(0)])
            for number in range(3):
                with suppress(Uncertain):
                    store.append([alike(number)])
            other.delete(STREAM)
            client.replicaof("NO", "ONE")
            with pytest.raises(Uncertain) as caught:
                store.append([alike(9) if sent_alone else delivered(1, 9)])
            assert caught.value.kind == "redis_replicas"
            assert len(everything(store)) == (1 if sent_alone else 7), "as the error says"


def test_single_events_are_deflated_anew_after_their_job_set_was_deleted() -> None:
    place, clock = new_place(), ManualClock(now=NOON)
    url = server().url(place)
    with opened(url, clock) as store, opened(url, clock) as other:
        for number in range(0, 6, 2):
            store.append([alike(number)])
            other.append([alike(number + 1)])
        after = everything(store)[-1].number
        assert other.delete(STREAM) == 6 and rows_of(place) == []
        for number in range(6, 12, 2):
            store.append([alike(number)])
            other.append([alike(number + 1)])
        assert [is_deflated(row) for row in rows_of(place)] == [False, False, True, True, True, True]
        events = everything(store)
        assert numbers_of(events) == list(range(6, 12)) and everything(other, after=after) == events
        assert compress_stream(store, STREAM, TODAY).days == 1 and everything(other) == events
        assert store.check().ok


def test_single_events_are_read_after_the_first_of_their_day_was_erased() -> None:
    place, clock = new_place(), ManualClock(now=NOON)
    with opened(server().url(place), clock) as store:
        for number in range(6):
            store.append([alike(number, job="ab"[number % 2])])
        assert [is_deflated(row) for row in rows_of(place)] == [False] + 5 * [True]
        assert delete_job(store, STREAM, "a") == 3
        for number in range(6, 9):
            store.append([alike(number, job="a")])
        assert [is_deflated(row) for row in rows_of(place)] == [False, True, True]
        assert numbers_of(everything(store)) == [1, 3, 5, 6, 7, 8] and store.check().ok
        with pytest.raises(NotFound):
            delete_job(store, STREAM, "c")
        assert delete_job(store, STREAM, "a") == 3 and numbers_of(everything(store)) == [1, 3, 5]
        assert store.delete(STREAM) == 3 and everything(store) == []


def test_a_row_whose_reference_is_damaged_is_corrupt(store: RedisStore) -> None:
    for number in range(3):
        store.append([alike(number)])
    raw = PondKeys(store.location.partition("#")[2]).keys_of(STREAM).raw
    after = everything(store)[1].number
    with server().client() as client:
        ((first, _),) = client.xrange(raw, count=1)
        client.xdel(raw, first)
    with pytest.raises(Corrupt) as caught:
        store.read(STREAM, after)
    assert caught.value.kind == "events_damaged"


def test_streams_of_many_shards_share_calls_and_are_stored_as_one_by_one(store: RedisStore) -> None:
    streams = [StreamName("q", str(number)) for number in range(700)]
    for turn in range(2):
        batches = [delivered(turn, 1, stream) for stream in streams]
        assert [outcome.count for outcome in store.append(batches)] == [1] * 700
        assert [outcome.repeated for outcome in store.append(batches)] == [1] * 700
    more = [delivered(2, 1 + number % 3, stream) for number, stream in enumerate(streams)]
    assert sum(outcome.count for outcome in store.append(more)) == sum(len(batch.events) for batch in more)
    for number, stream in enumerate(streams[:10]):
        assert numbers(store, stream) == list(range(3 + number % 3))
    assert store.check().ok


def test_streams_that_share_a_call_with_one_of_another_version_are_not_stored_alone(store: RedisStore) -> None:
    streams = [StreamName("q", str(number)) for number in range(5)]
    store.append([delivered(0, 1, stream) for stream in streams])
    head = PondKeys(store.location.partition("#")[2]).keys_of(streams[3]).head
    with server().client() as client:
        row = client.get(head)
        assert isinstance(row, bytes)
        client.set(head, b"\x63" + row[1:])
        with pytest.raises(Invalid) as caught:
            store.append([delivered(1, 1, stream) for stream in streams])
        assert caught.value.kind == "events_format"
        client.set(head, row)
    assert [numbers(store, stream) for stream in streams] == [[0]] * 5


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_streams_of_an_earlier_version_are_read_and_appended_to(version: int, alone: bool) -> None:
    """Version 1 had no reference, and neither had the position of a source in the head."""
    place, clock = new_place(), ManualClock(now=golden.NOON + 2 * DAY_MS)
    heads = [PondKeys(place).keys_of(stream).head for stream in golden.STREAMS]
    rows = json.loads((golden.FOLDER / "redis-streams-2.json").read_text())
    with server().client() as client, opened(server().url(place), clock) as store:
        for key, row in rows.items():
            client.restore(place + key, 0, bytes.fromhex(row))
        for head in heads:
            row = client.get(head)
            assert isinstance(row, bytes) and row[0] == 2
            if version == 1:
                client.set(head, b"\x01" + row[1:62] + row[66:])
        assert store.check().ok and store.streams(limit=9) == sorted(golden.STREAMS, reverse=True)
        for number in range(golden.EVENTS + 4):
            batches = [golden.delivered(stream, number, clock.now) for stream in golden.STREAMS]
            answers = [store.append([batch])[0] for batch in batches] if alone else store.append(batches)
            assert [(answer.count, answer.repeated) for answer in answers] == 2 * [
                (0, 1) if number < golden.EVENTS else (1, 0)
            ]
        assert [client.getrange(head, 0, 0) for head in heads] == [b"\x03", b"\x03"] and store.check().ok
        for stream in golden.STREAMS:
            events = everything(store, stream)
            assert numbers_of(events) == list(range(golden.EVENTS + 4))
            for day in range(3):
                compress_stream(store, stream, golden.NOON // DAY_MS + day)
            assert everything(store, stream) == events and store.expire(stream, golden.NOON // DAY_MS + 1) == 8
        assert store.check().ok


def test_an_append_of_one_event_takes_few_steps() -> None:
    with own_server() as own, own.client() as client, opened(own.url("p")) as store:
        for number in range(3):
            store.append([alike(number)])
        batch = alike(3)
        client.config_resetstat()
        with counted_calls() as calls:
            store.append([batch])
        assert calls.total() <= 50, calls
        made = {name: row["calls"] for name, row in client.info("commandstats").items() if "config" not in name}
        assert made == {f"cmdstat_{name}": 1 for name in ("evalsha", "get", "set", "spublish", "xadd")}


@pytest.mark.parametrize("others", [0, 40])
def test_positions_of_all_sources_are_remembered_whichever_came_last(store: RedisStore, others: int) -> None:
    """That of the last one is in the head, and those of others beside it."""
    sources = [f"kafka:jobs/{number}" for number in range(3)]

    def append(source: str, position: int) -> tuple[int, int]:
        batch = EventBatch(STREAM, [NewEvent(NOON, b"%d" % position)], source, [position])
        beside = [delivered(position, 1, StreamName("q", str(number))) for number in range(others)]
        outcome = store.append([batch, *beside])[0]
        return outcome.count, outcome.repeated

    for position in range(6):
        for source in sources:
            assert append(source, position) == (1, 0)
            assert append(source, position) == (0, 1)
        for source in sources:
            assert append(source, position) == (0, 1)
    store.append([EventBatch(STREAM, [NewEvent(NOON, b"6")])])
    assert [append(source, 5) for source in sources] == 3 * [(0, 1)]
    assert numbers(store) == [*sorted([*range(6)] * 3), 6] and store.check().ok


@pytest.mark.parametrize("right", ["+pubsub", "-pubsub"])
def test_what_is_followed_is_published_also_by_those_who_may_not_look_for_followers(right: str) -> None:
    with own_server() as own, own.client() as client, opened(own.url("p")) as store:
        client.execute_command("ACL", "SETUSER", "default", right)
        store.append([delivered(0, 1), delivered(0, 1, StreamName("q", "other"))])
        messages = client.pubsub(ignore_subscribe_messages=True)
        messages.ssubscribe(PondKeys("p").keys_of(STREAM).head)
        messages.get_message(timeout=5)
        last = store.append([delivered(1, 1), delivered(1, 1, StreamName("q", "other"))])[0].last_id
        message = messages.get_message(timeout=5)
        assert message is not None and int.from_bytes(message["data"], "big") == last
        messages.close()


def test_a_connection_with_an_answer_that_nobody_read_is_not_used_again(store: RedisStore) -> None:
    free = Connections({"host": "127.0.0.1", "port": server().port})
    line = free.take()
    line.send([("PING",), ("PING",)])
    assert line.receive() == b"PONG"
    free.give_back(line)
    other = free.take()
    assert other is not line and other.call("ECHO", "x") == b"x"
    free.give_back(other)
    assert free.take() is other
    other.close()
