"""First uses: what a worker imports, loads and compiles once, before it holds tests to their processor time."""

from __future__ import annotations

from tempfile import TemporaryDirectory

import millpond
from millpond.events.event import NewEvent

__all__ = ("use_everything_once",)


def use_everything_once() -> None:
    """Load, look up, query, scan and freeze a map of each kind of key, and append and read an event."""
    with TemporaryDirectory() as folder, millpond.open(folder) as pond:
        row = {"effective_time": "2026-01-01T00:00Z", "value": "a"}
        for name, kind, key in (
            ("state", "state", {"key": "k"}), ("temporal", "temporal_state", {"key": "k"}),
            ("ranged", "temporal_ranged_state", {"key_start": 1, "key_end": 9}),
        ):  # fmt: skip
            made = pond.create_map(name, kind=kind, value="string")
            made.load([{**(row if kind.startswith("temporal") else {"value": "a"}), **key}])
            made.lookup(["k"] if "key" in key else [1], **({"at": "2026-02-01T00:00Z"} if "temporal" in kind else {}))
            made.scan()
        pond.sql("select count(*) from state")
        pond.events.append("queue", "set", [NewEvent(0, b"payload")])
        list(pond.events.read("queue", "set"))
