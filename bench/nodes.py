"""Storage nodes: merging what is sent to them, taking uploads, and bringing a snapshot up to date.

* **merging**: one node is sent sealed parts, each a load of its own, for 1, 4 and 16 maps. *A backlog*: they came while
  merging was held, and only merging is timed. *As they come*: from the first byte until all is merged. *In this
  process*: the same parts committed and merged one after another by a pond in a folder, without any network;
* **small loads**: four writers send parts of a thousand rows to one node, each a load of its own, into one map.
  *Entered*: until the last is acknowledged. *Merged*: until all can be read. With the processor time of a load. Beside
  it the same bytes sent by the same four threads to a bare route (`_bare.py`), which stores and syncs them;
* **uploads**: parts sent to a node, which checks every byte and has them on disk when it answers, and the same bytes
  PUT to an nginx, which does neither; and PUT to that nginx, then summed and synced by who sent them, each file as soon
  as it is there;
* **snapshots**: a reader fetches a map of a million keys whole; then, after 1 % of the keys changed, what is new.

    PYTHONPATH=. python bench/nodes.py            full size
    PYTHONPATH=. python bench/nodes.py --quick    a tenth of it
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import urllib3
from xxhash import xxh3_128_hexdigest

import millpond
from _measure import Contest, note_contests, print_table, rounds
from _results import Run, counted, program_version
from _servers import nginx_server
from millpond.maps.model.columns import canonical_schema
from millpond.maps.parts.part import PartFile
from millpond.maps.parts.stream import MEDIA_TYPE, PartStream, parse_head
from millpond.stores.files import checksum_file, sync
from tests.harness.cluster import Cluster, free_port

WRITERS = 4
MERGING = {
    "backlog": "Millpond, a backlog", "node": "Millpond, as they come", "embedded": "Millpond, in this process",
}  # fmt: skip


def name_of(numbers: np.ndarray) -> pa.Array:
    return pa.array([f"device-{number:08d}" for number in numbers.tolist()])


def seal(pond: Any, name: str, rows: int, seed: int) -> PartFile:
    """A part of random keys."""
    random = np.random.default_rng(seed)
    keys = name_of(np.sort(random.choice(1_000_000, rows, replace=False))).cast(pa.binary())
    writer = pond.part_writer(name)
    definition = pond.map(name).definition
    writer.write(pa.RecordBatch.from_arrays([keys, pa.array(random.integers(0, 1 << 40, rows))],
                                            schema=canonical_schema(definition)))  # fmt: skip
    (part,) = writer.finish()
    return part


# -- merging ------------------------------------------------------------------------------------------


def bench_merging(run: Run, folder: Path, maps: int, parts: int, rows: int, quick: bool) -> list[str]:
    """A backlog on a node, loads as they come at it, and the same in this process, in turn."""
    seconds: dict[str, list[float]] = {"backlog": [], "node": [], "embedded": []}
    for number in range(1 if quick else 3):
        for way, times in seconds.items():
            with ExitStack() as stack:
                place: Any = folder / f"{way}{maps}-{rows}-{number}"
                cluster = None if way == "embedded" else stack.enter_context(Cluster(place, 1))
                pond = stack.enter_context(millpond.open(place if cluster is None else cluster.url))
                sealed = _sealed(pond, maps, parts, rows)
                times.append(_backlog(cluster, pond, sealed) if way == "backlog" else _merged(pond, sealed))
                assert sum(pond_map.info()["rows"] for pond_map in pond.maps()) > rows
            shutil.rmtree(place)
    for way, name in MERGING.items():
        rates = [parts / taken for taken in seconds[way]]
        run.note(f"{parts} parts of {rows:,} rows, {counted(maps, 'map')}", name, rates, unit="/s")
    medians = {way: float(np.median(times)) for way, times in seconds.items()}
    return [
        f"{maps}", f"{parts} × {rows:,}",
        *(
            cell for median in medians.values()
            for cell in (f"{parts / median:.0f}", f"{parts * rows / median / 1e6:.2f} M")
        ),
    ]  # fmt: skip


def _sealed(pond: Any, maps: int, parts: int, rows: int) -> list[PartFile]:
    names = [f"m{number}" for number in range(maps)]
    for name in names:
        pond.create_map(name, kind="state", value="long")
    # The first one makes a new process load its compiled kernels.
    _send(pond, [seal(pond, names[0], 1_000, parts)])
    pond.merge()
    return [seal(pond, names[number % maps], rows, number) for number in range(parts)]


def _send(pond: Any, sealed: list[PartFile]) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda part: pond.commit_load([part]), sealed))


def _backlog(cluster: Cluster | None, pond: Any, sealed: list[PartFile]) -> float:
    """Seconds to merge what came while merging was held."""
    assert cluster is not None
    assert cluster.ask(0, "POST", "/v1/jobs/merge/pause").status == 200
    _send(pond, sealed)
    began = time.perf_counter()
    assert cluster.ask(0, "POST", "/v1/jobs/merge/resume").status == 200
    pond.merge()
    return time.perf_counter() - began


def _merged(pond: Any, sealed: list[PartFile]) -> float:
    """Seconds from the first byte until all is merged; in this process one load after another."""
    began = time.perf_counter()
    if isinstance(pond, millpond.Pond):
        for part in sealed:
            pond.commit_load([part])
    else:
        _send(pond, sealed)
        pond.merge()
    return time.perf_counter() - began


# -- small loads --------------------------------------------------------------------------------------


def bench_bare(run: Run, folder: Path, loads: int, quick: bool) -> list[str]:
    """The bytes of small loads, stored by a bare route of the same server."""
    found = []
    with millpond.open(folder / "pond") as pond:
        bodies = [b"".join(PartStream(part.file).chunks()) for part in _sealed_into(pond, loads, 0)]
    for number in rounds(quick):
        port = free_port()
        command = [sys.executable, str(Path(__file__).with_name("_bare.py")), str(folder / f"bare{number}"), str(port)]
        with subprocess.Popen(command) as process:
            pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=WRITERS)
            pool.request("PUT", "/first", body=b"", retries=urllib3.Retry(60, backoff_factor=0.05, backoff_max=0.1))
            began, used = time.perf_counter(), _processor_seconds(process.pid)
            with ThreadPoolExecutor(WRITERS) as threads:
                list(threads.map(lambda item: pool.request("PUT", f"/{item[0]}", body=item[1]), enumerate(bodies)))  # noqa: B023
            found.append((loads / (time.perf_counter() - began), _processor_seconds(process.pid) - used))
            process.terminate()
    run.note("entered", "a bare route of the same server", [rate for rate, _ in found], unit="/s")
    run.note("processor of the node", "a bare route of the same server", [used / loads for _, used in found])
    rate, used = (float(np.median(column)) for column in zip(*found, strict=True))
    return ["the bare route", f"{rate:.0f}/s", "", f"{1000 * used / loads:.1f} ms", ""]


def bench_small(run: Run, folder: Path, loads: int, quick: bool) -> list[str]:
    """Small loads of four writers: a second, entered and merged, and the milliseconds of the processor for each."""
    found = []
    for number in rounds(quick):
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster(folder / f"small{number}", 1, armed=False))
            pond: Any = stack.enter_context(millpond.open(cluster.url))
            few, sealed = (_sealed_into(pond, count, first) for count, first in ((20, 1_000_000), (loads, 0)))
            _send(pond, few)
            pond.merge()
            process = cluster.nodes[0].process
            assert process is not None
            began, node, own = time.perf_counter(), _processor_seconds(process.pid), time.process_time()
            _send(pond, sealed)
            entered = time.perf_counter() - began
            pond.merge()
            merged = time.perf_counter() - began
            node, own = _processor_seconds(process.pid) - node, time.process_time() - own
            found.append((loads / entered, loads / merged, 1000 * node / loads, 1000 * own / loads))
    run.note("entered", "Millpond", [one[0] for one in found], unit="/s")
    run.note("merged", "Millpond", [one[1] for one in found], unit="/s")
    run.note("processor of the node", "Millpond", [one[2] / 1000 for one in found])
    run.note("processor of the writers", "Millpond", [one[3] / 1000 for one in found])
    entered, merged, node, own = (float(np.median(column)) for column in zip(*found, strict=True))
    return [f"{loads} × 1,000", f"{entered:.0f}/s", f"{merged:.0f}/s", f"{node:.1f} ms", f"{own:.1f} ms"]


def _sealed_into(pond: Any, parts: int, first_seed: int) -> list[PartFile]:
    pond.create_map("m", kind="state", value="long", exist_ok=True)
    return [seal(pond, "m", 1_000, first_seed + number) for number in range(parts)]


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- uploads ------------------------------------------------------------------------------------------


def bench_uploads(folder: Path, size_rows: int, count: int, quick: bool) -> Contest | None:
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder / "node", 1, armed=False))
        port = stack.enter_context(nginx_server(folder / "nginx", free_port()))
        if port is None:
            print("uploads: there is no nginx to compare with; install nginx-light")
            return None
        pond: Any = stack.enter_context(millpond.open(cluster.url))
        pond.create_map("m", kind="state", value="long")
        streams = {}
        for number in range(count):
            part = seal(pond, "m", size_rows, number)
            streams[part.manifest.id] = b"".join(PartStream(part.file).chunks())
        size = sum(len(stream) for stream in streams.values())
        contest = Contest(f"upload {count} × {size / count / 2**20:.1f} MiB", size)
        ours = urllib3.HTTPConnectionPool("127.0.0.1", cluster.nodes[0].port, maxsize=WRITERS)
        theirs = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=WRITERS)
        for _ in rounds(quick):
            contest.run("Millpond", lambda: _send_all(streams, partial(_put_part, ours)))
            for way, durably in (("nginx PUT", False), ("nginx PUT, sum and sync", True)):
                files = folder / "nginx" / "files" if durably else None
                contest.run(way, lambda files=files: _send_all(streams, partial(_put_file, theirs, files)))  # type: ignore[misc]
                for part in streams:
                    theirs.request("DELETE", f"/{part}")
            for part in streams:
                assert ours.request("DELETE", f"/v1/parts/{part}/upload").status in (200, 204)
    return contest


def _send_all(streams: dict[str, bytes], put: Callable[[str, bytes], None]) -> None:
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda item: put(*item), streams.items()))


def _put_part(pool: urllib3.HTTPConnectionPool, part: str, body: bytes) -> None:
    head = parse_head(body, part)
    assert head is not None
    headers = {
        "Content-Type": MEDIA_TYPE, "Upload-Map": "m", "Upload-Length": str(len(body)), "Upload-Offset": "0",
        "Upload-Checksum": head.checksum,
    }  # fmt: skip
    answer = pool.request("PUT", f"/v1/parts/{part}/upload", body=body, headers=headers)
    assert answer.status == 200, answer.data


def _put_file(pool: urllib3.HTTPConnectionPool, files: Path | None, part: str, body: bytes) -> None:
    """`files`: where nginx puts them, when they are to be as safe as a node makes them."""
    answer = pool.request("PUT", f"/{part}", body=body)
    assert answer.status in (201, 204), answer.data
    if files is not None:
        assert checksum_file(files / part) == xxh3_128_hexdigest(body)
        sync(files / part)
        sync(files)


# -- snapshots ----------------------------------------------------------------------------------------


def bench_snapshots(run: Run, folder: Path, keys: int, quick: bool) -> list[list[str]]:
    """The time a reader waits and the bytes it fetches: the node has frozen before."""
    settings = {"client_min_time_to_keep_snapshots": "0s"}
    whole: list[tuple[float, int]] = []
    fresh: list[tuple[float, int]] = []
    with Cluster(folder / "node", 1, settings=settings, proxies=True) as cluster:
        with millpond.open(cluster.url, client_synchronise=True) as pond:
            target: Any = pond.create_map("m", kind="temporal_state", value="double")
            every = np.repeat(np.arange(keys), 10)
            times = pa.array(np.tile(np.arange(10) * 1000, keys), pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
            table = pa.table(
                {"key": name_of(every), "effective_time": times, "value": np.random.default_rng(1).random(len(every))}
            )
            target.load(table)
        for number in rounds(quick):
            cache = folder / f"cache{number}"
            os.environ["MILLPOND_CLIENT_CACHE"] = str(cache)
            with millpond.open(cluster.url, client_synchronise=True) as pond:
                _freeze(cluster)
                whole.append(_fetched(cluster, pond))
                some = np.random.default_rng(10 + number).choice(keys, keys // 100, replace=False)
                at = pa.array(np.full(len(some), 20_000 + number), pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
                changed = pa.table({"key": name_of(some), "effective_time": at, "value": some.astype(float)})
                pond.map("m").load(changed)
                _freeze(cluster)
                fresh.append(_fetched(cluster, pond))
    rows = []
    first = np.median([taken for taken, _ in whole]), np.median([size for _, size in whole])
    for act, samples in (("the whole snapshot", whole), ("after 1 % changed", fresh)):
        run.note(act, "Millpond", [one for one, _ in samples])
        run.note(f"{act}, bytes", "Millpond", [one for _, one in samples], unit="B")
        taken, size = np.median([one for one, _ in samples]), np.median([one for _, one in samples])
        rows.append(
            [act, f"{taken:.3f} s", f"{size / 1e6:.1f} MB", f"{first[0] / taken:.1f}×", f"{first[1] / size:.1f}×"]
        )
    return rows


def _freeze(cluster: Cluster) -> None:
    answer = cluster.ask(0, "GET", "/v1/maps/m/snapshot")
    assert answer.status == 200, answer.body


def _fetched(cluster: Cluster, pond: Any) -> tuple[float, int]:
    proxy = cluster.nodes[0].proxy
    assert proxy is not None
    before = proxy.bytes_down
    began = time.perf_counter()
    pond.map("m").snapshot()
    return time.perf_counter() - began, proxy.bytes_down - before


def table(head: list[str], lines: list[list[str]]) -> None:
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of it, three rounds")
    parser.add_argument("--only", choices=("merging", "small", "uploads", "snapshots"))
    arguments = parser.parse_args()
    scale, whole = 10 if arguments.quick else 1, not arguments.quick
    root = Path(tempfile.mkdtemp(prefix="millpond-nodes-", dir=os.environ.get("BENCH_DIR")))
    os.environ["MILLPOND_CLIENT_CACHE"] = str(root / "cache")
    try:
        if arguments.only in (None, "merging"):
            run = Run("nodes_merging")
            lines = [
                bench_merging(run, root / "merging", maps, parts // scale, rows, arguments.quick)
                for parts, rows in ((160, 1_000), (32, 100_000)) for maps in (1, 4, 16)
            ]  # fmt: skip
            ways = ("a backlog", "as they come", "in this process")
            table(["maps", "parts × rows", *(f"{way}, {of}/s" for way in ways for of in ("parts", "rows"))], lines)
            run.write(whole=whole, writers=WRITERS)
        if arguments.only in (None, "small"):
            run, loads = Run("nodes_small"), 400 // (4 if arguments.quick else 1)
            lines = [bench(run, root / bench.__name__, loads, arguments.quick) for bench in (bench_small, bench_bare)]
            table(["loads × rows", "entered", "merged", "the node's processor", "the writers'"], lines)
            run.write(whole=whole, loads=loads, rows=1_000, writers=WRITERS)
        if arguments.only in (None, "uploads"):
            run = Run("nodes_uploads")
            sizes = ((1_000_000, 16), (20_000, 200))
            fewer = 4 if arguments.quick else 1
            contests = [
                bench_uploads(root / f"uploads{rows}", rows, count // fewer, arguments.quick) for rows, count in sizes
            ]
            measured = [contest for contest in contests if contest is not None]
            print_table(measured)
            note_contests(run, measured)
            run.write({"nginx": program_version("nginx", "-v")}, whole=whole, connections=WRITERS)
        if arguments.only in (None, "snapshots"):
            run, keys = Run("nodes_snapshots"), 1_000_000 // scale
            lines = bench_snapshots(run, root / "snapshots", keys, arguments.quick)
            table(["a reader fetches", "median", "bytes", "faster", "less"], lines)
            run.write(whole=whole, keys=keys, rows_per_key=10)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
