from __future__ import annotations

import pytest

from millpond.stores.bucket_space.space import open_bucket_space
from millpond.testing.contracts.concurrent_spaces import ConcurrentSpaceContract
from millpond.testing.contracts.space_driver import SpaceDriver
from millpond.testing.contracts.space_machine import space_machine
from millpond.testing.contracts.spaces import SpaceContract

D = SpaceDriver("millpond.stores.bucket_space.space:open_bucket_space", options={"max_staleness": 0})
pytestmark = pytest.mark.usefixtures("process")


class TestB(SpaceContract):
    @pytest.fixture
    def space(self, tmp_path):
        s = open_bucket_space(str(tmp_path / "b"))
        self.w = str(tmp_path / "b")
        yield s
        s.close()

    def look_behind(self, space, key):
        with open_bucket_space(self.w).read() as tx:
            return tx.get(key)

    def put_behind(self, space, key, value):
        open_bucket_space(self.w).write(lambda tx: tx.put(key, value))
        space._newest(space._clock.monotonic())


class TestC(ConcurrentSpaceContract):
    driver = D


TestM = space_machine(D).TestCase
