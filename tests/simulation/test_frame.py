"""The frame of campaigns: a failing seed is printed with its shortest run, and the files of what failed are left."""

from __future__ import annotations

import json
import random  # noqa: TID251 - a seed of its own
import sys
from pathlib import Path

import pytest

from tests.harness.frame.draws import drawn
from tests.harness.frame.findings import Findings
from tests.harness.frame.main import main
from tests.harness.frame.report import Broken, Report
from tests.harness.frame.shrinking import shortest
from tests.harness.frame.world import Order, World


def exact(seed: int, length: int) -> Report:
    """A run that counts, and breaks at 37 when its seed is 5."""
    report = Report(seed)
    with WORLD.traced(report, length):
        for number in range(1, length + 1):
            report.trace.append(f"count {number}")
            if (seed, number) == (5, 37):
                raise ValueError("the number 37")
    report.digest = str(length)
    return report


WORLD = World("counting", "steps", 200, lambda order: exact(order.seed, int(order.length)), exact=True)


def real(order: Order) -> Report:
    """A run that leaves a file, and finds something wrong when its seed is odd."""
    report = Report(order.seed)
    (order.folder / "data").write_text(str(order.length))
    order.say(f"seed {order.seed}")
    report.counts["loads"] = 3
    if order.seed % 2:
        report.findings.report("lost: a load")
    return report


REAL = World("real", "minutes", 1.5, real, options={"pause": {"type": float, "default": 4.0}})


def run(monkeypatch: pytest.MonkeyPatch, world: World, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["world", *words])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return main(world)


def test_a_run_that_ends_well_shows_its_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, WORLD, "--seed", "1", "--steps", "2") == 0
    assert capsys.readouterr().out.splitlines() == ["count 1", "count 2", "seed 1: 2 actions, digest 2"]


def test_of_many_runs_each_is_a_line_until_one_fails_with_its_shortest_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, WORLD, "--seed", "3", "--runs", "9", "--steps", "150") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["seed 3: 150 actions, digest 150", "seed 4: 150 actions, digest 150"]
    assert lines[2:-2] == [f"count {number}" for number in range(1, 38)]
    assert lines[-2] == "ValueError: the number 37"
    assert lines[-1] == "replay: python -m counting --seed 5 --steps 37"


def test_a_run_that_fails_at_every_length_is_shrunk_to_one() -> None:
    def always(length: int) -> None:
        raise Broken(f"length {length}")

    length, broken = shortest(always, 64, Broken("length 64"))
    assert (length, str(broken)) == (1, "length 1")


def test_a_report_is_json_alone_and_the_files_of_what_passed_are_gone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, REAL, "--seed", "2", "--json", "--folder", str(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "seed": 2, "ok": True, "seconds": 0.0, "counts": {"loads": 3}, "wrong": [], "wrong_by_kind": {}, "digest": "",
        "folder": None,
    }  # fmt: skip
    assert err == "seed 2\n"
    assert not list(tmp_path.iterdir())


def test_what_failed_leaves_its_files_and_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, REAL, "--seed", "7", "--folder", str(tmp_path)) == 1
    (folder,) = tmp_path.iterdir()
    assert (folder / "data").read_text() == "1.5"
    out = capsys.readouterr().out
    assert f"failed: python -m real --seed 7 --minutes 1.5; its files are in {folder}" in out
    assert "WRONG: lost: a load" in out


def test_a_seed_that_is_not_given_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda limit: limit - 2)
    assert run(monkeypatch, REAL, "--folder", str(tmp_path)) == 0
    assert capsys.readouterr().out.startswith("seed 999998\n")


def test_findings_are_counted_by_their_word() -> None:
    findings = Findings()
    for problem in ("lost: one", "old: two", "lost: three"):
        findings.report(problem)
    assert findings.wrong == ["lost: one", "old: two", "lost: three"]
    assert findings.kinds == {"lost": 2, "old": 1}


def test_draws_follow_their_weights() -> None:
    chance = random.Random(1)
    found = [drawn(chance, [("a", 3), ("b", 1), ("c", 0)]) for _ in range(4_000)]
    assert found.count("c") == 0
    assert 2_800 < found.count("a") < 3_200
