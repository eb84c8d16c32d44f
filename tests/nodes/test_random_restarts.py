"""Three nodes that are stopped, emptied and set back at random: an answer is never older than what was acknowledged.

One map, one key: load number n gives it the value n, and waits until it is merged on every node. So a node that answers
must answer with at least the last number that was acknowledged. A disk is taken only while another one is whole.
"""

from __future__ import annotations

import random  # noqa: TID251 - each run has its seed
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millpond.client.pond import open_nodes
from millpond.errors import MillpondError, Unavailable
from tests.nodes.following import ticking
from tests.ports import free_ports

if TYPE_CHECKING:
    from millpond.clock import ManualClock
    from tests.nodes.conftest import Served

NODES = range(3)


class World:
    """The nodes, their disks, and what was acknowledged."""

    def __init__(self, folder: Path, serve: Callable[..., Served], clock: ManualClock, chance: random.Random) -> None:
        self.folder, self.serve, self.clock, self.chance = folder, serve, clock, chance
        self.ports = free_ports(len(NODES))
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.running: dict[int, Served] = {}
        self.whole = dict.fromkeys(NODES, True)
        self.tried = self.acknowledged = 0
        self.trace: list[str] = []

    def disk(self, number: int) -> Path:
        return self.folder / f"disk{number}"

    def start(self, number: int) -> None:
        if number not in self.running:
            self.running[number] = self.serve(
                server_port=self.ports[number], nodes_urls=self.urls, server_data=str(self.disk(number))
            )

    def stop(self, number: int) -> None:
        node = self.running.pop(number, None)
        if node is not None:
            node.close()

    def save(self, number: int) -> None:
        self.stop(number)
        if self.disk(number).exists():
            shutil.rmtree(self.folder / f"copy{number}", ignore_errors=True)
            shutil.copytree(self.disk(number), self.folder / f"copy{number}")

    def lose(self, number: int) -> None:
        """Empty a disk, or put an old copy on it."""
        if not any(self.whole[other] for other in NODES if other != number):
            return
        self.stop(number)
        shutil.rmtree(self.disk(number), ignore_errors=True)
        copy = self.folder / f"copy{number}"
        if copy.exists() and self.chance.random() < 0.5:
            shutil.copytree(copy, self.disk(number))
        self.whole[number] = False

    def load(self, _number: int) -> None:
        self.tried += 1
        settings = {"client_attempts": 1, "client_read_timeout": "10s"}
        try:
            with open_nodes(",".join(self.urls), clock=self.clock, client_synchronise=True, **settings) as pond:
                pond.create_map("m", kind="state", value="long", exist_ok=True)
                pond.map("m").load(pa.table({"key": ["a"], "value": [self.tried]}))
        except (Unavailable, MillpondError) as error:
            self.trace[-1] += f" -> {error.kind}"
        else:
            self.acknowledged = self.tried
            self.whole = dict.fromkeys(NODES, True)

    def settle(self, _number: int = 0) -> None:
        """Start all, and wait until they are ready."""
        for number in NODES:
            self.start(number)
        for node in self.running.values():
            node.wait_ready()
        self.whole = dict.fromkeys(NODES, True)

    def check(self) -> None:
        for number, node in self.running.items():
            answer = node.get("/v1/maps/m/get?key=a")
            if answer.status == 200:
                value = answer.json()["value"] or 0
                assert self.acknowledged <= value <= self.tried, (number, value, self.acknowledged, self.trace)
            elif answer.status == 404:
                assert not self.acknowledged, (number, answer.json(), self.trace)
            else:
                assert answer.json()["kind"] in ("node_not_ready", "node_starting"), (answer.json(), self.trace)


@pytest.mark.sample(1, of="faults of nodes")
@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 12))])
def test_an_answer_is_never_older_than_what_was_acknowledged(
    serve: Callable[..., Served], clock: ManualClock, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    world = World(tmp_path, serve, clock, chance)
    acts = (world.start, world.start, world.start, world.stop, world.save, world.lose, world.lose, world.load,
            world.load, world.settle)  # fmt: skip
    with ticking(clock, times=10):
        world.settle()
        world.trace.append("load")
        world.load(0)
        for _ in range(20):
            act, number = chance.choice(acts), chance.choice(NODES)
            world.trace.append(f"{act.__name__} {number}")
            act(number)
            world.check()
        world.settle()
        world.check()
        world.trace.append("load")
        world.load(0)
        assert world.acknowledged == world.tried, world.trace
        world.check()
        for number in NODES:
            world.stop(number)
