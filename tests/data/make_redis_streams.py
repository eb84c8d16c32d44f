"""Writes what heads of the present version look like in Redis: `python -m tests.data.make_redis_streams VERSION`.

    tests/data/redis-streams-<version>.json    keys, without their place, each as `DUMP` gives it, in hexadecimal digits

As `make_pond`, it writes no version twice. Of two streams, one has a hashed name; each has a day that is compressed,
one that is closed, one that is open, and two sources.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from millpond.clock import ManualClock
from millpond.events.compress import compress_stream
from millpond.events.days import DAY_MS
from millpond.events.event import EventBatch, NewEvent
from millpond.events.names import StreamName
from millpond.events.redis.store import RedisStore
from tests.redis_servers import RedisServer

FOLDER = Path(__file__).parent
NOON = 20_000 * DAY_MS + DAY_MS // 2
STREAMS = StreamName("etl", "nightly"), StreamName("etl", "x" * 200)
SOURCES = "kafka:jobs/0", "pulsar:jobs/1"
PLACE = "golden"
EVENTS = 12


def delivered(stream: StreamName, number: int, time_ms: int) -> EventBatch:
    """The event of a number: each of two sources has every other one."""
    payload = b'{"cluster":"one","node":"gke-pool-097","namespace":"etl-nightly","number":%d}' % number
    return EventBatch(stream, [NewEvent(time_ms, payload, "running")], SOURCES[number % 2], [number])


def write(version: str) -> None:
    """Write the file of a version."""
    server, clock = RedisServer(), ManualClock(now=NOON)
    server.start()
    try:
        store = RedisStore(server.url(PLACE), clock)
        for number in range(EVENTS):
            if number and number % 4 == 0:
                clock.now += DAY_MS
            for stream in STREAMS:
                store.append([delivered(stream, number, clock.now)])
        for stream in STREAMS:
            compress_stream(store, stream, NOON // DAY_MS)
        store.close()
        with server.client() as client:
            rows = {key.decode().removeprefix(PLACE): client.dump(key) for key in client.scan_iter(match=f"{PLACE}:*")}
        dumped = {key: row.hex() for key, row in sorted(rows.items()) if row is not None and not key.endswith(":lost")}
        with (FOLDER / f"redis-streams-{version}.json").open("x") as file:
            json.dump(dumped, file, indent=1)
            file.write("\n")
    finally:
        server.remove()


if __name__ == "__main__":
    write(sys.argv[1])
