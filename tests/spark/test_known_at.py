"""Layered maps as they were known, by Spark: each row at its own moment, in one pass, wherever the pond lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond import spark as mp
from millpond.errors import Invalid
from millpond.maps.loads.pond_folder import FolderPlace
from tests.nodes.conftest import clock as clock
from tests.nodes.conftest import serve as serve
from tests.nodes.test_bucket_nodes import SETTINGS
from tests.nodes.test_bucket_nodes import url as url

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from millpond import Pond
    from millpond.clock import ManualClock
    from millpond.maps.protocols import PondLike
    from tests.nodes.conftest import Served

LATE = 4_000_000_000_000
"""A moment after every load, and after the query is planned."""


def test_rows_are_enriched_as_known_at_their_moments(spark: SparkSession, pond: Pond) -> None:
    loaded(pond, pond)
    check(spark, pond, pond)


def test_a_node_answers_as_known(spark: SparkSession, serve: Callable[..., Served], clock: ManualClock) -> None:
    node = serve(maps_store="auto")
    with millpond.open(node.url) as remote:
        loaded(remote, node.pond, clock)
        check(spark, remote, node.pond)


@pytest.mark.full
def test_nodes_on_a_bucket_answer_as_known(
    spark: SparkSession, serve: Callable[..., Served], clock: ManualClock, url: str
) -> None:  # fmt: skip
    one, other = (serve(server_data=url, objects_cache=f"cache{number}", **SETTINGS) for number in range(2))
    with millpond.open(one.url) as remote:
        loaded(remote, one.pond, clock)
    clock.advance(2_000)
    one.close()
    with millpond.open(other.url) as remote:
        check(spark, remote, other.pond)
        events = spark.sql("select 'a' as key")
        now = mp.enrich(events, pond=remote, map="numbers", key="key", into="value").first()
        assert now["value"] == 2, "the other node gives the files of a snapshot that it has no copies of"


def loaded(made_by: PondLike, holding: Pond, clock: ManualClock | None = None) -> None:
    """A sharded map where there can be one, and a layered one that is changed three times."""
    if isinstance(holding.place, FolderPlace):
        made_by.create_map("sharded", kind="state", value="long", store="shard")
    layered = made_by.create_map("numbers", kind="state", value="long", store="layers")
    for value in range(3):
        layered.load([{"key": "a", "value": value}])
        if clock is not None:
            clock.advance(1_000)


def check(spark: SparkSession, pond: PondLike, holding: Pond) -> None:
    layered = holding.map("numbers")
    moments = [change.moment_ms for change in layered.rows.past.changes()]
    queried = [moments[0] - 1, *moments, LATE]
    rows = ", ".join(f"('a', timestamp_millis({moment}))" for moment in queried)
    events = spark.sql(f"select * from values {rows}, ('a', null) as events(key, moment)")
    expected = [*layered.lookup(["a"] * 5, known_at=queried).to_pylist(), None]
    assert (expected[0], expected[-2]) == (None, 2)

    def answers(frame: Any, **lookup: Any) -> list[Any]:
        enriched = mp.enrich(frame, pond=pond, map="numbers", key="key", into="value", **lookup)
        return [row["value"] for row in enriched.collect()]

    assert answers(events, known_at="moment") == expected
    training = mp.training_set(events, {"numbers": "key"}, pond=pond, at="moment").collect()
    assert [row["numbers"] for row in training] == expected
    assert answers(events.limit(1), known_at="moment") == [None], "a row that comes alone is as any"
    assert answers(events, known_at=moments[0]) == [layered.get("a", known_at=moments[0])] * 6
    sharded: list[dict[str, Any]] = [{"map": map_.name} for map_ in holding.maps() if map_.name == "sharded"]
    for named in [*sharded, {"map": "numbers", "partition": "key"}]:
        with pytest.raises(Invalid) as refused:
            mp.enrich(events, pond=pond, key="key", into="value", known_at="moment", **named)
        assert refused.value.kind == "known_at_unsupported"
