"""The strike and the end of each fault on a running cluster.

Invariants:
* a process that ends without a strike of ours is noticed: `revive` reports it;
* an order that is refused is a fault that is skipped, with the reason;
* after `heal` no fault is left: every proxy carries, every clock is right, every disk has room, every node was started.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tests.harness.chaos.orders import Orders
from tests.harness.chaos.plan import ORDERS, PRIMARY, SMALL_DISK, Fault
from tests.harness.faulty_proxy import FaultyProxy, Trouble

if TYPE_CHECKING:
    from tests.harness.cluster import Cluster, ServedNode

__all__ = ("SmallDisk", "Strikes")

DISK_BYTES = 160 << 20
"""A node wants 64 MB of its disk free before it says that it is ready."""
ALWAYS = 1_000_000


class SmallDisk:
    """A disk in memory that can be filled, mounted on a folder; `refused` says why there is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refused = ""
        self._mounted = False

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        if os.geteuid() != 0 or shutil.which("mount") is None:
            self.refused = "mounting a small disk needs root"
            return self
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.folder)]
        done = subprocess.run(command, capture_output=True, check=False)
        self._mounted = done.returncode == 0
        if not self._mounted:
            self.refused = f"mounting is not allowed here: {done.stderr.decode(errors='replace').strip()}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mounted:
            self._mounted = False
            subprocess.run(["umount", "-l", str(self.folder)], check=True)

    def fill(self, leaving: int) -> None:
        """Fill it with a file, but for so many bytes."""
        # A node may take the last of it meanwhile.
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            free = os.statvfs(self.folder)
            left = free.f_bavail * free.f_frsize - leaving
            while left > 0:
                left -= file.write(bytes(min(left, 1 << 20)))

    def empty(self) -> None:
        """Remove that file."""
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.folder / "ballast"


class Strikes:
    """The faults of a campaign, done to its cluster.

    `wait_ready` waits until all nodes are; it is called where a fault needs sound nodes before it goes on.
    """

    def __init__(self, cluster: Cluster, disk: SmallDisk, copies: Path, wait_ready: Callable[[], None]) -> None:
        self.cluster, self.disk, self.copies = cluster, disk, copies
        self._wait_ready = wait_ready
        self.orders = Orders(cluster)
        self._ours: set[int] = set()

    def strike(self, fault: Fault) -> str:
        """Let a fault begin; the reason why not, if it cannot."""
        node = self.cluster.nodes[fault.node]
        if not node.runs:
            return "the node is down"
        if fault.kind == "full_disk":
            return self._fill(fault)
        if fault.kind in ORDERS:
            return self._order(fault)
        proxy = self._proxy(node)
        acts: dict[str, Callable[[], object]] = {
            "slow": lambda: proxy.slow(fault.amount / 1000),
            "cut": proxy.cut,
            "half_open": lambda: proxy.trouble(Trouble("hold", times=ALWAYS)),
            "flaky": lambda: proxy.trouble(
                Trouble("cut", after=fault.amount, down=fault.amount % 2 == 1, times=ALWAYS)
            ),
            "pause": lambda: self._signal(node, signal.SIGSTOP),
            "kill": lambda: self._kill(fault.node),
            "kill_at_step": lambda: self._kill_at_step(fault),
            "clock": lambda: self.cluster.shift_clock(fault.node, fault.amount),
            "replica_emptied": lambda: self._empty(fault.node),
            "primary_emptied": lambda: self._empty(fault.node),
            "replica_set_back": lambda: self._copy(fault),
            "primary_set_back": lambda: self._copy(fault),
        }
        acts[fault.kind]()
        return ""

    def end(self, fault: Fault) -> None:
        """Let a fault end; a node that it killed is started by `revive`."""
        node = self.cluster.nodes[fault.node]
        if fault.kind in ("slow", "cut", "half_open", "flaky"):
            self._proxy(node).mend()
        elif fault.kind == "pause":
            self._signal(node, signal.SIGCONT)
        elif fault.kind == "kill_at_step" and node.runs:
            self._kill(fault.node)
        elif fault.kind == "full_disk":
            self.disk.empty()
        elif fault.kind == "clock":
            node.clock_file.unlink(missing_ok=True)
        elif fault.kind.endswith("set_back"):
            self._set_back(fault.node)
        elif fault.kind == "drain" and node.runs:
            self.orders.drain(fault.node, draining=False)

    def revive(self) -> list[str]:
        """Start the nodes that are down; a problem for each that ended by itself."""
        problems = []
        for node in self.cluster.nodes:
            if node.runs:
                continue
            if node.number not in self._ours:
                code = node.process.returncode if node.process else None
                problems.append(f"ended: node {node.number} ended by itself with {code}")
            self._ours.discard(node.number)
            self.cluster.start(node.number, wait=False)
        return problems

    def heal(self) -> list[str]:
        """End whatever may still be there."""
        for node in self.cluster.nodes:
            self._proxy(node).mend()
            self._signal(node, signal.SIGCONT)
            node.clock_file.unlink(missing_ok=True)
        self.disk.empty()
        return self.revive()

    def _order(self, fault: Fault) -> str:
        if fault.kind == "drain":
            return self.orders.drain(fault.node, draining=True)
        if fault.kind == "promote":
            return self.orders.promote(fault.node)
        if fault.kind == "remove":
            return self.orders.remove(fault.node)
        self._kill(PRIMARY)
        refused = self.orders.promote_alone(fault.node)
        return "" if "log_shorter" in refused else refused

    def _fill(self, fault: Fault) -> str:
        if self.disk.refused or fault.node != SMALL_DISK:
            return self.disk.refused
        self.disk.fill(fault.amount)
        return ""

    def _signal(self, node: ServedNode, number: signal.Signals) -> None:
        if node.runs and node.process is not None:
            node.process.send_signal(number)

    def _kill(self, number: int) -> None:
        self._ours.add(number)
        self.cluster.kill(number)

    def _kill_at_step(self, fault: Fault) -> None:
        self._ours.add(fault.node)
        self.cluster.kill_at(fault.node, "*", fault.amount)

    def _start(self, number: int) -> None:
        self._ours.discard(number)
        self.cluster.start(number, wait=False)

    def _empty(self, number: int) -> None:
        """Take a node's disk, and start it on an empty one."""
        self._kill(number)
        shutil.rmtree(self.cluster.nodes[number].folder)
        self._start(number)

    def _copy(self, fault: Fault) -> None:
        """Copy a node's disk, to be put back later; `amount` 1: the copy of the time before is old enough."""
        copy = self._copy_of(fault.node)
        if copy.exists() and fault.amount:
            return
        self._kill(fault.node)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.cluster.nodes[fault.node].folder, copy)
        self._start(fault.node)
        self._wait_ready()

    def _set_back(self, number: int) -> None:
        self._kill(number)
        shutil.rmtree(self.cluster.nodes[number].folder)
        shutil.copytree(self._copy_of(number), self.cluster.nodes[number].folder)
        self._start(number)

    def _copy_of(self, number: int) -> Path:
        return self.copies / f"node{number}"

    @staticmethod
    def _proxy(node: ServedNode) -> FaultyProxy:
        assert node.proxy is not None, "the cluster of a campaign has proxies"
        return node.proxy
