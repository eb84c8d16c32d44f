"""One Spark session for the whole run of tests: two threads, a small heap, UTC, no UI."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import millpond
from tests.kafka_server import CONNECTOR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from millpond import spark as mp

    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as environment:
        # Workers inherit it from the JVM.
        environment.setenv("MILLPOND_CLIENT_CACHE", str(scratch / "snapshots"))
        environment.setenv("MILLPOND_EVENTS_REPORTS", "on")
        session = started(mp, scratch)
    mp.register(session)
    yield session
    session.stop()


def started(mp: ModuleType, scratch: Path) -> SparkSession:
    session: SparkSession = mp.start(
        "local[2]", app="millpond-tests", memory="1g",
        settings={
            "spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2",
            "spark.local.dir": str(scratch / "local"), "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            **({"spark.jars": ",".join(CONNECTOR)} if CONNECTOR else {}),
        },
    )  # fmt: skip
    return session


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[millpond.Pond]:
    """A pond that stays open in this process while Spark, in its own, writes to it."""
    with millpond.open(tmp_path / "pond") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _process(process: None) -> None:
    """Tests of this folder may start processes and open sockets."""
