"""The part of `aggregate.py` that runs in an environment of its own: `python _deltalake_merge.py GROUPS CHANGED TABLE`.

Each file of groups in CHANGED is added to the table by a `MERGE`, without Spark. `pip install 'deltalake[pyarrow]'`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

ADDED = {
    "orders": "t.orders + c.orders",
    "total": "t.total + c.total",
    "most": "case when t.most > c.most then t.most else c.most end",
}


def main() -> None:
    groups, changed, table = sys.argv[1:4]
    began = time.perf_counter()
    write_deltalake(table, parquet.read_table(groups))
    print(json.dumps({"work": "load", "seconds": time.perf_counter() - began}), flush=True)
    for file in sorted(Path(changed).iterdir()):
        began = time.perf_counter()
        merge = DeltaTable(table).merge(
            parquet.read_table(file), "t.key = c.key and t.time = c.time", source_alias="c", target_alias="t"
        )
        merge.when_matched_update(ADDED).when_not_matched_insert_all().execute()
        print(json.dumps({"work": "merge", "seconds": time.perf_counter() - began}), flush=True)
    rows = DeltaTable(table).to_pyarrow_table()
    totals = [float(pc.sum(rows[name]).as_py()) for name in ADDED]
    print(json.dumps({"work": "totals", "totals": [*totals, rows.num_rows]}))


if __name__ == "__main__":
    main()
