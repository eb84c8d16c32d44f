"""Every driver of a space keeps its promises to threads and processes, and is a sorted dict all along."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from hypothesis import settings

from millpond.testing.contracts.concurrent_spaces import ConcurrentSpaceContract
from millpond.testing.contracts.space_driver import SpaceDriver
from millpond.testing.contracts.space_machine import space_machine
from tests.postgres_server import new_location

pytestmark = pytest.mark.usefixtures("process")

needs_psycopg = pytest.mark.skipif(find_spec("psycopg") is None, reason="the extra postgres is not installed")
needs_rocksdict = pytest.mark.skipif(find_spec("rocksdict") is None, reason="the extra rocksdb is not installed")

MEMORY = SpaceDriver("millpond.stores.memory:MemorySpace", lasting=False, shared=False)
LMDB = SpaceDriver("millpond.stores.lmdb.space:LmdbSpace")
ROCKSDB = SpaceDriver("millpond.stores.rocksdb.space:RocksSpace", shared=False)
QUICK_ROCKSDB = SpaceDriver("millpond.stores.rocksdb.space:RocksSpace", options={"durable": False}, shared=False)
QUICK_LMDB = SpaceDriver("millpond.stores.lmdb.space:LmdbSpace", options={"durable": False})
POSTGRES = SpaceDriver("millpond.stores.postgres.space:PostgresSpace", locate=lambda _: new_location())

TestMemoryMachine = space_machine(MEMORY).TestCase
TestLmdbMachine = space_machine(QUICK_LMDB).TestCase
TestPostgresMachine = needs_psycopg(space_machine(POSTGRES).TestCase)
# Each step is several questions to a server: a third of the examples lasts as long as all of the others'.
TestPostgresMachine.settings = settings(max_examples=settings.default.max_examples // 3)
TestRocksMachine = needs_rocksdict(space_machine(QUICK_ROCKSDB).TestCase)


class TestMemoryAtOnce(ConcurrentSpaceContract):
    """Threads only: it is gone with its process."""

    driver = MEMORY


class TestLmdbAtOnce(ConcurrentSpaceContract):
    """With its syncs, and the commits that threads share."""

    driver = LMDB


@needs_rocksdict
@pytest.mark.sample(4, of="threads over RocksDB")
class TestRocksAtOnce(ConcurrentSpaceContract):
    """With its syncs."""

    driver = ROCKSDB


@needs_psycopg
@pytest.mark.sample(4, of="threads over PostgreSQL")
class TestPostgresAtOnce(ConcurrentSpaceContract):
    """Processes overtake each other, and run their writes again."""

    driver = POSTGRES
