"""The stages of `extremes.py`, each a process of its own: `python bench/_extremes_stages.py SHAPE/STAGE FOLDER SIZE`.

A stage prints lines of JSON: `{"work": …, "seconds": …}`. The stages of one shape follow one another, in one folder.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import millpond
from millpond.clock import SystemClock
from millpond.maps.loads.load import seal_data
from millpond.maps.loads.loads import Loads
from millpond.maps.loads.pond_folder import writer_folder
from millpond.maps.loads.retention import tidy_up
from millpond.maps.log.deduplication import remember
from millpond.maps.log.log import ENTRIES, Change, Entry, head_of

__all__ = ("SHAPES",)

AT_ONCE = 200
BATCH = 100_000
QUESTIONS = 1_000_000
CHANGED = 100_000
GETS = 2_000
SMALL_LOADS = 200
VALUE_BYTES = 1 << 20
STEP_MS = 1_000
LATER = "2199-01-01T00:00:00Z"
HISTORY_BATCH = 50_000
SCRAPES = 3

Stage = Callable[[Path, int], None]


def say(work: str, seconds: float) -> None:
    print(json.dumps({"work": work, "seconds": seconds}), flush=True)


def timed(work: str, act: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    found = act()
    say(work, time.perf_counter() - began)
    return found


def opened(folder: Path) -> millpond.Pond:
    return millpond.open(folder / "pond", events_reports=False)


def instants(ms: np.ndarray) -> pa.Array:
    return pa.array(ms.astype(np.int64) * 1000, pa.timestamp("us", tz="UTC"))


def digits(numbers: np.ndarray) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 10, "0")


def say_gets(target: Any, questions: list[tuple[Any, ...]]) -> None:
    """The median of single questions, the first of which opens the file."""
    seconds = []
    for question in questions:
        began = time.perf_counter()
        assert target.get(*question) is not None
        seconds.append(time.perf_counter() - began)
    say("`get`, median", float(np.median(seconds[1:])))


def open_alone(folder: Path, size: int) -> None:
    """The pond, opened and closed."""
    del size
    timed("open", lambda: opened(folder).close())


def freeze(folder: Path, size: int) -> None:
    """A snapshot of all rows."""
    del size
    with opened(folder) as pond:
        timed("freeze", pond.map("large").freeze)


def refreeze(folder: Path, size: int) -> None:
    """A snapshot after a change."""
    del size
    with opened(folder) as pond:
        timed("freeze again", pond.map("large").freeze)


# -- many maps ----------------------------------------------------------------------------------------------


def create_maps(folder: Path, size: int) -> None:
    """Maps without rows, each an entry of the log."""
    with opened(folder) as pond:
        timed("create", lambda: [pond.create_map(name_of(n), kind="state", value="long") for n in range(size)])


def name_of(number: int) -> str:
    return f"map_{number:06d}"


def load_maps(folder: Path, size: int) -> None:
    """Rows for every map, two hundred maps a load."""
    with opened(folder) as pond:
        timed(f"load all, {AT_ONCE} maps at once", lambda: [
            load_several(pond, first, min(size, first + AT_ONCE), 1) for first in range(0, size, AT_ONCE)
        ])  # fmt: skip


def load_several(pond: millpond.Pond, first: int, last: int, value: int) -> None:
    """One load, with a part for each of these maps."""
    folder, parts = writer_folder(pond.folder, pond.clock), []
    for number in range(first, last):
        rows = pa.table({"key": ["a", "b"], "value": [value, value + number]})
        parts += seal_data(pond.map(name_of(number)).definition, rows, folder / str(number))[0]
    pond.commit_load(parts)


def load_some_maps(folder: Path, size: int) -> None:
    """A load into two hundred maps, in a process that has none of them open, and again."""
    with opened(folder) as pond:
        for value, work in enumerate(("first", "next"), 2):
            timed(f"{work} load into {AT_ONCE} maps", partial(load_several, pond, 0, min(size, AT_ONCE), value))


def load_one_map(folder: Path, size: int) -> None:
    """A load into one map of the many, and again."""
    del size
    with opened(folder) as pond:
        for value, work in enumerate(("first", "next"), 4):
            timed(f"{work} load into one of them", partial(load_several, pond, 0, 1, value))


def list_maps(folder: Path, size: int) -> None:
    """Their names, and all there is to say about each."""
    with opened(folder) as pond:
        assert len(timed("list names", pond.maps)) == size
        timed("list with rows and state", lambda: [found.info() for found in pond.maps()])


def freeze_maps(folder: Path, size: int) -> None:
    """A snapshot of each."""
    del size
    with opened(folder) as pond:
        timed("freeze each", lambda: [found.freeze() for found in pond.maps()])


def drop_maps(folder: Path, size: int) -> None:
    """A tenth of the maps dropped, one after another."""
    with opened(folder) as pond:
        timed("drop every tenth", lambda: [pond.drop_map(name_of(n)) for n in range(0, size, 10)])


def serve(folder: Path, size: int) -> None:
    """A node that serves the pond: its start, its pages of metrics and of maps."""
    from millpond.server.run import Service
    from millpond.settings import load_settings

    del size
    ready, began = threading.Event(), time.perf_counter()
    with Service(
        load_settings(server_data=str(folder / "pond"), server_port=0, server_grpc_port="off", events_reports=False)
    ) as service:
        running = threading.Thread(target=service.run, args=(ready.set,))
        running.start()
        ready.wait()
        say("start a node", time.perf_counter() - began)
        url = service.node.url
        for path, work in (("/metrics", "`/metrics`"), ("/v1/maps", "`/v1/maps`")):
            timed(f"{work}, first", partial(fetch, url + path))
            timed(work, partial(fetch, url + path))
        service.stop()
        running.join()


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url) as response:
        page: bytes = response.read()
    return page


# -- many times of one key ----------------------------------------------------------------------------------


def load_times(folder: Path, size: int) -> None:
    """Rows of one key, in batches, as one load."""
    with opened(folder) as pond:
        made = pond.create_map("large", kind="temporal_state", value="double")
        timed("load", lambda: made.load(pa.RecordBatchReader.from_batches(times_of(0).schema, (
            times_of(first) for first in range(0, size, BATCH)
        ))))  # fmt: skip


def times_of(first: int, count: int = BATCH, more: float = 0.0) -> pa.RecordBatch:
    place = np.arange(first, first + count)
    at = instants((place + 1) * STEP_MS)
    return pa.record_batch({"key": pa.repeat("device", count), "effective_time": at, "value": place / 7 + more})


def merge_times(folder: Path, size: int) -> None:
    """Changed rows and new ones, at the end and in the middle."""
    with opened(folder) as pond:
        target = pond.map("large")
        timed(f"merge {CHANGED:,} rows", lambda: target.load(pa.table(times_of(size - CHANGED // 2, CHANGED, 1.0))))


def ask_times(folder: Path, size: int) -> None:
    """Questions at random times."""
    random = np.random.default_rng(1)
    at = instants(random.integers(STEP_MS, (size + 1) * STEP_MS, QUESTIONS))
    keys = pa.repeat("device", QUESTIONS)
    with opened(folder) as pond:
        target = pond.map("large")
        say_gets(target, [("device", int(ms)) for ms in random.integers(STEP_MS, size * STEP_MS, GETS)])
        target.lookup(keys[:1000], at[:1000])
        timed(f"{QUESTIONS:,} lookups", lambda: target.lookup(keys, at))
        timed("read a thousand rows of the key", lambda: read_rows(target, 1000))


def read_rows(target: Any, count: int) -> int:
    """The first rows of the key."""
    where = f"key = 'device' and effective_time < '{time_of(count)}'"
    return sum(batch.num_rows for batch in target.scan(where))


def time_of(number: int) -> str:
    return str(instants(np.array([number * STEP_MS]))[0].as_py().isoformat())


# -- large values -------------------------------------------------------------------------------------------


def load_values(folder: Path, size: int) -> None:
    """Rows of one MiB, which cannot be compressed, as one load."""
    with opened(folder) as pond:
        made = pond.create_map("large", kind="state", value="binary")
        timed("load", lambda: made.load(large_rows(range(size))))


def large_rows(numbers: range) -> pa.RecordBatchReader:
    schema = pa.schema([("key", pa.string()), ("value", pa.binary())])

    def batches() -> Iterator[pa.RecordBatch]:
        for number in numbers:
            yield pa.record_batch([[f"k{number:08d}"], [secrets.token_bytes(VALUE_BYTES)]], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def merge_values(folder: Path, size: int) -> None:
    """A tenth of them changed."""
    with opened(folder) as pond:
        timed("merge a tenth", lambda: pond.map("large").load(large_rows(range(size // 10))))


def ask_values(folder: Path, size: int) -> None:
    """Single questions, and some at once."""
    with opened(folder) as pond:
        target = pond.map("large")
        say_gets(target, [(f"k{number % size:08d}",) for number in range(min(GETS, 4 * size))])
        snapshot = target.snapshot()
        timed("64 lookups", lambda: snapshot.lookup([f"k{number % size:08d}" for number in range(64)]))
        timed("scan", lambda: sum(batch.num_rows for batch in target.scan()))


# -- rows of many small loads -------------------------------------------------------------------------------


def load_base(folder: Path, size: int) -> None:
    """A map with as many rows as will wait."""
    with opened(folder) as pond:
        timed("load", lambda: pond.create_map("large", kind="state", value="double").load(some_rows(size, size, 0)))


def some_rows(keys: int, count: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table({"key": digits(random.integers(0, keys, count)), "value": random.random(count)})


def enter_small(folder: Path, size: int) -> None:
    """The small loads, entered and left to wait."""
    with opened(folder) as pond:
        timed(f"enter {SMALL_LOADS} loads", lambda: [enter(pond, size, seed) for seed in range(1, SMALL_LOADS + 1)])
        timed("list the parts that wait", lambda: pond.parts.list())
        timed("the state of the map", lambda: pond.map("large").info())


def enter(pond: millpond.Pond, size: int, seed: int) -> None:
    rows = some_rows(2 * size, size // SMALL_LOADS, seed)
    parts, _ = seal_data(pond.map("large").definition, rows, writer_folder(pond.folder, pond.clock))
    pond.commit_load(parts, wait=False)


def merge_waiting(folder: Path, size: int) -> None:
    """The merge of what waits, as the pond is opened."""
    del size
    timed("open, which merges them", lambda: opened(folder).close())


def ask_keys(folder: Path, size: int) -> None:
    """Questions for keys, half of which are there."""
    with opened(folder) as pond:
        target = pond.map("large")
        keys = digits(np.random.default_rng(3).integers(0, 2 * size, QUESTIONS))
        found = target.lookup(keys[:GETS])
        say_gets(target, [(key.as_py(),) for key, value in zip(keys[:GETS], found, strict=True) if value.is_valid])
        timed(f"{QUESTIONS:,} lookups", lambda: target.lookup(keys))


# -- nested ranges ------------------------------------------------------------------------------------------


def load_ranges(folder: Path, size: int) -> None:
    """Ranges within ranges, ten deep, as one load."""
    with opened(folder) as pond:
        made = pond.create_map("large", kind="ranged_state", value="long")
        reader = pa.RecordBatchReader.from_batches(ranges_of(0).schema, map(ranges_of, range(0, size, BATCH)))
        timed("load", lambda: made.load(reader))


def ranges_of(first: int, count: int = BATCH, more: int = 0) -> pa.RecordBatch:
    """A hundred numbers for every ten ranges: the outermost has all of them, each next one starts and ends within."""
    nest, depth = np.divmod(np.arange(first, first + count), 10)
    columns = {"key_start": nest * 100 + depth, "key_end": nest * 100 + 99 - depth, "value": nest * 10 + depth + more}
    return pa.record_batch({name: pa.array(column) for name, column in columns.items()})


def merge_ranges(folder: Path, size: int) -> None:
    """Changed values of neighbouring ranges."""
    with opened(folder) as pond:
        changed = pa.table(ranges_of(size // 2, min(CHANGED, size // 2), 1))
        timed(f"merge {len(changed):,} ranges", lambda: pond.map("large").load(changed))


def ask_ranges(folder: Path, size: int) -> None:
    """Questions for random numbers, each within ten ranges at most."""
    random = np.random.default_rng(4)
    numbers = random.integers(0, size * 10, QUESTIONS)
    with opened(folder) as pond:
        target = pond.map("large")
        say_gets(target, [(int(number) // 100 * 100,) for number in numbers[:GETS]])
        target.lookup(pa.array(numbers[:1000]))
        timed(f"{QUESTIONS:,} lookups", lambda: target.lookup(pa.array(numbers)))


def load_onion(folder: Path, size: int) -> None:
    """Ranges each of which lies in all before it, as one load."""
    place = np.arange(size)
    columns = {"key_start": place, "key_end": 4 * size - place, "value": place}
    rows = pa.table({name: pa.array(column) for name, column in columns.items()})
    with opened(folder) as pond:
        made = pond.create_map("large", kind="ranged_state", value="long")
        timed("load", lambda: made.load(rows))


def ask_onion(folder: Path, size: int) -> None:
    """Questions for random numbers: the innermost of up to all ranges."""
    random = np.random.default_rng(4)
    numbers = random.integers(0, 2 * size, QUESTIONS)
    with opened(folder) as pond:
        target = pond.map("large")
        say_gets(target, [(int(number),) for number in numbers[:GETS] if number < size][:20])
        target.lookup(pa.array(numbers[:1000]))
        timed(f"{QUESTIONS:,} lookups", lambda: target.lookup(pa.array(numbers)))


# -- a long history -----------------------------------------------------------------------------------------


def write_history(folder: Path, size: int) -> None:
    """Entries of loads, each with what is remembered of it, in large batches: the parts are merged and gone."""
    with opened(folder) as pond:
        made = pond.create_map("large", kind="state", value="double")
        made.load(some_rows(1000, 1000, 0))
        [entry] = [entry for entry in pond.log.entries(0) if entry.kind == "load"]

        def append(tx: Any, count: int) -> None:
            head = head_of(tx)
            for _ in range(count):
                body = entry.body | {"load": secrets.token_hex(16), "number": entry.body["number"] + head.position}
                record = ENTRIES.append(tx, Change("load", ("large",), body), head.stamp_ms + 1, head)
                remember(tx, Entry.of(record))
                head = type(head)(record.position, record.chain, record.stamp_ms)

        for first in range(0, size, HISTORY_BATCH):
            pond.space.write(partial(append, count=min(HISTORY_BATCH, size - first)))


def use_history(folder: Path, size: int) -> None:
    """The newest entries, the oldest, and one more load."""
    with opened(folder) as pond:
        last, _ = timed("position", pond.log.position)
        assert len(timed("the newest 100 entries", lambda: pond.log.entries(last - 100))) == 100
        timed("the oldest 100 entries", lambda: pond.log.entries(0, 100))
        timed("a load", lambda: pond.map("large").load(some_rows(1000, 1000, size)))


def trim_history(folder: Path, size: int) -> None:
    """The retention of a log whose parts are gone."""
    del size
    with opened(folder) as pond:
        last, _ = pond.log.position()
        loads = Loads(pond.space, pond.folder, SystemClock())
        timed("retention", lambda: tidy_up(loads, last // 256 * 256))


SHAPES: dict[str, dict[str, Stage]] = {
    "maps": {
        "create": create_maps, "load": load_maps, "open": open_alone, "list": list_maps, "some": load_some_maps,
        "one": load_one_map, "freeze": freeze_maps, "serve": serve, "drop": drop_maps,
    },
    "times": {
        "load": load_times, "open": open_alone, "freeze": freeze, "ask": ask_times, "merge": merge_times,
        "refreeze": refreeze,
    },
    "values": {
        "load": load_values, "open": open_alone, "freeze": freeze, "ask": ask_values, "merge": merge_values,
        "refreeze": refreeze,
    },
    "loads": {
        "load": load_base, "freeze": freeze, "enter": enter_small, "merge": merge_waiting, "refreeze": refreeze,
        "ask": ask_keys,
    },
    "ranges": {
        "load": load_ranges, "open": open_alone, "freeze": freeze, "ask": ask_ranges, "merge": merge_ranges,
        "refreeze": refreeze,
    },
    "onion": {"load": load_onion, "freeze": freeze, "ask": ask_onion},
    "history": {
        "write": write_history, "open": open_alone, "use": use_history, "trim": trim_history, "serve": serve,
    },
}  # fmt: skip


def warm_up() -> None:
    """Import what the stages use, and let kernels be read, so that no stage pays for it."""
    with tempfile.TemporaryDirectory() as folder, millpond.open(folder, events_reports=False) as pond:
        keyed = pond.create_map("keyed", kind="temporal_state", value="double")
        ranged = pond.create_map("ranged", kind="ranged_state", value="long")
        for target, rows in ((keyed, times_of(0, 10)), (ranged, ranges_of(0, 10))):
            for count in (9, 10):
                target.load(pa.table(rows[:count]))
                target.freeze()
        keyed.lookup(["device"], LATER)
        ranged.lookup([5])


if __name__ == "__main__":
    warm_up()
    shape, stage = sys.argv[1].split("/")
    SHAPES[shape][stage](Path(sys.argv[2]), int(sys.argv[3]))
