"""`--known-at` of `get`, `scan` and `enrich`: layered maps as they were known at a time, or at a column of times."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millpond.clock import SystemClock
from tests.cli.conftest import Shell


def moment() -> str:
    """The time of now; what is done next is later."""
    clock = SystemClock()
    now = clock.now_ms()
    while clock.now_ms() <= now:
        pass
    return datetime.fromtimestamp(now / 1000, UTC).isoformat()


@pytest.fixture
def moments(millpond: Shell) -> list[str]:
    """The moments after a load, and after its correction."""
    times = []
    millpond("create", "planes", "--kind", "state", "--value", "string", "--store", "layers")
    for value in ("Bond", "Moneypenny"):
        Path("planes.csv").write_text(f"key,value\n007,{value}\n")
        millpond("load", "planes", "planes.csv")
        times.append(moment())
    return times


def test_commands_ask_as_known(millpond: Shell, moments: list[str]) -> None:
    first, second = moments
    for time, value in ((first, "Bond"), (second, "Moneypenny")):
        assert millpond("get", "planes", "007", "--known-at", time).out.strip() == value
        rows = json.loads(millpond("scan", "planes", "--known-at", time, "--json").out)
        assert value in json.dumps(rows)
    Path("events.csv").write_text(f"tail,decided\n007,{first}\n007,{second}\n007,\n")
    for known_at, expected in (("DECIDED", ["Bond", "Moneypenny", None]), (first, ["Bond"] * 3)):
        enrich = ("enrich", "events.csv", "--with", "planes on tail as who", "--out", "out.jsonl", "--no-spark")
        millpond(*enrich, "--known-at", known_at)
        rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
        assert [row.get("who") for row in rows] == expected
    early = millpond("scan", "planes", "--known-at", "2001-01-01T00:00Z", code=5)
    assert "nothing was known" in early.err


def test_commands_ask_for_windows_as_known(millpond: Shell) -> None:
    made = ("create", "sales", "--kind", "aggregate", "--value", "n long count", "--resolution", "1 hour")
    millpond(*made, "--store", "layers")
    times = []
    for number in (1, 2):
        Path("sales.csv").write_text("key,time\n" + f"a,2024-03-01T0{number}:10Z\n")
        millpond("load", "sales", "sales.csv")
        times.append(moment())
    first, second = times
    query = ("get", "sales", "a", "--at", "2024-03-01T03:00Z", "--window")
    for window, count in (("1 hour", 1), ("1 day", 2)):
        assert millpond(*query, window, "--json").object["value"] == {"n": count}
    assert millpond(*query, "1 day", "--known-at", first, "--json").object["value"] == {"n": 1}
    assert "make up the window" in millpond(*query, "90 minutes", code=5).err
    Path("events.csv").write_text(
        f"shop,at,seen\na,2024-03-01T03:30Z,{first}\na,2024-03-01T03:30Z,{second}\nb,2024-03-01T03:30Z,{second}\n"
    )
    enrich = ("enrich", "events.csv", "--with", "sales on shop at at over 1 day as day", "--out", "out.jsonl")
    for known_at, expected in (
        (("--known-at", "seen"), [1, 2, None]), (("--known-at", first), [1, 1, None]), ((), [2, 2, None])
    ):  # fmt: skip
        millpond(*enrich, "--no-spark", *known_at)
        rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
        assert [(row.get("day") or {}).get("n") for row in rows] == expected
    wrong = ("enrich", "events.csv", "--with", "sales on shop at at over 1 minute", "--out", "out.jsonl")
    assert "make up the window" in millpond(*wrong, code=5).err
