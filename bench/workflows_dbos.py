"""The same runs of one task by DBOS, a durable engine in a library: workflows and steps are rows of its database.

It needs an environment of its own with `pip install dbos msgspec`, and a database: SQLite in a new folder, or
PostgreSQL by `--url postgresql://…`. Caller, engine and step share one process, without a network between them: each
run writes its start, the output of its one step, and its end.

    python bench/workflows_dbos.py [--url URL] [--quick] [--beside bench/results/workflows.json]

`--beside` takes the figures of Millpond from a run of `workflows.py` in the same minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dbos import DBOS, DBOSConfig

from _results import Run, read_result, version

IN_FLIGHT = 64


@DBOS.step()
def greet(name: str) -> str:
    return f"hello {name}"


@DBOS.workflow()
def one_task(name: str) -> str:
    return greet(name)


def throughput(runs: int) -> tuple[float, float]:
    """Runs a second with some in flight, and milliseconds of the processor for each."""
    began, spent = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        list(threads.map(lambda _: one_task("you"), range(runs)))
    return runs / (time.perf_counter() - began), 1000 * (time.process_time() - spent) / runs


def latencies(runs: int) -> tuple[float, float]:
    """Milliseconds of one run, p50 and p99, one at a time."""
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        one_task("you")
        found.append(1000 * (time.perf_counter() - began))
    cuts = statistics.quantiles(found, n=100)
    return cuts[49], cuts[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--beside", type=Path, help="the results of workflows.py")
    given = parser.parse_args()
    run = Run("workflows_dbos")
    for figure in read_result(given.beside).figures if given.beside else ():
        if figure.task.startswith("10 workers"):
            run.note(figure.task, figure.way, figure.median, unit=figure.unit)
    runs, single = (500, 200) if given.quick else (3_000, 1_000)
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{folder}/dbos.sqlite"
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": url,
            "run_admin_server": False,
            "log_level": "ERROR",
        }
        DBOS(config=config)
        DBOS.launch()
        throughput(runs // 5)
        rate, cpu = throughput(runs)
        p50, p99 = latencies(single)
        print(
            f"| DBOS, {url.split(':')[0]} | {rate:.0f} runs/s | {cpu:.2f} ms | {p50:.1f} / {p99:.1f} ms |", flush=True
        )
        way = f"DBOS, {url.split(':')[0]}"
        run.note("10 workers", way, rate, unit="/s")
        run.note("10 workers, processor of a run", way, cpu / 1e3)
        run.note("10 workers, one in flight", way, p50 / 1e3)
        run.note("10 workers, one in flight, 99 %", way, p99 / 1e3)
        run.write({"DBOS": version("dbos")}, whole=given.beside is not None and not given.quick, runs=runs)
        os._exit(0)  # its threads outlive their database


if __name__ == "__main__":
    main()
