"""Every driver of a space keeps its promises to threads and processes, and is a sorted dict all along."""

from __future__ import annotations

from millpond.testing.contracts.concurrent_spaces import ConcurrentSpaceContract
from millpond.testing.contracts.space_driver import SpaceDriver
from millpond.testing.contracts.space_machine import space_machine

MEMORY = SpaceDriver("millpond.stores.memory:MemorySpace", lasting=False, shared=False)
LMDB = SpaceDriver("millpond.stores.lmdb.space:LmdbSpace")
QUICK_LMDB = SpaceDriver("millpond.stores.lmdb.space:LmdbSpace", options={"durable": False})

TestMemoryMachine = space_machine(MEMORY).TestCase
TestLmdbMachine = space_machine(QUICK_LMDB).TestCase


class TestMemoryAtOnce(ConcurrentSpaceContract):
    """Threads only: it is gone with its process."""

    driver = MEMORY


class TestLmdbAtOnce(ConcurrentSpaceContract):
    """With its syncs, and the commits that threads share."""

    driver = LMDB
