"""The processes that `test_faults_races.py` runs: several loads at once.

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


def main(url: str, loads_file: str, begin: str) -> None:
    loads: list[dict[str, Any]] = json.loads(Path(loads_file).read_text())
    never = threading.Event()
    with millpond.open(url) as pond:
        maps = {request["map"]: pond.map(request["map"]) for request in loads}

        def load(request: dict[str, Any]) -> str:
            values = pa.array([request["value"]] * len(request["keys"]), pa.int64())
            table = pa.table({"key": request["keys"], "value": values})
            while not Path(begin).exists():
                never.wait(0.005)
            done = maps[request["map"]].load(table, source=request["source"])
            return json.dumps({"source": request["source"], "parts": done.parts, "duplicates": done.duplicate_parts})

        with ThreadPoolExecutor(len(loads)) as pool:
            pending = [pool.submit(load, request) for request in loads]
            print("ready", flush=True)
            for future in pending:
                print(future.result(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
