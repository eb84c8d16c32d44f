"""Watchers over one reader: each gets the events after its id, and what is read does not grow with their number."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millpond.clock import SystemClock
from millpond.errors import MillpondError, Unavailable
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import Event, EventBatch, NewEvent, Page
from millpond.events.names import StreamName
from millpond.events.watchers import Watch, Watchers
from millpond.server.armada import watching as module
from millpond.server.armada.watching import Slice, Watching
from millpond.stores.memory import MemorySpace

STREAMS = [StreamName("etl", f"set-{number}") for number in range(3)]


class Counting(EmbeddedStore):
    """A store that counts its reads, and may be out of reach."""

    def __init__(self) -> None:
        super().__init__(MemorySpace(), SystemClock())
        self.reads: Counter[StreamName] = Counter()
        self.lost = False

    def read(self, stream: StreamName, after: int = 0, *, bytes_max: int = 1 << 20) -> Page:
        self.reads[stream] += 1
        if self.lost:
            raise Unavailable("it is out of reach", kind="unavailable")
        return super().read(stream, after, bytes_max=bytes_max)

    def put(self, stream: StreamName, *payloads: bytes) -> None:
        self.append([EventBatch(stream, [NewEvent(1, payload) for payload in payloads])])


def run(act: Callable[[Counting, Watching], Awaitable[None]], watchers_max: int = 1000) -> None:
    """Do something with a store and its watchers, on an event loop."""

    async def acted() -> None:
        store = Counting()
        watching = Watching(store, Watchers(store, SystemClock()), watchers_max)
        try:
            async with asyncio.timeout(60):
                await act(store, watching)
        finally:
            await asyncio.to_thread(watching.close)

    asyncio.run(acted())


async def take(watching: Watching, stream: StreamName, count: int, after: int = 0) -> list[bytes]:
    """The payloads of the next events after an id."""
    found: list[bytes] = []
    async for slice_ in watching.slices(stream, after):
        found += [event.payload for event in slice_.events] if slice_ is not None else []
        if len(found) >= count:
            break
    return found


@pytest.mark.usefixtures("processor")
def test_every_watcher_gets_every_event_and_reads_are_shared() -> None:
    async def act(store: Counting, watching: Watching) -> None:
        store.put(STREAMS[0], *(b"%d" % number for number in range(100)))
        watchers = [
            asyncio.create_task(take(watching, stream, 200 if stream is STREAMS[0] else 100))
            for stream in STREAMS for _ in range(100)
        ]  # fmt: skip
        for number in range(100, 200):
            for stream in STREAMS:
                await asyncio.to_thread(store.put, stream, b"%d" % number)
        for place, found in enumerate(await asyncio.gather(*watchers)):
            expected = [b"%d" % number for number in range(0 if place < 100 else 100, 200)]
            assert found == expected
        assert max(store.reads.values()) < 2000, "100 watchers of 100 appends would be 10,000"

    run(act)


def test_a_slice_that_is_longer_than_the_batch_of_a_watch_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Watch._taken

    def one(watch: Watch) -> list[Event] | None:
        found = taken(watch)
        if found:
            watch._position = found[0].number
        return found[:1] if found else found

    monkeypatch.setattr(Watch, "_taken", one)

    async def act(store: Counting, watching: Watching) -> None:
        watcher = asyncio.create_task(take(watching, STREAMS[0], 8))
        while not watching._watchers._tails:
            await asyncio.sleep(0)
        store.put(STREAMS[0], b"0", b"1", b"2", b"3")
        assert len((await watching.read(STREAMS[0], 0)).events) == 4, "another reader leaves all of them in one slice"
        await asyncio.to_thread(store.put, STREAMS[0], b"4", b"5", b"6", b"7")
        assert await watcher == [b"%d" % number for number in range(8)]

    run(act)


def test_slices_are_small_and_held_ones_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 300_000)

    async def act(store: Counting, watching: Watching) -> None:
        store.put(STREAMS[0], *[b"x" * 10_000] * 300)
        count, after = 0, 0
        while count < 300:
            found = await watching.read(STREAMS[0], after)
            assert sum(len(event.payload) for event in found.events) <= module.SLICE_BYTES
            count, after = count + len(found.events), found.after
            held = watching._slices.values()
            assert sum(one.size for one in held) <= 300_000
        assert not (await watching.read(STREAMS[0], after)).events

    run(act)


def test_a_store_out_of_reach_ends_those_who_watch_and_later_ones_begin_anew() -> None:
    async def act(store: Counting, watching: Watching) -> None:
        watcher = asyncio.create_task(take(watching, STREAMS[0], 1))
        while not watching._watchers.count:
            await asyncio.sleep(0)
        store.lost = True
        store.put(STREAMS[0], b"a")
        with pytest.raises(Unavailable):
            await watcher
        store.lost = False
        assert (await watching.read(STREAMS[0], 0)).events
        assert not watching._watchers.count and not watching._reading

    run(act)


def test_watchers_are_counted_and_let_go() -> None:
    async def act(store: Counting, watching: Watching) -> None:
        with watching.entered(None):
            with pytest.raises(MillpondError, match="as many watchers"), watching.entered(None):
                pass
            watcher = asyncio.create_task(take(watching, STREAMS[0], 1))
            while not watching._watchers.count:
                await asyncio.sleep(0)
            watching.close()
            with pytest.raises(MillpondError, match="stopping"):
                await watcher
        assert watching.counts.total() == 0
        with pytest.raises(MillpondError, match="stopping"):
            await watching.read(STREAMS[0], 0)

    run(act, watchers_max=1)


def test_a_shared_read_that_began_before_an_append_delays_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end = threading.Event(), threading.Event()

    async def act(store: Counting, watching: Watching) -> None:
        stream = STREAMS[0]
        # The slices that the watch leaves are let go at once, so that it must read.
        monkeypatch.setattr(watching, "_hold", lambda *_: None)
        watcher = asyncio.create_task(take(watching, stream, 1))
        while not watching._watchers._tails:
            await asyncio.sleep(0)
        read = store.read

        def held(stream: StreamName, after: int = 0, *, bytes_max: int = 1 << 20) -> Page:
            page = read(stream, after, bytes_max=bytes_max)
            if not began.is_set():
                began.set()
                may_end.wait()
            return page

        monkeypatch.setattr(module, "ALIVE_SECONDS", 600.0)
        joined = asyncio.Event()
        shared = watching.read

        async def reads(*of: Any) -> Slice:
            joined.set()
            return await shared(*of)

        monkeypatch.setattr(store, "read", held)
        early = asyncio.create_task(shared(stream, 0))
        await asyncio.to_thread(began.wait)
        monkeypatch.setattr(watching, "read", reads)
        await asyncio.to_thread(store.put, stream, b"new")
        await joined.wait()
        may_end.set()
        assert not (await early).events
        assert await asyncio.wait_for(watcher, 20) == [b"new"]

    run(act)


def test_a_shared_read_that_began_before_an_append_hides_nothing_from_who_reads_what_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, may_end = threading.Event(), threading.Event()

    async def act(store: Counting, watching: Watching) -> None:
        read = store.read

        def held(stream: StreamName, after: int = 0, *, bytes_max: int = 1 << 20) -> Page:
            page = read(stream, after, bytes_max=bytes_max)
            if not began.is_set():
                began.set()
                may_end.wait()
            return page

        monkeypatch.setattr(store, "read", held)
        early = asyncio.create_task(watching.read(STREAMS[0], 0))
        await asyncio.to_thread(began.wait)
        store.put(STREAMS[0], b"new")
        index = store.index(STREAMS[0])
        assert index is not None
        later = asyncio.create_task(watching.read(STREAMS[0], 0, index.last_id))
        await asyncio.sleep(0)  # it has joined the read
        may_end.set()
        assert not (await early).events
        assert [event.payload for event in (await later).events] == [b"new"]

    run(act)


def test_a_token_reads_history_beside_all_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    async def act(store: Counting, watching: Watching) -> None:
        store.put(STREAMS[0], b"one")
        read = store.read

        def held(stream: StreamName, after: int = 0, *, bytes_max: int = 1 << 20) -> Page:
            assert after == 0 or go_on.wait(30)
            return read(stream, after, bytes_max=bytes_max)

        monkeypatch.setattr(store, "read", held)
        reads = [watching.read(STREAMS[0], after, share="many") for after in range(1, 9)]
        many = [asyncio.create_task(read) for read in reads]
        while len(watching._reading) < len(many):
            await asyncio.sleep(0)
        assert (await asyncio.wait_for(watching.read(STREAMS[0], 0, share="other"), 20)).events
        with watching._watchers.watch(STREAMS[0], 0, in_thread=watching.reading_of("other")) as watch:
            assert [event.payload for event in await watch.next_batch_async(20)] == [b"one"]
        go_on.set()
        await asyncio.gather(*many)

    run(act)
