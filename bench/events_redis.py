"""Streams of events in Redis, beside what Redis does by itself: a real server, the same payloads, the same client.

* Append: batches of 100 events in turn over job sets, ids, days, positions and the registry included; and batches of
  one event, 500 in a call. Beside it bare `XADD`, pipelined, an entry an event, which knows no redelivery. Then one
  event in a call, by one thread, and one event to each of 500 job sets in a call; beside it one `XADD` in a round trip,
  `XADD` and `EXPIRE`, and what Armada writes: the same behind its zlib, of level 1, or 0 up to 1,024 bytes. The
  protocol buffers that it makes before are left out: all are given the same bytes.
* Memory: one raw entry an event, then our raw days, also of events that came singly, then the same days compressed; and
  14 days of one event.
* Read: the compressed history of a job set, decoded; beside it `XREAD` of raw entries, which are not decoded.
* Resume: the page after a random id of a compressed day.
* Registry: what is due among many job sets, beside a `SCAN` of the keyspace.

    python bench/events_redis.py            1 M events
    python bench/events_redis.py --quick    a tenth of it
    python bench/events_redis.py --only append,read
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import redis

from _measure import Contest, note_contests, print_table, rounds
from _results import Run
from _servers import redis_server
from millpond.clock import ManualClock
from millpond.events.compress import compress_stream
from millpond.events.days import DAY_MS
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import StreamName
from millpond.events.protocol import Work
from millpond.events.redis.store import RedisStore

NOON = 1_700_000_000_000 // DAY_MS * DAY_MS + DAY_MS // 2
BATCH = 100
ALL = "append,read,memory,days,registry"
JOB_SETS = 20
SCATTERED = 500
EXPIRY_SECONDS = 14 * 86_400
ARMADA_BYTES_MIN = 1024
"""Armada compresses what is larger: its setting `minMessageCompressionSize`."""
KINDS = ("submitted", "queued", "leased", "pending", "running", "utilisation", "utilisation", "succeeded")
RESUMES = 300


def payloads(count: int) -> list[tuple[str, bytes]]:
    """Events of jobs, about 240 bytes each, as a scheduler tells of them: names repeat, ids and numbers differ."""
    generator = np.random.default_rng(7)
    jobs = [generator.bytes(13).hex() for _ in range(max(count // len(KINDS), 1))]
    load = generator.integers(0, 1 << 30, count)
    return [
        (
            kind := KINDS[number % len(KINDS)],
            json.dumps({
                "job_id": (job := jobs[number // len(KINDS) % len(jobs)]), "kind": kind,
                "cluster_id": f"cluster-{number % 5}", "node_name": f"gke-pool-{number % 97:03}",
                "pod_name": f"armada-{job}-0", "pod_namespace": "etl-nightly",
                "max_resources": {"memory": int(load[number]), "cpu": int(load[number]) % 64_000}, "pool": "default",
            }, separators=(",", ":")).encode(),
        )
        for number in range(count)
    ]  # fmt: skip


@contextmanager
def server() -> Iterator[redis.Redis]:
    """A server of our own, which writes nothing to disk."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = int(taken.getsockname()[1])
    with redis_server(port) as ready:
        if ready is None:
            sys.exit("redis-server is missing: run `make redis`")
        yield redis.Redis(port=port)


def used(client: redis.Redis) -> int:
    """Bytes that the server's data takes."""
    client.memory_purge()
    return int(client.info("memory")["used_memory"])


def opened(client: redis.Redis, place: str, clock: ManualClock | None = None) -> RedisStore:
    port = client.connection_pool.connection_kwargs["port"]
    return RedisStore(f"redis://127.0.0.1:{port}/0#{place}", clock or ManualClock(now=NOON))


def bare(client: redis.Redis, events: list[tuple[str, bytes]], size: int) -> None:
    """An entry an event, pipelined."""
    for start in range(0, len(events), 500):
        pipeline = client.pipeline(transaction=False)
        for number, (_, payload) in enumerate(events[start : start + 500], start):
            pipeline.xadd(f"bare:{number // size % JOB_SETS}", {"message": payload})
        pipeline.execute()


def ours(store: RedisStore, events: list[tuple[str, bytes]], size: int, call: int = 500) -> None:
    """The same events, with a position each, in batches for job sets in turn; so many events a call."""
    for start in range(0, len(events), call):
        batches = []
        for first in range(start, min(start + call, len(events)), size):
            some = [NewEvent(NOON, payload, kind) for kind, payload in events[first : first + size]]
            stream = StreamName("etl", f"job-set-{first // size % JOB_SETS}")
            batches.append(EventBatch(stream, some, "kafka:jobs/0", range(first, first + len(some))))
        store.append(batches)


def append(client: redis.Redis, events: list[tuple[str, bytes]], quick: bool) -> list[Contest]:
    """Ours and bare entries in turn, on an empty server each time."""
    contests = []
    for size, some in ((BATCH, events), (1, events[: len(events) // 5])):
        contest = Contest(f"append, batches of {size}", len(some))
        for _ in rounds(quick):
            client.flushall()
            store = opened(client, "p")
            contest.run("Millpond", partial(ours, store, some, size))
            store.close()
            client.flushall()
            contest.run("Redis XADD, pipelined", partial(bare, client, some, size))
        contests.append(contest)
    few = events[: len(events) // 50]
    return [*contests, append_singly(client, few, quick), append_scattered(client, events[: len(events) // 5], quick)]


def append_singly(client: redis.Redis, events: list[tuple[str, bytes]], quick: bool) -> Contest:
    """One event in a call, and one entry in a round trip."""
    contest = Contest("append, one event a call", len(events))
    streams = [StreamName("etl", f"job-set-{number}") for number in range(JOB_SETS)]

    def ours_singly(store: RedisStore) -> None:
        for number, (kind, payload) in enumerate(events):
            event = NewEvent(NOON, payload, kind)
            store.append([EventBatch(streams[number % JOB_SETS], [event], "kafka:jobs/0", [number])])

    def bare_singly() -> None:
        for number, (_, payload) in enumerate(events):
            client.xadd(f"bare:{number % JOB_SETS}", {"message": payload})

    for _ in rounds(quick):
        client.flushall()
        store = opened(client, "p")
        contest.run("Millpond", partial(ours_singly, store))
        store.close()
        client.flushall()
        contest.run("Redis XADD, a round trip each", bare_singly)
        client.flushall()
        contest.run("Redis XADD and EXPIRE, a round trip each", partial(with_expiry, client, events, 1, JOB_SETS))
        client.flushall()
        contest.run("the same behind Armada's zlib", partial(with_expiry, client, events, 1, JOB_SETS, as_armada))
    return contest


def append_scattered(client: redis.Redis, events: list[tuple[str, bytes]], quick: bool) -> Contest:
    """One event to each of many job sets in a call."""
    contest = Contest("append, one event to each of 500 job sets a call", len(events))
    streams = [StreamName("etl", f"job-set-{number}") for number in range(SCATTERED)]

    def ours_scattered(store: RedisStore) -> None:
        for start in range(0, len(events), SCATTERED):
            store.append(
                [
                    EventBatch(stream, [NewEvent(NOON, payload, kind)], "kafka:jobs/0", [number])
                    for number, stream, (kind, payload) in zip(
                        range(start, start + SCATTERED), streams, events[start : start + SCATTERED], strict=False
                    )
                ]
            )

    for _ in rounds(quick):
        client.flushall()
        store = opened(client, "p")
        contest.run("Millpond", partial(ours_scattered, store))
        store.close()
        client.flushall()
        contest.run("Redis XADD and EXPIRE, pipelined", partial(with_expiry, client, events, SCATTERED, SCATTERED))
        client.flushall()
        contest.run(
            "the same behind Armada's zlib", partial(with_expiry, client, events, SCATTERED, SCATTERED, as_armada)
        )
    return contest


def as_it_is(payload: bytes) -> bytes:
    """The payload."""
    return payload


def as_armada(payload: bytes) -> bytes:
    """A payload as Armada stores it: what is small is in a container of zlib, as it was."""
    return zlib.compress(payload, 1 if len(payload) > ARMADA_BYTES_MIN else 0)


def with_expiry(
    client: redis.Redis, events: list[tuple[str, bytes]], size: int, job_sets: int,
    packed: Callable[[bytes], bytes] = as_it_is,
) -> None:  # fmt: skip
    """An entry an event, and the expiry of its stream renewed; so many events in a round trip."""
    for start in range(0, len(events), size):
        pipeline = client.pipeline(transaction=False)
        for number, (_, payload) in enumerate(events[start : start + size], start):
            pipeline.xadd(f"bare:{number % job_sets}", {"message": packed(payload)})
            pipeline.expire(f"bare:{number % job_sets}", EXPIRY_SECONDS)
        pipeline.execute()


def memory(run: Run, client: redis.Redis, events: list[tuple[str, bytes]]) -> None:
    """Bytes of the same events in each form."""
    client.flushall()
    empty = used(client)
    bare(client, events, BATCH)
    plain = used(client) - empty
    client.flushall()
    store = opened(client, "p")
    ours(store, events, 1, JOB_SETS)  # each of a call to another job set, so that none shares a row
    single = used(client) - empty
    store.close()
    client.flushall()
    store = opened(client, "p")
    ours(store, events, BATCH)
    raw = used(client) - empty
    for number in range(JOB_SETS):
        compress_stream(store, StreamName("etl", f"job-set-{number}"), NOON // DAY_MS)
    packed = used(client) - empty
    store.close()
    print(f"\nmemory of {len(events):,} events in {JOB_SETS} job sets:")
    for name, size in (
        ("Redis, one raw entry an event", plain),
        ("Millpond, open days of single events", single),
        ("Millpond, open days", raw),
        ("Millpond, compressed", packed),
    ):
        run.note("memory of an event", name, size / len(events), unit="B")
        print(f"  {name:<36} {size / 1e6:9.1f} MB {size / len(events):8.1f} B an event {size / plain:6.3f} of raw")


def small_days(run: Run, client: redis.Redis, events: list[tuple[str, bytes]]) -> None:
    """14 days of one event, beside a stream of 14 entries, for many job sets."""
    job_sets, clock = 500, ManualClock(now=NOON)
    client.flushall()
    empty = used(client)
    for number in range(job_sets):
        for day in range(14):
            client.xadd(f"bare:{number}", {"message": events[day][1]})
    plain = (used(client) - empty) / job_sets
    client.flushall()
    store = opened(client, "p", clock)
    names = [StreamName("etl", f"job-set-{number}") for number in range(job_sets)]
    for day in range(14):
        clock.now = NOON + day * DAY_MS
        store.append([EventBatch(name, [NewEvent(clock.now, events[day][1], events[day][0])]) for name in names])
    raw = (used(client) - empty) / job_sets
    for name in names:
        compress_stream(store, name, NOON // DAY_MS + 13)
    packed = (used(client) - empty) / job_sets
    store.close()
    print(f"\n14 days of one event, bytes a job set (mean of {job_sets}):")
    for name, size in (("Redis, one stream of 14", plain), ("Millpond, raw", raw), ("Millpond, compressed", packed)):
        run.note("memory of 14 days of one event", name, size, unit="B")
        print(f"  {name:<24} {size:9.0f} B {size / plain:6.2f} of it")


def read(run: Run, client: redis.Redis, events: list[tuple[str, bytes]], quick: bool) -> list[Contest]:
    """A job set's history, compressed, and as raw entries."""
    client.flushall()
    store = opened(client, "p")
    stream = StreamName("etl", "job-set-0")
    for start in range(0, len(events), 5_000):
        store.append(
            [EventBatch(stream, [NewEvent(NOON, payload, kind) for kind, payload in events[start : start + 5_000]])]
        )
    compress_stream(store, stream, NOON // DAY_MS)
    for start in range(0, len(events), 500):
        pipeline = client.pipeline(transaction=False)
        for _, payload in events[start : start + 500]:
            pipeline.xadd("bare", {"message": payload})
        pipeline.execute()
    contest = Contest("read history", len(events))
    for _ in rounds(quick):
        contest.run("Millpond, compressed", lambda: read_ours(store, stream))
        contest.run("Redis XREAD of raw entries", lambda: read_bare(client))
    resume(run, store, stream)
    store.close()
    return [contest]


def read_ours(store: RedisStore, stream: StreamName) -> int:
    count = after = 0
    while page := store.read(stream, after).events:
        count, after = count + len(page), page[-1].number
    return count


def read_bare(client: redis.Redis) -> int:
    count, after = 0, b"0"
    while page := client.xread({"bare": after}, count=500):
        entries = page[0][1]
        count, after = count + len(entries), entries[-1][0]
    return count


def resume(run: Run, store: RedisStore, stream: StreamName) -> None:
    """The first page after random ids."""
    index = store.index(stream)
    assert index is not None
    first, last = index.segments[0].first_id, index.last_id
    ids = np.random.default_rng(3).integers(first, last, RESUMES)
    times = sorted(timed(lambda id_=int(id_): store.read(stream, id_, bytes_max=1)) for id_ in ids)
    run.note("resume from a random id", "Millpond", times[len(times) // 2])
    run.note("resume from a random id, 99 %", "Millpond", times[len(times) * 99 // 100])
    print(f"\nresume from a random id of a compressed day ({index.count:,} events): {quantiles(times)}")


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def quantiles(times: list[float]) -> str:
    """p50 and p99 of sorted times."""
    return f"p50 {1e3 * times[len(times) // 2]:.1f} ms, p99 {1e3 * times[len(times) * 99 // 100]:.1f} ms"


def registry(run: Run, client: redis.Redis, job_sets: int) -> None:
    """The first 1,000 job sets are due, of many."""
    client.flushall()
    clock = ManualClock(now=NOON)
    store = opened(client, "p", clock)
    for start in range(0, job_sets, 1000):
        clock.now = NOON if start == 0 else NOON + DAY_MS
        names = [StreamName("etl", f"job-set-{number}") for number in range(start, min(start + 1000, job_sets))]
        store.append([EventBatch(name, [NewEvent(clock.now, b"x")]) for name in names])
    due = [timed(lambda: store.due(Work.COMPRESS, NOON // DAY_MS, limit=1000)) for _ in range(10)]
    scan = timed(lambda: sum(1 for _ in client.scan_iter(match="p:*:head:*", count=1000)))
    assert len(store.due(Work.COMPRESS, NOON // DAY_MS, limit=2000)) == min(1000, job_sets)
    store.close()
    run.note(f"1,000 due of {job_sets:,} job sets", "Millpond", due)
    run.note(f"1,000 due of {job_sets:,} job sets", "Redis, SCAN of all keys", scan)
    print(
        f"\n1,000 due of {job_sets:,} job sets: {1e3 * statistics.median(due):.1f} ms by the registry; "
        f"SCAN of {client.dbsize():,} keys {1e3 * scan:.0f} ms"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true", help="a tenth of the events")
    arguments.add_argument("--job-sets", type=int, default=0, help="job sets of the registry")
    arguments.add_argument("--only", default=ALL, help="parts, by commas")
    given = arguments.parse_args()
    parts, run = given.only.split(","), Run("events_redis")
    events = payloads(100_000 if given.quick else 1_000_000)
    print(f"{len(events):,} events of {statistics.mean(len(payload) for _, payload in events[:10_000]):.0f} bytes\n")
    with server() as client:
        contests = []
        if "append" in parts:
            contests += append(client, events[:100_000] if given.quick else events[:500_000], given.quick)
        if "read" in parts:
            contests += read(run, client, events, given.quick)
        if "memory" in parts:
            memory(run, client, events)
        if "days" in parts:
            small_days(run, client, events)
        if "registry" in parts:
            registry(run, client, given.job_sets or (20_000 if given.quick else 200_000))
        print()
        print_table(contests)
        note_contests(run, contests)
        redis_version = str(client.info("server")["redis_version"])
    whole = not (given.quick or given.job_sets) and given.only == ALL
    run.write({"Redis": redis_version}, whole=whole, events=len(events))


if __name__ == "__main__":
    main()
