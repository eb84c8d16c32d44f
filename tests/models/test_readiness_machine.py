"""The readiness of nodes against a brute-force model: three disks, lost, restored and read in every order.

The model knows every log. It lets a disk be lost or replaced by an old copy only while another disk has every load that
was acknowledged. Then no node that is sound may lack one, and no primary may append beside an entry that it lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.nodes.replication.readiness import Hearing, Readiness
from millpond.nodes.replication.survey import confirmed_position

pytestmark = pytest.mark.usefixtures("processor")

NODES = ("a", "b", "c")
PRIMARY = "a"
node_names = st.sampled_from(NODES)


@dataclass
class Disk:
    """The contents of a folder: the log, as ids of entries, and what peers confirmed."""

    log: tuple[int, ...] = ()
    confirmed: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Disk:
        return Disk(self.log, dict(self.confirmed))


def forked(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True when neither log is a beginning of the other."""
    return one[: len(other)] != other[: len(one)]


class Pond(RuleBasedStateMachine):
    """Three nodes that need all of them for a load."""

    @initialize()
    def begin(self) -> None:
        self.disks = {name: Disk() for name in NODES}
        self.copies: dict[str, Disk] = {name: Disk() for name in NODES}
        self.running: dict[str, Readiness] = {}
        self.heard: dict[str, dict[str, int]] = {}
        self.acknowledged: tuple[int, ...] = ()
        self.entries = 0
        self.settle(set(NODES))

    def sound(self, name: str) -> bool:
        return self.running[name].judge(len(self.disks[name].log), lambda _: True)

    def enters(self, name: str) -> bool:
        return self.sound(name) and self.running[name].judge_append(len(self.disks[name].log))

    def others_have_all(self, name: str) -> bool:
        wanted = self.acknowledged
        return any(self.disks[other].log[: len(wanted)] == wanted for other in NODES if other != name)

    # -- the operator -------------------------------------------------------------------------------------

    @rule(name=node_names)
    def start(self, name: str) -> None:
        if name not in self.running:
            peers = [other for other in NODES if other != name]
            self.running[name] = Readiness(peers, leads=name == PRIMARY)
            self.heard[name] = dict.fromkeys(NODES, 0)

    @rule(name=node_names)
    def stop(self, name: str) -> None:
        self.running.pop(name, None)

    @rule(name=node_names)
    def save(self, name: str) -> None:
        self.copies[name] = self.disks[name].copy()

    @rule(name=node_names, empty=st.booleans(), again=st.booleans())
    def lose(self, name: str, empty: bool, again: bool) -> None:
        if self.others_have_all(name):
            self.stop(name)
            copy = Disk() if empty else self.copies[name].copy()
            if any(forked(copy.log, self.disks[other].log) for other in NODES if other != name):
                copy = Disk()  # a fork is hearing by the chain of the log
            self.disks[name] = copy
            if again:
                self.start(name)

    @rule(names=st.sets(node_names, min_size=2))
    def settle(self, names: set[str]) -> None:
        """Let some nodes run, speak, and load if they can."""
        for name in names:
            self.start(name)
        self.speak()
        if PRIMARY in self.running:
            self.load(acknowledge=True)

    # -- the network --------------------------------------------------------------------------------------

    @rule(name=node_names, other=node_names)
    def exchange(self, name: str, other: str) -> None:
        if name == other or not {name, other} <= self.running.keys():
            return
        for here, there in ((name, other), (other, name)):
            disk, position = self.disks[there], len(self.disks[there].log)
            remembers = disk.confirmed.get(here, 0)
            hearing = Hearing(position=position, sound=self.sound(there), remembers=remembers)
            self.running[here].hear(there, hearing)
            known = self.disks[here].confirmed
            heard = self.heard[here]
            heard[there] = position
            elsewhere = max(len(self.disks[here].log), *(heard[name] for name in NODES if name != there))
            known[there] = confirmed_position(known.get(there, 0), hearing, elsewhere)

    @rule(name=node_names, other=node_names)
    def pull(self, name: str, other: str) -> None:
        if name == other or not {name, other} <= self.running.keys():
            return
        mine, theirs = self.disks[name].log, self.disks[other].log
        assert not forked(mine, theirs)
        if len(theirs) > len(mine):
            self.disks[name].log = theirs

    # -- writers ------------------------------------------------------------------------------------------

    @precondition(lambda self: PRIMARY in self.running)
    @rule(acknowledge=st.booleans())
    def load(self, acknowledge: bool) -> None:
        if not self.enters(PRIMARY):
            return
        self.entries += 1
        log = self.disks[PRIMARY].log = (*self.disks[PRIMARY].log, self.entries)
        behind = [name for name in NODES if self.disks[name].log != log[: len(self.disks[name].log)]]
        assert not behind, f"{behind} have entries that the primary lost"
        if acknowledge and len(self.running) == len(NODES):
            for name in NODES:
                self.disks[name].log = log
            self.acknowledged = log

    @invariant()
    def nobody_answers_without_what_was_acknowledged(self) -> None:
        for name in getattr(self, "running", ()):
            if self.sound(name):
                assert self.disks[name].log[: len(self.acknowledged)] == self.acknowledged, f"{name} lacks a load"

    def teardown(self) -> None:
        """Whatever happened: when all nodes run and speak, all become sound, and the primary enters.

        Only an entry that nobody has any more, and that was not acknowledged, needs a person's word.
        """
        if not hasattr(self, "disks"):
            return
        for name in NODES:
            self.start(name)
        self.speak()
        for name in NODES:
            if not self.sound(name):
                position = len(self.disks[name].log)
                assert "it once confirmed" in self.running[name].reason(position)
                assert position == max(len(disk.log) for disk in self.disks.values())
                self.running[name].decided()
        self.speak()
        assert all(self.sound(name) for name in NODES)
        assert self.enters(PRIMARY)

    def speak(self) -> None:
        for _ in range(4):
            for name in NODES:
                for other in NODES:
                    self.exchange(name, other)
                    self.pull(name, other)


TestPond = Pond.TestCase
TestPond.settings = settings(stateful_step_count=40)
