"""`python -m tests.harness.chaos --minutes 10 --seed 7`: runs one campaign; the exit code is 1 when it failed."""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from tests.harness.chaos.campaign import run_campaign


def main() -> int:
    """Run a campaign; what it left behind is removed when it passed."""
    options = argparse.ArgumentParser(prog="python -m tests.harness.chaos")
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--seed", type=int, default=None, help="drawn when it is not given")
    options.add_argument("--folder", type=Path, default=None, help="an empty folder for data and history")
    options.add_argument("--json", action="store_true", help="the report as JSON, on standard output alone")
    chosen = options.parse_args()
    seed = secrets.randbelow(1_000_000) if chosen.seed is None else chosen.seed
    folder = Path(tempfile.mkdtemp(prefix="millpond-chaos-", dir=chosen.folder)).resolve()
    stream = sys.stderr if chosen.json else sys.stdout
    report = run_campaign(seed, chosen.minutes * 60, folder, say=lambda line: print(line, file=stream, flush=True))
    if report.ok:
        shutil.rmtree(folder, ignore_errors=True)
    if chosen.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        print("\n" + "\n".join(report.lines()))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
