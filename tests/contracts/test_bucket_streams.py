"""Streams over the space of a bucket keep the contract of streams; and what is their own: objects, folding, garbage."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from hashlib import shake_256
from typing import TYPE_CHECKING

import pytest

from millpond.clock import ManualClock
from millpond.errors import Corrupt, Uncertain
from millpond.events.compress import compress_stream
from millpond.events.days import DAY_MS
from millpond.events.embedded.fold import FOLD_BYTES, fold_open
from millpond.events.embedded.garbage import Collected, collect_objects
from millpond.events.embedded.large_rows import LargeRows, object_of
from millpond.events.embedded.rows import keys_of
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch
from millpond.events.keyspaces import BATCH
from millpond.kernel import steps
from millpond.stores.bucket_space.space import BucketSpace
from millpond.stores.objects import MemoryObjects, StoreBelow
from millpond.testing.passing_time import while_time_passes
from tests.harness.contracts.stream_site import (
    NOON,
    RULES,
    STREAM,
    TODAY,
    append,
    days,
    events_of,
    everything,
    index_of,
    payloads_of,
)
from tests.harness.contracts.streams import StreamContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.events.names import StreamName
    from millpond.events.protocol import StreamStore
    from millpond.kernel.space import Transaction
    from millpond.stores.objects import ObjectStore

pytestmark = pytest.mark.usefixtures("processor")


@dataclass
class BucketSite:
    """Stores over one bucket; each has a copy of the rows, as a process has."""

    objects: ObjectStore = field(default_factory=MemoryObjects)
    clock: ManualClock = field(default_factory=lambda: ManualClock(now=NOON))
    stores: list[EmbeddedStore] = field(default_factory=list)

    def rows(self) -> LargeRows:
        """The rows, as another process has them."""
        space = BucketSpace(StoreBelow(self.objects, "space"), self.clock, max_staleness=0)
        return LargeRows(space, StoreBelow(self.objects, "events"), self.clock)

    def open(self) -> StreamStore:
        self.stores.append(EmbeddedStore(self.rows(), self.clock, RULES))
        return self.stores[-1]

    def damage(self, stream: StreamName) -> None:
        def change(tx: Transaction) -> None:
            for key, row in list(tx.scan(keys_of(stream).batches.range())):
                tx.put(key, row[:-1] + bytes([row[-1] ^ 1]))

        self.rows().write(change)

    def close(self) -> None:
        for store in self.stores:
            store.close()


class TestBucketStreams(StreamContract):
    @pytest.fixture
    def site(self) -> Iterator[BucketSite]:
        site = BucketSite()
        yield site
        site.close()


# -- what is their own --------------------------------------------------------------------------------


@pytest.fixture
def site() -> Iterator[BucketSite]:
    site = BucketSite()
    yield site
    site.close()


def large(letter: str, count: int = 1) -> EventBatch:
    """Events whose rows name objects."""
    return EventBatch(STREAM, events_of(*((letter * 50_000)[number:] for number in range(count))))


def noise(size: int) -> str:
    """Text that compresses little."""
    return shake_256(b"%d" % size).hexdigest(size // 2)


def objects_of(site: BucketSite) -> set[str]:
    return {info.name for info in site.objects.list("events")}


def small_bytes(site: BucketSite) -> int:
    """The bytes of events that every process holds."""
    with site.rows().rows.read() as tx:
        return sum(len(row) for _, row in tx.scan(BATCH.range()))


def collected(site: BucketSite, days: float = 0) -> Collected:
    """Collect so many days later, by the clock of the bucket."""
    rows = site.rows()
    now_ms = partial(int, site.clock.now + days * DAY_MS)
    return collect_objects(rows, site.clock, now_ms, grace_ms=DAY_MS, dry_run=False)


def test_large_batches_are_objects_and_small_ones_rows(site: BucketSite) -> None:
    store, other = site.open(), site.open()
    append(store, "small")
    assert not objects_of(site)
    store.append([large("a", 30)])
    assert len(objects_of(site)) == 3 and small_bytes(site) < 500
    assert [len(event.payload) for event in everything(other)] == [5, *range(50_000, 49_970, -1)]
    store.append([EventBatch(STREAM, events_of(noise(50_000)))])
    compress_stream(other, STREAM, TODAY)
    assert [len(event.payload) for event in everything(store)] == [5, *range(50_000, 49_970, -1), 50_000]
    assert days(store) == [(0, "compressed", 32)]


def test_small_rows_of_an_open_day_are_folded(site: BucketSite) -> None:
    store, other = site.open(), site.open()
    numbers = iter(range(10_000))
    for _ in range(60):
        append(store, f"{next(numbers)} {noise(9_000)}")
        append(other, f"{next(numbers)} {noise(9_000)}")
        assert small_bytes(site) < 2 * FOLD_BYTES
    assert small_bytes(site) < FOLD_BYTES and 0 < len(objects_of(site)) <= 5
    assert [int(payload.split()[0]) for payload in payloads_of(other)] == list(range(120))
    stored = index_of(store).segments[-1].stored_bytes
    assert 0 < stored < index_of(store).segments[-1].bytes


def test_folding_that_comes_too_late_changes_nothing(site: BucketSite) -> None:
    store, other, compressed = site.open(), site.open(), list[bool]()
    payloads = [noise(3_000 + 2 * number) for number in range(50)]
    for payload in payloads:
        append(store, payload)
    rows = site.rows()

    def meanwhile(name: str) -> None:
        if name == "events.bodies_put" and not compressed:
            compressed.append(True)
            compress_stream(other, STREAM, TODAY)

    with steps.listening(meanwhile):
        fold_open(rows, STREAM)
    assert payloads_of(store) == payloads
    assert days(store) == [(0, "compressed", 50)]
    store.delete(STREAM)
    fold_open(rows, STREAM)
    assert payloads_of(other) == []


def test_objects_go_when_nothing_has_named_them_for_the_grace_time(site: BucketSite) -> None:
    store = site.open()
    store.append([large("a"), large("b")])
    first = objects_of(site)
    assert collected(site, 3) == Collected() and objects_of(site) == first
    store.delete(STREAM)
    append(store, "later")
    assert collected(site, 3) == Collected(retained=2)
    assert collected(site, 3.5).retained == 2 and objects_of(site) == first
    assert collected(site, 4.5).files == 2 and not objects_of(site)
    assert collected(site, 9) == Collected()
    assert payloads_of(store) == ["later"]


def test_a_write_that_a_collection_overtakes_puts_its_objects_again(site: BucketSite) -> None:
    store, put = site.open(), list[set[str]]()

    def meanwhile(name: str) -> None:
        if name == "events.bodies_put" and not put:
            put.append(objects_of(site))
            assert collected(site, 2).retained == 1
            assert collected(site, 4).files == 1 and not objects_of(site)

    with steps.listening(meanwhile):
        store.append([large("a")])
    assert objects_of(site).isdisjoint(put[0])
    assert payloads_of(site.open()) == ["a" * 50_000]


def test_what_a_write_names_after_it_was_noted_has_its_grace_time(site: BucketSite) -> None:
    store, noted = site.open(), list[int]()

    def meanwhile(name: str) -> None:
        if name == "events.bodies_put" and not noted:
            noted.append(collected(site).retained)

    with steps.listening(meanwhile):
        store.append([large("a")])
    assert noted == [1]
    with site.rows().rows.read() as tx:
        [named] = [object_of(row) for _, row in tx.scan(BATCH.range())]
    store.delete(STREAM)  # whoever has an older copy of the rows reads on
    assert collected(site, 4).retained == 1 and objects_of(site) == {f"events/{named}"}


def test_one_collects_at_a_time(site: BucketSite) -> None:
    store = site.open()
    store.append([large("a")])
    store.delete(STREAM)
    collected(site)
    outcomes = list[Collected]()

    def meanwhile(name: str) -> None:
        if name == "events.collecting" and not outcomes:
            outcomes.append(collected(site, 2))

    with steps.listening(meanwhile):
        assert collected(site, 2).files == 1
    assert outcomes[0].busy and not outcomes[0].files


def test_an_object_that_is_gone_is_named(site: BucketSite) -> None:
    store = site.open()
    store.append([large("a")])
    [name] = objects_of(site)
    site.objects.delete(name)
    other = site.open()
    with pytest.raises(Corrupt) as caught:
        while_time_passes(site.clock, lambda: everything(other))
    assert caught.value.values["object"] == name.removeprefix("events/")


class _Lossy(MemoryObjects):
    """Objects whose next conditional puts land, or do not, and are not answered."""

    faults: list[bool]

    def swap(self, name: str, data: object, expected: str | None) -> str:
        if not self.faults:
            return super().swap(name, data, expected)  # type: ignore[arg-type]
        if self.faults.pop():
            super().swap(name, data, expected)  # type: ignore[arg-type]
        raise Uncertain("the answer was lost", kind="objects_uncertain")


@pytest.mark.parametrize("lands", [True, False])
def test_an_append_whose_answer_was_lost_is_entered_once(lands: bool) -> None:
    objects = _Lossy()
    objects.faults = []
    site = BucketSite(objects)
    store = site.open()
    append(store, "before")
    objects.faults = [lands]
    while_time_passes(site.clock, lambda: store.append([large("a")]))
    objects.faults = [lands]
    while_time_passes(site.clock, lambda: append(store, "small"))
    assert [payload[:6] for payload in payloads_of(site.open())] == ["before", "aaaaaa", "small"]
    site.close()
