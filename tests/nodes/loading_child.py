"""What `test_faults_races.py` runs in processes of its own: several loads at once.

    loading_child.py <url> <file with the loads> <file to wait for>

The loads are a JSON list of `{map, keys, value, source}`: one value for many keys. It says `ready` when all is
prepared, begins when the file is there, and says what became of each load: `{source, parts, duplicates}`, one a line.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

import millpond


def main(url: str, told: str, begin: str) -> None:
    loads: list[dict[str, Any]] = json.loads(Path(told).read_text())
    never = threading.Event()
    with millpond.open(url) as pond:
        maps = {each["map"]: pond.map(each["map"]) for each in loads}

        def load(asked: dict[str, Any]) -> str:
            values = pa.array([asked["value"]] * len(asked["keys"]), pa.int64())
            table = pa.table({"key": asked["keys"], "value": values})
            while not Path(begin).exists():
                never.wait(0.005)
            done = maps[asked["map"]].load(table, source=asked["source"])
            return json.dumps({"source": asked["source"], "parts": done.parts, "duplicates": done.duplicate_parts})

        with ThreadPoolExecutor(len(loads)) as pool:
            waiting = [pool.submit(load, each) for each in loads]
            print("ready", flush=True)
            for each in waiting:
                print(each.result(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
