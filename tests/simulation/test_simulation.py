"""A pond and its follower live through loads, maintenance, faults and crashes, drawn from a seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.harness.frame.report import Broken
from tests.harness.models import MapModel
from tests.harness.simulation import simulate

pytestmark = pytest.mark.sample(3, of="file")

STEPS = 60
QUICK = range(1, 6)
SLOW = range(100, 160)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("seed", QUICK)
def test_a_simulation_ends_well(seed: int) -> None:
    simulate(seed, STEPS)


@pytest.mark.full
@pytest.mark.parametrize("seed", SLOW)
def test_a_long_simulation_ends_well(seed: int) -> None:
    simulate(seed, 250)


@pytest.mark.usefixtures("process")
def test_the_same_seed_does_the_same_also_in_another_process() -> None:
    first, second = simulate(7, STEPS), simulate(7, STEPS)
    assert first.trace == second.trace
    assert first.digest == second.digest
    command = [sys.executable, "-m", "tests.harness.simulation", "--seed", "7", "--steps", str(STEPS)]
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout.splitlines() == [*first.trace, f"seed 7: {len(first.trace)} actions, digest {first.digest}"]
    assert simulate(8, STEPS).digest != first.digest


@pytest.mark.usefixtures("process")
def test_faults_of_every_kind_come_and_are_survived() -> None:
    traces = [line for seed in QUICK for line in simulate(seed, STEPS).trace]
    outcomes = ("power-cut:", "crash at ", "-> disk_full", "-> commit_lost", "recover -> done", "damage ", "expire ")
    for outcome in outcomes:
        assert any(outcome in line for line in traces), outcome


def test_a_broken_invariant_is_shown_with_its_trace_and_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = MapModel.put
    monkeypatch.setattr(MapModel, "put", lambda self, part, *, now=0: put(self, list(part)[1:], now=now))
    with pytest.raises(Broken) as caught:
        simulate(1, STEPS)
    lines = str(caught.value).splitlines()
    assert any("primary: creator: create" in line for line in lines)
    assert lines[-1] == f"replay: python -m tests.harness.simulation --seed 1 --steps {STEPS}"
