"""The command line of a world: `python -m tests.harness.WORLD --seed 7`; the exit code is 1 when a run failed.

The seed is drawn when it is not given. Of an exact world that fails the shortest failing run is printed, with the
command that replays it; of the others their files are left, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.harness.frame.report import Broken
from tests.harness.frame.shrinking import shortest
from tests.harness.frame.world import Order, World

__all__ = ("main",)


def main(world: World) -> int:
    """Make the runs that the command line names, from one seed on, until one fails."""
    chosen = _options(world).parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its processes end with it
    if world.exact:  # as tests/conftest.py: a replay draws its faults from the same steps
        os.environ.setdefault("MILLPOND_EVENTS_REPORTS", "off")
    first = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    stream = sys.stderr if chosen.json else sys.stdout
    for seed in range(first, first + chosen.runs):
        folder = Path(tempfile.mkdtemp(prefix="millpond-campaign-", dir=chosen.folder)).resolve()
        order = Order(seed, chosen.length, folder, lambda line: print(line, file=stream, flush=True), chosen)
        try:
            ok = _made(world, order)
        except Broken as broken:
            ok = False
            print(_shortest(world, order, broken), file=stream)
        if ok or world.exact:
            shutil.rmtree(folder, ignore_errors=True)
        if not ok:
            return 1
    return 0


def _options(world: World) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog=f"python -m {world.module}")
    options.add_argument("--seed", type=int, default=None, help="drawn when it is not given")
    options.add_argument(f"--{world.option}", dest="length", type=type(world.length), default=world.length)
    options.add_argument("--runs", type=int, default=1, help="seeds to try, from --seed on")
    options.add_argument("--folder", type=Path, default=None, help="an existing folder for its files")
    options.add_argument("--json", action="store_true", help="the report as JSON, on standard output alone")
    for name, about in world.options.items():
        options.add_argument(f"--{name}", **about)
    return options


def _made(world: World, order: Order) -> bool:
    """True when a run ended well; its report is printed, of many that passed only the last line."""
    report = world.run(order)
    if not report.ok:
        order.say(f"failed: {world.replay(order.seed, order.length)}; its files are in {order.folder}")
    if order.chosen.json:
        print(json.dumps({**report.to_dict(), "folder": None if report.ok else str(order.folder)}, indent=2))
    else:
        lines = list(report.lines())
        print("\n".join(lines[-1:] if report.ok and order.chosen.runs > 1 else lines), flush=True)
    return report.ok


def _shortest(world: World, order: Order, broken: Broken) -> Broken:
    if not world.exact:
        return broken
    return shortest(lambda length: world.run(replace(order, length=length)), int(order.length), broken)[1]
