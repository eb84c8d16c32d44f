"""Streams in Redis when their client is killed at each step, or the server in the midst of appends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("redis")

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.events.check import check_store
from millpond.events.days import DAY_MS
from millpond.events.event import EventBatch, NewEvent
from millpond.events.index import State
from millpond.events.names import StreamName
from millpond.events.protocol import Work
from millpond.events.redis.store import RedisStore
from millpond.testing.faults import occurrences
from tests.crash.stream_acts import LATER, STREAM, compress, delete, delivered, drop, erase
from tests.crash.versions_killed import forked, killed_at, logged
from tests.harness.contracts.stream_site import NOON, RULES, TODAY, everything
from tests.redis_servers import RedisServer, new_place, server


def prepare(store: RedisStore, clock: ManualClock) -> None:
    """Three days: two closed and small enough to share a segment with nobody, one open."""
    for day in range(3):
        clock.now = NOON + day * DAY_MS
        store.append([delivered(1 + 10 * day, 10, clock.now)])
    clock.now = LATER


def append(store: RedisStore) -> None:
    """Events that were stored, late ones, and ones that begin a day; for two streams at once."""
    other = EventBatch(StreamName("crash", "other"), [NewEvent(LATER, b"x")], "kafka:jobs/0", [1])
    store.append([delivered(29, 4, NOON), other, delivered(33, 2, LATER)])


def erase_by_batches(store: RedisStore) -> None:
    """Delete the events of a job in steps of a batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millpond.events.redis.day_switch.REWRITE_BYTES", 0)
        erase(store)


ACTS: dict[str, Callable[[RedisStore], None]] = {
    "append": append, "compress": compress, "expire": drop, "delete": delete, "erase": erase,
    "erase by batches": erase_by_batches,
}  # fmt: skip


def opened(url: str, act: Callable[[RedisStore], None]) -> None:
    store = RedisStore(url, ManualClock(now=LATER), RULES)
    act(store)
    store.close()


def prepared() -> str:
    url, clock = server().url(new_place()), ManualClock(now=LATER)
    store = RedisStore(url, clock, RULES)
    prepare(store, clock)
    store.close()
    return url


def look(url: str) -> list[bytes]:
    store = RedisStore(url, ManualClock(now=LATER), RULES)
    found = [event.payload for event in everything(store, STREAM)]
    store.close()
    return found


def by_day(payloads: list[bytes]) -> list[list[bytes]]:
    """The events of each of the three days."""
    numbers = [(int(payload.rstrip(bytes(1))) - 1) // 10 for payload in payloads]
    return [[one for one, number in zip(payloads, numbers, strict=True) if number == day] for day in range(3)]


def check(url: str, act: str, before: list[bytes], after: list[bytes]) -> None:
    """Look at what a killed process left: it is readable, and the act ends when it is done again."""
    store = RedisStore(url, ManualClock(now=LATER), RULES)
    found = [event.payload for event in everything(store, STREAM)]
    if act == "erase by batches":
        first = next((place for place, payload in enumerate(found) if payload not in after), len(found))
        assert found == after[:first] + before[before.index(found[first]) :] if first < len(found) else found == after
        assert check_store(store).ok and store.check().ok
    elif act in ("delete", "erase"):
        assert all(day in (old, new) for day, old, new in zip(*map(by_day, (found, before, after)), strict=True))
        assert act == "erase" or found in (before, after)
    else:
        assert found in (before, after, before[: len(found)], after[: len(found)]) or act == "expire"
        assert found == before[len(before) - len(found) :] if act == "expire" else len(found) >= len(before)
    ACTS[act](store)
    assert [event.payload for event in everything(store, STREAM)] == after
    index = store.index(STREAM)
    assert index is not None
    if act in ("compress", "erase", "erase by batches"):
        assert [state for _, state in index.days()] == [State.COMPRESSED] * 3
    due = {"append": TODAY, "compress": None, "expire": TODAY + 2, "delete": None}.get(act)
    listed = [entry.day for entry in store.due(Work.COMPRESS, TODAY + 99, limit=9) if entry.stream == STREAM]
    assert listed == ([due] if due else [])
    store.append([delivered(36, 1, LATER)])
    assert len(everything(store, STREAM)) == len(after) + 1
    store.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize("act", ACTS)
def test_a_client_that_is_killed_at_any_step_leaves_a_readable_stream(act: str, tmp_path: Path) -> None:
    opened(prepared(), ACTS[act])  # the server knows the scripts from now on: each run takes the same steps
    whole, steps = prepared(), tmp_path / "steps"
    before = look(whole)
    steps.touch()
    assert forked(lambda: logged(steps, lambda: opened(whole, ACTS[act]))) == 0
    after, moments = look(whole), occurrences(steps)
    if act == "erase by batches":  # at the other steps as `erase`
        moments = [moment for moment in moments if "events.batches_rewritten" in moment]
    assert len(moments) >= 2
    for moment in moments:
        left = prepared()

        def die(left: str = left, moment: str = moment) -> None:
            killed_at(moment, lambda: opened(left, ACTS[act]))

        assert forked(die) == -signal.SIGKILL, moment
        check(left, act, before, after)


def test_a_server_that_is_killed_has_every_batch_that_it_acknowledged() -> None:
    """Appends go on while a server with `appendfsync always` is killed and started, again and again."""
    own = RedisServer(("--appendonly", "yes", "--appendfsync", "always"))
    try:
        own.start()
        store = RedisStore(own.url("p"), ManualClock(now=NOON), RULES)
        for turn in range(4):
            acknowledged = 100 * turn
            killer = threading.Timer(0.05 * turn + 0.02, own.kill)
            killer.start()
            try:
                for first in range(100 * turn + 1, 100 * turn + 100, 3):
                    count = min(3, 100 * turn + 101 - first)
                    store.append([EventBatch(STREAM, _numbered(first, count), "log", range(first, first + count))])
                    acknowledged = first + count - 1
            except Unavailable:
                pass
            killer.join()
            own.start()
            found = [int(event.payload) for event in everything(store, STREAM)]
            assert found == list(range(1, len(found) + 1)) and len(found) >= acknowledged
            rest = range(max(acknowledged - 4, 1), 100 * (turn + 1) + 1)  # from a little earlier on
            store.append([EventBatch(STREAM, _numbered(rest[0], len(rest)), "log", rest)])
            assert [int(event.payload) for event in everything(store, STREAM)] == list(range(1, 100 * (turn + 1) + 1))
        store.close()
    finally:
        own.remove()


def _numbered(first: int, count: int) -> list[NewEvent]:
    return [NewEvent(NOON, b"%d" % number) for number in range(first, first + count)]
