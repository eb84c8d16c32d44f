"""`python -m tests.harness.proof --kills 200 --seed 7`: one proof; the exit code is 1 when it failed."""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.harness.proof.campaign import Plan, prove


def main() -> int:
    """Run a proof; what it left behind is removed when it passed."""
    options = argparse.ArgumentParser(prog="python -m tests.harness.proof")
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=None, help="drawn when it is not given")
    options.add_argument("--runs-at-once", type=int, default=3)
    options.add_argument("--pause", type=float, default=4.0, help="the longest pause between kills, in seconds")
    options.add_argument("--folder", type=Path, default=None, help="an existing folder for its files")
    options.add_argument("--slow-heartbeat", action="store_true", help="leave the client's heartbeat at 60 s")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its processes end with it
    seed = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    folder = Path(tempfile.mkdtemp(prefix="millpond-proof-", dir=chosen.folder)).resolve()
    plan = Plan(seed, chosen.kills, chosen.runs_at_once, chosen.pause,
                heartbeat_seconds=None if chosen.slow_heartbeat else 1)  # fmt: skip
    report = prove(plan, folder, say=lambda line: print(line, flush=True))
    if report.ok:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"its files are in {folder}")
    print("\n".join(report.lines()))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
