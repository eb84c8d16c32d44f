"""Watchers: one reader for all, nothing lost, nothing twice, whoever comes late or sleeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from millpond.clock import ManualClock
from millpond.errors import Closed, Invalid, Unavailable
from millpond.events import watchers as watchers_module
from millpond.events.codec import size_of
from millpond.events.compress import compress_stream
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import Event, EventBatch, NewEvent, Page
from millpond.events.events import Events
from millpond.events.ids import parse_id
from millpond.events.many_watch import ManyWatch, positions_of
from millpond.events.names import StreamName
from millpond.events.watchers import Watch, Watchers
from millpond.server.routes.events import Watched
from millpond.stores.memory import MemorySpace
from tests.harness.contracts.stream_site import NOON, RULES, STREAM, TODAY, append, everything


@dataclass
class CountedStore(EmbeddedStore):
    """A store that counts its reads."""

    reads: list[int] = field(default_factory=list)

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemorySpace(), clock, RULES)
        self.reads = []

    def read(self, stream: StreamName, after: int = 0, *, bytes_max: int = 1 << 22) -> Page:
        self.reads.append(after)
        return super().read(stream, after, bytes_max=bytes_max)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=NOON)


@pytest.fixture
def store(clock: ManualClock) -> CountedStore:
    return CountedStore(clock)


@pytest.fixture
def watchers(store: CountedStore, clock: ManualClock) -> Iterator[Watchers]:
    watchers = Watchers(store, clock)
    yield watchers
    watchers.close()


def take(watch: Watch, count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        events += watch.next_batch(None)
    return events


def test_a_watch_reads_what_is_there_and_then_what_comes(store: CountedStore, watchers: Watchers) -> None:
    append(store, "a", "b")
    with watchers.watch(STREAM, 0) as watch:
        assert [event.payload for event in take(watch, 2)] == [b"a", b"b"]
        assert not watch.caught_up
        assert watch.next_batch(None) == [] and watch.caught_up
        append(store, "c")
        assert [event.payload for event in take(watch, 1)] == [b"c"]
        assert watch.after == everything(store)[-1].id


def test_a_watch_begins_after_any_id_and_before_the_stream(store: CountedStore, watchers: Watchers) -> None:
    with watchers.watch(StreamName("no", "stream"), 0) as early, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(take, early, 1)
        append(store, "first", stream=StreamName("no", "stream"))
        assert pending.result(30)[0].payload == b"first"
    append(store, *"abcd")
    events = everything(store)
    for place, event in enumerate(events[:-1]):
        with watchers.watch(STREAM, event.number) as watch:
            assert take(watch, 3 - place) == events[place + 1 :]


def test_many_watchers_share_one_reader(store: CountedStore, watchers: Watchers) -> None:
    append(store, "old")
    watches = [watchers.watch(STREAM, 0) for _ in range(200)]
    for watch in watches:
        take(watch, 1)
        watch.next_batch(None)
        assert watch.caught_up
    store.reads.clear()
    threads = threading.active_count()
    for letter in "abcde":
        append(store, letter)
        assert {take(watch, 1)[0].payload for watch in watches} == {letter.encode()}
    assert len(store.reads) == 5 and threading.active_count() == threads
    for watch in watches:
        watch.close()
    assert watchers.count == 0


def test_a_watcher_that_slept_reads_the_store_itself(
    store: CountedStore, watchers: Watchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers_module, "RING_BYTES_MAX", 10)
    with watchers.watch(STREAM, 0) as awake, watchers.watch(STREAM, 0) as asleep:
        assert awake.next_batch(None) == asleep.next_batch(None) == []
        for number in range(50):
            append(store, f"event {number}")
            take(awake, 1)
        assert [event.payload for event in take(asleep, 50)] == [b"event %d" % number for number in range(50)]


def test_a_watch_across_compression_and_expiry(
    store: CountedStore, watchers: Watchers, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers_module, "RING_BYTES_MAX", 10)
    with watchers.watch(STREAM, 0) as watch, watchers.watch(STREAM, 0) as late:
        append(store, *"abc")
        assert len(take(watch, 3)) == 3 and len(late.next_batch(None)) == 3
        append(store, "d")
        append(store, "e")
        compress_stream(store, STREAM, TODAY)
        assert [event.payload for event in take(watch, 2)] == [b"d", b"e"]
        store.expire(STREAM, TODAY)
        clock.now += 86_400_000
        append(store, "f")
        assert [event.payload for event in take(watch, 1)] == [b"f"]
        assert [event.payload for event in take(late, 1)][-1] in (b"e", b"f")


def test_a_stream_that_lost_its_end_is_watched_on(store: CountedStore, watchers: Watchers, clock: ManualClock) -> None:
    def copied(events: str) -> None:
        other = EmbeddedStore(MemorySpace(), clock)
        for event in events:
            append(other, event)
        store.space = other.space

    copied("abc")
    with watchers.watch(STREAM, 0) as watch, ManyWatch(watchers, {STREAM: 0}) as many:
        assert len(take(watch, 3)) == 3 and watch.next_batch(None) == [] and watch.caught_up and not watch.gap
        while not many.caught_up:
            many.next_batch(None)
        copied("a")
        append(store, "noticed", stream=StreamName("etl", "other"))
        while not (watch.gap and many.gaps):
            watch.next_batch(None)
            many.next_batch(None)
        append(store, "new")
        assert take(watch, 1)[-1].payload == b"new"
        while not (found := many.next_batch(None)):
            pass
        assert found[-1].event.payload == b"new"


def test_a_watch_begins_at_a_time_or_at_the_newest(store: CountedStore, clock: ManualClock) -> None:
    events = Events(store, clock, RULES)
    append(store, "a")
    clock.now += 60_000
    append(store, "b")
    clock.now += 60_000
    append(store, "c")

    def at(ms: int) -> str:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat()

    def read(after: str) -> bytes:
        return b"".join(event.payload for event in events.read(*STREAM, after))

    assert [read(at(NOON + ms)) for ms in (-1, 0, 1, 60_000, 120_000, 120_001, 999_999_999)] == [
        b"abc", b"abc", b"bc", b"bc", b"c", b"", b"",
    ]  # fmt: skip
    assert read("newest") == b"" and read("") == b"abc"
    with events.watch(*STREAM, "newest") as watch, events.watch_many({STREAM: at(NOON + 120_000)}) as many:
        append(store, "d")
        assert [event.payload for event in take(watch, 1)] == [b"d"] and not watch.gap
        assert [one.event.payload for one in many.next_batch(None)] == [b"c", b"d"] and not many.gaps
    for wrong in ("soon", "2026-11-24", "17"):
        with pytest.raises(Invalid) as caught:
            events.watch(*STREAM, wrong)
        assert caught.value.kind == "event_id" and "newest" in str(caught.value.hint)
    events.close()


def test_a_missed_day_is_a_gap(store: CountedStore, watchers: Watchers) -> None:
    append(store, *"abc")
    with watchers.watch(STREAM, everything(store)[0].number) as watch:
        store.expire(STREAM, TODAY)
        assert watch.next_batch(None) == [] and watch.gap


def test_too_many_watchers_are_refused(store: CountedStore, clock: ManualClock) -> None:
    watchers = Watchers(store, clock, watchers_max=1)
    watch = watchers.watch(STREAM, 0)
    with pytest.raises(Unavailable) as caught:
        watchers.watch(STREAM, 0)
    assert caught.value.kind == "watchers_full"
    watch.close()
    watch.close()
    watchers.watch(STREAM, 0).close()
    watchers.close()
    with pytest.raises(Closed):
        watchers.watch(STREAM, 0)


def test_closing_ends_a_watch_that_waits(store: CountedStore, watchers: Watchers) -> None:
    watch = watchers.watch(STREAM, 0)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(lambda: list(watch))
        append(store, "a")
        watchers.close()
        assert [event.payload for event in pending.result(30)] in ([], [b"a"])
    watch.close()
    with pytest.raises(Closed):
        watch.next_batch(None)


def test_tasks_watch_too(store: CountedStore, watchers: Watchers) -> None:
    async def read(count: int) -> list[bytes]:
        with watchers.watch(STREAM, 0) as watch:
            payloads: list[bytes] = []
            async for event in watch:
                payloads.append(event.payload)
                if len(payloads) == count:
                    break
            return payloads

    async def run() -> list[list[bytes]]:
        tasks = [asyncio.create_task(read(5)) for _ in range(50)]
        for letter in "bcde":
            await asyncio.to_thread(append, store, letter)
        with watchers.watch(STREAM, 0) as idle:
            while not idle.caught_up:
                await idle.next_batch_async(None)
            assert await idle.next_batch_async(0.001) == []
        return await asyncio.gather(*tasks)

    append(store, "a")
    assert asyncio.run(run()) == [[b"a", b"b", b"c", b"d", b"e"]] * 50


def test_an_error_of_the_store_reaches_the_watchers_and_passes(
    store: CountedStore, watchers: Watchers, clock: ManualClock
) -> None:
    down = threading.Event()
    reading = store.read

    def failing(stream: StreamName, after: int = 0, *, bytes_max: int = 1 << 22) -> Page:
        if down.is_set():
            raise Unavailable("the disk is gone")
        return reading(stream, after, bytes_max=bytes_max)

    store.read = failing  # type: ignore[method-assign]
    with watchers.watch(STREAM, 0) as watch:
        assert watch.next_batch(None) == []
        down.set()
        append(store, "a")
        with pytest.raises(Unavailable):
            watch.next_batch(None)
        down.clear()
        events: list[Event] = []
        while not events:
            clock.advance(1000)
            try:
                events = watch.next_batch(None)
            except Unavailable:
                continue
        assert [event.payload for event in events] == [b"a"]


def take_many(watch: ManyWatch, count: int) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    while len(found) < count:
        found += [(stream.job_set, event.payload) for stream, event in watch.next_batch(None)]
    return found


ONE, OTHER = StreamName("q", "one"), StreamName("q", "other")


def test_several_streams_are_watched_as_one(store: CountedStore, watchers: Watchers, clock: ManualClock) -> None:
    for number in range(3):
        append(store, f"a{number}", stream=ONE)
        append(store, f"b{number}", stream=OTHER)
        clock.now += 1
    with ManyWatch(watchers, positions_of([ONE, OTHER])) as watch:
        assert take_many(watch, 6) == [
            ("one", b"a0"), ("other", b"b0"), ("one", b"a1"), ("other", b"b1"), ("one", b"a2"), ("other", b"b2"),
        ]  # fmt: skip
        assert watch.next_batch(None) == [] and watch.caught_up
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(take_many, watch, 1)
            append(store, "b3", stream=OTHER)
            assert pending.result(30) == [("other", b"b3")]
        places = {tuple(stream): after for stream, after in watch.after.items()}
    assert watchers.count == 0
    append(store, "a3", stream=ONE)
    with ManyWatch(watchers, positions_of(places)) as watch:
        assert take_many(watch, 1) == [("one", b"a3")]


def test_a_long_stream_does_not_keep_others_from_being_read(store: CountedStore, watchers: Watchers) -> None:
    for _ in range(3):
        append(store, *["x" * 300_000] * 20, stream=ONE)
    append(store, "b", stream=OTHER)
    with ManyWatch(watchers, positions_of([ONE, OTHER])) as watch:
        first, second = watch.next_batch(None), watch.next_batch(None)
    assert {stream for stream, _ in first} == {ONE} and OTHER in {stream for stream, _ in second}


def test_several_streams_are_watched_by_an_event_loop(store: CountedStore, watchers: Watchers) -> None:
    async def watch_both() -> list[bytes]:
        with ManyWatch(watchers, positions_of([ONE, OTHER])) as watch:
            assert await watch.next_batch_async(0) == []
            assert await watch.next_batch_async(0) == [], "and nobody listens any more"
            tails = [tail for tail, _ in watch.positions() or ()]
            assert [tail.news for tail in tails] == [{}, {}]
            asyncio.get_running_loop().call_later(0, lambda: append(store, "late", stream=OTHER))
            return [event.payload for _, event in await watch.next_batch_async(None)]

    assert asyncio.run(watch_both()) == [b"late"]


def test_a_watch_of_several_streams_is_whole_or_refused(store: CountedStore, clock: ManualClock) -> None:
    few = Watchers(store, clock, watchers_max=1)
    with pytest.raises(Unavailable):
        ManyWatch(few, positions_of([ONE, OTHER]))
    assert few.count == 0
    few.close()
    for streams in ([], [("q", str(number)) for number in range(1001)], {("q", "j"): "foo"}):
        with pytest.raises(Invalid):
            positions_of(streams)


class Held(CountedStore):
    """A store whose reads of one stream wait, or fail."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.entered, self.going, self.broken = threading.Event(), threading.Event(), False

    def read(self, stream: StreamName, after: int = 0, *, bytes_max: int = 1 << 22) -> Page:
        if stream == OTHER:
            self.entered.set()
            self.going.wait(30)
            if self.broken:
                raise Unavailable("the disk is gone")
        return super().read(stream, after, bytes_max=bytes_max)


def test_a_watch_that_was_cancelled_while_it_read_loses_nothing_and_leaves_nothing(clock: ManualClock) -> None:
    store = Held(clock)
    watchers = Watchers(store, clock)
    append(store, "a", stream=ONE)
    append(store, "b", stream=OTHER)

    async def act() -> None:
        with ManyWatch(watchers, positions_of([ONE, OTHER])) as watch:
            task = asyncio.create_task(watch.next_batch_async(None))
            await asyncio.to_thread(store.entered.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            store.going.set()
            found: list[bytes] = []
            while len(found) < 2:
                found += [event.payload for _, event in await watch.next_batch_async(None)]
            assert found == [b"a", b"b"]
            places = watch.after
        store.going.clear()
        store.entered.clear()
        single = watchers.watch(OTHER, parse_id(places[OTHER]))
        task = asyncio.create_task(single.next_batch_async(None))
        await asyncio.to_thread(store.entered.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        single.close()
        store.going.set()

    asyncio.run(act())
    assert not watchers._tails and watchers.count == 0, "nobody follows for a watch that is gone"
    watchers.close()


def test_events_taken_before_an_error_of_another_stream_come_again(clock: ManualClock) -> None:
    store = Held(clock)
    store.going.set()
    watchers = Watchers(store, clock)
    append(store, "a", stream=ONE)
    store.broken = True
    with ManyWatch(watchers, positions_of([ONE, OTHER])) as watch:
        with pytest.raises(Unavailable):
            watch.next_batch(None)
        assert parse_id(watch.after[ONE]) == 0
        store.broken = False
        assert take_many(watch, 1) == [("one", b"a")]
    watchers.close()


@pytest.mark.parametrize("begun", [False, True])
def test_a_reader_that_leaves_before_its_first_line_ends_its_watch(watchers: Watchers, begun: bool) -> None:
    async def lines(watch: Watch) -> AsyncIterator[bytes]:
        with watch:
            yield b"line"

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if not begun or message["type"] == "http.response.body":
            raise OSError("the reader has gone away")

    watch = watchers.watch(STREAM, 0)
    begun_with = ExitStack()
    begun_with.callback(watch.close)
    with pytest.raises(ClientDisconnect):
        asyncio.run(Watched(lines(watch), begun_with)({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send))
    assert watchers.count == 0


def test_a_watch_holds_no_more_than_its_share_when_many_follow(
    store: CountedStore, watchers: Watchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes of memory: small events, large headers, large payloads; from the store and from the ring."""
    monkeypatch.setattr(watchers_module, "HELD_BYTES", 100 * 8_000)
    new = [NewEvent(NOON, b"", "tiny")] * 500
    new += [NewEvent(NOON, b"", "headers", {"h": "x" * 3_000})] * 20 + [NewEvent(NOON, b"x" * 9_000, "large")] * 3
    store.append([EventBatch(STREAM, new)])

    def sizes(watch: Watch, count: int) -> list[int]:
        found, given = list[list[Event]](), 0
        while given < count:
            found.append(watch.next_batch(None))
            given += len(found[-1])
        assert [event.number for some in found for event in some] == [
            event.number for event in everything(store) if event.number > began
        ]
        return [sum(map(size_of, some)) + watchers_module.EVENT_BYTES * len(some) for some in found if len(some) > 1]

    began = 0
    many = [watchers.watch(STREAM, 0) for _ in range(100)]
    assert max(sizes(many[0], 523)) <= 8_000
    assert many[0].next_batch(None) == [] and many[0].caught_up
    began = many[0].number
    with watchers.watch(STREAM, began) as awake:
        assert awake.next_batch(None) == []
        store.append([EventBatch(STREAM, new)])
        take(awake, 523)
        assert max(sizes(many[0], 523)) <= 8_000
    for watch in many[1:]:
        watch.close()
    began = 0
    with watchers.watch(STREAM, 0) as alone:
        assert max(sizes(alone, 1_046)) > 50_000, "few that follow take whole pages"
    many[0].close()
