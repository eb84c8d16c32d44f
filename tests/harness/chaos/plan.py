"""The plan of a campaign: episodes of one or two faults, drawn from a seed.

Invariants:
* the plan is a function of the seed and the number of episodes; a longer plan begins with the shorter one;
* every kind comes once before any comes again, so that a short campaign meets them all;
* an episode destroys at most one disk. The campaign heals it, and waits until all nodes are ready, before the next
  episode: so two whole copies of what was acknowledged stay while the third is lost;
* half of all seeds run nodes with `write_to = "majority"`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice

__all__ = (
    "DESTRUCTIVE",
    "KINDS",
    "NODES",
    "ORDERS",
    "PRIMARY",
    "SMALL_DISK",
    "Episode",
    "Fault",
    "plan_of",
    "write_to_of",
)

NODES = 3
PRIMARY = 0
SMALL_DISK = 2
"""The node whose disk can be filled."""

NETWORK = ("slow", "cut", "half_open", "flaky")
"""Connections through a node's proxy are delayed, refused, held without an end, or reset in mid-request."""
PROCESS = ("pause", "kill", "kill_at_step")
"""SIGSTOP and SIGCONT; SIGKILL at once; SIGKILL at the nth step of what the node does."""
MACHINE = ("full_disk", "clock")
DESTRUCTIVE = ("replica_emptied", "replica_set_back", "primary_emptied", "primary_set_back")
ORDERS = ("drain", "promote", "remove", "primary_lost")
"""Orders of an operator, under load: the primary hands over to a replica; a replica is removed, and added again; the
primary is killed, and the replica becomes it without it."""
KINDS = (*NETWORK, *PROCESS, *MACHINE, *DESTRUCTIVE, *ORDERS)
COMPANIONS = ("slow", "cut", "flaky", "pause", "kill", "clock")
COMPANION_CHANCE = 0.4
HOUR_MS, SECOND_MS = 3_600_000, 1_000
"""Errors of clocks: with some seconds a node stays ready, with hours it does not."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, the node that it strikes, and its size.

    `amount` is in the kind's unit: milliseconds of a delay or of a clock's error, bytes before a reset, bytes that are
    left on a disk, the number of a step; 1 when a copy of a disk is to be used again.
    """

    kind: str
    node: int
    amount: int = 0

    def to_dict(self) -> dict[str, object]:
        """The fault as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.kind} node {self.node}" + (f" ({self.amount})" if self.amount else "")


@dataclass(frozen=True, slots=True)
class Episode:
    """Faults that are there at the same time, for so many seconds, after a pause without any."""

    faults: tuple[Fault, ...]
    seconds: float
    pause: float


def write_to_of(seed: int) -> str:
    """The setting `write_to` of a seed's nodes.

    >>> write_to_of(20), write_to_of(7)
    ('all', 'majority')
    """
    return "majority" if seed % 2 else "all"


def plan_of(seed: int, count: int) -> list[Episode]:
    """The first episodes of a seed.

    >>> plan_of(7, 20) == plan_of(7, 30)[:20]
    True
    >>> sorted(episode.faults[0].kind for episode in plan_of(7, len(KINDS))) == sorted(KINDS)
    True
    """
    return list(islice(_episodes(random.Random(f"faults {seed}")), count))


def _episodes(chance: random.Random) -> Iterator[Episode]:
    while True:
        kinds = list(KINDS)
        chance.shuffle(kinds)
        for kind in kinds:
            first = _fault(kind, _node(kind, chance), chance)
            faults = (first, *_companion(first, chance))
            yield Episode(faults, seconds=round(chance.uniform(1, 5), 2), pause=round(chance.uniform(0.2, 1.5), 2))


def _companion(first: Fault, chance: random.Random) -> tuple[Fault, ...]:
    """A second fault on another node, now and then."""
    if chance.random() >= COMPANION_CHANCE:
        return ()
    node = chance.choice([number for number in range(NODES) if number != first.node])
    return (_fault(chance.choice(COMPANIONS), node, chance),)


def _node(kind: str, chance: random.Random) -> int:
    if kind == "full_disk":
        return SMALL_DISK
    if kind in ("primary_emptied", "primary_set_back"):
        return PRIMARY
    if kind.startswith("replica") or kind in ("promote", "remove", "primary_lost"):
        return chance.choice([number for number in range(NODES) if number != PRIMARY])
    return chance.randrange(NODES)


def _fault(kind: str, node: int, chance: random.Random) -> Fault:
    amounts = {
        "slow": lambda: chance.randint(20, 400),
        "flaky": lambda: chance.randint(0, 4_000),
        "kill_at_step": lambda: chance.randint(1, 40),
        "full_disk": lambda: chance.choice((0, 1 << 20, 8 << 20, 36 << 20)),
        "clock": lambda: chance.choice((chance.randint(-26, 26) * HOUR_MS, chance.randint(-20, 20) * SECOND_MS)),
        "replica_set_back": lambda: chance.randint(0, 1),
        "primary_set_back": lambda: chance.randint(0, 1),
    }
    return Fault(kind, node, amounts[kind]() if kind in amounts else 0)
