"""Streams of events: append, compress, read, resume, watch, the registry of due days, and maintenance; embedded.

Beside it, in the same run, on the same payloads: **bare LMDB**, `putmulti` of the payloads under 8-byte keys in one
transaction a batch, with the same sync setting, and a scan of them.

    python bench/events.py             200,000 events, 1,000,000 job sets
    python bench/events.py --quick     a tenth of both
    python bench/events.py --only append,watch
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb

from _results import Run, counted, version
from millpond.clock import ManualClock, SystemClock
from millpond.events.compress import compress_stream
from millpond.events.days import DAY_MS
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch, NewEvent
from millpond.events.maintenance import EventMaintenance, MaintenanceRules
from millpond.events.names import StreamName
from millpond.events.protocol import Work
from millpond.events.watchers import Watchers
from millpond.stores.lmdb.space import LmdbSpace

STREAM = StreamName("etl", "nightly")
KINDS = ("submitted", "queued", "leased", "pending", "running", "succeeded")
NOON = 20_000 * DAY_MS + DAY_MS // 2


def payloads(count: int) -> list[bytes]:
    """Events of jobs, about 240 bytes each: ids drawn at random, names that repeat, figures that grow."""
    draw = random.Random(1)
    jobs = [f"{draw.getrandbits(130):033x}" for _ in range(count // 12 + 1)]
    return [
        json.dumps(
            {
                "job_id": jobs[number // 12], "cluster": f"cluster-{number % 7}", "pool": "default",
                "pod": f"millpond-{jobs[number // 12][:26]}-0", "node": f"node-{draw.randrange(500):04d}.example.com",
                "cpu_ms": number * 17 % 100_000, "memory": draw.randrange(1 << 32),
            }
        ).encode()
        for number in range(count)
    ]  # fmt: skip


def batches(all_payloads: list[bytes], size: int) -> Iterator[list[NewEvent]]:
    """Events in batches, as a consumer has them."""
    for start in range(0, len(all_payloads), size):
        yield [
            NewEvent(NOON + number, payload, KINDS[number % 6])
            for number, payload in enumerate(all_payloads[start : start + size], start)
        ]


def timed(act: Callable[[], object]) -> float:
    """Elapsed seconds."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def quantiles(seconds: list[float]) -> str:
    """The middle and the 99th of 100, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return f"p50 {1e3 * cuts[49]:.2f} ms, p99 {1e3 * cuts[98]:.2f} ms"


def note_delays(result: Run, task: str, seconds: list[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100)
    result.note(task, "Millpond", cuts[49])
    result.note(f"{task}, 99 %", "Millpond", cuts[98])


def bare_append(folder: Path, all_payloads: list[bytes], size: int, durable: bool) -> float:
    """Bare LMDB: a transaction a batch."""
    with lmdb.open(str(folder), map_size=1 << 32, sync=durable, metasync=durable) as environment:

        def run() -> None:
            for start in range(0, len(all_payloads), size):
                rows = [
                    ((NOON << 20 | number).to_bytes(8, "big"), payload)
                    for number, payload in enumerate(all_payloads[start : start + size], start)
                ]
                with environment.begin(write=True) as transaction:
                    transaction.cursor().putmulti(rows)

        return timed(run)


def bench_append(result: Run, folder: Path, count: int) -> None:
    """Append in batches, with a source position, beside bare LMDB in turn."""
    all_payloads = payloads(count)
    gc.collect()
    gc.freeze()  # what the benchmark itself holds is not looked through while it measures
    print(f"append: {count:,} events of {sum(map(len, all_payloads)) // count} bytes")
    for durable in (True, False):
        for size in (100, 500, 2_000, 10_000):
            bare, ours = [], []
            for turn in range(3):
                name = f"{durable}-{size}-{turn}"
                made = list(batches(all_payloads, size))
                positions = [range(number * size, number * size + len(batch)) for number, batch in enumerate(made)]
                space = LmdbSpace(folder / f"ours-{name}", durable=durable)
                store = EmbeddedStore(space, ManualClock(now=NOON))

                def run(
                    store: EmbeddedStore = store, made: list[list[NewEvent]] = made, at: list[range] = positions
                ) -> None:
                    for batch, places in zip(made, at, strict=True):
                        store.append([EventBatch(STREAM, batch, "kafka:jobs/0", places)])

                ours.append(timed(run))
                space.close()
                bare.append(bare_append(folder / f"bare-{name}", all_payloads, size, durable))
            sync, size_text = "synced" if durable else "unsynced", f"{size:,} events a batch"
            result.note(f"append, {sync}", "Millpond", [count / taken for taken in ours], unit="/s", size=size_text)
            result.note(f"append, {sync}", "bare LMDB", [count / taken for taken in bare], unit="/s", size=size_text)
            rate, other = count / min(ours), count / min(bare)
            share = rate / other
            print(f"  {sync:8} batches of {size:6,}: {rate / 1e3:6,.0f} k/s, bare {other / 1e3:6,.0f} k/s, {share:.2f}")


def bench_history(result: Run, folder: Path, count: int) -> None:
    """Compress a day, read it, resume anywhere in it."""
    space = LmdbSpace(folder / "history", durable=False)
    store = EmbeddedStore(space, ManualClock(now=NOON))
    for batch in batches(payloads(count), 500):
        store.append([EventBatch(STREAM, batch)])

    def read() -> None:
        after = 0
        while (page := store.read(STREAM, after)).events:
            after = page.after

    raw = timed(read)
    index = store.index(STREAM)
    assert index is not None
    took = timed(lambda: compress_stream(store, STREAM, NOON // DAY_MS))
    after = store.index(STREAM)
    assert after is not None
    before_bytes, after_bytes = index.segments[0].stored_bytes, after.segments[0].stored_bytes
    compressed = timed(read)
    for task, taken in (("compress a day", took), ("read, as appended", raw), ("read, compressed", compressed)):
        result.note(task, "Millpond", count / taken, unit="/s")
    result.note("an event, as appended", "Millpond", before_bytes / count, unit="B")
    result.note("an event, compressed", "Millpond", after_bytes / count, unit="B")
    print(f"history: {count:,} events")
    print(f"  compress {count / took / 1e3:,.0f} k/s; {before_bytes / count:.0f} bytes an event become "
          f"{after_bytes / count:.0f}, {before_bytes / after_bytes:.1f} times fewer")  # fmt: skip
    print(f"  read raw {count / raw / 1e3:,.0f} k/s, compressed {count / compressed / 1e3:,.0f} k/s")
    draw = random.Random(2)
    days = after.segments[0]
    places = [draw.randrange(days.first_id, days.last_id) for _ in range(300)]
    resumed = [timed(lambda at=at: store.read(STREAM, at, bytes_max=1)) for at in places]
    note_delays(result, "resume from a random id", resumed)
    print(f"  resume from a random id: {quantiles(resumed)}")
    space.close()


def bench_watch(result: Run, folder: Path, _count: int) -> None:
    """The time from the call of append to the hand of each watcher."""
    print("watch: from append to the watchers' hands")
    for watchers_count in (1, 100, 1_000):
        space = LmdbSpace(folder / f"watch-{watchers_count}", durable=False)
        clock = SystemClock()
        store = EmbeddedStore(space, clock)
        watchers = Watchers(store, clock)
        delays = asyncio.run(_watch(store, watchers, watchers_count))
        watchers.close()
        space.close()
        note_delays(result, f"from append to {counted(watchers_count, 'watcher')}", delays)
        print(f"  {watchers_count:5,} watchers: {quantiles(delays)}")


async def _watch(store: EmbeddedStore, watchers: Watchers, count: int) -> list[float]:
    turns = 100
    delays: list[float] = []
    ready = asyncio.Semaphore(0)

    async def watch() -> None:
        with watchers.watch(STREAM, 0) as watched:
            while not watched.caught_up:
                await watched.next_batch_async(None)
            ready.release()
            async for event in watched:
                delays.append(time.perf_counter() - float(event.payload))
                ready.release()
                if event.kind == "last":
                    return

    tasks = [asyncio.create_task(watch()) for _ in range(count)]
    for turn in range(turns + 1):
        for _ in range(count):
            await ready.acquire()
        if turn == turns:
            break
        kind = "last" if turn == turns - 1 else ""

        def append(kind: str = kind) -> None:
            payload = repr(time.perf_counter()).encode()
            store.append([EventBatch(STREAM, [NewEvent(NOON, payload, kind)])])

        await asyncio.to_thread(append)
    await asyncio.gather(*tasks)
    return delays


def bench_registry(result: Run, folder: Path, count: int) -> None:
    """Due days among many job sets that are not due, beside a scan of all heads."""
    streams = 5 * count
    space = LmdbSpace(folder / "registry", durable=False)
    clock = ManualClock(now=NOON)
    store = EmbeddedStore(space, clock)

    def fill() -> None:
        for start in range(0, streams, 5_000):
            # One in a thousand is old.
            numbers = range(start, start + 5_000)
            times = [NOON - 3 * DAY_MS if number % 1_000 == 0 else NOON for number in numbers]
            store.append(
                [
                    EventBatch(StreamName("etl", f"set-{number}"), [NewEvent(time_ms, b"x")])
                    for number, time_ms in zip(numbers, times, strict=True)
                ]
            )

    took = timed(fill)
    found: list[int] = []
    due = timed(lambda: found.append(len(store.due(Work.COMPRESS, NOON // DAY_MS - 2, limit=streams))))

    def scan() -> None:
        after = None
        while page := store.streams(after=after, limit=10_000):
            after = page[-1]

    listed, task = timed(scan), f"find {found[0]:,} due of {streams:,} job sets"
    result.note(task, "Millpond", due)
    result.note(task, "Millpond, a list of all names", listed)
    print(f"registry: {streams:,} job sets, appended at {streams / took / 1e3:,.0f} k/s")
    print(f"  {found[0]:,} due found in {1e3 * due:.1f} ms; a scan of all names takes {listed:.2f} s")
    space.close()


def bench_maintenance(result: Run, folder: Path, count: int) -> None:
    """Compress and drop the day of many small job sets, each write synced."""
    streams, events = count // 10, 5
    space = LmdbSpace(folder / "maintenance")
    clock = ManualClock(now=NOON)
    store = EmbeddedStore(space, clock)
    for start in range(0, streams, 2_000):
        names = (StreamName("etl", f"set-{number}") for number in range(start, min(streams, start + 2_000)))
        store.append([EventBatch(name, [NewEvent(NOON, b'{"pool": "default"}', "running")] * events) for name in names])
    rules = MaintenanceRules(bytes_per_second=0)
    for work, days in (("compress", 4), ("expire", 15)):
        clock.advance(days * DAY_MS)
        took = timed(getattr(EventMaintenance(store, clock, rules, 90 * DAY_MS), work))
        result.note(f"{work} the day of {streams:,} job sets", "Millpond", streams / took, unit="/s")
        print(f"maintenance: {work}: {streams / took:,.0f} job sets a second, of {streams:,} with {events} events each")
    space.close()


BENCHES = {
    "append": bench_append, "history": bench_history, "watch": bench_watch, "registry": bench_registry,
    "maintenance": bench_maintenance,
}  # fmt: skip
ALL = ",".join(BENCHES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default=ALL)
    options = parser.parse_args()
    count, result = 20_000 if options.quick else 200_000, Run("events")
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            BENCHES[name](result, Path(folder), count)
    whole = not options.quick and options.only == ALL
    result.write({"py-lmdb": version("lmdb")}, whole=whole, events=count)


if __name__ == "__main__":
    main()
