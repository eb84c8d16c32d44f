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
