"""The space in a bucket over a bucket that loses, repeats and delays: what was acknowledged is there once, for all."""

from __future__ import annotations

import pytest

from tests.harness.buckets.simulation import Simulation


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(6))
def test_no_write_is_lost_or_doubled(seed: int) -> None:
    Simulation(seed).run(40)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 200))
def test_no_write_is_lost_or_doubled_in_many_runs(seed: int) -> None:
    Simulation(seed).run(120)


@pytest.mark.usefixtures("processor")
def test_faults_happen_in_a_run() -> None:
    runs = [Simulation(seed).run(60) for seed in range(3)]
    words = " ".join(line for run in runs for line in run.trace)
    assert sum(run.kills for run in runs) > 3
    assert "uncertain" in words
    assert any("checkpoint" in run.bucket.objects for run in runs)


@pytest.mark.usefixtures("processor")
def test_a_seed_is_a_run() -> None:
    one, other = Simulation(77).run(30), Simulation(77).run(30)
    assert one.trace == other.trace
    assert one.bucket.objects == other.bucket.objects
