"""A real broker of Kafka → Structured Streaming → streams of events."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    import millpond

TOPIC = "jobs-of-spark"


def test_messages_are_stored_once_also_from_an_older_checkpoint_or_none(
    spark: SparkSession, pond: millpond.Pond, kafka_server: str, tmp_path: Path
) -> None:
    def produce(first: int, last: int) -> None:
        rows = spark.range(first, last).selectExpr("cast(id as string) key", "concat('event ', id) value")
        rows.write.format("kafka").option("kafka.bootstrap.servers", kafka_server).option("topic", TOPIC).save()

    def consume(checkpoint: str) -> None:
        reader = (
            spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka_server).option("subscribe", TOPIC)
        )
        messages = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 15).load()
        rows = messages.selectExpr("topic", "partition", "offset", "timestamp time", "value payload", "'new' kind")
        query = rows.writeStream.format("millpond.events").option("pond", str(pond.folder)).trigger(availableNow=True)
        query = query.option("queue", "etl").option("job_set", "nightly")
        query.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination()

    def payloads() -> list[bytes]:
        return [event.payload for event in pond.events.read("etl", "nightly")]

    produce(0, 40)
    consume("checkpoint")
    assert Counter(payloads()) == Counter(f"event {n}".encode() for n in range(40))
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    produce(40, 60)
    consume("checkpoint")
    before = payloads()
    assert Counter(before) == Counter(f"event {n}".encode() for n in range(60))
    for checkpoint in ("older", "new"):
        consume(checkpoint)
        assert payloads() == before, checkpoint
