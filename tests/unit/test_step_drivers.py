"""Drivers of Spark, seen from a step: a result that is kept, a job that is cancelled, and one that is out of time."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("littlehorse")

from millpond.client.wire_errors import to_wire
from millpond.errors import Closed, Unavailable
from millpond.pipelines import tasks
from millpond.pipelines.driver import SparkDriver
from millpond.pipelines.driver_lines import Line, LocalProcess, began_of
from millpond.pipelines.kinds import _in_time
from millpond.pipelines.step import Step, held
from millpond.pond import Pond
from tests.unit.test_step_keys import Attempts


def test_a_result_is_kept_before_its_driver_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[str] = []

    class Driver:
        def run(self, *_: Any, **__: Any) -> dict[str, Any]:
            return {"n": 1}

        def status(self, _: str) -> dict[str, Any]:
            return {}

        def forget(self, _: str) -> None:
            acts.append("forgotten")

        def left(self, _: object) -> None:
            acts.append("left")

    class Own:
        context, pond, key = Attempts().next(), "here", "k"

        def watched(self) -> None:
            return None

        async def keep(self, _: object) -> None:
            acts.append("kept")

    driver = Driver()
    monkeypatch.setattr(tasks, "_drivers", lambda: driver)
    place = {"ticket": "k", "attempt": 0}
    asyncio.run(tasks._done_by(cast("SparkDriver", driver), place, cast("Any", Own()), "query", {}))
    assert acts == ["kept", "forgotten", "left"]


def test_a_timeout_says_how_far_the_job_of_spark_was(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    class Driver:
        def run(self, *_: Any, **__: Any) -> dict[str, Any]:
            over.wait(20)
            raise Closed("the step was stopped", kind="step_stopped")

        def status(self, _: str) -> dict[str, Any]:
            return {"stage": 3, "name": "sum", "tasks_done": 5, "tasks": 8, "rows": 12, "rows_per_second": 9}

        def cancel(self, _: str) -> bool:
            over.set()
            return True

        def left(self, _: object) -> None: ...

    driver, step = cast("SparkDriver", Driver()), Step(Attempts().next(), "here", "k")
    monkeypatch.setattr(tasks, "_drivers", lambda: driver)
    work = tasks._done_by(driver, {"ticket": "k", "attempt": 0}, step, "query", {})
    words = r"seconds=0\.01 done=2 of 3 items, stage 3 \(sum\), 5/8 tasks, .* \(.*longer timeout at the step\)"
    with held("here", cast("Pond", None)), pytest.raises(Unavailable, match=words):
        asyncio.run(_in_time({"timeout_ms": 10}, work, "2 of 3 items"))


def test_a_job_that_came_back_from_another_worker_is_cancelled(tmp_path: Path) -> None:
    own, other = socket.socketpair()
    arrived = threading.Event()

    def answer() -> None:
        requests = 0
        for line in requested:
            row, answer = json.loads(line), None
            if "job" in row:
                requests += 1
                answer = {"key": row["key"], "taken": True} if requests == 1 else None
                if requests == 2:
                    arrived.set()
            elif "cancel" in row:
                stopped = to_wire(Closed("the step was stopped", kind="step_stopped"))
                answer = {"key": row["cancel"], "error": stopped, "usable": True}
            if answer is not None:
                other.sendall(json.dumps(answer).encode() + b"\n")

    with own, other, own.makefile("rb") as lines, other.makefile("rb") as requested, ThreadPoolExecutor() as pool:
        pool.submit(answer)
        driver, process = SparkDriver("local"), LocalProcess(os.getpid(), began_of(os.getpid()))
        driver._line = Line(tmp_path, process, own, lines)
        with pytest.raises(Unavailable, match="another worker has taken"):
            driver.run("k", "load", {})
        running = pool.submit(driver.run, "k", "load", {}, again=True)
        assert arrived.wait(20)
        is_ours = driver.cancel("k")
        other.shutdown(socket.SHUT_RDWR)  # whatever it says: nobody waits for ever
        assert is_ours
        with pytest.raises(Closed, match="was stopped"):
            running.result()
