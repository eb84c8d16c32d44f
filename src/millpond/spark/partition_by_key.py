"""Shuffling rows by key before they are enriched, so that each task needs its share of a snapshot alone.

A column with the number of its share is added to each row, and rows are moved to the task of that number. What a task
opens is decided by this column, never by the task's own number: however Spark places rows, each is looked up in the
share that has its key. Rows without a key go to all tasks in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import IntegerType

from millpond.arrays.xxh3 import hash_keys
from millpond.errors import Invalid
from millpond.maps.inputs.key_columns import keys_of
from millpond.maps.model.definition import MapDefinition
from millpond.maps.snapshots.partition_filter import SHARES_MAX, shares_of
from millpond.spark.private_api import is_connect
from millpond.spark.udf import Question, in_batches

__all__ = ("SHARE", "PartitionBy", "by_share", "check_partition", "one_key", "partition_count")

SHARE = "__millpond_share"
SHARE_BYTES = 256 << 20
"""The bytes of all maps together that one task needs."""
PARTITION = ("key",)

PartitionBy: TypeAlias = Literal["key"]


def check_partition(partition: str | None, partitions: int | None) -> None:
    """Refuse what is no way to partition rows.

    Raises: `Invalid`.
    """
    if partition is not None and partition not in PARTITION:
        raise Invalid(
            "rows cannot be partitioned by that", kind="partition_unknown", partition=repr(partition),
            hint="say partition='key', or leave it out: then rows stay where they are",
        )  # fmt: skip
    if partitions is None:
        return
    if partition is None or isinstance(partitions, bool) or not 1 <= partitions <= SHARES_MAX:
        raise Invalid(
            "that is no number of partitions", kind="partition_count", partitions=partitions,
            hint=f"partitions= goes with partition='key', and is 1 to {SHARES_MAX}",
        )  # fmt: skip


def one_key(names: Sequence[str], definitions: Sequence[MapDefinition]) -> None:
    """Refuse lookups that cannot share one shuffle.

    Raises: `Invalid` naming two columns that differ, or a map of ranges.
    """
    for definition in definitions:
        if not definition.kind.keyed:
            raise Invalid(
                "rows can be partitioned by the keys of a map, not by numbers in its ranges", kind="partition_ranged",
                map=definition.name, map_kind=definition.kind.value,
                hint="leave partition out for this map; two calls of enrich may follow each other",
            )  # fmt: skip
    for first, second in itertools.pairwise(names):
        if first != second:
            raise Invalid(
                "lookups with different keys cannot share a shuffle", kind="partition_keys", key=first, other=second,
                hint="call enrich once for each key",
            )  # fmt: skip


def partition_count(session: SparkSession, bytes_: int, partitions: int | None) -> int:
    """The number of tasks: as many as run at once, or more when their shares would be larger than `SHARE_BYTES`."""
    if partitions is not None:
        return partitions
    shuffled = int(session.conf.get("spark.sql.shuffle.partitions") or 200)
    at_once = shuffled if is_connect(session) else session.sparkContext.defaultParallelism
    return min(SHARES_MAX, max(at_once, -(-bytes_ // SHARE_BYTES)))


def by_share(frame: DataFrame, key: Column, question: Question, count: int) -> DataFrame:
    """The rows with the column `SHARE`, each in the partition of that number."""
    share = in_batches(_shares(question, count), IntegerType())
    numbered = frame.withColumn(SHARE, share(key))
    return numbered.repartitionById(count, SHARE)


def _shares(question: Question, count: int) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    definition = question.definition

    def share(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        turn = 0
        for keys in batches:
            # What is no key is an error, or a miss, when it is looked up.
            lookup_keys = keys_of(definition, keys, "miss")
            numbers = shares_of(hash_keys(lookup_keys, bits=definition.hash_bits), count)
            if lookup_keys.null_count:
                missing = ~lookup_keys.is_valid().to_numpy(zero_copy_only=False)
                numbers[missing] = (turn + np.arange(int(missing.sum()))) % count
                turn += int(missing.sum())
            yield pa.array(numbers.astype(np.int32))

    share.__name__ = "share"  # what a plan calls it
    return share
