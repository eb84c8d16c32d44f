"""A Redis that loses all of its keys under those who use it, as with `FLUSHALL`."""

from __future__ import annotations

from contextlib import closing

import pytest

pytest.importorskip("redis")

from millpond.clock import ManualClock, SystemClock
from millpond.events.event import Event
from millpond.events.names import StreamName
from millpond.events.redis.keys import PondKeys
from millpond.events.redis.servers import CHECK_SECONDS
from millpond.events.watchers import Watchers
from tests.contracts.test_redis_store import STREAM, delivered, numbers, opened, own_server
from tests.harness.contracts.stream_site import NOON
from tests.redis_servers import cluster, new_place, server

pytestmark = pytest.mark.usefixtures("process")


@pytest.mark.parametrize("appended", [False, True])
@pytest.mark.parametrize("noticed_first", ["append", "read"])
def test_readers_of_a_server_that_lost_its_keys_get_a_gap(noticed_first: str, *, appended: bool) -> None:
    clock = ManualClock(now=NOON)
    other = StreamName("etl", "another")
    with own_server() as own, own.client() as client, opened(own.url("p"), clock) as store:
        place = store.append([delivered(1, 3), delivered(1, 1, other)])[0].last_id
        with opened(own.url("p"), clock) as second, opened(own.url("q"), clock) as third:
            assert numbers(second) == [1, 2, 3] and numbers(third) == []
            client.flushall()
            clock.advance(1)
            if noticed_first == "append":
                second.append([delivered(8, 1, other)])
            if appended:
                second.append([delivered(9, 1)])
            page = store.read(STREAM, place)
            assert page.gap and [int(event.payload) for event in page.events] == [9] * appended
            assert not store.read(STREAM, page.after).gap and page.after > place
            assert not store.read(STREAM).gap and not store.read(other).gap
            second.read(STREAM)
            clock.advance(int(CHECK_SECONDS * 1000))
            for one in (store, second, third):
                one.streams(limit=1)
                assert one.losses.count == 1
            assert store.check().problems == ()


def test_a_watch_goes_on_where_a_server_lost_its_keys() -> None:
    with own_server() as own, own.client() as client, opened(own.url("p"), SystemClock()) as store:
        store.append([delivered(1, 3)])
        watchers = Watchers(store, SystemClock())
        try:
            with watchers.watch(STREAM, 0) as watch:
                while not watch.caught_up:
                    watch.next_batch(None)
                client.flushall()
                while not watch.gap:
                    watch.next_batch(None)
                store.append([delivered(7, 1)])
                events: list[Event] = []
                while not events:
                    events = watch.next_batch(None)
                assert [int(event.payload) for event in events] == [7]
        finally:
            watchers.close()


@pytest.mark.usefixtures("redis_server", "redis_cluster")
@pytest.mark.parametrize("streams", [1, 5])
@pytest.mark.parametrize("events", [1, 2])
@pytest.mark.parametrize("on_cluster", [False, True])
def test_an_append_notices_that_the_shard_of_any_of_its_streams_was_lost(
    events: int, streams: int, *, on_cluster: bool
) -> None:
    place = new_place()
    named = [StreamName("q", str(number)) for number in range(streams)]
    keys = [PondKeys(place).keys_of(stream) for stream in named]
    assert len({one.shard for one in keys}) == streams
    site = cluster() if on_cluster else server()
    with opened(site.url(place)) as store, closing(site.client()) as client:
        for turn in range(3):
            if turn == 2:  # the days are open, and their first events known
                shard = keys[-1].lost.removesuffix(b"lost") + b"*"
                assert client.delete(*client.scan_iter(match=shard, count=1000)) > 3
            outcomes = store.append([delivered(events * turn, events, stream) for stream in named])
            assert [outcome.count for outcome in outcomes] == [events] * streams
            assert store.losses.count == (turn == 2)
        for stream in named:
            lost = 2 * events if stream == named[-1] else 0
            assert numbers(store, stream) == list(range(lost, 3 * events))
        assert client.get(keys[-1].lost)
