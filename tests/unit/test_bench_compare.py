"""Two runs of the benchmarks, compared: what is beyond the noise, what is worse, and how the program exits."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench import compare
from bench._results import Figure, Machine, Result, Rival, Unit, write_result

Spread = tuple[float, float, float]
RESULT = Result(
    claim="get", date="2026-01-02", commit="0123456789ab", recorded="by its script", load=None, sizes={"keys": 10},
    machine=Machine(2, 24, "a processor", "a system", "3.11"), rivals=(Rival("Redis", "7.0"),), figures=(),
)  # fmt: skip


def result(ours: Spread, theirs: Spread, unit: Unit = "s") -> Result:
    """A run in which Millpond and a rival took the least, the median and the most."""
    figures = tuple(
        Figure(task="get", way=way, unit=unit, median=median, min=least, max=most, repetitions=3)
        for way, (least, median, most) in (("Millpond", ours), ("Redis", theirs))
    )
    return msgspec.structs.replace(RESULT, figures=figures)


def exit_status(folder: Path, old: Result, new: Result, *options: str) -> int:
    places = [write_result(run, folder / name) for name, run in (("old", old), ("new", new))]
    return compare.main([*map(str, places), *options])


def test_the_same_run_is_not_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = result((1, 2, 3), (5, 6, 7))
    assert exit_status(tmp_path, run, run) == 0
    assert "1 ratios compared, 0 worse by more than 25%" in capsys.readouterr().out


def test_a_slower_machine_changes_figures_and_no_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(tmp_path, result((1, 2, 3), (4, 6, 8)), result((10, 20, 30), (40, 60, 80))) == 0
    out = capsys.readouterr().out
    assert "| get, Millpond | 2\xa0s (1\xa0s … 3\xa0s) | 20\xa0s (10\xa0s … 30\xa0s) | 10.00 | ! |" in out
    assert "| get, Redis | 3× | 3× | 1.00 |  |" in out


@pytest.mark.parametrize(("unit", "worse"), [("s", 4.0), ("/s", 1.0), ("B", 4.0)])
def test_a_ratio_that_fell_by_more_than_the_bound_fails(tmp_path: Path, unit: Unit, worse: float) -> None:
    old, new = (result((ours, ours, ours), (6, 6, 6), unit) for ours in (2.0, worse))
    assert exit_status(tmp_path, old, new) == 1
    assert exit_status(tmp_path, old, new, "--bound", "0.6") == 0
    assert exit_status(tmp_path, new, old) == 0  # better is never worse


def test_what_is_worse_is_named_with_its_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_status(tmp_path, result((2, 2, 2), (6, 6, 6)), result((4, 4, 4), (6, 6, 6)))
    assert "WORSE: get: get, Redis: 3× → 1.5×, beyond the noise" in capsys.readouterr().out
    exit_status(tmp_path, result((1, 2, 5), (6, 6, 6)), result((1, 4, 5), (6, 6, 6)))
    assert "WORSE: get: get, Redis: 3× → 1.5×, within the noise" in capsys.readouterr().out


def test_the_spread_of_a_ratio_is_the_least_and_the_most_that_it_may_be() -> None:
    for unit, span in (("s", (5 / 3, 7.0)), ("/s", (1 / 7, 3 / 5))):
        run = result((1, 2, 3), (5, 6, 7), "s" if unit == "s" else "/s")
        [change] = compare.changes(run, run)
        assert change.new_span == pytest.approx(span)
        assert change.mark == ""


def test_runs_without_a_ratio_in_common_are_not_compared(tmp_path: Path) -> None:
    new = result((1, 2, 3), (5, 6, 7))
    other = msgspec.structs.replace(new, figures=tuple(msgspec.structs.replace(f, size="big") for f in new.figures))
    assert exit_status(tmp_path, other, new) == 2
    assert exit_status(tmp_path, new, msgspec.structs.replace(new, claim="put")) == 2


def test_differences_of_the_runs_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = result((1, 2, 3), (5, 6, 7))
    new = msgspec.structs.replace(
        old, sizes={"keys": 20}, rivals=(Rival("Redis", "8.0"),), machine=msgspec.structs.replace(old.machine, cores=4),
        figures=(*old.figures, Figure(task="put", way="Millpond", unit="s", median=1)),
    )  # fmt: skip
    assert exit_status(tmp_path, new, old) == 2
    out = capsys.readouterr().out
    assert "sizes differ, so ratios are not judged: {'keys': 20} and {'keys': 10}" in out
    assert "machines differ" in out
    assert "Redis differs: 8.0 and 7.0" in out
    assert "not in the new run: put, Millpond" in out


def test_runs_of_other_sizes_are_not_judged(tmp_path: Path) -> None:
    old, new = result((2, 2, 2), (6, 6, 6)), result((4, 4, 4), (6, 6, 6))
    assert exit_status(tmp_path, old, msgspec.structs.replace(new, sizes={"keys": 11})) == 2


@pytest.mark.parametrize("more", [{"repetitions": 1}, {"min": None, "max": None}])
def test_a_figure_without_repetitions_says_nothing_about_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, None]
) -> None:
    new = result((2, 2, 2), (6, 6, 6))
    old = msgspec.structs.replace(new, figures=tuple(msgspec.structs.replace(f, **more) for f in new.figures))
    assert exit_status(tmp_path, old, new) == 0
    assert "| get, Redis | 3× | 3× | 1.00 | ? |" in capsys.readouterr().out


def test_a_version_may_be_shorter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = result((1, 2, 3), (5, 6, 7))
    assert exit_status(tmp_path, old, msgspec.structs.replace(old, rivals=(Rival("Redis", "7.0.1"),))) == 0
    assert "differs" not in capsys.readouterr().out


def test_folders_are_compared_claim_by_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = result((1, 2, 3), (5, 6, 7))
    for name in ("old", "new"):
        for claim in ("get", "put"):
            write_result(msgspec.structs.replace(run, claim=claim), tmp_path / name)
    assert compare.main([str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    assert "## get:" in out
    assert "## put:" in out
    assert "2 ratios compared" in out
