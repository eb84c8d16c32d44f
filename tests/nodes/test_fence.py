"""The fence against a model: nodes that crash and are cut off while their list changes, and entries are appended.

Each node has a log and the real fence. Its log and its promise outlive a crash; what it heard does not. A step is one
message, so that a crash or a cut may come between any two.
"""

from __future__ import annotations

import os
import random  # noqa: TID251 - seeded: a strategy that draws each number is ten times as slow
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.maps.log.node_list import NodeList
from millpond.nodes.membership.fence import Fence, Promise, Word
from tests.rings.sampling import examples

NAMES = ("a", "b", "c", "d", "e")
Row = tuple[int, NodeList | int]
"""An entry: the epoch of the node that appended it, and a list of nodes, or the number of a load."""


@dataclass
class Site:
    """One node: `log` and `promise` are on its disk."""

    name: str
    log: list[Row] = field(default_factory=list)
    promise: Promise = field(default_factory=Promise)
    up: bool = True
    fence: Fence = field(init=False)
    forked: bool = False
    running: int | None = None
    votes: set[str] = field(default_factory=set)
    """The epoch for which it collects promises, and those that it has."""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.up, self.running = True, None
        self.fence = Fence(self.name, self.list_here(), self.promise)

    def list_here(self) -> NodeList:
        lists = [what for _, what in self.log if isinstance(what, NodeList)]
        return lists[-1] if lists else NodeList(0, ())

    def enter(self, row: Row) -> None:
        self.log.append(row)
        if isinstance(row[1], NodeList):
            self.fence.adopt(row[1])

    def word(self) -> Word:
        return Word(self.fence.current, self.promise.epoch, sound=False)

    def strength(self) -> tuple[int, int]:
        return self.fence.current.epoch, len(self.log)


class Lists(RuleBasedStateMachine):
    """Three or four nodes at first, and others to be added."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[str, Site] = {}
        self.cut: set[frozenset[str]] = set()
        self.loads = 0
        self.acknowledged: dict[int, int] = {}
        self.appended: dict[int, set[str]] = {}
        self.majority = False
        self.marks: set[str] = set()

    @initialize(majority=st.booleans(), count=st.integers(2, 4))
    def begin(self, majority: bool, count: int) -> None:
        self.majority = majority
        first = NodeList(1, NAMES[:count], (), 1)
        self.sites = {name: Site(name, [(1, first)]) for name in NAMES}

    def linked(self, one: str, other: str) -> bool:
        up = self.sites[one].up and self.sites[other].up
        return up and frozenset((one, other)) not in self.cut

    @rule(seed=st.integers(0, 1 << 32), steps=st.integers(1, 60), storm=st.sampled_from((0.02, 0.2, 0.5)))
    def walk(self, seed: int, steps: int, storm: float) -> None:
        """Some acts, drawn from those that can be done; `storm` is the share of crashes and cuts."""
        chance = random.Random(seed)
        for _ in range(steps):
            if chance.random() < storm:
                self.strike(chance, chance.choice(NAMES), chance.choice(NAMES))
            else:
                self.act(chance)
            self.one_primary_appends_in_an_epoch()
            self.whoever_appends_has_everything_that_was_acknowledged()

    def strike(self, chance: random.Random, name: str, other: str) -> None:
        acts = [
            lambda: self.crash(name), lambda: self.start(name), lambda: self.start(other), self.heal,
            lambda: self.part(name, other), lambda: self.isolate(chance.sample(NAMES, chance.randint(1, 2))),
        ]  # fmt: skip
        chance.choice(acts)()

    def act(self, chance: random.Random) -> None:
        names = chance.sample(NAMES, chance.randint(1, 5))
        up = [name for name, site in self.sites.items() if site.up]
        leaders = [name for name in up if self.sites[name].fence.appends()]
        name = chance.choice(up or NAMES)
        leader = chance.choice(leaders or [name])
        other = chance.choice([one for one in NAMES if one != leader])
        running = [one for one in up if self.sites[one].running is not None]
        acts = [
            lambda: self.gossip(names), lambda: self.gossip(names), lambda: self.exchange(name, other),
            lambda: self.pull(other, leader, 3), lambda: self.pull(name, other, 1), lambda: self.acknowledge(leader, 1),
            lambda: self.load(leader, names, 3), lambda: self.load(leader, names, 1), lambda: self.append(leader),
            lambda: self.hand_over(leader, other), lambda: self.add(leader, other), lambda: self.leave(leader, other),
            lambda: self.remove(leader, other), lambda: self.stand(name), lambda: self.campaign(name, names, won=True),
            lambda: self.campaign(name, names, won=False), lambda: self.acknowledge(leader, 2),
            lambda: self.vote(chance.choice(running or NAMES), other),
            lambda: self.win(chance.choice(running or NAMES)),
        ]  # fmt: skip
        chance.choice(acts)()

    # -- the world ----------------------------------------------------------------------------------------

    def crash(self, name: str) -> None:
        self.sites[name].up = False

    def start(self, name: str) -> None:
        if not self.sites[name].up:
            self.sites[name].restart()

    def part(self, one: str, other: str) -> None:
        self.cut.add(frozenset((one, other)))

    def heal(self) -> None:
        self.cut.clear()

    # -- many messages at once, so that a walk comes far --------------------------------------------------

    def gossip(self, names: list[str]) -> None:
        for one in names:
            for other in names:
                self.exchange(one, other)

    def load(self, name: str, names: list[str], count: int) -> None:
        """A load, entered by some other nodes."""
        self.append(name)
        for other in names:
            self.pull(other, name, count)
        self.acknowledge(name, 1)

    def campaign(self, name: str, names: list[str], won: bool) -> None:
        """A promotion without the primary, finished or not."""
        self.stand(name)
        for other in names:
            self.vote(name, other)
        if won:
            self.win(name)
            for other in names:
                self.pull(other, name, 3)

    def isolate(self, names: list[str]) -> None:
        """Cut some nodes off from the others."""
        self.cut = {frozenset((one, other)) for one in names for other in NAMES if other not in names}

    # -- messages -----------------------------------------------------------------------------------------

    def exchange(self, one: str, other: str) -> None:
        if one != other and self.linked(one, other):
            self.sites[one].fence.hear(other, self.sites[other].word())
            self.sites[other].fence.hear(one, self.sites[one].word())

    def pull(self, one: str, other: str, count: int) -> None:
        """A node enters the next entries of another's log, when it extends its own and the fence lets it."""
        site, source = self.sites[one], self.sites[other]
        if one == other or not self.linked(one, other) or not site.fence.may_follow(source.fence.current):
            return
        shared = min(len(site.log), len(source.log))
        if site.log[:shared] != source.log[:shared]:
            site.forked = True
            return
        for row in source.log[len(site.log) : len(site.log) + count]:
            site.enter(row)

    # -- loads --------------------------------------------------------------------------------------------

    def append(self, name: str) -> None:
        site = self.sites[name]
        if site.up and site.fence.appends():
            self.loads += 1
            self.note(site)
            site.enter((site.fence.current.epoch, self.loads))

    def note(self, site: Site) -> None:
        self.appended.setdefault(site.fence.current.epoch, set()).add(site.name)

    def acknowledge(self, name: str, back: int) -> None:
        """A client has asked, one after another, the nodes of the list of the load; those it reaches answer."""
        site = self.sites[name]
        at = len(site.log) - back
        if not site.up or at < 0 or not isinstance(site.log[at][1], int):
            return
        row, nodes = site.log[at], self.list_at(site, at)
        having = [node for node in nodes.nodes if self.sites[node].up and self.sites[node].log[at : at + 1] == [row]]
        enough = 2 * len(having) > len(nodes.nodes) if self.majority else len(having) == len(nodes.nodes)
        if enough and name in having:
            self.acknowledged[self.sites[name].log[at][1]] = at  # type: ignore[index]
            self.marks.add("acknowledged")

    def list_at(self, site: Site, at: int) -> NodeList:
        return [what for _, what in site.log[:at] if isinstance(what, NodeList)][-1]

    # -- changes of the list ------------------------------------------------------------------------------

    def change(self, site: Site, nodes: NodeList) -> None:
        self.note(site)
        site.enter((site.fence.current.epoch, nodes))

    def hand_over(self, name: str, other: str) -> None:
        site = self.sites[name]
        current = site.fence.current
        if site.up and site.fence.appends() and other != name and other in current.nodes:
            self.change(site, current.promoted(other))
            self.marks.add("handed over")

    def add(self, name: str, other: str) -> None:
        site = self.sites[name]
        current = site.fence.current
        if site.up and site.fence.appends() and (other not in current.nodes or other in current.leaving):
            self.change(site, current.added(other))
            self.marks.add("added")

    def leave(self, name: str, other: str) -> None:
        site = self.sites[name]
        current = site.fence.current
        if site.up and site.fence.appends() and other != name and other in current.nodes:
            self.change(site, current.left_by(other))

    def remove(self, name: str, other: str) -> None:
        """A node that has adopted that it leaves; one that is lost is not waited for."""
        site = self.sites[name]
        current = site.fence.current
        if site.up and site.fence.appends() and other in current.leaving:
            self.change(site, current.removed(other))
            self.marks.add("removed")

    # -- without the primary ------------------------------------------------------------------------------

    def stand(self, name: str) -> None:
        """A node promises itself an epoch, and begins to collect promises."""
        site = self.sites[name]
        if not site.up or name not in site.fence.current.nodes or site.forked:
            return
        promise = Promise(site.fence.epoch_next(), name)
        self.promise(site, promise)
        site.running, site.votes = promise.epoch, {name}

    def promise(self, site: Site, promise: Promise) -> None:
        assert promise.epoch > site.promise.epoch or promise == site.promise
        site.promise = promise
        site.fence.promise = promise

    def vote(self, name: str, other: str) -> None:
        site, voter = self.sites[name], self.sites[other]
        if site.running is None or name == other or not self.linked(name, other) or voter.forked:
            return
        promise = Promise(site.running, name)
        if not voter.fence.may_promise(promise):
            return
        self.promise(voter, promise)
        if voter.strength() > site.strength() or site.log[: len(voter.log)] != voter.log:
            site.running = None  # it has more, or another log: this node cannot be the primary
            return
        site.votes.add(other)

    def win(self, name: str) -> None:
        site = self.sites[name]
        current = site.fence.current
        if not site.up or site.running is None or site.running <= current.epoch:
            return
        if 2 * len(site.votes & set(current.nodes)) > len(current.nodes) and site.promise.epoch == site.running:
            site.enter((site.running, current.promoted(name, site.running)))
            self.marks.add("promoted without the primary")
        site.running = None

    # -- what must hold -----------------------------------------------------------------------------------

    @invariant()
    def one_primary_appends_in_an_epoch(self) -> None:
        for epoch, names in self.appended.items():
            assert len(names) == 1, f"{names} appended in epoch {epoch}"

    @invariant()
    def whoever_appends_has_everything_that_was_acknowledged(self) -> None:
        for site in self.sites.values():
            if site.up and site.fence.appends():
                latest = max(other.fence.current.epoch for other in self.sites.values() if other.fence.most_adopted())
                if site.fence.current.epoch < latest:
                    continue  # it is fenced as soon as it hears; what it appends is acknowledged by nobody
                for load, at in self.acknowledged.items():
                    assert site.log[at : at + 1] and site.log[at][1] == load, f"{site.name} lacks load {load}"

    @precondition(lambda self: len(self.acknowledged) > 1)
    @invariant()
    def acknowledged_loads_have_one_place(self) -> None:
        places = list(self.acknowledged.values())
        assert len(places) == len(set(places))


Lists.TestCase.settings = settings(
    max_examples=int(os.environ.get("FENCE_EXAMPLES", examples(100, 400))), stateful_step_count=10, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
TestLists = Lists.TestCase
