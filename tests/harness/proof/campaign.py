"""Runs of the pipeline, some at one time, while the killer strikes; every run that ends is checked.

Invariants:
* runs that come no further for `STALL_SECONDS`, without a kill and without a step that ends, are a failure, not a
  wait for ever;
* the seed decides whom the killer ends and after which pauses. What that hits depends on the machine.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
from littlehorse.model import LHStatus, ListTaskRunsRequest, RunWfRequest, WfRunId, service_pb2_grpc
from littlehorse.workflow import Workflow

import millpond
from millpond.client.pond import RemotePond
from millpond.clock import Clock, SystemClock
from millpond.demo.processes import PipelineWorker, WorkflowServer
from millpond.demo.sources import prepare
from millpond.demo.workflow import FlightsPipeline
from millpond.stores.files import remove_tree
from tests.harness.frame.history import History
from tests.harness.frame.report import Report
from tests.harness.frame.world import Order, Say, World
from tests.harness.proof.checks import STEPS, SUCCESS, EndedRun, problems
from tests.harness.proof.killer import Killer
from tests.harness.proof.model import ONLY, FlightsModel

__all__ = ("WORLD", "Plan", "ProofReport", "prove")

LOOK_SECONDS = 0.2
CALL_SECONDS = 10
STALL_SECONDS = 480.0
"""Longer than the timeout of a step."""
STEP_SECONDS_MAX = 90.0
"""The time after which a kill waits for no step."""
_GOING = (LHStatus.STARTING, LHStatus.RUNNING, LHStatus.HALTING)


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a proof: so many kills, this many runs at one time, and the worker's timing.

    `heartbeat_seconds` is the client's own constant when it is None. A worker or driver that is gone is noticed long
    before `timeout_seconds`; a machine with other work needs them, for three sessions of Spark may begin at once.
    """

    seed: int
    kills: int
    runs_at_once: int = 3
    pause_seconds_max: float = 4.0
    timeout_seconds: int = 240
    heartbeat_seconds: int | None = 1


@dataclass
class ProofReport(Report):
    """The outcome of a proof: kills by process, runs that ended, and the attempts that their steps took."""

    kills: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    attempts: Counter[str] = field(default_factory=Counter)

    @property
    def summary(self) -> str:
        """The proof in one line."""
        kills = ", ".join(f"{count} {name}" for name, count in sorted(self.kills.items()))
        return f"{sum(self.kills.values())} kills ({kills}), {self.runs} runs in {self.seconds:.0f} s"

    def tables(self) -> Iterator[str]:
        """The attempts of steps."""
        yield "attempts of steps: " + ", ".join(
            f"{count} took {number}" for number, count in sorted(self.attempts.items())
        )
        if self.ok:
            yield "every run ended right"

    def details(self) -> dict[str, object]:
        """Its kills, runs and attempts, as JSON."""
        return {"kills": self.kills, "runs": self.runs, "attempts": dict(self.attempts)}


def prove(plan: Plan, folder: Path, say: Say = lambda _: None, clock: Clock | None = None) -> ProofReport:
    """Run the pipeline and kill until all kills are made; then let the last runs end."""
    clock = clock or SystemClock()
    report = ProofReport(plan.seed)
    began = clock.monotonic()
    sources = prepare(folder / "data")
    with (
        WorkflowServer(folder / "server.log", folder / "pond", stories=True) as server,
        PipelineWorker(
            folder / "worker.log", served=server, master="local[2]", heartbeat_seconds=plan.heartbeat_seconds
        ) as worker,
    ):
        server.start()
        worker.start()
        killer = Killer(random.Random(plan.seed), server, worker, plan.pause_seconds_max)
        pipeline = FlightsPipeline(
            sources,
            folder / "flights",
            only=ONLY,
            retries=200,
            timeout_seconds=plan.timeout_seconds,
            delay_seconds_max=2,
        )
        history = History(folder / "history.jsonl", clock)
        with closing(history):
            _Proof(plan, pipeline, FlightsModel(sources), killer, report, history, clock, say).run()
        with millpond.open(server.url) as pond:
            for problem in pond.verify().problems:
                report.findings.report(f"verify: {problem}")
    report.kills, report.seconds = dict(killer.killed), round(clock.monotonic() - began, 1)
    return report


def _of_order(order: Order) -> ProofReport:
    chosen = order.chosen
    plan = Plan(order.seed, int(order.length), chosen.runs_at_once, chosen.pause,
                heartbeat_seconds=None if chosen.slow_heartbeat else 1)  # fmt: skip
    return prove(plan, order.folder, order.say)


WORLD = World(
    "tests.harness.proof", "kills", 200, _of_order,
    options={
        "runs-at-once": {"type": int, "default": 3},
        "pause": {"type": float, "default": 4.0, "help": "the longest pause between kills, in seconds"},
        "slow-heartbeat": {"action": "store_true", "help": "leave the heartbeat of the command, 5 s"},
    },
)  # fmt: skip


@dataclass(slots=True)
class _Proof:
    plan: Plan
    pipeline: FlightsPipeline
    model: FlightsModel
    killer: Killer
    report: ProofReport
    history: History
    clock: Clock
    say: Say
    going: dict[str, FlightsPipeline] = field(default_factory=dict)
    begun: int = 0
    ended_steps: Counter[str] = field(default_factory=Counter)
    never: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        struck_at = moved_at = self.clock.monotonic()
        steps, seconds = self.killer.pause()
        while (kills_left := self.killer.kills < self.plan.kills) or self.going:
            while len(self.going) < (self.plan.runs_at_once if kills_left or not self.begun else 0):
                self._begin()
            ripe = self.progress >= steps or self.clock.monotonic() > struck_at + STEP_SECONDS_MAX
            if kills_left and ripe and self._rested(seconds):
                if victim := self.killer.strike():
                    self.history.add("kill", victim=victim, steps=self.progress)
                    self.say(
                        f"kill {self.killer.kills}: {victim}; {self.report.runs} runs and {self.progress} steps ended"
                    )
                struck_at = self.clock.monotonic()
                wanted, seconds = self.killer.pause()
                steps = self.progress + wanted
            before = self.progress, self.report.runs
            self._look()
            if (self.progress, self.report.runs) != before:
                moved_at = self.clock.monotonic()
            if self.clock.monotonic() - max(struck_at, moved_at) > STALL_SECONDS:
                self.report.findings.report(f"stuck: runs do not end: {sorted(self.going)}")
                return
            self.clock.wait(self.never, self.clock.monotonic() + LOOK_SECONDS)

    def _rested(self, seconds: float) -> bool:
        """Pause before a kill, while runs go on."""
        return not self.clock.wait(self.never, self.clock.monotonic() + seconds)

    @property
    def progress(self) -> int:
        """The steps that have ended, of all runs."""
        return self.report.runs * len(STEPS) + sum(self.ended_steps[name] for name in self.going)

    def _begin(self) -> None:
        name = f"proof-{self.begun}"
        suffix = f"_{self.begun}"
        pipeline = replace(self.pipeline, suffix=suffix)
        with self._stub() as stub:
            stub.PutWfSpec(Workflow(name, pipeline.body()).compile(), timeout=CALL_SECONDS)
            stub.RunWf(RunWfRequest(wf_spec_name=name, id=name), timeout=CALL_SECONDS)
        self.begun += 1
        self.going[name] = pipeline

    def _look(self) -> None:
        """Check the runs that have ended; a server that does not answer is looked at again."""
        with suppress(grpc.RpcError), self._stub() as stub:
            for name in list(self.going):
                run = stub.GetWfRun(WfRunId(id=name), timeout=CALL_SECONDS)
                tasks = stub.ListTaskRuns(ListTaskRunsRequest(wf_run_id=run.id), timeout=CALL_SECONDS).results
                self.ended_steps[name] = sum(task.status == SUCCESS for task in tasks)
                if run.status in _GOING:
                    continue
                self._ended(EndedRun(name, self.going.pop(name), LHStatus.Name(run.status), tuple(tasks)))

    def _ended(self, run: EndedRun) -> None:
        attempts = Counter(f"{len(task.attempts)}" for task in run.tasks)
        self.report.attempts += attempts
        with millpond.open(self.killer.server.url) as pond:
            assert isinstance(pond, RemotePond), "the server's"
            found = [f"run: {run.id}: {problem}" for problem in problems(run, pond, self.model, self.clock)]
            if not found:
                for planned in run.pipeline.maps:
                    pond.drop_map(planned.name)
                for folder in run.pipeline.out.glob(f"{run.id}_*"):
                    remove_tree(folder)
        self.report.runs += 1
        self.history.add("ended", run=run.id, wrong=found)
        for problem in found:
            self.report.findings.report(problem)
            self.say(problem)

    @contextmanager
    def _stub(self) -> Iterator[Any]:
        with grpc.insecure_channel(self.killer.server.server) as channel:
            yield service_pb2_grpc.LittleHorseStub(channel)  # type: ignore[no-untyped-call]
