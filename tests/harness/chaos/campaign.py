"""One campaign: a cluster, actors at work, the plan of faults, and the audit at the end.

Invariants:
* the first thing said is the seed; each fault is a line when it strikes;
* an episode begins when all nodes are ready again after the one before; a node that is not ready within
  `READY_SECONDS` after a fault ended is a wrong answer, `stuck`, and ends the campaign;
* at the end all faults are healed, all nodes ready and level; what was acknowledged is there on every node, once, and
  positions, chains, digests, answers and `verify` of all nodes agree.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import urllib3

from millpond.client.pond import open_nodes
from millpond.clock import Clock, SystemClock
from tests.harness.chaos.actors import Reader, Site, Writer
from tests.harness.chaos.batches import MAPS, LoadId, batch_of
from tests.harness.chaos.faults import SmallDisk, Strikes
from tests.harness.chaos.oracle import Oracle, Sight
from tests.harness.chaos.plan import NODES, SMALL_DISK, Episode, plan_of, write_to_of
from tests.harness.chaos.report import Report
from tests.harness.chaos.sights import sight_of_rows
from tests.harness.cluster import Cluster, Place
from tests.harness.cluster_audit import audit_cluster, log_of, rows_of_node, settle
from tests.harness.frame.history import History
from tests.harness.frame.world import Say, World
from tests.harness.models import MapModel

__all__ = ("WORLD", "run_campaign")

READY_SECONDS = 120.0
SETTLE_SECONDS = 120.0
END_SECONDS = 180.0
POLL_SECONDS = 0.1
WRITERS = READERS = 3
SECONDS_PER_EPISODE_MIN = 1.2
NODE_SETTINGS = {
    "client_read_timeout": "5s",
    "nodes_lag_limit": "4s",
}  # fmt: skip
CLIENT_SETTINGS = {
    "client_read_timeout": "5s", "client_attempts": 2,
}  # fmt: skip


class _Stuck(Exception):
    """A cluster that did not become ready; the campaign cannot go on."""


def run_campaign(seed: int, seconds: float, folder: Path, *, say: Say = print, clock: Clock | None = None) -> Report:
    """Run the faults of a seed for so long; the folder holds all data and the history, and is left to the caller."""
    say(f"seed {seed}")
    say(f"write_to {write_to_of(seed)}")
    clock = clock or SystemClock()
    report = Report(seed)
    with ExitStack() as stack:
        disk = stack.enter_context(SmallDisk(folder / "disk"))
        history = History(folder / "history.jsonl", clock)
        stack.callback(history.close)
        place = Place(folder=disk.folder / "pond")
        cluster = stack.enter_context(
            Cluster(
                folder,
                NODES,
                proxies=True,
                settings={**NODE_SETTINGS, "nodes_write_to": write_to_of(seed)},
                places={SMALL_DISK: place},
            )
        )
        campaign = _Campaign(cluster, disk, history, report, say, clock)
        campaign.run(seconds)
        if not report.ok:
            cluster.close()
            if not disk.refused:  # it is gone when the campaign ends
                disk.empty()
                shutil.copytree(place.folder or folder, folder / "node2", dirs_exist_ok=True)
    return report


WORLD = World(
    "tests.harness.chaos", "minutes", 10.0,
    lambda order: run_campaign(order.seed, order.length * 60, order.folder, say=order.say),
)  # fmt: skip


class _Campaign:
    """A campaign while it runs."""

    def __init__(
        self, cluster: Cluster, disk: SmallDisk, history: History, report: Report, say: Say, clock: Clock
    ) -> None:  # fmt: skip
        self.cluster, self.history, self.report, self.say, self.clock = cluster, history, report, say, clock
        self.oracle = Oracle()
        report.findings = self.oracle
        self.strikes = Strikes(cluster, disk, cluster.folder / "copies", self._wait_ready)
        self.never = threading.Event()
        client: dict[str, Any] = {**CLIENT_SETTINGS, "client_cache": str(cluster.folder / "cache")}
        with open_nodes(cluster.url, **client) as pond:
            made = [pond.create_map(name, kind=name, value="long" if kind.valued else None)
                    for name, kind in MAPS.items()]  # fmt: skip
        self.site = Site(
            report.seed, cluster.urls, {target.definition.name: target.definition for target in made}, self.oracle,
            history, report.counts, clock, threading.Event(), client,
        )  # fmt: skip

    def run(self, seconds: float) -> None:
        """Let the actors work and the faults strike, then audit; the report has what came of it."""
        actors = [Writer(self.site, number) for number in range(WRITERS)]
        actors += [Reader(self.site, number) for number in range(READERS)]  # type: ignore[misc]
        threads = [threading.Thread(target=actor.run, name=f"actor {at}", daemon=True)
                   for at, actor in enumerate(actors)]  # fmt: skip
        for thread in threads:
            thread.start()
        try:
            for episode in plan_of(self.report.seed, int(seconds / SECONDS_PER_EPISODE_MIN) + 1):
                if self.history.seconds >= seconds:
                    break
                self._episode(episode)
            self._heal()
        except _Stuck as stuck:
            self.oracle.report(f"stuck: {stuck}")
        self.site.stop.set()
        self._join(threads)
        if not self.oracle.kinds["stuck"]:
            self._audit()
        self.report.surprises = [str(load) for load in sorted(self.oracle.surprises)]
        self.report.seconds = self.history.seconds

    # -- faults ---------------------------------------------------------------------------------------

    def _episode(self, episode: Episode) -> None:
        self._pass(episode.pause)
        for fault in episode.faults:
            skipped = self.strikes.strike(fault)
            self.report.struck(fault, skipped)
            self.history.add("fault", **fault.to_dict(), skipped=skipped)
            self.say(f"{self.history.seconds:7.1f} s  {fault}" + (f": skipped, {skipped}" if skipped else ""))
        self._pass(episode.seconds)
        for fault in episode.faults:
            self.strikes.end(fault)
            self._note(self.strikes.revive())
            self.history.add("healed", **fault.to_dict())
        began = self.clock.monotonic()
        self._settle_list()
        self._wait_ready()
        self.report.faults[episode.faults[0].kind].seconds.append(self.clock.monotonic() - began)

    def _heal(self) -> None:
        self._note(self.strikes.heal())
        self._settle_list()
        self._wait_ready()

    def _settle_list(self) -> None:
        missing = self.strikes.orders.settle(READY_SECONDS)
        if missing:
            raise _Stuck(f"the list of nodes is not the first one {READY_SECONDS:g} s after the fault: {missing}")

    def _pass(self, seconds: float) -> None:
        self.clock.wait(self.never, self.clock.monotonic() + seconds)

    def _note(self, problems: list[str]) -> None:
        for problem in problems:
            self.oracle.report(problem)
            self.say(f"WRONG: {problem}")

    def _wait_ready(self) -> None:
        due = self.clock.monotonic() + READY_SECONDS
        while reasons := [reason for node in range(NODES) if (reason := self._unready(node))]:
            if self.clock.monotonic() > due:
                raise _Stuck(f"not ready {READY_SECONDS:g} s after the fault: {'; '.join(reasons)}")
            self._pass(POLL_SECONDS)

    def _unready(self, number: int) -> str:
        """The reason why a node is not ready, or nothing."""
        if not self.cluster.nodes[number].runs:
            return f"node {number} is down"
        try:
            answer = self.cluster.ask(number, "GET", "/readyz")
        except urllib3.exceptions.HTTPError as error:
            return f"node {number}: {error}"
        return "" if answer.status == 200 else f"node {number}: {answer.body.decode(errors='replace')}"

    # -- the end --------------------------------------------------------------------------------------

    def _join(self, threads: list[threading.Thread]) -> None:
        due = self.clock.monotonic() + END_SECONDS
        for thread in threads:
            thread.join(max(0.0, due - self.clock.monotonic()))
            if thread.is_alive():
                self.oracle.report(f"stuck: {thread.name} did not end within {END_SECONDS:g} s after all was healed")

    def _audit(self) -> None:
        """Hold all nodes against what was acknowledged, and against each other."""
        try:
            settle(self.cluster, seconds=SETTLE_SECONDS)
            self.oracle.require_acknowledged()
            world = {}
            for name, definition in self.site.definitions.items():
                sights = [self._sight(number, name) for number in range(NODES)]
                world[name] = definition, self._model(sights[0])
            audit_cluster(self.cluster, world)
            for number in range(NODES):
                self._audit_log(number)
        except (AssertionError, urllib3.exceptions.HTTPError) as error:
            self.oracle.report(f"disagree: {error}")

    def _sight(self, number: int, name: str) -> Sight:
        definition = self.site.definitions[name]
        batches = [batch_of(self.report.seed, load) for load in self.oracle.loads() if load.map == name]
        sight = sight_of_rows(definition, batches, rows_of_node(self.cluster, number, definition))
        self.oracle.judge(self.oracle.floor(name), sight, f"the audit of node {number}")
        return sight

    def _model(self, sight: Sight) -> MapModel:
        """The model of what one node holds, after it was judged."""
        model = MapModel(MAPS[sight.map])
        for load in sorted(sight.whole):
            model.put(batch_of(self.report.seed, load).own)
        for writer, number in sight.marks.items():
            mark = None if number is None else batch_of(self.report.seed, LoadId(sight.map, writer, number)).mark
            model.put([] if mark is None else [mark])
        return model

    def _audit_log(self, number: int) -> None:
        """No part is entered twice."""
        parts = Counter(
            (part["map"], part["id"]) for entry in log_of(self.cluster, number)
            for part in entry["body"].get("parts", ())
        )  # fmt: skip
        for part, count in parts.items():
            if count > 1:
                self.oracle.report(f"doubled: part {json.dumps(part)} is {count} times in the log of node {number}")
