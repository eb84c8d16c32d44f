"""Writers to a space in a bucket of a real server, each behind a proxy that cuts requests and answers at random."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from millpond.clock import SystemClock
from millpond.errors import Unavailable, Uncertain
from millpond.stores.bucket_space.space import BucketSpace
from tests.harness.faulty_proxy import FaultyProxy, Trouble
from tests.rings.sampling import seed

if TYPE_CHECKING:
    from millpond.kernel.space import Transaction
    from millpond.stores.objects import ObjectStore

__all__ = ("WRITES", "Writer")

WRITES = 60


class Writer:
    """A process that counts and leaves a token with each write, through a proxy of its own that fails at random."""

    def __init__(self, number: int, proxy: FaultyProxy, objects: ObjectStore) -> None:
        self.number, self.proxy, self.chance = number, proxy, random.Random(f"{seed()} {number}")
        self.space = BucketSpace(objects, SystemClock(), max_staleness=0, checkpoint_batches=16, follower_ms=1_000)
        self.acknowledged: list[bytes] = []
        self.unknown: list[bytes] = []
        self.refused: list[bytes] = []

    def run(self) -> None:
        for number in range(WRITES):
            if self.chance.random() < 0.4:
                match, down = self.chance.choice([b"PUT ", b"GET "]), self.chance.random() < 0.6
                self.proxy.trouble(Trouble("cut", match=match, down=down, after=self.chance.randrange(0, 400)))
            token = b"token %d-%03d" % (self.number, number)
            try:
                self.space.write(partial(_add, token))
            except Uncertain:
                self.unknown.append(token)
            except Unavailable:
                self.refused.append(token)
            else:
                self.acknowledged.append(token)
        self.proxy.mend()
        self.space.close()


def _add(token: bytes, tx: Transaction) -> None:
    count = int(tx.get(b"total") or b"0") + 1
    assert tx.get(token) is None, "a write is not made twice"
    tx.put(b"total", b"%d" % count)
    tx.put(token, b"%d" % count)
