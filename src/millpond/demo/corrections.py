"""Weather that is corrected after the fact: written to a branch, audited there, and published.

    bad file ─▶ branch ─▶ check finds rows ─▶ the branch is taken back
    good file ─▶ branch ─▶ difference ─▶ check finds nothing ─▶ merge ─▶ main

`millpond.pipelines.publish` is the same as steps of a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyarrow import csv

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from millpond.pond import Pond

__all__ = ("CHECK", "QUESTION", "Corrected", "correct_weather")

CHECK = "select key, effective_time, temp from weather where temp > 130 order by effective_time"
QUESTION = ("JFK", "2013-02-08T18:00Z")
"""The lookup that is asked as it was known before and after."""
_BRANCH = "mended"
_ROWS = "key = 'JFK' and effective_time >= '2013-02-08T16:00Z' and effective_time < '2013-02-08T19:00Z'"


@dataclass(frozen=True, slots=True)
class Corrected:
    """The outcome: the rows that the check refused, what the good file changes, and the answers known at both times."""

    refused: list[dict[str, Any]]
    difference: list[dict[str, Any]]
    before: dict[str, Any]
    after: dict[str, Any]


def correct_weather(pond: Pond, folder: Path) -> Corrected:
    """Load a bad correction, which is refused, and a good one, which is merged; the files are written to a folder.

    Raises: as loads and merges of branches.
    """
    rows = pond.map("weather").scan(_ROWS).read_all()
    bad = _written(rows, folder / "weather_bad.csv", lambda temp: temp * 10)  # in tenths of a degree
    good = _written(rows, folder / "weather_mended.csv", lambda temp: temp - 2)  # the sensor stood in the sun
    earlier = datetime.fromtimestamp(pond.clock.now_ms() / 1000, UTC)
    branch = pond.branch(_BRANCH, source="main")
    branch.load_files(bad, "weather")
    refused = branch.sql(CHECK).to_pylist()
    assert refused, "it is too hot"
    pond.refs.reset(_BRANCH, "main")
    branch.load_files(good, "weather")
    difference = pond.refs.diff("main", _BRANCH, map="weather").to_pylist()
    assert not branch.sql(CHECK).num_rows, "it is as it should be"
    branch.merge()
    pond.refs.delete_branch(_BRANCH)
    weather = pond.map("weather")
    return Corrected(refused, difference, weather.get(*QUESTION, known_at=earlier), weather.get(*QUESTION))


def _written(rows: pa.Table, file: Path, mended: Any) -> Path:
    import pyarrow as pa

    temps = pa.array([mended(temp) for temp in rows["temp"].to_pylist()], pa.float64())
    csv.write_csv(rows.set_column(rows.schema.get_field_index("temp"), "temp", temps), file)
    return file
