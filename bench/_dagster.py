"""Runs of five small steps by Dagster's in-process executor, for `pipelines.py`: seconds as JSON, by its own Python."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
import tempfile
import time

from dagster import DagsterInstance, in_process_executor, job, op


@op
def first() -> int:
    return 1


@op
def more(value: int) -> int:
    return value + 1


@job(executor_def=in_process_executor)
def small() -> None:
    value = first()
    for number in range(4):
        value = more.alias(f"more{number}")(value)


def main(runs: int) -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, DagsterInstance.local_temp(folder) as instance:
        small.execute_in_process(instance=instance)
        began = time.perf_counter()
        for _ in range(runs):
            assert small.execute_in_process(instance=instance).success
        seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "version": importlib.metadata.version("dagster")}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
