"""A ledger of what the tests cost: wall and processor seconds by ring and file.

Every run measures. `--ledger=write` keeps the figures in `tests/durations.json`. `--ledger=compare`, as in CI,
names the files whose processor time grew by half; with `--ledger=strict` one that grew by more than chance explains
fails the run. It is written from the sample that CI draws. What a fixture of a session or a module takes is an
entry of its own, as which file pays for it is chance.

Invariants:
* Processor time is that of the worker and of the processes that it started; of those that live on, with their file.
* A machine that is slower as a whole is no growth: a file is compared with the median of what the others grew by.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import pytest

__all__ = ("LEDGER", "UNIT_SECONDS_MAX", "Cost", "Ledger", "grown", "read_ledger")

LEDGER = Path(__file__).parents[1] / "durations.json"
GROWTH_MAX = 1.5
GROWTH_SECONDS_MIN = 2.0
"""A file that grew by less is not named: a quarter of a second is noise."""
GROWTH_SECONDS_FAILING = 30.0
"""Less may be chance: who is first to use Spark or a server pays for it."""
UNIT_SECONDS_MAX = 0.25
"""The processor time that a unit test may take; one that needs more has the fixture `processor`.

The unit ring alone holds tests to it: in larger ones first uses fall on any test.
"""
COMPARED_SECONDS_MIN = 1.0
"""Files below it say nothing about the speed of the machine."""

Costs: TypeAlias = "dict[str, Cost]"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds that something took."""

    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall - other.wall, self.cpu - other.cpu)

    @property
    def rounded(self) -> list[float]:
        """As the ledger holds it."""
        return [round(self.wall, 1), round(self.cpu, 1)]


def _now() -> Cost:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return Cost(time.perf_counter(), cpu)


def _living_seconds() -> float:
    """Seconds of processor time of the processes below this one that live, and of those that they waited for."""
    children, ticks = defaultdict(list), {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            children[int(words[1])].append(pid)
            ticks[pid] = sum(map(int, words[11:15]))
    left, total = list(children[os.getpid()]), 0
    while left:
        pid = left.pop()
        total += ticks[pid]
        left += children[pid]
    return total / os.sysconf("SC_CLK_TCK")


def grown(before: Costs, after: Costs, seconds_min: float = GROWTH_SECONDS_MIN) -> list[str]:
    """The files of both whose processor time grew by half more than that of the others, with both figures."""
    common = [name for name in after if name in before]
    ratios = [after[name].cpu / before[name].cpu for name in common if before[name].cpu >= COMPARED_SECONDS_MIN]
    speed = max(statistics.median(ratios), 0.1) if ratios else 1.0
    found = []
    for name in common:
        usual, now = max(before[name].cpu, 0.0) * speed, after[name].cpu
        if now > GROWTH_MAX * usual and now - usual > seconds_min:
            found.append(f"{name}: {now:.1f} s of processor time, {usual:.1f} s before on this machine")
    return found


def _of_files(costs: Costs) -> Costs:
    """Without fixtures, which one worker makes in one run and three in another."""
    return {name: cost for name, cost in costs.items() if name.endswith(".py")}


@dataclass(eq=False)
class Ledger:
    """The plugin: it measures in workers, adds up where the run is controlled, and compares there."""

    mode: str
    unit_seconds_max: float = inf
    path: Path = LEDGER
    rings: dict[str, Costs] = field(default_factory=lambda: defaultdict(lambda: defaultdict(Cost)))
    failures: list[str] = field(default_factory=list)
    _shared: list[tuple[str, Cost]] = field(default_factory=list)
    _cost: Cost = field(default_factory=Cost)
    _living: float = 0.0

    @contextmanager
    def _measured(self) -> Iterator[None]:
        before, outer, self._shared = _now(), self._shared, []
        try:
            yield
        finally:
            self._cost = _now() - before - sum((cost for _, cost in self._shared), Cost())
            self._shared = outer + self._shared

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        with self._measured():
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        with self._measured():
            yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
        with self._measured():
            yield
        if nextitem is None or nextitem.path != item.path:
            living = _living_seconds()
            self._cost += Cost(0.0, living - self._living)
            self._living = living

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before, inner = _now(), len(self._shared)
        try:
            return (yield)
        finally:
            cost = _now() - before - sum((other for _, other in self._shared[inner:]), Cost())
            self._shared.append((f"{fixturedef.scope} {fixturedef.argname}", cost))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        shared, self._shared = self._shared, []
        # attributes of a report travel from a worker to where the run is controlled
        report.ring = next((ring for ring in ("unit", "full") if item.get_closest_marker(ring)), "test")
        report.cost = [self._cost.wall, self._cost.cpu]
        report.shared_costs = [[name, cost.wall, cost.cpu] for name, cost in shared]
        if report.passed and report.when == "call" and report.ring == "unit" and self._cost.cpu > self.unit_seconds_max:
            report.outcome = "failed"
            limit = f"where a unit test may take {self.unit_seconds_max}"
            report.longrepr = f"{self._cost.cpu:.2f} s of processor time, {limit}: use the fixture `processor`"
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not hasattr(report, "cost"):
            return  # of a subtest: its test has the cost
        costs = self.rings[report.ring]
        costs[report.nodeid.partition("::")[0]] += Cost(*report.cost)
        for name, wall, cpu in report.shared_costs:
            costs[f"fixtures of a {name}"] += Cost(wall, cpu)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        if self.mode == "write":
            self._write()
        elif self.mode in ("compare", "strict"):
            before = read_ledger(self.path)
            for ring, costs in before.items():
                self.failures += grown(costs, self.rings[ring])
            failed = any(
                grown(_of_files(costs), self.rings[ring], GROWTH_SECONDS_FAILING) for ring, costs in before.items()
            )
            if self.mode == "strict" and failed and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write(self) -> None:
        rings = read_ledger(self.path) | {ring: dict(costs) for ring, costs in self.rings.items() if costs}
        plain = {
            ring: {
                name: cost.rounded
                for name, cost in sorted(costs.items())
                if name.endswith(".py") or max(cost.rounded) > 0
            }
            for ring, costs in sorted(rings.items())
        }
        lines = json.dumps(plain, indent=1).replace("[\n   ", "[").replace(",\n   ", ", ").replace("\n  ]", "]")
        self.path.write_text(lines + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for ring, costs in sorted(self.rings.items()):
            total = sum(costs.values(), Cost())
            dear = sorted(costs, key=lambda name: -costs[name].cpu)[:5]
            words = ", ".join(f"{name} {costs[name].cpu:.0f}" for name in dear)
            figures = f"{total.cpu:.0f} s of processor time, {total.wall:.0f} s of the workers' time"
            terminalreporter.write_line(f"ring {ring}: {figures}; most: {words}")
        for words in self.failures:
            terminalreporter.write_line(f"grown by half: {words}", red=True)
        if self.failures:
            terminalreporter.write_line("where that is right, `make ledger` writes tests/durations.json anew")


def read_ledger(path: Path = LEDGER) -> dict[str, Costs]:
    """The costs by ring and file that were kept; none where there is no ledger."""
    if not path.exists():
        return {}
    rings = json.loads(path.read_text(encoding="utf-8"))
    return {ring: {name: Cost(*seconds) for name, seconds in costs.items()} for ring, costs in rings.items()}
