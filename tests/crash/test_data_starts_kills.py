"""Processes killed around the writes by which loads begin runs: each load has one run in the end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import LHStatus, ScheduledWfRun

import millpond
from millpond.clock import SystemClock
from millpond.pond import Pond
from millpond.testing.faults import KILL_AT, STEPS_LOG
from millpond.workflows.engine.cron import parse_cron
from millpond.workflows.processor import Processor, read_rows
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

PROGRAM = Path(__file__).parent / "data_starts_killed.py"


def run(folder: Path, **environment: str) -> int:
    return run_python(str(PROGRAM), str(folder), **environment).returncode


def test_each_load_begins_one_run_whenever_the_process_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "steps"
    assert run(tmp_path / "whole", **{STEPS_LOG: str(log)}) == 0
    steps = [line for line in log.read_text().split() if line.startswith("workflows.batch_")]
    assert_once(tmp_path / "whole")
    assert len(steps) >= 8
    moments = [(name, at) for name in sorted(set(steps)) for at in range(1, steps.count(name) + 1)]
    for name, at in drawn(moments, 2, name="moments"):
        folder = tmp_path / f"{name}-{at}"
        assert run(folder, **{KILL_AT: f"{name}:{at}"}) == -signal.SIGKILL
        assert run(folder) == 0
        assert_once(folder)


def assert_once(folder: Path) -> None:
    with millpond.open(folder) as pond:
        assert isinstance(pond, Pond)
        loads = [entry.position for entry in pond.log.entries(0) if entry.kind == "load"]
        processor = Processor(pond.space, SystemClock(), lambda _: None)
        runs, _ = read_rows(processor, "default", lambda rows: rows.runs("flow", LHStatus.COMPLETED, 100))
        schedule = read_rows(processor, "default", lambda rows: rows.get(ScheduledWfRun, ("flow",)))
        assert schedule is not None
        assert sorted(runs) == sorted(f"flow-on-{position}" for position in loads)
        assert parse_cron(schedule.cron_expression).after == str(loads[-1])
