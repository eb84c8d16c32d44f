"""The scheduler of a simulation, its checks, and its trace.

Invariants, checked after each action and each recovery:
* Loads that were acknowledged are in the log, each once; the log only grows.
* The rows of each map, of either pond, are those of the model at the position up to which the pond says that it is
  applied. After an error they may be those of a later position, for a merge is made before its parts leave the queue:
  the shard itself says after which load. While a maintenance order is carried out they may be, of some keys, those
  before it and, of others, those after it, for it works in several changes.
* The follower's log is the beginning of the primary's.
* No part is quarantined, but for one that was damaged while it waited, and one whose merge was cut off so often that
  the pond suspects it. Of the first an intact copy is handed in; the second is taken again, or else its map is dropped.
* A damaged part is never merged. What expires is not needed: what waits, and what the follower has not taken, stays.
* No action fails but for the fault that it was given.

At the end all faults are over: what waits is merged, what was not acknowledged is repeated, and the follower takes the
rest. Then both ponds hold the same, `verify` finds nothing, and no files lie about.

Everything comes from the seed: chance, the clock, the ids. The ponds see a machine of one processor, so that maps are
merged one after another.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from millpond.clock import ManualClock
from millpond.errors import Unavailable
from millpond.kernel.steps import listening
from millpond.maps.loads.attempts import ATTEMPTS_MAX
from millpond.maps.log.log import first_position
from tests.harness.audit import audit_answers, brief, canonical_bits
from tests.harness.frame.draws import drawn
from tests.harness.frame.report import Report
from tests.harness.frame.world import World as FrameWorld
from tests.harness.rows import canonical_of
from tests.harness.scratch import scratch_folder
from tests.harness.simulation.actors import (
    ACTORS,
    KINDS,
    Action,
    World,
    create,
    follow,
    give_up,
    load_parts,
    mend,
    reopen,
    take_again,
)
from tests.harness.simulation.faults import CRASHES, NO_FAULT, Fault, SimulatedCrash, Steps, draw_fault
from tests.harness.simulation.power import DurableRecord, recording
from tests.harness.simulation.site import Site, rows_of

if TYPE_CHECKING:
    from millpond.maps.log.log import Entry
    from millpond.maps.log.queue import Quarantined
    from millpond.maps.model.definition import MapDefinition
    from tests.harness.models import MapModel
    from tests.harness.strategies import Question

__all__ = ("WORLD", "simulate")

DAY = 86_400_000
RECOVERIES_MAX = 3
_MAINTENANCE = ("condense", "retain")


def simulate(seed: int, steps: int) -> Report:
    """Run a simulation; the digest is of the logs and rows at its end.

    Raises: `Broken`.
    """
    report = Report(seed)
    with scratch_folder() as folder, _one_processor(), WORLD.traced(report, steps):
        simulation = _Simulation(folder, random.Random(seed), report.trace)
        try:
            simulation.run(steps)
            report.digest = simulation.digest()
        finally:
            simulation.close()
    return report


WORLD = FrameWorld(
    "tests.harness.simulation", "steps", 200, lambda order: simulate(order.seed, int(order.length)), exact=True
)


class _Simulation:
    def __init__(self, folder: Path, chance: random.Random, trace: list[str]) -> None:
        self.chance, self.trace = chance, trace
        self.clock = ManualClock(now=20_000 * DAY)
        self.steps = Steps()
        (folder / "durable").mkdir()
        self.record = DurableRecord(folder / "durable")
        self.sites = (
            Site("primary", folder, self.clock, self.record), Site("replica", folder, self.clock, self.record),
        )  # fmt: skip
        self.world = World(folder, self.sites, chance)
        self.world.read = self._read

    def run(self, steps: int) -> None:
        with listening(self.steps), recording(self.record):
            for site in self.sites:
                site.open()
            for _ in range(steps):
                self._turn()
            self._end()

    def close(self) -> None:
        for site in self.sites:
            site.close()

    def digest(self) -> str:
        """The logs and the rows of both ponds in one number."""
        content = [
            (site.pond.log.position(), [(found.name, rows_of(found)) for found in site.pond.maps()])
            for site in self.sites
        ]
        return xxhash.xxh3_128_hexdigest(repr(content).encode())

    def _turn(self) -> None:
        actor = drawn(self.chance, ACTORS)
        self.clock.advance(self.chance.randrange(DAY))
        action = actor(self.world)
        if action is not None:
            self._do(actor.__name__.removeprefix("_"), action, draw_fault(self.chance))

    def _do(self, actor: str, action: Action, fault: Fault) -> None:
        """One action with its fault, and the recovery from it; then everything is checked."""
        self.trace.append(f"{len(self.trace) + 1:4} {action.site}: {actor}: {action.name} {fault}".rstrip())
        outcome = self._outcome(action, fault)
        self.trace[-1] += f" -> {outcome}"
        if self.steps.crashed_at is not None:
            self._recover(action.site)
        self._mend(action.site)
        self._check()

    def _outcome(self, action: Action, fault: Fault) -> str:
        power_cut = self.chance.getrandbits(32) if fault.name == "power-cut" else None
        self.steps.begin(fault, partial(action.site.take_image, power_cut))
        outcome = "done"
        try:
            with fault.of_space(action.site.space):
                action.act()
        except SimulatedCrash:
            pass
        except Unavailable as error:
            if fault == NO_FAULT:
                raise
            outcome, action.site.disturbed = error.kind, True
        # Opening a pond goes on when what waits cannot be merged.
        action.site.disturbed |= self.steps.struck and self.steps.crashed_at is None
        return outcome if self.steps.crashed_at is None else f"crash at {self.steps.crashed_at}"

    def _recover(self, site: Site) -> None:
        """Open the pond from the files that the crash left; that may crash as well."""
        for attempt in range(RECOVERIES_MAX):
            site.crash()
            again = self.chance.random() < 0.3 and attempt + 1 < RECOVERIES_MAX
            fault = Fault(self.chance.choice(CRASHES), self.chance.randint(1, 8)) if again else NO_FAULT
            outcome = self._outcome(Action("recover", site, site.open), fault)
            self.trace.append(f"{len(self.trace) + 1:4} {site}: recover {fault}".rstrip() + f" -> {outcome}")
            if self.steps.crashed_at is None:
                if attempt + 1 >= ATTEMPTS_MAX:
                    self._retry(site)
                return

    def _retry(self, site: Site) -> None:
        """Take parts again that were quarantined because the process ended while it merged them, too often."""
        fatal = _fatal(site)
        if fatal:
            outcome = self._outcome(Action("retry", site, partial(take_again, site)), NO_FAULT)
            self.trace.append(f"{len(self.trace) + 1:4} {site}: retry {len(fatal)} -> {outcome}")
            self._mend(site)  # one that was damaged as well
        # Some can no longer be put in their place, for loads that do not overwrite were merged after them.
        for name in sorted({part.map for part in _fatal(site)}):
            outcome = self._outcome(Action("give up", site, partial(give_up, self.world, site, name)), NO_FAULT)
            self.trace.append(f"{len(self.trace) + 1:4} {site}: give up {name} -> {outcome}")

    def _mend(self, site: Site) -> None:
        """Hand in intact copies of parts whose damage the action could not mend."""
        damaged = [part for place, part in self.world.damaged if place is site]
        for part in damaged:
            outcome = self._outcome(Action("mend", site, partial(mend, self.world, site, part)), NO_FAULT)
            self.trace.append(f"{len(self.trace) + 1:4} {site}: mend -> {outcome}")

    # -- checks -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self.steps.begin(NO_FAULT, lambda: None)
        history = self.world.history
        history.follow(*_entries(self.sites[0]))
        history.acknowledge(self.world.acknowledged)
        for site in self.sites:
            first, entries = _entries(site)
            same = entries == history.entries[first - 1 : first - 1 + len(entries)]
            assert same, f"the log of the {site} is another"
            assert not site.pond.parts.quarantined(), site.pond.parts.quarantined()
            for found in site.pond.maps():
                self._visible(site, found.name)

    def _visible(self, site: Site, name: str) -> MapModel | None:
        """The model whose rows are visible; None while maintenance is half way, which works key by key."""
        pond, found = site.pond, site.pond.map(name)
        rows, applied, head = rows_of(found), pond.log.applied(name), pond.log.position()[0]
        first, last = self._candidates(site, name, applied, head)
        models = [self.world.history.models[position].get(name) for position in range(first, last + 1)]
        states = [None if model is None else _bits(found.definition, model) for model in models]
        for model, state in zip(models, states, strict=True):
            if rows == state:
                return model
        for (before, after), entry in zip(pairwise(states), self.world.history.entries[first:last], strict=True):
            maintained = entry.kind in _MAINTENANCE and name in entry.maps
            if maintained and before is not None and after is not None and _between(rows, before, after):
                return None
        raise AssertionError(
            f"map {name} of the {site}, applied up to {applied} of {head}: {_difference(rows, states)}"
        )

    def _candidates(self, site: Site, name: str, applied: int, head: int) -> tuple[int, int]:
        """The first and last position whose rows a map may hold.

        After an error the shard may be ahead of the queue. It says of itself which load it merged last; what it does
        not say is which maintenance it carried out since.
        """
        if not site.disturbed:
            return applied, applied
        with site.pond.map(name).shard.view() as view:
            first = max(applied, view.number("position"))
        loads = (
            entry.position for entry in self.world.history.entries[first:head]
            if entry.kind == "load" and name in entry.maps
        )  # fmt: skip
        return first, next(loads, head + 1) - 1

    def _read(self, site: Site, name: str, questions: list[Question]) -> None:
        model = self._visible(site, name)
        if model is not None:
            audit_answers(site.pond.map(name), model, questions)

    # -- the end ------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Let everything come to rest, and compare the two ponds."""
        primary, replica = self.sites
        world = self.world
        known = {found.name for found in primary.pond.maps()}
        for name in sorted(KINDS.keys() - known):
            self._do("end", Action(f"create {name}", primary, partial(create, world, name)), NO_FAULT)
        for load in tuple(world.pending):
            self._do("end", Action(load, primary, partial(load_parts, world, load, wait=True)), NO_FAULT)
        self._do("end", Action("follow", replica, partial(follow, world, world.history.position)), NO_FAULT)
        for site in self.sites:
            self._do("end", Action("reopen", site, partial(reopen, site)), NO_FAULT)
            report = site.pond.verify(full=True)
            assert report.ok, "\n".join(map(str, report.problems))
            there = {name: {place.name for place in (site.folder / name).iterdir()} for name in ("parts", "quarantine")}
            wanted = {part.part for part in site.pond.parts.list()}
            assert there == {"parts": wanted, "quarantine": set()}, f"the {site} holds {there}, and needs {wanted}"
        assert primary.pond.log.position() == replica.pond.log.position()
        contents = [[(found.name, rows_of(found)) for found in site.pond.maps()] for site in self.sites]
        assert contents[0] == contents[1], "the follower holds other rows than the primary"


@contextmanager
def _one_processor() -> Iterator[None]:
    """Let the machine have one processor: threads that merge several maps would come in any order."""
    count = os.cpu_count
    os.cpu_count = lambda: 1
    try:
        yield
    finally:
        os.cpu_count = count


def _fatal(site: Site) -> list[Quarantined]:
    """The parts that were quarantined because the process ended while it merged them."""
    return [part for part in site.pond.parts.quarantined() if f"ended {ATTEMPTS_MAX} times" in part.reason]


def _entries(site: Site) -> tuple[int, list[Entry]]:
    """The first position that a pond's log retains, and its entries from there on."""
    with site.space.read() as tx:
        first = first_position(tx)
    return first, site.pond.log.entries(first - 1, 1_000_000)


def _bits(definition: MapDefinition, model: MapModel) -> list[object]:
    return canonical_bits([canonical_of(definition, model.scan())], definition)


def _between(rows: list[Any], before: list[Any], after: list[Any]) -> bool:
    """True when the rows of each key are as before maintenance or as after it, which brings no key."""
    if not len(after) <= len(before):
        return False
    keys = {row[0] for row in [*rows, *before]}
    return all(_of_key(rows, key) in (_of_key(before, key), _of_key(after, key)) for key in keys)


def _of_key(rows: list[Any], key: object) -> list[Any]:
    return [row for row in rows if row[0] == key]


def _difference(rows: list[object], states: list[list[object] | None]) -> str:
    differences = []
    for state in states:
        expected = state or []
        more, less = [row for row in rows if row not in expected], [row for row in expected if row not in rows]
        differences.append(f"more {brief(more)}, less {brief(less)}")
    return " | ".join(differences)
