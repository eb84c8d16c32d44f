"""The appender: single events go together, in order, bounded, and a failure is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from millpond.clock import ManualClock
from millpond.errors import Closed, Invalid, Uncertain
from millpond.events import appender as appender_module
from millpond.events.appender import Appender
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch, NewEvent
from millpond.events.events import Events
from millpond.stores.memory import MemorySpace
from millpond.testing.passing_time import while_time_passes
from tests.harness.contracts.stream_site import NOON, RULES


class Deliveries:
    """The events that were delivered; a delivery waits for `go`, and fails with `error`."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, bytes]]] = []
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()
        self.error: Exception | None = None

    def __call__(self, batches: Sequence[EventBatch]) -> None:
        self.begun.set()
        self.go.wait()
        if self.error is not None:
            raise self.error
        found = [(batch.stream.job_set, event.payload) for batch in batches for event in batch.events]
        self.batches.append(found)


def test_events_of_a_moment_are_delivered_together_and_in_order() -> None:
    deliveries, clock = Deliveries(), ManualClock()
    with Appender(deliveries, clock, 20) as appender:
        for number in range(5):
            appender.append("q", f"j{number % 2}", b"%d" % number)
        while_time_passes(clock, deliveries.begun.wait)
        appender.append("q", "j0", b"later")
        appender.flush()
        appender.append("q", "j0", b"lingers")
    assert deliveries.batches == [
        [("j0", b"0"), ("j0", b"2"), ("j0", b"4"), ("j1", b"1"), ("j1", b"3")],
        [("j0", b"later")], [("j0", b"lingers")],
    ]  # fmt: skip
    with pytest.raises(Closed):
        appender.append("q", "j", b"x")


def test_much_does_not_linger_and_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender_module, "DELIVERY_BYTES", 10)
    monkeypatch.setattr(appender_module, "WAITING_BYTES_MAX", 20)
    deliveries = Deliveries()
    deliveries.go.clear()
    with Appender(deliveries, ManualClock(), 3_600_000) as appender, ThreadPoolExecutor(1) as pool:
        appender.append("q", "j", b"0123456789")
        deliveries.begun.wait()
        appender.append("q", "j", bytes(20))
        pending = pool.submit(appender.append, "q", "j", b"waits")
        assert not pending.done()
        deliveries.go.set()
        pending.result()
    assert [payload for batch in deliveries.batches for _, payload in batch] == [b"0123456789", bytes(20), b"waits"]


def test_a_failure_is_told_once_and_others_are_appended() -> None:
    deliveries = Deliveries()
    with Appender(deliveries, ManualClock(), 1) as appender:
        with pytest.raises(Invalid):
            appender.append("q", "j", NewEvent(0, b"", "k" * 300))
        deliveries.error = Uncertain("lost")
        appender.append("q", "j", b"lost")
        with pytest.raises(Uncertain):
            appender.flush()
        deliveries.error = None
        appender.append("q", "j", b"stored")
        appender.flush()
        assert deliveries.batches == [[("j", b"stored")]]
        deliveries.error = Uncertain("lost again")
        appender.append("q", "j", b"lost")
        with pytest.raises(Uncertain):
            appender.close()


def test_a_pond_appends_through_it() -> None:
    clock = ManualClock(now=NOON)
    events = Events(open_store(clock), clock, RULES)
    with events.appender("1h") as appender:
        for number in range(100):
            appender.append("etl", f"{number % 3}", b"%d" % number)
    assert sum(len(list(events.read(*stream))) for stream in events.streams()) == 100
    assert [int(event.payload) for event in events.read("etl", "1")] == list(range(1, 100, 3))
    events.close()


def open_store(clock: ManualClock) -> EmbeddedStore:
    return EmbeddedStore(MemorySpace(), clock, RULES)
