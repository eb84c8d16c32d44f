"""Every kind of map, loaded through Spark and queried through Spark, answers as the model does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millpond import spark as mp
from millpond.maps.model.columns import presented_schema
from tests.harness.rows import presented, presented_rows
from tests.spark.worlds import WORLDS, World, create, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millpond import Pond
    from millpond.maps.model.definition import MapDefinition

pytestmark = pytest.mark.sample(2, of="file")


def write(frame: DataFrame, pond: Pond, name: str) -> None:
    frame.write.format("millpond").option("pond", str(pond.folder)).option("map", name).mode("append").save()


@pytest.mark.parametrize("definition", WORLDS)
def test_loaded_and_queried_through_spark(spark: SparkSession, pond: Pond, definition: MapDefinition) -> None:
    world = World(definition, seed=len(definition.name))
    made = create(pond, definition)
    write(spark.createDataFrame(world.table()), pond, definition.name)

    questions = world.questions()
    frame = spark.createDataFrame(questions).repartition(2)
    enriched = mp.enrich(frame, pond=pond, map=definition.name, key="wanted", at="moment", into="answer")
    answers = [plain(row.answer) for row in enriched.orderBy("number").collect()]
    assert answers == world.answers(questions)
    assert sum(answer is not None for answer in answers) > 50

    read = spark.read.format("millpond").option("pond", str(pond.folder)).option("map", definition.name).load()
    shown = read.toArrow().cast(presented_schema(definition))  # Spark holds times in microseconds
    assert presented_rows(definition, shown) == presented(definition, world.model.scan())
    assert made.info()["rows"] == len(world.model.rows)
