"""The work of a user over Spark Connect, as a program of its own: `connect_job.py FOLDER`. It prints a line of JSON.

A process has either classic sessions or those of Connect, so this is none of the tests' own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession

import millpond
from millpond import spark as mp
from millpond.spark.objects import compact_branch

ROWS = "values ('JFK', timestamp '2013-01-01 06:00:00', 39.0D), ('JFK', timestamp '2013-01-01 08:00:00', 40.0D), \
    ('LGA', timestamp '2013-01-01 06:00:00', 39.9D) as t(origin, hour, temp)"
FLIGHTS = "values (1, 'JFK', timestamp '2013-01-01 07:30:00'), (2, 'JFK', timestamp '2013-01-01 09:00:00'), \
    (3, 'EWR', timestamp '2013-01-01 09:00:00'), (4, cast(null as string), timestamp '2013-01-01 09:00:00') \
    as t(flight, origin, hour)"


def main(folder: Path) -> dict[str, Any]:
    """Load, read, enrich, stream; and the errors of what does not work."""
    pond = folder / "pond"
    with millpond.open(pond, maps_part_retention="7d") as open_:  # so that its changes can be read as a stream
        for name in ("weather", "copy"):
            open_.create_map(name, kind="temporal_state", value="temp double")
        open_.create_map("planes", kind="state", value="string")
    builder = SparkSession.builder.remote("local[2]")
    settings = {"ui.enabled": "false", "sql.shuffle.partitions": "2", "sql.session.timeZone": "UTC"}
    for name, value in settings.items():
        builder = builder.config(f"spark.{name}", value)
    session = builder.getOrCreate()
    mp.register(session, pond=pond)
    found: dict[str, Any] = {"module": type(session).__module__}
    rows = session.sql(f"select * from {ROWS}")
    written = rows.write.format("millpond").option("map", "weather").option("key", "origin").option("time", "hour")
    written.mode("append").save()
    found["loaded"] = mp.load(session.sql("select 'N1' key, 'BOEING' value"), map="planes").rows
    weather = session.read.format("millpond").option("map", "weather").load()
    found["read"] = sorted(row.temp for row in weather.collect())
    flights = session.sql(f"select * from {FLIGHTS}")
    answers = mp.enrich(flights, map="weather", key="origin", at="hour", into="temp").orderBy("flight")
    found["enriched"] = [row.temp for row in answers.collect()]
    shuffled = mp.enrich(flights, map="weather", key="origin", at="hour", into="temp", partition="key").orderBy(
        "flight"
    )
    found["shuffled"] = [row.temp for row in shuffled.collect()]
    changes = session.readStream.format("millpond").option("map", "weather").option("startingPosition", "earliest")
    stream(changes.load(), folder)
    copy = session.read.format("millpond").option("map", "copy").load()
    found["streamed"] = sorted(row.temp for row in copy.collect())
    found["get_state"] = error_of(lambda: session.sql("select get_state('planes', 'N1') v").collect())
    keyed = rows.withColumnsRenamed({"origin": "key", "hour": "effective_time"})
    found["epoch"] = error_of(lambda: mp.load(keyed, map="weather", epoch=1))
    found["compaction"] = error_of(lambda: compact_branch(session, "flights", "main", pond=pond))
    session.stop()
    return found


def stream(changes: DataFrame, folder: Path) -> None:
    """Take the changes of a map into another one."""
    query = (
        changes.select("key", "effective_time", "temp").writeStream.format("millpond").option("map", "copy")
        .option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(120)


def error_of(act: Any) -> str:
    try:
        act()
    except Exception as error:
        return str(error)
    return "no error"


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
