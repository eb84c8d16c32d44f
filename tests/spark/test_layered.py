"""Layered maps by Spark: a job loads one, and reads and enriches from it, as any map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from millpond import spark as mp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millpond import Pond


def counted(spark: SparkSession, first: int, last: int) -> DataFrame:
    return spark.range(first, last, 1, 3).selectExpr("concat('k', id) as key", "id as value")


def test_a_layered_map_is_loaded_read_and_enriched_from(spark: SparkSession, pond: Pond) -> None:
    layered = pond.create_map("numbers", kind="state", value="long", store="layers")
    where = {"pond": str(pond.folder), "map": "numbers"}
    assert mp.load(counted(spark, 0, 300), pond, "numbers").rows == 300
    again = spark.range(250, 400, 1, 2).selectExpr("concat('k', id) as key", "-id as value")
    again.write.format("millpond").options(**where).mode("append").save()
    assert (layered.info()["rows"], layered.info()["version"]) == (400, 2)
    read = spark.read.format("millpond").options(**where).load()
    assert read.selectExpr("count(*)", "sum(value)").first()[:] == (400, sum(range(250)) - sum(range(250, 400)))
    assert read.where("key = 'k260'").collect()[0]["value"] == -260
    enriched = mp.enrich(counted(spark, 249, 251), pond=pond, map="numbers", key="key", into="known")
    assert sorted(row["known"] for row in enriched.collect()) == [-250, 249]


def test_changes_of_a_layered_map_are_refused(spark: SparkSession, pond: Pond) -> None:
    pond.create_map("numbers", kind="state", value="long", store="layers")
    changes = spark.readStream.format("millpond").options(pond=str(pond.folder), map="numbers").load()
    query = changes.writeStream.format("memory").queryName("changes").start()
    with pytest.raises(PySparkException, match="layered map"):
        query.processAllAvailable()
