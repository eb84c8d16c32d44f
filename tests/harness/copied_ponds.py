"""Ponds to copy: what is in them, and what they say then."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

import millpond

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from millpond import Pond
    from millpond.clock import Clock
    from tests.s3_server import S3Server

__all__ = ("CHILD", "fill", "new_place", "opened", "said")

_NUMBERS = count(1)
LARGE_BYTES = 40_000
"""More than a bucket keeps in its rows."""
CHILD = """
import sys
import millpond
from millpond.testing import faults

armed = faults.arm()
print(millpond.copy(sys.argv[1], sys.argv[2]).files)
"""


def new_place(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """A place for a pond in a new bucket, and caches of this test's own."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return f"{s3_server.make_bucket(f'copies-{os.getpid()}-{next(_NUMBERS)}')}/pond"


def opened(where: object, clock: Clock | None = None) -> Pond:
    """The pond in a folder or a bucket, made if missing."""
    pond = millpond.open(str(where), clock=clock)
    assert isinstance(pond, millpond.Pond)
    return pond


def fill(pond: Pond) -> None:
    """Two maps with a past, one of them on a branch too; a tag; a repository with a file; small and large events."""
    weather = pond.create_map("weather", kind="temporal_state", value="long", store="layers")
    weather.load([{"key": "a", "effective_time": 1, "value": 1}, {"key": "b", "effective_time": 1, "value": 2}])
    weather.load([{"key": "a", "effective_time": 9, "value": 3}])
    pond.create_map("nets", kind="ranged_state", value="long", store="layers").load(
        [{"key_start": 1, "key_end": 9, "value": 7}]
    )
    fix = pond.branch("fix", source="main")
    fix.map("weather").load([{"key": "a", "effective_time": 5, "value": 4}])
    pond.repository("pond").create_tag("v1", "main~1")
    branch = pond.repositories.create("files").branch("main")
    branch.put("a/b.txt", b"bytes")
    branch.commit("a file")
    pond.events.append("queue", "jobs", [b"event %d" % number for number in range(100)], source="feed",
                       positions=range(1, 101))  # fmt: skip
    pond.events.append("queue", "large", [bytes([number]) * LARGE_BYTES for number in range(4)])


def said(pond: Pond, *, log: bool = True) -> list[object]:
    """The answers of a pond, at all its refs, and its `log`."""
    questions = (["a", "b"], 6), (["a"], 10)
    refs = (pond, pond.branch("fix"), pond.at("v1"))
    return [
        *([ref.map("weather").lookup(keys, at=at).to_pylist() for keys, at in questions] for ref in refs),
        pond.map("nets").get(5), [commit["commit"] for commit in pond.history("weather").to_pylist()],
        len(pond.map("weather").rows.past.changes()), [entry.chain for entry in pond.log.entries(0)] if log else [],
        pond.repository("files").branch("main").get("a/b.txt"),
        *([(event.id, event.payload) for event in pond.events.read("queue", name)] for name in ("jobs", "large")),
    ]  # fmt: skip
