"""The runs of a pond in a bucket: a command log and checkpoints beside its space, each process with stores of its own.

<prefix>/workflows/log/<partition>/             `logs/bucket.py`
         workflows/checkpoints/<partition>/     `checkpoints.py`
the row `workflows/owner` of the space          there when the pond has, or had, workflows
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from millpond.clock import Clock
from millpond.kernel.space import Space
from millpond.kernel.verify import Report, attempt
from millpond.stores.objects import ObjectStore, StoreBelow
from millpond.workflows.keyspaces import OWNER
from millpond.workflows.logs.bucket import BucketLog
from millpond.workflows.partitions.checkpoints import Checkpoints
from millpond.workflows.partitions.follower import Follower
from millpond.workflows.partitions.stores import open_store

__all__ = ("BUCKET_PARTITIONS", "BucketRuns", "check_bucket", "has_runs", "stores_now")

BUCKET_PARTITIONS = 2
"""One for metadata, one for runs: all of a moment share a batch, and a bucket takes few of them a second."""
REPLAY_SECONDS = 600.0


class BucketRuns(NamedTuple):
    """The log and the checkpoints of a pond."""

    log: BucketLog
    checkpoints: Checkpoints

    @classmethod
    def below(cls, objects: ObjectStore, clock: Clock) -> BucketRuns:
        """Those whose objects are given.

        Raises: `Corrupt`, `Denied`, `Unavailable`.
        """
        log = BucketLog(StoreBelow(objects, "log"), BUCKET_PARTITIONS, clock)
        return cls(log, Checkpoints(StoreBelow(objects, "checkpoints")))


def has_runs(space: Space) -> bool:
    """True for the space of a pond that has, or had, workflows in its bucket."""
    with space.read() as tx:
        return tx.get(OWNER.pack()) is not None


@contextmanager
def stores_now(objects: ObjectStore, clock: Clock) -> Iterator[list[Follower]]:
    """All partitions as they are now, to be read, while the context lasts: in a folder that goes with it.

    Raises: as `open_store`.
    """
    runs = BucketRuns.below(objects, clock)
    opened: list[Follower] = []
    with tempfile.TemporaryDirectory(prefix="millpond-runs-") as folder:
        try:
            for number in range(runs.log.partitions):
                space = open_store(Path(folder), number, runs.log, runs.checkpoints)
                opened.append(Follower(runs.log, number, space, clock, lambda _: None))
                opened[-1].start()
                opened[-1].wait_until(runs.log.end(number), REPLAY_SECONDS)
            yield opened
        finally:
            for follower in opened:
                follower.stop()
                follower.space.close()
            runs.log.close()


def check_bucket(objects: ObjectStore, clock: Clock, check: Callable[[Space], Report]) -> Report:
    """Check the runs of a pond in a bucket: its log and checkpoints are read whole."""

    def checked() -> Iterator[Report]:
        with stores_now(objects, clock) as stores:
            yield from (check(store.space) for store in stores)

    return attempt("log of workflows", objects.where, checked, "restore its objects from a version of the bucket")
