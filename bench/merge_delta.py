"""Merging a million random rows into a map, and into a table of Delta Lake by `MERGE`.

    python bench/merge_delta.py --python ENVIRONMENT/bin/python            1 M and 10 M rows
    python bench/merge_delta.py --python ENVIRONMENT/bin/python --quick    1 M rows

Delta Lake runs on an older Spark than Millpond's, so it has an environment of its own: `pip install 'pyspark==4.2.*'`.
The rows are those of `scale.py`. The table is not sorted and has no index, as users of Delta have it; both are warm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pyarrow import parquet

import millpond
from _delta_merge import DELTA
from _results import Run, program_version
from _scale_stages import CHANGED, input_files, rows_of, timed

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python of an environment with the pyspark of Delta Lake")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    print("| rows | work | Millpond | Delta Lake | faster by |\n|---|---|---|---|---|")
    run = Run("merge_delta")
    for rows in (1_000_000,) if given.quick else (1_000_000, 10_000_000):
        with tempfile.TemporaryDirectory(prefix="millpond-bench-") as folder:
            compare(run, Path(folder), rows, given.python)
    spark = program_version(given.python, "-c", "import pyspark; print(pyspark.__version__)")
    run.write({"Delta Lake": DELTA.rpartition(":")[2], "Spark": spark}, whole=not given.quick, merged_rows=CHANGED)


def compare(run: Run, folder: Path, rows: int, python: str) -> None:
    where, changed = input_files(folder, rows), folder / "changed"
    changed.mkdir()
    for seed in range(ROUNDS):
        some = rows_of(rows * 11 // 10, CHANGED, 1000 + seed)
        # `MERGE` refuses two rows for one address.
        some = some.group_by(["key", "effective_time"], use_threads=False).aggregate([("value", "last")])
        parquet.write_table(some.rename_columns(["key", "effective_time", "value"]), changed / f"{seed}.parquet")
    ours = millpond_seconds(folder, where, changed)
    theirs = delta_seconds(folder, where, changed, python)
    for work, seconds in ours.items():
        run.note(work, "Millpond", seconds, size=f"{rows / 1e6:g} M rows")
        run.note(work, "Delta Lake", theirs[work], size=f"{rows / 1e6:g} M rows")
        one, other = statistics.median(seconds), statistics.median(theirs[work])
        print(f"| {rows:,} | {work} | {one:.2f} s | {other:.2f} s | {other / one:.1f}× |", flush=True)


def millpond_seconds(folder: Path, where: Path, changed: Path) -> dict[str, list[float]]:
    with millpond.open(folder / "pond") as pond:
        target = pond.create_map("devices", kind="temporal_state", value="double")
        load = timed(lambda: target.load(parquet.read_table(where)))[0]
        merges = [
            timed(lambda file=file: target.load(parquet.read_table(file)))[0] for file in sorted(changed.iterdir())
        ]
    return {"load": [load], "merge": merges}


def delta_seconds(
    folder: Path, where: Path, changed: Path, python: str, *condition_and_changes: str
) -> dict[str, list[float]]:
    script = Path(__file__).with_name("_delta_merge.py")
    command = [python, str(script), str(where), str(changed), str(folder / "delta"), *condition_and_changes]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"Delta Lake did not run: {' '.join(command)}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    merges = [line["seconds"] for line in lines if line["work"] == "merge"]
    return {"load": [lines[0]["seconds"]], "merge": merges}


if __name__ == "__main__":
    main()
