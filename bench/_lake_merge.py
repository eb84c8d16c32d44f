"""The part of `bucket.py` that runs in an environment of its own.

    python _lake_merge.py LAKE ROWS CHANGED KEYS FOLDER

Rows are written to a table of the lake in a folder, changed ones merged, keys looked up. It needs `pyspark` of the
release that the lake's jar was built for, `Lake.spark`; the jar comes from Maven. None was built for Millpond's Spark
4.3: Iceberg's of 4.1 ends there in an IncompatibleClassChangeError. Paimon and Hudi have none of Spark 4 at Maven.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ("LAKES", "Lake")

MERGE = (
    "merge into {table} as t using changed as c on t.key = c.key"
    " when matched then update set * when not matched then insert *"
)
COLUMNS = "(key string, value bigint)"


@dataclass(frozen=True)
class Lake:
    """A format of tables: its jar, the Spark that this is for, its settings and its words of SQL."""

    name: str
    package: str
    spark: str
    extensions: str
    catalog: str
    settings: dict[str, str] = field(default_factory=dict)
    table: str = "rows"
    create: str = "create table {table} " + COLUMNS + " using {lake}"
    merge: str = MERGE


LAKES = {
    "delta": Lake(
        "Delta Lake", "io.delta:delta-spark_2.13:4.4.0", "4.2", "io.delta.sql.DeltaSparkSessionExtension",
        "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    ),
    "iceberg": Lake(
        "Iceberg", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0", "4.1",
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions", "org.apache.iceberg.spark.SparkCatalog",
        {"spark.sql.catalog.lake.type": "hadoop"}, "lake.db.rows",
    ),
    "paimon": Lake(
        "Paimon", "org.apache.paimon:paimon-spark-3.5:0.9.0", "3.5",
        "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions", "org.apache.paimon.spark.SparkCatalog",
        {}, "lake.default.rows", "create table {table} " + COLUMNS + " tblproperties ('primary-key' = 'key')",
        "insert into {table} select * from changed",
    ),
    "hudi": Lake(
        "Hudi", "org.apache.hudi:hudi-spark3.5-bundle_2.12:1.2.0", "3.5",
        "org.apache.spark.sql.hudi.HoodieSparkSessionExtension", "org.apache.spark.sql.hudi.catalog.HoodieCatalog",
        {"spark.serializer": "org.apache.spark.serializer.KryoSerializer"},
        create="create table {table} " + COLUMNS + " using hudi tblproperties (primaryKey = 'key', type = 'cow')",
    ),
}  # fmt: skip
"""Rows of Paimon have a primary key: to insert is to merge."""


def session_of(lake: Lake, folder: str) -> SparkSession:
    """A session whose tables lie in a folder."""
    name = "lake" if "." in lake.table else "spark_catalog"
    settings = {
        "spark.master": "local[2]", "spark.driver.memory": "6g", "spark.ui.enabled": "false",
        "spark.jars.packages": lake.package, "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.extensions": lake.extensions, f"spark.sql.catalog.{name}": lake.catalog,
        f"spark.sql.catalog.{name}.warehouse": f"{folder}/lake", "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:lake;create=true", **lake.settings,
    }  # fmt: skip
    return SparkSession.builder.config(map=settings).getOrCreate()


def main() -> None:
    name, rows, changed, keys, folder = sys.argv[1:]
    Path(folder).mkdir()
    lake = LAKES[name]
    session = session_of(lake, folder)

    def run(words: str, table: str = lake.table) -> None:
        session.sql(words.format(table=table, lake=name))

    def timed(work: str, act: Callable[[], object]) -> None:
        began = time.perf_counter()
        act()
        print(json.dumps({"work": work, "seconds": time.perf_counter() - began}), flush=True)

    session.read.parquet(rows).createOrReplaceTempView("input")
    session.read.parquet(changed).createOrReplaceTempView("changed")
    session.read.parquet(keys).createOrReplaceTempView("wanted")
    if lake.table.startswith("lake.db"):
        session.sql("create database lake.db")
    for table, limit in ((f"{lake.table}_warm", " limit 10"), (lake.table, "")):
        run(lake.create, table)
        words = f"insert into {{table}} select * from input{limit}"
        run(words, table) if limit else timed("load", lambda words=words: run(words))  # type: ignore[misc]
    timed("merge", lambda: run(lake.merge))
    found: list[int] = []
    lookup = f"select t.value from {lake.table} as t join wanted as w on t.key = w.key"
    timed("lookup", lambda: found.extend(row.value for row in session.sql(lookup).collect()))
    totals = session.sql(f"select count(*), sum(value) from {lake.table}").first()
    print(json.dumps({"work": "answers", "answers": [sum(found), len(found), *map(int, totals)]}), flush=True)
    session.stop()


if __name__ == "__main__":
    main()
