"""Shapes at the edge of what a pond is for: time and private memory of each work on them.

    maps      a pond of 2,000 maps           values    1 MiB each, 1,000 of them
    times     one key with 10 M times        loads     a million rows that wait, of 200 small loads
    ranges    10 M ranges, ten deep          onion     100,000 ranges, each within all before it
    history   10 M loads in the log

Each stage is a process of its own, whose private memory and open files are sampled. A stage that fails, or takes more
than `--seconds`, ends its shape.

    python bench/extremes.py                     all: 30 GB of disk, half an hour
    python bench/extremes.py --quick             sizes 10 to 100 times smaller
    python bench/extremes.py --only maps,times
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from _extremes_stages import SHAPES
from _results import Run

PROGRAM = Path(__file__).with_name("_extremes_stages.py")
SAMPLE_SECONDS = 0.05
SIZES = {
    "maps": 2_000, "times": 10_000_000, "values": 1_000, "loads": 1_000_000, "ranges": 10_000_000,
    "onion": 100_000, "history": 10_000_000,
}  # fmt: skip
QUICK = {"maps": 200, "times": 200_000, "values": 100, "loads": 100_000, "ranges": 200_000, "onion": 5_000,
         "history": 100_000}  # fmt: skip


class Watch:
    """The most private memory, open files and threads of a process, sampled while it runs."""

    def __init__(self, pid: int) -> None:
        self.memory = self.files = self.threads = 0
        self._place, self._ended = Path(f"/proc/{pid}"), threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.is_set():
            with suppress(OSError):
                status = dict(line.split(":", 1) for line in (self._place / "status").read_text().splitlines())
                self.memory = max(self.memory, int(status.get("RssAnon", "0 kB").split()[0]) << 10)
                self.threads = max(self.threads, int(status["Threads"]))
                self.files = max(self.files, sum(1 for _ in (self._place / "fd").iterdir()))
            time.sleep(SAMPLE_SECONDS)

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join()


def measure(run: Run, shape: str, stage: str, folder: Path, size: int, limit: float) -> str | None:
    """Run a stage and print its rows of the table; what was wrong with it."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), f"{shape}/{stage}", str(folder), str(size)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    watch = Watch(process.pid)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        err = f"more than {limit:.0f} s"
    watch.end()
    for line in out.splitlines():
        found = json.loads(line)
        run.note(f"{shape}: {found['work'].replace('`', '')}", "Millpond", found["seconds"])
        cells = [shape, found["work"], shown(found["seconds"]), f"{watch.memory >> 20:,} MB", f"{watch.files:,}",
                 f"{watch.threads:,}"]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)
    run.note(f"{shape}: private memory, {stage}", "Millpond", watch.memory, unit="B")
    if process.returncode:
        return f"{shape}, {stage}: {err.strip().splitlines()[-1] if err.strip() else 'killed'}"
    return None


def shown(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="sizes 10 to 100 times smaller")
    parser.add_argument("--only", help=f"shapes, by commas: {', '.join(SHAPES)}")
    parser.add_argument("--size", type=int, help="another size, for all shapes")
    parser.add_argument("--folder", type=Path, help="where the data lies; it is kept")
    parser.add_argument("--seconds", type=float, default=1800.0, help="the time that one stage may take")
    given = parser.parse_args()
    sizes = QUICK if given.quick else SIZES
    print("| shape | work | time | private memory | files | threads |\n|---|---|---|---|---|---|")
    failed, run = [], Run("extremes")
    for shape in given.only.split(",") if given.only else SHAPES:
        folder = (given.folder or Path(tempfile.mkdtemp(prefix="millpond-extremes-"))) / shape
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for stage in SHAPES[shape]:
                fault = measure(run, shape, stage, folder, given.size or sizes[shape], given.seconds)
                if fault is not None:
                    failed.append(fault)
                    break
        finally:
            if given.folder is None:
                shutil.rmtree(folder.parent)
    run.write(whole=not any((given.quick, given.only, given.size)), **sizes)
    for fault in failed:
        print(f"\nnot measured: {fault}")


if __name__ == "__main__":
    main()
