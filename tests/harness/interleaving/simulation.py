"""One run: processes that work on one repository, die, and begin anew, until all is quiet.

Invariants that are checked, besides those of `history.py`:
* No operation fails, but for what it may say: nothing to commit, a branch at work, another collection.
* A death changes no state, and what the dead process did not finish stops nobody.
* At all times of rest all that any branch or commit shows can be read, byte for byte: collections took only garbage.
* At the end every branch can be committed, and then holds what it showed.
"""

from __future__ import annotations

import random
from hashlib import md5

import xxhash

from millpond.errors import Invalid
from millpond.ranges import Boundaries
from millpond.stores.memory import MemorySpace
from millpond.stores.objects.memory import MemoryObjects
from millpond.versions.collect import collect
from millpond.versions.objects.entries import Entry
from millpond.versions.repositories import Repositories
from tests.harness.frame.draws import drawn
from tests.harness.frame.report import Report
from tests.harness.frame.world import World
from tests.harness.interleaving.history import LISTED_MAX, History, state_of
from tests.harness.interleaving.stores import PassingClock, PausingClock, PausingObjects, PausingSpace
from tests.harness.interleaving.turns import Process, Schedule
from tests.harness.interleaving.work import BRANCHES, GRACE_MS, OPERATIONS, Doing

__all__ = ("WORLD", "interleave")

SMALL = Boundaries(rows_min=2, rows_max=6, bits=1)
PROCESSES = 4
DEATHS = 0.004
"""The share of turns in which the process that just went on dies."""
TURN_MS = 20


def interleave(seed: int, operations: int) -> Report:
    """Let processes do so many operations, interleaved by a seed.

    Raises: `Broken`.
    """
    report = Report(seed)
    run = _Run(random.Random(seed), operations, report)
    try:
        with WORLD.traced(report, operations):
            run.work()
            report.digest = run.digest()
    finally:
        run.schedule.close()
    return report


WORLD = World(
    "tests.harness.interleaving", "operations", 150, lambda order: interleave(order.seed, int(order.length)), exact=True
)


class _Run:
    def __init__(self, chance: random.Random, operations: int, report: Report) -> None:
        self.chance, self.left, self.report = chance, operations, report
        self.report.counts["deaths"] = 0
        self.clock = PassingClock(now=20_000 * 86_400_000)
        self.space, self.objects = MemorySpace(), MemoryObjects()
        self.schedule = Schedule(chance)
        self.doing: dict[Process, Doing] = {}
        self.born = 0
        repository = self._fresh().create("lake", "memory://lake")
        for name in BRANCHES[1:]:
            repository.create_branch(name, "main")
        self.history = History(repository, BRANCHES)
        self.history.begin()

    def work(self) -> None:
        """Run until all operations are done, then look at everything."""
        for _ in range(PROCESSES):
            self._start()
        while (process := self.schedule.turn()) is not None:
            self.clock.advance(TURN_MS)
            if process.over:
                del self.doing[process]
            elif self.chance.random() < DEATHS:
                self._kill(process)
            if self.left and len(self.schedule.processes) < PROCESSES:
                self._start()
        self._end()

    def digest(self) -> str:
        """All states there ever were, in one number."""
        return xxhash.xxh3_128_hexdigest(
            repr([sorted(moment.commit.items()) for moment in self.history.moments]).encode()
        )

    def _fresh(self) -> Repositories:
        """The repositories as a process sees them that nobody disturbs."""
        return Repositories(self.space, self.clock, lambda _: self.objects, boundaries=SMALL)

    def _start(self) -> None:
        self.born += 1
        self.schedule.start(f"process {self.born}", self._live)

    def _live(self, process: Process) -> None:
        """A process: it opens the repository, and does operations until none is left."""
        space = PausingSpace(self.space, process, lambda: self._follow(process))
        clock, objects = PausingClock(self.clock, process), PausingObjects(self.objects, process)
        with process.undivided():
            repository = Repositories(space, clock, lambda _: objects, boundaries=SMALL).get("lake")
        doing = self.doing[process] = Doing(repository, self.history, self.chance)
        while self.left:
            self.left -= 1
            name = drawn(self.chance, [(name, weight) for name, (_, weight) in OPERATIONS.items()])
            at = len(self.report.trace)
            self.report.trace.append(f"{at + 1:4} {process.name}: {name}")
            doing.do(name)
            self.report.trace[at] += f" -> done by {len(self.report.trace)}"

    def _follow(self, process: Process) -> None:
        doing = self.doing.get(process)
        self.history.follow(doing.current if doing is not None else None)

    def _kill(self, process: Process) -> None:
        doing = self.doing.pop(process, None)
        current = doing.current if doing is not None else None
        self.report.counts["deaths"] += 1
        self.report.trace.append(f"     {process.name} dies: {current.name if current else 'idle'}")
        self.schedule.kill(process)
        self.history.follow(None)

    def _end(self) -> None:
        """Everything is at rest: commit what is left, collect garbage, and read all of it."""
        for name in BRANCHES:
            repository = self._fresh().get("lake")
            shown = state_of(repository, name)
            try:
                repository.branch(name).commit("the end")
            except Invalid as error:
                if error.kind != "no_changes":
                    raise
            assert state_of(repository, f"{name}@") == shown == state_of(repository, name)
            self.clock.advance(2 * GRACE_MS)
            collect(self._fresh().get("lake").context, grace_ms=GRACE_MS, readers_ms=0)
            self._read_all()

    def _read_all(self) -> None:
        """Read what all branches and all their commits show."""
        repository = self._fresh().get("lake")
        commits = {commit.id for name in BRANCHES for commit in repository.ref(name).log(limit=LISTED_MAX)}
        for ref in (*BRANCHES, *sorted(commits)):
            for entry in repository.ref(ref).list(amount=LISTED_MAX).results:
                assert isinstance(entry, Entry)
                body = b"".join(repository.ref(ref).read(entry.path))
                assert md5(body, usedforsecurity=False).hexdigest() == entry.checksum, f"{entry.path} of {ref}"
