"""A node as far as jobs are concerned, on a clock that is moved by hand."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.events.census import Census
from millpond.maps.loads.merger import Merger, always
from millpond.maps.loads.pause import Pause
from millpond.nodes.backups.newest import NewestBackup
from millpond.nodes.jobs.jobs import node_jobs
from millpond.nodes.jobs.scheduler import Outcome
from millpond.nodes.limits import LIMITS
from millpond.nodes.ponds_at_refs import PondsAtRefs
from millpond.nodes.replication.follower import FollowerStatus
from millpond.nodes.replication.log_agreement import Agreement, Finding
from millpond.pond import Pond, open_pond
from millpond.reports.client_jobs import ClientJobs
from millpond.settings import Settings, load_settings
from millpond.times.instants import parse_instant

if TYPE_CHECKING:
    from millpond.nodes.node import Node

__all__ = ("DAY", "HOUR", "MINUTE", "NOW", "Compared", "Expiring", "JobContext", "Pulling")

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOW = parse_instant("2025-06-01T00:00Z")


class Expiring:
    """A collection with so many things that are too old."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def expire(self, now_ms: int = 0) -> int:
        count, self.count = self.count, 0
        return count


class Pulling:
    """A follower that stands somewhere."""

    def __init__(self, **attributes: Any) -> None:
        self.report = {
            "role": "alone", "primary": None, "state": "alone", "position": 7, "chain": "", "behind": 0, "pulled": 0,
            "clones": 0, "healed": 0, "error": None, "error_kind": None, "since_ms": 0,
        } | attributes  # fmt: skip
        self.role = self.report["role"]
        self.pause = Pause(lambda: None)
        self.members = SimpleNamespace(primary="http://n1:7433")

    requests = 0

    def ask_now(self, timeout: float) -> None:
        self.requests += 1

    def status(self) -> FollowerStatus:
        return FollowerStatus(**self.report)

    def pull(self, position: int, timeout: float) -> int:
        if self.report["error"]:
            raise Unavailable(self.report["error"], kind="node_behind")
        self.report |= {"position": position, "behind": 0}
        return position


class Compared:
    """The result of a comparison with the primary."""

    def __init__(self, *findings: Finding) -> None:
        self.findings = findings
        self.differing = tuple(finding for finding in findings if finding.state == "differs")

    def compare(self, stopping: threading.Event) -> Agreement | None:
        return Agreement(self.findings) if self.findings else None

    def reasons(self) -> list[str]:
        return [f"map {finding.map} is not as the primary has it" for finding in self.differing]


class JobContext:
    """A node, as far as jobs are concerned: real maps, a real merger, a clock that is moved by hand."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.clock = ManualClock(NOW)
        self.settings: Settings = load_settings(**settings)
        self.limits = LIMITS
        self.pond: Pond = open_pond(folder, serve=True, clock=self.clock, maps_part_retention="7d")
        self.merger = Merger(self.pond)
        self.follower: Any = Pulling()
        self.comparing: Any = Compared()
        self.receiver, self.copies = Expiring(), Expiring()
        self.at_refs = PondsAtRefs(self.pond, lambda: False)
        self.events = self.pond.events
        self.client_jobs = ClientJobs(folder, self.events.store, self.clock)
        self.census = Census(self.events.store)
        self.newest_backup = NewestBackup(self.pond, self.settings)
        self.primary = self.follower.members.primary
        self.leading = True
        self.appending = nullcontext[None]
        self.turns, self.bucket = always, None
        self.merger.start()
        self.jobs = {job.name: job for job in node_jobs(cast("Node", self))}

    def leads(self) -> bool:
        return self.leading

    def need_primary(self) -> None:
        assert self.leading

    @property
    def url(self) -> str:
        return "http://n2:7433"

    def run(self, name: str) -> Outcome:
        """Run a job; the summary it gives."""
        return self.jobs[name].work(threading.Event())

    def advance(self, ms: int) -> None:
        """Let time pass when the merger is idle: a merge during which days pass would be followed by a rest."""
        idle = threading.Event()
        while any(entry["working"] for entry in self.merger.status()):
            idle.wait(0.001)
        self.clock.advance(ms)

    def position(self) -> int:
        return self.pond.log.position()[0]

    def close(self) -> None:
        self.merger.stop()
        self.pond.close()
