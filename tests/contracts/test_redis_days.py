"""Days of streams in Redis beyond the contract: their keys, their memory, and a server that is full."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("redis")

from millpond.clock import ManualClock
from millpond.errors import Corrupt, Fenced, Invalid, NotFound, Unavailable, Uncertain
from millpond.events.check import check_store
from millpond.events.codec import ROW_BYTES, encode
from millpond.events.compress import compress_stream
from millpond.events.days import DAY_MS
from millpond.events.deletion import delete_job, finish_deletions
from millpond.events.event import Event, EventBatch, NewEvent
from millpond.events.events import Events
from millpond.events.maintenance import EventMaintenance, MaintenanceRules
from millpond.events.names import StreamName
from millpond.events.redis.keys import PondKeys
from millpond.events.redis.scripts import SWITCH
from millpond.events.single import is_deflated
from millpond.kernel.steps import listening
from millpond.stores.memory import MemorySpace
from tests.contracts.test_redis_store import STREAM, delivered, keys_left, numbers, opened, own_server
from tests.harness.contracts.stream_site import (
    NOON,
    RULES,
    TODAY,
    batches_of,
    compress,
    events_up_to,
    everything,
    index_of,
)
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.redis_servers import cluster, new_place, server
from tests.rings.sampling import examples

pytestmark = pytest.mark.usefixtures("process", "redis_server", "redis_cluster")


class _Stopped(Exception):
    pass


@settings(max_examples=examples(15, 60))
@given(mine=st.lists(st.booleans(), min_size=1, max_size=9), events_max=st.integers(1, 3), steps=st.integers(1, 5))
def test_a_job_that_is_erased_batch_by_batch_loses_no_event_of_others(
    mine: list[bool], events_max: int, steps: int
) -> None:
    """It stops behind some of the batches: what is before them is without the job, and what follows is as it was."""
    with opened(server().url(new_place())) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr("millpond.events.redis.day_switch.REWRITE_BYTES", 0)
        events = [NewEvent(NOON, b"%d" % number, "", {"job_id": "ab"[one]}) for number, one in enumerate(mine)]
        store.append([EventBatch(STREAM, events)])
        store.close_day(STREAM, TODAY)
        compress(store, STREAM, index_of(store).segments, events_max)
        before = everything(store)

        def rest(stop: int) -> list[Event]:
            return [event for event, one in zip(before[:stop], mine, strict=False) if not one] + before[stop:]

        taken = itertools.count(1)

        def stop(name: str) -> None:
            if name == "events.batches_rewritten" and next(taken) == steps:
                raise _Stopped

        try:
            with listening(stop):
                assert delete_job(store, STREAM, "b") == sum(mine)
        except NotFound:
            assert not any(mine)
        except _Stopped:
            assert everything(store) in [rest(stop) for stop in range(len(mine) + 1)]
            assert check_store(store).ok and store.check().ok
        assert finish_deletions(store) == [] and everything(store) == rest(len(mine))
        assert check_store(store).ok and store.check().ok


def test_a_job_that_is_in_many_batches_is_erased_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.events.redis.day_switch.REWRITE_BYTES", 3000)
    payloads = [hashlib.shake_128(b"%d" % number).digest(500) for number in range(60)]
    with opened(server().url(new_place())) as store:
        events = [NewEvent(NOON, payload, "", {"job_id": str(at % 2)}) for at, payload in enumerate(payloads)]
        store.append([EventBatch(STREAM, events)])
        store.close_day(STREAM, TODAY)
        compress(store, STREAM, index_of(store).segments, 4)
        steps: list[str] = []
        with listening(steps.append):
            assert delete_job(store, STREAM, "1") == 30
        assert steps.count("events.batches_rewritten") == 5, "15 batches of 1,000 bytes are left"
        assert [event.payload for event in everything(store)] == payloads[::2]


def test_a_full_server_is_compressed_and_expired() -> None:
    with own_server() as own, opened(own.url("p")) as store, own.client() as client:
        for day in range(3):
            store.append([delivered(10 * day, 10, time_ms=NOON + (day - 3) * DAY_MS)])
        before = everything(store)
        client.config_set("maxmemory", 1)
        assert compress_stream(store, STREAM, TODAY - 1).days == 3 and everything(store) == before
        assert store.expire(STREAM, TODAY - 3) == 10 and everything(store) == before[10:]
        assert store.expire(STREAM, TODAY) == 20


def test_a_server_that_appends_have_filled_is_compressed_and_its_memory_only_falls() -> None:
    with own_server("--maxmemory", "8mb") as own, opened(own.url("p")) as store, own.client() as client:

        def held() -> int:
            return sum(client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(match="p:*:etl/nightly*"))

        payloads = [hashlib.shake_128(b"%d" % number).digest(300) for number in range(200)]
        with pytest.raises(Unavailable) as caught:
            for number in range(10_000):
                events = [NewEvent(NOON, b"%d" % number + payload) for payload in payloads]
                store.append([EventBatch(STREAM, events)])
        assert caught.value.kind == "redis_full"
        before, sizes = everything(store, bytes_max=1 << 20), [held()]
        assert sizes[0] > 3 << 20

        def spend(_: int) -> None:
            sizes.append(held())

        assert compress_stream(store, STREAM, TODAY, spend).days == 1
        sizes.append(held())
        assert len(sizes) > 5 and all(later < size + ROW_BYTES for size, later in itertools.pairwise(sizes))
        assert everything(store, bytes_max=1 << 20) == before
        assert sizes[-1] < sizes[0] // 2 and store.append([delivered(1, 3)])[0].count == 3


@pytest.mark.parametrize("deleted", [False, True])
def test_an_expired_stream_leaves_no_key_once_it_is_forgotten(*, deleted: bool) -> None:
    place, clock = new_place(), ManualClock(now=NOON)
    with opened(server().url(place), clock) as store:
        for day in range(3):
            clock.now = NOON + day * DAY_MS
            batch = delivered(1 + 5 * day, 5, time_ms=clock.now)
            store.append([replace(batch, source=f"kafka:jobs/{day}")])
        index = store.index(STREAM)
        assert index is not None
        first, second = ([segment] for segment in index.segments[:2])
        store.switch(STREAM, first, lambda _: batches_of(events_up_to(store, STREAM, first)))
        with pytest.raises(Invalid):
            store.switch(STREAM, second, lambda _: batches_of(events_up_to(store, STREAM, second)[:2]))
        assert len([key for key in keys_left(place) if b":batches:" in key]) == 2
        assert (store.delete(STREAM) if deleted else store.expire(STREAM, TODAY + 9)) == 15
        kinds = {key.split(b":")[2] for key in keys_left(place)}
        assert kinds == {b"head", b"sources", b"due", b"names"}
        clock.now += RULES.forget_ms + 3 * DAY_MS
        store.expire(STREAM, TODAY)
        assert keys_left(place) == []


def test_a_day_of_deflated_events_is_readable_while_it_is_compressed() -> None:
    place = new_place()
    with opened(server().url(place)) as store, server().client() as client:
        keys = PondKeys(place).keys_of(STREAM)
        for number in range(20):
            payload = b'{"job_id": "0123456789abcdef", "cluster": "cluster-1", "state": "running", "at": %d}' % number
            store.append([EventBatch(STREAM, [NewEvent(NOON, payload)])])
        rows = [fields[b"e"] for _, fields in client.xrange(keys.raw)]
        assert not is_deflated(rows[0]) and all(map(is_deflated, rows[1:]))
        store.close_day(STREAM, TODAY)
        before, seen = everything(store), [index_of(store).segments[0]]

        def looked_at(after: int) -> Iterator[bytes]:
            for batch in batches_of([event for event in before if event.number > after], 6):
                yield batch
                (seen[0],) = index_of(store).segments
                for place, event in enumerate(before):
                    assert everything(store, after=event.number) == before[place + 1 :]
                    assert store.read(STREAM, event.number).events == before[place + 1 :]
                left.append(client.xlen(keys.raw))
                with pytest.raises(Fenced):  # somebody else works on what there was a moment ago
                    store.switch(STREAM, stale, lambda _: batches_of(before))

        left, stale = list[int](), seen.copy()
        output = store.switch(STREAM, seen, looked_at)
        assert left == [14, 8, 2, 0]
        assert output.stored_bytes == sum(map(len, client.lrange(keys.batches_of(TODAY), 0, -1)))
        assert not client.exists(keys.raw) and everything(store) == before


@pytest.mark.parametrize("events", [1, 2])
def test_a_stream_that_begins_while_the_clock_is_far_behind_begins_on_a_day_of_the_present(events: int) -> None:
    clock, other = ManualClock(now=NOON), StreamName("etl", "old")
    for site in (server(), cluster()):
        with opened(site.url(new_place()), clock) as store:
            pond = Events(store, clock, space=MemorySpace())
            store.append([delivered(0, events, other)])
            for jump in (0, -400 * DAY_MS, 400 * DAY_MS):
                clock.now += jump
                if pond.doubt() is not None:
                    for first in (0, events):
                        store.append([delivered(first, events), delivered(events, events, other)])
            assert EventMaintenance(store, clock, MaintenanceRules(), RULES.forget_ms).expire().events == 0
            for stream in (STREAM, other):
                assert index_of(store, stream).last_day == TODAY and len(index_of(store, stream).segments) == 1
            assert numbers(store) == list(range(2 * events))


@pytest.mark.parametrize("put", [False, True])
def test_a_compression_whose_answer_was_lost_goes_on_where_it_ended(*, put: bool) -> None:
    with FaultyProxy(server().port) as proxy, opened(server().url(new_place(), proxy.port)) as store:
        for stream in (STREAM, StreamName("etl", "first")):
            store.append([EventBatch(stream, [NewEvent(NOON, bytes([number]) * 300_000)]) for number in range(3)])
        compress_stream(store, StreamName("etl", "first"), TODAY)  # the server knows the script then
        before = everything(store)
        trouble = proxy.trouble(Trouble("cut", match=SWITCH.sha, down=put))
        with pytest.raises(Uncertain):
            compress_stream(store, STREAM, TODAY)
        assert trouble.struck.is_set()
        proxy.mend()
        assert everything(store) == before
        (segment,) = index_of(store).segments
        assert (segment.stored_bytes < 700_000) == put
        assert compress_stream(store, STREAM, TODAY).days == 1 and everything(store) == before


def test_a_day_that_lacks_events_is_not_compressed_to_its_end() -> None:
    place = new_place()
    with opened(server().url(place)) as store, server().client() as client:
        keys = PondKeys(place).keys_of(STREAM)
        for first in range(0, 9, 3):
            store.append([delivered(first, 3)])
        store.close_day(STREAM, TODAY)
        client.xdel(keys.raw, client.xrange(keys.raw)[1][0])
        before = everything(store)
        with pytest.raises(Invalid) as caught:
            compress_stream(store, STREAM, TODAY)
        assert caught.value.kind == "event_switch" and everything(store) == before and len(before) == 6


def test_a_missing_batch_is_corrupt() -> None:
    place = new_place()
    with opened(server().url(place)) as store, server().client() as client:
        store.append([delivered(1, 4)])
        store.close_day(STREAM, TODAY)
        index = store.index(STREAM)
        assert index is not None
        store.switch(STREAM, index.segments, lambda _: [encode(everything(store))])
        client.delete(PondKeys(place).keys_of(STREAM).batches_of(TODAY))
        with pytest.raises(Corrupt):
            store.read(STREAM)
