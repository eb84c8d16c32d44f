"""Shared by all tests: Hypothesis without deadlines (kernels compile on first use).

`quick` is what `make test` runs, and `full` what `make test-full` does; `explore` shows the first failure as it was
found, without making it smaller. `HYPOTHESIS_PROFILE=ci`, as CI sets it, tries the same things in every run: what fails
there is the change that is tested, and what chance finds is found where somebody looks.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import typer.testing
from hypothesis import HealthCheck, Phase, settings

from millpond.stores.objects import ObjectStore, open_objects
from tests.harness.scratch import memory
from tests.rings.again import Again
from tests.rings.ledger import UNIT_SECONDS_MAX, Ledger
from tests.rings.order import Order
from tests.rings.resources import RESOURCES, Resources
from tests.rings.sampling import Sampling, everything
from tests.rings.servers import Keeper, shared
from tests.rings.warm import use_everything_once
from tests.rings.workers import Workers
from tests.s3_server import S3Server

if TYPE_CHECKING:
    from tests.postgres_server import PostgresServer
    from tests.redis_servers import RedisCluster, RedisServer

# Most tests of maps look into shards, or count their syncs and steps. Those over layers say so; the contract of maps
# and the models run over both.
os.environ.setdefault("MILLPOND_MAPS_STORE", "shard")
os.environ.setdefault("MILLPOND_EVENTS_REPORTS", "off")  # tests of other things count syncs, steps and streams
# A JVM that lives for seconds is done before its second compiler has paid for itself.
_QUICK_JVM = "-XX:TieredStopAtLevel=1"
_CLASSES = Path(sys.prefix, "spark.jsa")  # of tools/spark_archive.py
if _CLASSES.exists():
    _QUICK_JVM += f" -XX:SharedArchiveFile={_CLASSES}"
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS", f'--conf "spark.driver.defaultJavaOptions={_QUICK_JVM}" pyspark-shell'
)  # fmt: skip

# The tree of commands is the same for every run of one: to build it takes a tenth of a second.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
_FOUND = (Phase.explicit, Phase.reuse, Phase.generate)

settings.register_profile("quick", deadline=None, max_examples=6, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("ci", settings.get_profile("quick"), derandomize=True)
settings.register_profile("full", deadline=None, max_examples=150, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile(
    "explore", deadline=None, max_examples=100, phases=_FOUND, suppress_health_check=_SLOW_IS_FINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "full" if everything() else "quick"))

_BUCKETS = itertools.count()
_LEDGER = pytest.StashKey[Ledger]()
_RAN = "millpond/unit_ring_ran"
"""In the cache of pytest: tests are held to their time from the second run on, for the first compiles as it goes."""
_FILES_MIN = 100
"""A run of fewer files of tests is not one of the ring."""
_MEMORY_BYTES_MIN = 8 << 30
"""Folders of tests lie in memory where so much is free: a sync of a disk takes 4 ms. In the full ring they do not."""
_OBJECTS_BETWEEN_COLLECTIONS = 20_000
"""With 700, as Python has it, four fifths of the time in which trees of code are read goes to looking for garbage."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--ledger", choices=("off", "compare", "strict", "write"), default="off",
        help="compare what the files of tests cost with tests/durations.json, or write it there",
    )  # fmt: skip
    parser.addoption(
        "--again", type=int, default=0, metavar="COUNT",
        help="run tests that fail once more, alone, where no more than so many do",
    )  # fmt: skip


def _only_units(config: pytest.Config) -> bool:
    return bool(config.getoption("-m") == "unit")


def _fits(place: Path) -> bool:
    return min(shutil.disk_usage(place).free, psutil.virtual_memory().available) >= _MEMORY_BYTES_MIN


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # nothing that is collected goes: to look for garbage takes a sixth of the time
    place = None if everything() else memory()
    if place is not None and _fits(place):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(place))
    for name, words in RESOURCES.items():
        config.addinivalue_line("markers", f"{name}: {words}; follows from a fixture")
    config.stash[_LEDGER] = Ledger(config.getoption("--ledger"))
    plugins = [config.stash[_LEDGER], Sampling(), Resources(), Order()]  # the last one looks at the tests first
    if not hasattr(config, "workerinput"):
        plugins += [Again(config.getoption("--again")), Keeper(), Workers()]
    for plugin in plugins:
        config.pluginmanager.register(plugin)


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if _only_units(config) and config.cache.get(_RAN, False):
        config.stash[_LEDGER].unit_seconds_max = UNIT_SECONDS_MAX


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if _only_units(config) and len(config.stash[_LEDGER].rings["unit"]) >= _FILES_MIN:  # where the run is controlled
        config.cache.set(_RAN, True)


def pytest_collection_finish(session: pytest.Session) -> None:
    if _only_units(session.config) and session.items:
        use_everything_once()
    gc.enable()
    gc.collect()
    gc.freeze()  # else a collection looks through all tests and modules again, in whichever test it comes
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


@pytest.fixture
def process() -> None:
    """The right to start processes and to open sockets: a test that has it is no unit test."""


@pytest.fixture
def spark_process() -> None:
    """The right to start Spark in a process: such tests run one after another."""


@pytest.fixture
def processor() -> None:
    """The right to take more processor time than a unit test may."""


@pytest.fixture(scope="session")
def s3_server() -> S3Server:
    """The S3 server of the run."""
    found: S3Server = shared("s3")
    return found


@pytest.fixture(scope="session")
def redis_server() -> RedisServer:
    """The Redis server of the run."""
    from tests import redis_servers

    return redis_servers.server()


@pytest.fixture(scope="session")
def redis_cluster() -> RedisCluster:
    """The Redis Cluster of the run."""
    from tests import redis_servers

    return redis_servers.cluster()


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    """The PostgreSQL server of the run."""
    from tests import postgres_server

    return postgres_server.server()


@pytest.fixture(scope="session")
def kafka_server() -> str:
    """The address of the Kafka broker of the run."""
    found: str = shared("kafka")
    return found


@pytest.fixture
def bucket(s3_server: S3Server) -> ObjectStore:
    """Objects of a fresh bucket, below a prefix."""
    name = f"bucket-{os.getpid()}-{next(_BUCKETS)}"
    return open_objects(f"{s3_server.make_bucket(name)}/some/prefix", **s3_server.config())
