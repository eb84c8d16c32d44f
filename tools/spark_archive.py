"""An archive of the classes that Spark needs, from which the JVMs of tests start: `python tools/spark_archive.py FILE`.

To find, check and compile eleven thousand classes is half of what a JVM with Spark costs. Java maps them from the
archive instead; one that does not fit (another Java, other jars) it ignores, and loads the classes as ever.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from millpond import spark as mp


def main() -> None:
    """Do once in a JVM what most tests do in theirs; it writes the archive when it ends."""
    target = Path(sys.argv[1]).resolve()
    part = target.with_suffix(".part")
    part.unlink(missing_ok=True)
    java = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={part} -Xlog:disable"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f'--conf "spark.driver.defaultJavaOptions={java}" pyspark-shell'
    with tempfile.TemporaryDirectory() as scratch:
        session = mp.start("local[1]", settings={"spark.sql.shuffle.partitions": "1", "spark.local.dir": scratch})
        use(f"{scratch}/pond", scratch)
        gateway = session.sparkContext._gateway  # noqa: SLF001 (only its end writes the archive)
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(300)
    part.replace(target)


def use(pond: str, scratch: str) -> None:
    """Load, look up, join, aggregate and stream a few rows."""
    import pandas as pd
    from pyspark.sql import SparkSession

    import millpond

    session = SparkSession.active()
    with millpond.open(pond) as opened:
        opened.create_map("m", kind="temporal_state", value="long")
    mp.register(session, pond=pond)
    rows = session.createDataFrame(pd.DataFrame({"key": ["a", "b"], "time": [0, 1], "value": [1, 2]}))
    rows = rows.selectExpr("key", "timestamp_millis(time) as time", "value")
    rows.write.format("millpond").option("map", "m").mode("append").save()
    rows.write.parquet(f"{scratch}/rows")
    read = session.read.parquet(f"{scratch}/rows")
    read.createOrReplaceTempView("rows")
    session.sql("select a.key, sum(a.value) from rows a join rows b on a.key = b.key group by 1 order by 2").collect()
    session.read.format("millpond").option("map", "m").load().where("key = 'a'").collect()
    session.sql("select get_state('m', key, time) from rows").collect()
    stream = session.readStream.schema(read.schema).parquet(f"{scratch}/rows").writeStream.format("memory")
    stream.queryName("seen").option("checkpointLocation", f"{scratch}/checkpoint").trigger(availableNow=True)
    stream.start().awaitTermination()


if __name__ == "__main__":
    main()
