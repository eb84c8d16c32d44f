"""A warm process that forks a child for every task on backups, which may be killed at a step of it.

Reads one JSON object a line: `{"folder", "task", "log", "kill_at"}`; answers with the child's exit code, negative for
the signal that ended it. A task is the name of a function here.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from millpond.events.event import NewEvent
from millpond.nodes.backups.create import create_backup
from millpond.nodes.backups.layout import find_backup
from millpond.nodes.backups.prune import prune
from millpond.nodes.backups.restore import restore_backup
from millpond.nodes.backups.source import FolderSource
from millpond.pond import open_pond
from millpond.stores.files import remove_tree
from millpond.stores.objects import FolderObjects
from millpond.testing.faults import arm
from tests.harness.interleaving.stores import PassingClock

FIRST_MS = 1_700_000_000_000


class Story:
    """Tasks on one folder, each an hour after the one before. Time passes for who awaits the lease of a dead one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, FolderObjects(folder / "place")
        hours = folder / "hours"
        passed = int(hours.read_text()) + 1 if hours.exists() else 1
        hours.write_text(str(passed))
        self.clock = PassingClock(now=FIRST_MS + passed * 3_600_000, ids=passed << 20)

    def load(self, *rounds: int) -> None:
        from tests.nodes.test_backups import fill

        with open_pond(self.folder / "pond", maps_part_retention="1d", clock=self.clock) as pond:
            fill(pond, *rounds, layered=("owners", "nets"))
            flights = pond.repositories.get("flights") if rounds[0] else pond.repositories.create("flights")
            flights.branch("main").put(f"day/{rounds[0]}", b"%d" % rounds[0])
            pond.events.append("etl", "nightly", [NewEvent(0, b"%d" % rounds[0])])

    def create(self, *, full: bool = False) -> None:
        with open_pond(self.folder / "pond", maps_part_retention="1d", clock=self.clock) as pond:
            source, scratch = FolderSource(pond, self.clock), Path(mkdtemp(dir=self.folder))
            create_backup(source, self.place, scratch, self.clock, full=full)

    def full(self) -> None:
        self.create(full=True)

    def prune(self) -> None:
        prune(self.place, 1, Path(mkdtemp(dir=self.folder)), self.clock)

    def restore(self) -> None:
        remove_tree(self.folder / "restored")
        restore_backup(self.place, find_backup(self.place, None), self.folder / "restored", self.clock)


def child(task: dict[str, Any]) -> None:
    act: Callable[[], None] = getattr(Story(Path(task["folder"])), task["task"])
    with arm(log=task["log"], kill_at=task["kill_at"]):
        act()


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                child(json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
