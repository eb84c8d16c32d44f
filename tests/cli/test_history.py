"""Values over time: drawn on a terminal, rows in a pipe."""

from __future__ import annotations

import datetime
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond as api
from millpond.cli.terminal.charts import Axis, Bar, bar_chart, step_chart
from millpond.cli.terminal.history import BARS_MAX, PANELS_MAX, Chartable, charts, history_of
from tests.cli.conftest import Shell
from tests.docs.snippets import ROOT
from tests.rings.sampling import examples

START = datetime.datetime(2013, 2, 8, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)


def chart(folder: Path, kind: str, value: str | None, rows: list[dict[str, object]]) -> tuple[list[str], list[str]]:
    """The panels of these rows, and the notes."""
    with api.open(folder / "pond") as pond:
        stored = pond.create_map("m", kind=kind, value=value)
        stored.load(rows)
        return charts(Chartable(stored.definition, stored.scan().read_all().to_pylist()), 78)


# -- commands -----------------------------------------------------------------------------------------


def test_a_pipe_and_json_get_rows(weather: Shell) -> None:
    rows = weather("get", "weather", "JFK", "--history", "--json").objects
    assert [row["temp"] for row in rows] == [33.1, 32.0]
    assert weather("scan", "weather", "--plot", "--json").out == weather("scan", "weather", "--json").out
    assert weather("get", "weather", "JFK", "--history").out.count("JFK") == 2
    assert "LGA" in weather("scan", "weather", "--plot").out


def test_history_ends_at_a_time(weather: Shell) -> None:
    command = ("get", "weather", "JFK", "--history", "--json")
    assert len(weather(*command, "--at", "2013-02-08T17:30Z").objects) == 1
    assert len(weather(*command, "--at", "2013-02-08T18:00Z").objects) == 2
    weather(*command, "--at", "2013-02-08T18:00", code=5)


def test_a_key_without_values_has_no_history(weather: Shell) -> None:
    said = weather("get", "weather", "EWR", "--history", code=1)
    assert said.out.strip() == ""
    assert "no value for EWR" in said.err
    assert weather("scan", "weather", "--where", "key = 'EWR'", "--plot", "--json").out == ""


def test_a_chart_and_a_file_exclude_each_other(weather: Shell) -> None:
    assert "--out" in weather("scan", "weather", "--plot", "--out", "out.csv", code=2).err


def test_a_number_of_ranges_has_the_history_that_get_gives(millpond: Shell) -> None:
    millpond("create", "rates", "--kind", "temporal_ranged_state", "--value", "long")
    Path("rates.jsonl").write_text(
        '{"key_start": 0, "key_end": 9, "effective_time": "2020-01-01T00:00Z", "value": 1}\n'
        '{"key_start": 5, "key_end": 6, "effective_time": "2020-01-02T00:00Z", "value": 2}\n'
        '{"key_start": 0, "key_end": 9, "effective_time": "2020-01-03T00:00Z", "value": 3}\n'
    )
    millpond("load", "rates", "rates.jsonl")
    rows = millpond("get", "rates", "5", "--history", "--json").objects
    assert [(row["effective_time"][:10], row["value"]) for row in rows] == [
        ("2020-01-01", 1), ("2020-01-02", 2), ("2020-01-03", 2),
    ]  # fmt: skip
    assert "whole number" in millpond("get", "rates", "five", "--history", code=5).err


RANGES = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 4), st.integers(0, 5), st.integers(0, 99)), max_size=8,
    unique_by=lambda row: row[:3],
)  # fmt: skip


@pytest.mark.usefixtures("processor")
@settings(deadline=None, max_examples=examples(8, 25))
@given(RANGES, st.booleans())
def test_every_history_is_what_get_answers(rows: list[tuple[int, int, int, int]], timed: bool) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder, api.open(Path(folder) / "pond") as pond:
        kind = "temporal_ranged_state" if timed else "ranged_state"
        stored = pond.create_map("m", kind=kind, value="long")
        stored.load(
            [
                {"key_start": first, "key_end": first + width, "value": value}
                | ({"effective_time": START + hour * HOUR} if timed else {})
                for first, width, hour, value in rows
            ]
        )
        for row in history_of(stored, 5, None).to_pylist():
            assert row["value"] == stored.get(5, at=row.get("effective_time"))
        assert (history_of(stored, 5, None).num_rows == 0) == (stored.get(5, at=START + 9 * HOUR) is None)


@pytest.mark.usefixtures("process")
def test_a_terminal_gets_a_chart(weather: Shell) -> None:
    shown = on_a_terminal("get", "weather", "JFK", "--history")
    assert "JFK temp" in shown
    assert "JFK wind_speed" in shown
    assert "┤" in shown
    assert "\x1b[3" not in shown, "a chart has no colours"


def on_a_terminal(*words: str) -> str:
    """The output of a command on a terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "78", "TERM": "xterm"}
    done = subprocess.run(
        [sys.executable, "-m", "millpond", *words], stdout=theirs, stderr=subprocess.PIPE, env=environment, timeout=120,
        check=False,
    )  # fmt: skip
    os.close(theirs)
    pieces = []
    try:
        while piece := os.read(ours, 65_536):
            pieces.append(piece)
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert done.returncode == 0, done.stderr
    return b"".join(pieces).decode()


# -- charts -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("processor")
def test_numbers_are_steps_and_text_is_bars(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"key": "JFK", "effective_time": START + hour * HOUR, "temp": 30.0 + hour, "sky": "rain" if hour else "sun"}
        for hour in range(3)
    ]
    (temp, sky), notes = chart(tmp_path, "temporal_state", "temp double, sky string", rows)
    assert temp.splitlines()[0].strip() == "JFK temp"
    assert "32" in temp and "30" in temp
    assert [line.split()[0] for line in sky.splitlines()[1:3]] == ["sun", "rain"]
    assert not notes


def test_sessions_are_bars(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"key": key, "start": START + hour * HOUR, "end": START + (hour + 2) * HOUR}
        for key, hour in (("N1", 0), ("N1", 6), ("N2", 2))
    ]
    (panel,), _ = chart(tmp_path, "session", None, rows)
    first, second = (line.split()[1] for line in panel.splitlines()[1:3])
    assert first.startswith("█") and first.endswith("█") and "─" in first
    assert second.startswith("─") and second.endswith("─")


def test_ranges_without_times_are_bars_over_numbers(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"key_start": -10, "key_end": 10, "value": "wide"}, {"key_start": 0, "key_end": 0, "value": "one"},
    ]  # fmt: skip
    (panel,), _ = chart(tmp_path, "ranged_state", "string", rows)
    assert "-10" in panel
    assert panel.count("one") == 1 and "█" in panel


def test_a_map_without_times_is_listed(tmp_path: Path) -> None:
    panels, notes = chart(tmp_path, "state", "long", [{"key": "a", "value": 1}])
    assert panels == []
    assert "no times" in notes[0]


def test_too_much_is_not_drawn_and_said(tmp_path: Path) -> None:
    keys: list[dict[str, object]] = [
        {"key": f"k{number}", "effective_time": START, "value": str(number)} for number in range(PANELS_MAX + 3)
    ]
    panels, notes = chart(tmp_path / "keys", "temporal_state", "string", keys)
    assert len(panels) == PANELS_MAX
    assert notes[0].startswith("3 more")
    values: list[dict[str, object]] = [
        {"key": "k", "effective_time": START + number * HOUR, "value": str(number)} for number in range(BARS_MAX + 1)
    ]
    panels, notes = chart(tmp_path / "values", "temporal_state", "string", values)
    assert panels == []
    assert "different values" in notes[0]


def test_a_chart_says_which_column_it_lacks(tmp_path: Path) -> None:
    with api.open(tmp_path / "pond") as pond:
        stored = pond.create_map("m", kind="temporal_state", value="long")
        _, notes = charts(Chartable(stored.definition, [{"key": "k", "value": 1}]), 78)
    assert "effective_time" in notes[0]


@pytest.mark.usefixtures("processor")
@settings(deadline=None, max_examples=examples(15, 60))
@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.one_of(st.none(), st.floats(width=32))), max_size=8),
    st.integers(1, 10**12),
    st.integers(20, 200),
)
def test_whatever_is_drawn_fits(points: list[tuple[int, float | None]], span: int, columns: int) -> None:
    axis = Axis(0, 10**9 + span)
    drawn = step_chart("title", sorted(points, key=lambda point: point[0]), axis, columns)
    bars = [Bar(str(value), place, place + span) for place, value in points]
    for panel in (drawn, bar_chart("title", bars, axis, columns)):
        assert all(len(line) <= max(columns, 60) for line in panel.splitlines())


def test_ticks_tell_places_apart() -> None:
    for span in (1, 10, 1_000, 100_000, 10**7, 10**9, 10**11):
        labels = [label for _, label in Axis(1_360_000_000_000, 1_360_000_000_000 + span).ticks(78)]
        assert len(set(labels)) == len(labels), labels
