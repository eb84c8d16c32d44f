"""The contract of streams: the registry, listings, names, followers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millpond.errors import Closed
from millpond.events.days import DAY_MS
from millpond.events.event import EventBatch
from millpond.events.names import StreamName
from millpond.events.protocol import StreamStore, Work
from millpond.testing.passing_time import until
from tests.harness.contracts.stream_site import (
    NOON,
    STREAM,
    TODAY,
    StreamSite,
    append,
    compress,
    events_of,
    everything,
    index_of,
    payloads_of,
)

__all__ = ("RegistryContract",)

ODD_NAMES = (
    "",
    "a",
    "a:b",
    "b",
    "_",
    "a_b",
    "%",
    "{a}",
    "{",
    "}",
    "*",
    "a/b",
    "a\x00",
    "\x00a",
    "\x01",
    "é",
    "日本",
    "a ",
    "\n",
)


class RegistryContract:
    """Registry, names, followers."""

    # --- registry and listing

    def test_the_registry_lists_what_is_due_oldest_first(self, site: StreamSite, store: StreamStore) -> None:
        names = [StreamName("etl", str(number)) for number in range(5)]
        for number, name in enumerate(names):
            append(store, "a", stream=name, time_ms=NOON - number * DAY_MS)
            append(store, "b", stream=name)
        due = store.due(Work.COMPRESS, TODAY - 1, limit=99)
        assert [(entry.day - TODAY, entry.stream) for entry in due] == [(-n, names[n]) for n in (4, 3, 2, 1)]
        assert store.due(Work.COMPRESS, TODAY - 3, limit=99) == due[:2]
        assert store.due(Work.COMPRESS, TODAY - 1, limit=1) == due[:1]
        assert store.due(Work.COMPRESS, TODAY - 1, due[0], limit=2) == due[1:3]
        assert store.due(Work.COMPRESS, TODAY - 1, due[-1], limit=2) == []
        for entry in due:
            compress(store, entry.stream, index_of(store, entry.stream).segments[:1])
        assert store.due(Work.COMPRESS, TODAY - 1, limit=99) == []
        assert len(store.due(Work.COMPRESS, TODAY, limit=99)) == 5
        assert [entry.day - TODAY for entry in store.due(Work.EXPIRE, TODAY, limit=99)] == [-4, -3, -2, -1, 0]
        store.expire(names[4], TODAY - 4)
        assert [entry.day - TODAY for entry in store.due(Work.EXPIRE, TODAY, limit=99)] == [-3, -2, -1, 0, 0]

    def test_streams_are_listed_by_queue(self, store: StreamStore) -> None:
        names = [StreamName(queue, str(number)) for queue in ("a", "b", "a\x00") for number in range(3)]
        store.append([EventBatch(name, events_of("x")) for name in names])
        assert sorted(store.streams(limit=99)) == sorted(names)
        assert store.streams("a", limit=99) == [name for name in names if name.queue == "a"]
        listed, after = [], None
        while page := store.streams(after=after, limit=2):
            listed += page
            after = page[-1]
        assert listed == store.streams(limit=99)

    @pytest.mark.usefixtures("processor")
    def test_names_of_any_characters_never_share_a_stream(self, store: StreamStore) -> None:
        long = [text * 1023 for text in ("a", "é", "\x01", "😀")] + ["a" * 1022 + "b", "a" * 300, "😀" * 300]
        names = [StreamName(queue, job_set) for queue in ODD_NAMES for job_set in (*ODD_NAMES, *long)]
        names += [StreamName(text * 255, "x") for text in ("a", "é", "\x01", "😀")]
        store.append([EventBatch(name, events_of(str(place))) for place, name in enumerate(names)])
        for place, name in enumerate(names):
            assert payloads_of(store, name) == [str(place)]
        assert sorted(store.streams(limit=len(names) + 1)) == sorted(names)
        assert sorted(due.stream for due in store.due(Work.COMPRESS, TODAY, limit=9999)) == sorted(names)

    # --- follow

    def test_followers_learn_which_streams_have_news(self, store: StreamStore) -> None:
        other = StreamName("etl", "other")
        cursors = {STREAM: 0, other: 0}
        assert store.follow(cursors, 0.0) == set()
        last = append(store, "a").last_id
        assert store.follow(cursors, None) == {STREAM}
        assert store.follow({STREAM: last, other: 0}, 0.0) == set()

    def test_a_follower_is_woken_by_another_store(self, site: StreamSite, store: StreamStore) -> None:
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(store.follow, {STREAM: 0}, None)
            append(site.open(), "a")
            until(site.clock, pending.done)
            assert pending.result() == {STREAM}

    def test_a_follower_is_let_go_when_the_store_closes(self, store: StreamStore) -> None:
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(store.follow, {STREAM: 0}, None)
            store.close()
            assert isinstance(pending.exception(30), Closed)
        store.close()
        with pytest.raises(Closed):
            store.read(STREAM)

    def test_writers_of_several_threads_keep_one_order(self, site: StreamSite) -> None:
        stores = [site.open() for _ in range(3)]

        def write(number: int) -> None:
            for turn in range(10):
                append(stores[number], f"{number} {turn}", f"{number} {turn}b")

        threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        events = everything(stores[0])
        assert len({event.number for event in events}) == 60
        for number in range(3):
            own = [event.payload for event in events if event.payload.startswith(b"%d " % number)]
            assert own == [b"%d %d%s" % (number, turn, end) for turn in range(10) for end in (b"", b"b")]
