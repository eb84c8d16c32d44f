"""The part of `merge_delta.py` that runs in an environment of its own: `python _delta_merge.py INPUT CHANGED TABLE`.

Two more words are the condition and the changes of `MERGE`, for `aggregate.py`.

It needs `pyspark` of the release that Delta Lake was built for; the jar comes from Maven.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

DELTA = "io.delta:delta-spark_2.13:4.4.0"


def main() -> None:
    rows, changed, table = sys.argv[1:4]
    condition, changes = sys.argv[4:] or ("t.key = c.key and t.effective_time = c.effective_time", "*")
    settings = {
        "spark.master": "local[2]", "spark.driver.memory": "6g", "spark.ui.enabled": "false",
        "spark.jars.packages": DELTA, "spark.sql.shuffle.partitions": "8",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }  # fmt: skip
    session = SparkSession.builder.config(map=settings).getOrCreate()
    session.range(10).write.format("delta").mode("overwrite").save(f"{table}-warm")
    began = time.perf_counter()
    session.read.parquet(rows).write.format("delta").mode("overwrite").save(table)
    print(json.dumps({"work": "load", "seconds": time.perf_counter() - began}), flush=True)
    for file in sorted(Path(changed).iterdir()):
        session.read.parquet(str(file)).createOrReplaceTempView("changed")
        began = time.perf_counter()
        session.sql(
            f"merge into delta.`{table}` as t using changed as c on {condition}"
            f" when matched then update set {changes} when not matched then insert *"
        )
        print(json.dumps({"work": "merge", "seconds": time.perf_counter() - began}), flush=True)
    if changes != "*":
        row = session.sql(f"select sum(orders), sum(total), sum(most), count(*) from delta.`{table}`").first()
        print(json.dumps({"work": "totals", "totals": [float(total) for total in row]}), flush=True)
    session.stop()


if __name__ == "__main__":
    main()
