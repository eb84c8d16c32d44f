"""Keys of steps: the same in all attempts, whoever drew them; and the stories of short attempts and long ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("littlehorse")

from littlehorse.model import TaskRunId, WfRunId
from littlehorse.worker import WorkerContext

import millpond
from millpond.clock import SystemClock
from millpond.errors import Invalid, Unavailable
from millpond.pipelines.step import Step, attempt, held
from millpond.pipelines.step_lineage import StepLineage
from millpond.pond import Pond
from millpond.reports.steps import StepReports

RUN = WfRunId(id="r")


class Attempts:
    """The context of attempts at one task run, whose checkpoints stay."""

    task_def_name, wf_run_id, task_run_id = "step", RUN, TaskRunId(wf_run_id=RUN, task_guid="0-2")

    def __init__(self) -> None:
        self.attempt_number, self.position = -1, 0
        self.checkpoints = list[Any]()

    def next(self) -> WorkerContext:
        self.attempt_number, self.position = self.attempt_number + 1, 0
        return cast("WorkerContext", self)

    async def execute_and_checkpoint(self, work: Callable[[object], Any]) -> Any:
        if self.position == len(self.checkpoints):
            self.checkpoints.append(work(None))
        self.position += 1
        return self.checkpoints[self.position - 1]

    def log(self, _text: str) -> None: ...


@pytest.fixture
def pond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pond]:
    monkeypatch.setenv("MILLPOND_POND", "here")
    with millpond.open(tmp_path, create=True) as opened, held("here", opened):
        yield opened


def kinds(pond: Pond) -> list[tuple[str, str]]:
    """The events of the run: their kinds, and the keys of their steps."""
    return [(event.kind, event.headers["job_id"]) for event in pond.events.read("default", "r")]


def test_the_story_of_a_step_has_what_is_small_of_its_result_and_no_secret(pond: Pond) -> None:
    async def work(_: Step) -> dict[str, Any]:
        return {"job_id": "mine", "rows": 3, "text": "x" * 100_000, "api_token": "abcdefgh", "half": "\ud800", "": 1}

    attempts = Attempts()
    asyncio.run(attempt(attempts.next(), work, run_key="run"))
    end = [event.headers for event in pond.events.read("default", "r")][-1]
    assert end == {"job_id": "r_0-2_run", "attempt": "0", "step": "step", "rows": "3", "": "1"}


@pytest.mark.parametrize("earlier", [[], ["r_0-2_drawn"], [{"n": 0}]], ids=["none", "an earlier release's", "a result"])
@pytest.mark.parametrize("run_key", ["", "run"])
def test_a_repeated_attempt_has_the_key_and_the_results_of_the_first(
    pond: Pond, run_key: str, earlier: list[Any]
) -> None:
    if not run_key and earlier != ["r_0-2_drawn"]:
        earlier = []
    attempts, keys, done = Attempts(), list[str](), 0

    async def work(step: Step) -> dict[str, Any]:
        nonlocal done
        keys.append(step.key)
        results = [await step.once(lambda number=number: {"n": number}) for number in range(2)]
        done += 1
        if done == 1:
            raise Unavailable("the network is away", kind="system")
        return {"results": [result["n"] for result in results]}

    if earlier:  # of an attempt that was killed
        attempts.next()
        attempts.checkpoints += earlier
    with pytest.raises(RuntimeError, match="the network is away"):
        asyncio.run(attempt(attempts.next(), work, run_key=run_key))
    assert asyncio.run(attempt(attempts.next(), work, run_key=run_key)) == {"results": [0, 1]}
    assert len(set(keys)) == 1
    drawn = earlier == ["r_0-2_drawn"] or not run_key
    assert len(attempts.checkpoints) == 2 + drawn and keys[0].startswith("r_0-2_")
    assert keys[0] == (attempts.checkpoints[0] if drawn else "r_0-2_run")
    events = ["running", "failed"] * (1 + bool(earlier)) + ["running", "succeeded"]
    assert kinds(pond) == [(kind, keys[0]) for kind in events]


def test_a_long_attempt_says_that_it_runs_before_its_end(pond: Pond) -> None:
    async def work(step: Step) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while not kinds(pond):
                await asyncio.sleep(0)
        assert kinds(pond) == [("running", step.key)]
        return {}

    asyncio.run(attempt(Attempts().next(), work, run_key="run"))
    assert [kind for kind, _ in kinds(pond)] == ["running", "succeeded"]


def test_a_stopped_attempt_ends_its_work(pond: Pond) -> None:
    ended = list[str]()

    async def stopped() -> None:
        began = asyncio.Event()

        async def work(step: Step) -> dict[str, Any]:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(step.key)
            return {}

        task = asyncio.create_task(attempt(Attempts().next(), work, run_key="run"))
        await began.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    asyncio.run(stopped())
    assert ended == ["r_0-2_run"]
    assert [kind for kind, _ in kinds(pond)] == ["running", "failed"]


ACTS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["running", "failed", "succeeded"])), max_size=8)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTS)
def test_each_run_of_lineage_that_begins_ends_once_also_when_its_worker_is_lost_or_late(
    pond: Pond, acts: list[tuple[int, str]]
) -> None:
    """Attempts tell what they do, each its end once, in any order, and the newest may succeed; the last one does."""
    sent = list[tuple[str, str]]()

    class Lineage:
        def send(
            self, _pond: object, key: str, _run: str, kind: str, *_: object, unless: Any = bool, **__: Any
        ) -> None:
            if not unless():
                sent.append((key.rpartition(".")[2], kind))

    lineage, key = cast("StepLineage", Lineage()), SystemClock().random_id()
    reports = [StepReports("q", "j", key, {}, number, 0.0, lineage=lineage) for number in range(5)]
    begun, ended = set[int](), set[int]()
    for number, act in [*acts, (4, "succeeded")]:
        if (
            number in ended
            or (act == "running" and number in begun)
            or (act == "succeeded" and number < max(begun, default=0))
        ):
            continue
        begun.add(number)
        if act == "running":
            reports[number].running(pond)
        elif act == "failed":
            reports[number].failed(pond, Invalid("it is refused"), retryable=True)
        else:
            reports[number].succeeded(pond, {})
        ended |= {number} if act != "running" else set()
    for own in {own for own, _ in sent}:
        of_attempt = [kind for attempt, kind in sent if attempt == own]
        assert of_attempt[0] == "START" and len(of_attempt) == 2, sent
    assert [kind for _, kind in sent].count("COMPLETE") == 1
