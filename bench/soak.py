"""A cluster of three nodes at work for a long time: is every answer right, and does anything grow that should not?

Loads, questions of every kind, condensing, retaining, compacting, kills and restarts, in an order drawn from a seed,
against a model that the driver holds. The third node is killed or stopped again and again; the others are only in the
first quarter, so that their memory and file handles can be watched over a long life.

It fails on the first wrong answer, and at the end when the own memory (without mapped files) or the file handles of
a process that lived long grew after it was warm, or when the nodes do not agree.

    make soak                                30 minutes
    PYTHONPATH=. python bench/soak.py --minutes 1         a quick look, too short to judge growth
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from _results import Run
from _truth import Truth

KEYS = 5_000
ROWS_PER_LOAD = 1_500
STEP_MS = 1_000
RETAINED_MS = 60 * STEP_MS
GROWTH = 1.10
GROWTH_BYTES = 24 << 20
WARM, LATE = (0.5, 0.7), (0.8, 1.0)
GROWTH_HANDLES = 16
SAMPLE_SECONDS = 5.0
TELL_SECONDS = 15.0
SETTINGS = {
    "maps_part_retention": "1m", "client_min_time_to_keep_snapshots": "1s",
    "nodes_intervals": {
        "merge": "100ms", "replicate": "200ms", "condense": "1h", "retain": "1h", "cleanup": "20s", "orphans": "30s",
        "compact": "2m", "snapshot": "30s",
    },
}  # fmt: skip


class Wrong(Exception):
    """An answer that is not the model's."""


@dataclass
class Life:
    """One process, watched: its own memory in bytes, its mapped files, its handles, each with the second."""

    name: str
    process: psutil.Process
    began: float
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)

    def sample(self, now: float) -> None:
        # Its number may be that of another process by now.
        with suppress(psutil.Error):
            memory, handles = self.process.memory_info(), self.process.num_fds()
            if self.process.is_running() and memory.rss:
                self.samples.append((now, memory.rss - memory.shared, memory.shared, handles))

    def part(self, first: float, last: float, column: int) -> float:
        """The median of a part of its life; 0 is its birth, 1 its last sample."""
        some = self.samples[int(len(self.samples) * first) : max(1, int(len(self.samples) * last))]
        return float(statistics.median(sample[column] for sample in some))

    def growth(self) -> list[str]:
        """The growth between the third fifth and the last.

        Allocators keep what was freed, for each thread, and are warm late: what lives in a node is level after two
        minutes, its memory after ten. A leak of five MiB a minute shows in half an hour.
        """
        problems = []
        warm, late = self.part(*WARM, 1), self.part(*LATE, 1)
        if late > warm * GROWTH and late - warm > GROWTH_BYTES:
            problems.append(f"{self.name}: memory grew from {warm / 2**20:.0f} to {late / 2**20:.0f} MiB")
        warm, late = self.part(*WARM, 3), self.part(*LATE, 3)
        if late > warm + GROWTH_HANDLES:
            problems.append(f"{self.name}: file handles grew from {warm:.0f} to {late:.0f}")
        return problems


class Soak:
    """The driver: what it did, what it knows, what it saw."""

    def __init__(self, cluster: Any, seconds: float, seed: int) -> None:
        import millpond

        self.cluster, self.seconds = cluster, seconds
        self.random = np.random.default_rng(seed)
        self.pond: Any = millpond.open(cluster.url, client_synchronise=True)
        self.began = time.monotonic()
        self.now_ms = 1_000_000
        self.truths = {"state": Truth(temporal=False), "times": Truth(temporal=True)}
        self.done: Counter[str] = Counter()
        self.lives: list[Life] = []
        self.down: dict[int, float] = {}
        self.last_harm = self.elapsed
        self.last_sample = self.last_report = 0.0
        self.pond.create_map("state", kind="state", value="long", exist_ok=True)
        self.pond.create_map("times", kind="temporal_state", value="long", exist_ok=True)
        self._watch("driver", os.getpid())
        for node in cluster.nodes:
            self._watch(f"node {node.number}", node.process.pid)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def _watch(self, name: str, pid: int) -> None:
        self.lives.append(Life(name, psutil.Process(pid), self.elapsed))

    # -- acts -----------------------------------------------------------------------------------------

    def load(self) -> None:
        name = ("state", "times")[self.random.integers(0, 2)]
        count = int(self.random.integers(1, ROWS_PER_LOAD))
        keys = [f"k{number:06d}" for number in self.random.integers(0, KEYS, count)]
        self.now_ms += STEP_MS
        times = (self.now_ms - self.random.integers(0, 20 * STEP_MS, count)).tolist()
        values = self.random.integers(0, 4 if name == "times" else 1 << 40, count).tolist()
        columns: dict[str, Any] = {"key": keys, "value": pa.array(values, pa.int64())}
        if name == "times":
            columns["effective_time"] = pa.array(times, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
        table = pa.table(columns)
        self._patiently(lambda: self.pond.map(name).load(table))
        self.truths[name].put(keys, times, values)
        self.done["rows loaded"] += count

    def get(self) -> None:
        for name, truth in self.truths.items():
            questions = truth.questions(self.random, 5, KEYS, self.now_ms)
            for key, at in zip(*questions, strict=True):
                self._ask(name, "get", lambda n=name, k=key, t=at: [self.pond.map(n).get(k, at=t)], [key], [at])

    def remote(self) -> None:
        self._bulk(
            "remote lookup",
            500,
            lambda target, keys, at: self.pond.questions.lookup(target.definition, keys, at, via="remote"),
        )

    def snapshot(self) -> None:
        """A snapshot's answer may be of a moment ago: so it is queried only when it was brought up to date."""
        self._bulk("snapshot lookup", 2_000, lambda target, keys, at: target.snapshot().lookup(keys, at))

    def _bulk(self, what: str, count: int, ask: Callable[[Any, list[str], Any], pa.Array]) -> None:
        for name, truth in self.truths.items():
            keys, times = truth.questions(self.random, count, KEYS, self.now_ms)
            at = pa.array(times, pa.int64()).cast(pa.timestamp("ms", tz="UTC")) if truth.temporal else None
            self._ask(name, what, lambda n=name, k=keys, t=at: ask(self.pond.map(n), k, t).to_pylist(), keys, times)

    def _ask(self, name: str, what: str, ask: Callable[[], list[Any]], keys: list[str], times: list[int]) -> None:
        found = self._patiently(ask)
        truth = self.truths[name]
        wanted = [truth.answer(key, at) for key, at in zip(keys, times, strict=True)]
        self.done["answers checked"] += len(keys)
        if found != wanted:
            bad = [row for row in zip(keys, times, found, wanted, strict=True) if row[2] != row[3]]
            raise Wrong(f"{what} of {name}: {len(bad)} of {len(keys)} are wrong; (key, time, found, wanted): {bad[:5]}")

    def scan(self) -> None:
        key = f"k{int(self.random.integers(0, KEYS)):06d}"
        table = self._patiently(lambda: self.pond.map("times").scan(f"key = '{key}'").read_all())
        found = dict(zip(table.column("effective_time").cast(pa.int64()).to_pylist(),
                         table.column("value").to_pylist(), strict=True))  # fmt: skip
        if found != self.truths["times"].rows.get(key, {}):
            raise Wrong(f"scan of {key}: {found} and not {self.truths['times'].rows.get(key)}")
        self.done["answers checked"] += 1

    def condense(self) -> None:
        before = self.now_ms - RETAINED_MS // 3
        self._patiently(lambda: self.pond.map("times").condense(before=before))
        self.truths["times"].condense(before)

    def retain(self) -> None:
        before = self.now_ms - RETAINED_MS
        self._patiently(lambda: self.pond.map("times").retain(before=before))
        self.truths["times"].retain(before)

    def compact(self) -> None:
        self._patiently(lambda: self.pond.map("times").compact())

    def other_map(self) -> None:
        """Make, fill, ask and drop a map."""
        self._patiently(lambda: self.pond.create_map("passing", kind="state", value="long", exist_ok=True))
        self._patiently(lambda: self.pond.map("passing").load({"key": ["a"], "value": [self.now_ms]}))
        found = self._patiently(lambda: self.pond.map("passing").get("a"))
        if found != self.now_ms:
            raise Wrong(f"passing: {found} and not {self.now_ms}")
        self._patiently(lambda: self._drop("passing"))

    def _drop(self, name: str) -> None:
        from millpond.errors import NotFound

        try:
            self.pond.drop_map(name)
        except NotFound:
            return

    # -- harm -----------------------------------------------------------------------------------------

    def harm(self) -> None:
        """Kill or stop a node; it comes back some seconds later, or when a load needs it."""
        if self.down or self.elapsed - self.last_harm < 6:
            return
        early = self.elapsed < self.seconds / 4
        number = int(self.random.choice([0, 1, 2] if early else [2]))
        kind = "kills" if self.random.integers(0, 2) else "stops"
        (self.cluster.kill if kind == "kills" else self.cluster.stop)(number)
        self.down[number] = self.elapsed + float(self.random.uniform(0, 3))
        self.done[kind] += 1
        self.last_harm = self.elapsed

    def revive(self, *, now: bool = False) -> None:
        for number, when in list(self.down.items()):
            if now or self.elapsed >= when:
                self.cluster.start(number)
                del self.down[number]
                self._watch(f"node {number}", self.cluster.nodes[number].process.pid)

    def _patiently(self, act: Callable[[], Any]) -> Any:
        """Again and again while nodes are away."""
        from millpond.errors import Unavailable

        for attempt in range(60):
            try:
                return act()
            except Unavailable as error:
                self.done["tries that failed"] += 1
                if attempt == 59:
                    raise
                if not self.down and attempt > 20:
                    print(f"  still: {error}", flush=True)
                self.revive(now=attempt > 0)
                time.sleep(0.25)
        raise AssertionError

    # -- the run --------------------------------------------------------------------------------------

    def run(self) -> None:
        acts = (
            (30, self.load), (30, self.get), (20, self.remote), (10, self.snapshot), (5, self.scan), (2, self.condense),
            (2, self.retain), (1, self.compact), (1, self.other_map), (4, self.harm),
        )  # fmt: skip
        chances = np.array([chance for chance, _ in acts], dtype=float)
        chances /= chances.sum()
        while self.elapsed < self.seconds:
            act = acts[int(self.random.choice(len(acts), p=chances))][1]
            self.revive()
            act()
            self.done[act.__name__] += 1
            self._look()
        self.revive(now=True)

    def _look(self) -> None:
        now = self.elapsed
        if now - self.last_sample >= SAMPLE_SECONDS:
            self.last_sample = now
            for life in self.lives:
                life.sample(now)
        if now - self.last_report >= TELL_SECONDS:
            self.last_report = now
            rows = sum(len(truth) for truth in self.truths.values())
            last = {life.name: life.samples[-1] for life in self.lives if life.samples}
            sizes = "  ".join(f"{name} {sample[1] >> 20} MiB {sample[3]} fd" for name, sample in sorted(last.items()))
            print(
                f"{now:6.0f} s  {self.done['load']} loads  {self.done['answers checked']} answers  {rows} rows  "
                f"{self.done['kills'] + self.done['stops']} harmed  {sizes}",
                flush=True,
            )

    def judge(self) -> list[str]:
        """The problems found at the end."""
        problems = []
        digests: dict[str, set[str]] = {}
        for name, truth in self.truths.items():
            for node in self.cluster.nodes:
                answer = self.cluster.ask(node.number, "GET", f"/v1/maps/{name}/digest").json()
                digests.setdefault(name, set()).add(answer["digest"])
                if answer["rows"] != len(truth):
                    problems.append(f"node {node.number} has {answer['rows']} rows of {name} and not {len(truth)}")
        problems += [f"the nodes do not agree about {name}" for name, seen in digests.items() if len(seen) > 1]
        for life in self.lives:
            if life.samples and life.samples[-1][0] - life.began > max(240.0, self.seconds / 2):
                problems += life.growth()
        return problems

    def note(self, run: Run) -> None:
        """Note the memory of processes that lived long."""
        for life in self.lives:
            if len(life.samples) >= 5 and life.samples[-1][0] - life.began > self.seconds / 2:
                for when, span in (("warm", WARM), ("at last", LATE)):
                    run.note(f"memory of {life.name}", f"Millpond, {when}", life.part(*span, 1), unit="B")

    def table(self) -> None:
        print("\n| process | from | to | memory at first | warm | at last | handles warm | at last |")
        print("|---|---|---|---|---|---|---|---|")
        for life in self.lives:
            if len(life.samples) < 5:
                continue
            memory = [life.part(*span, 1) / 2**20 for span in ((0, 0.1), WARM, LATE)]
            handles = [life.part(*span, 3) for span in (WARM, LATE)]
            sizes = " | ".join(f"{size:.0f} MiB" for size in memory)
            print(
                f"| {life.name} | {life.began:.0f} s | {life.samples[-1][0]:.0f} s | {sizes} "
                f"| {handles[0]:.0f} | {handles[1]:.0f} |"
            )
        print("\n" + ", ".join(f"{count} {name}" for name, count in sorted(self.done.items())))
        for node in self.cluster.nodes:
            size = sum(file.stat().st_size for file in node.folder.rglob("*") if file.is_file())
            print(f"node {node.number} holds {size / 2**20:.1f} MiB of files")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments, run = parser.parse_args(), Run("soak")
    from tests.harness.cluster import Cluster
    from tests.harness.cluster_audit import settle

    with tempfile.TemporaryDirectory(prefix="millpond-soak-", dir=os.environ.get("BENCH_DIR")) as folder:
        os.environ["MILLPOND_CLIENT_CACHE"] = f"{folder}/cache"
        os.environ["MILLPOND_CLIENT_MIN_TIME_TO_KEEP_SNAPSHOTS"] = "0s"
        with Cluster(Path(folder), settings=SETTINGS) as cluster:
            soak = Soak(cluster, arguments.minutes * 60, arguments.seed)
            problems = []
            try:
                soak.run()
                settle(cluster)
                problems = soak.judge()
            except Wrong as error:
                problems = [str(error)]
            soak.table()
            soak.note(run)
            for problem in problems:
                print(f"WRONG: {problem}")
            if problems:
                print(cluster.tails())
    if not problems:
        run.write(whole=arguments.minutes >= 30, minutes=round(arguments.minutes), answers=soak.done["answers checked"])
    print("failed" if problems else "no wrong answer, nothing grew")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
