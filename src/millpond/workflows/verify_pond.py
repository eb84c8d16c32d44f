"""Checking the runs of a pond, wherever they lie, where there are some and their extras are installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from millpond.kernel.verify import Report
from millpond.workflows.keyspaces import INITIALIZED, OWNER

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.kernel.space import Space
    from millpond.stores.objects import Beside

__all__ = ("check_pond_runs",)


def check_pond_runs(space: Space, beside: Beside | None, clock: Clock) -> Report:
    """Check the runs in a space, or in the objects beside that of a bucket."""
    with space.read() as tx:
        here, in_bucket = tx.get(INITIALIZED.pack()) is not None, tx.get(OWNER.pack()) is not None
    if find_spec("littlehorse") is None or not (here or (in_bucket and find_spec("rocksdict"))):
        return Report()
    from millpond.workflows.verify import check_runs

    if beside is None:
        return check_runs(space)
    from millpond.workflows.partitions.bucket import check_bucket

    return check_bucket(beside.objects, clock, check_runs)
