"""Ponds of one bucket, in memory or a folder, each opened as by a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.clock import Clock, SystemClock
from millpond.maps.loads.bucket_location import StorageBucket
from millpond.maps.model.beginning import AS_BEFORE, Retention
from millpond.pond import Pond

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.stores.objects import ObjectStore

__all__ = ("pond_over",)


def pond_over(
    objects: ObjectStore, folder: Path, clock: Clock | None = None, retention: Retention = AS_BEFORE,
    address: str = "memory://",
) -> Pond:  # fmt: skip
    """The pond in a bucket; `folder` is for copies, and of one process alone. Its repositories lie below the address:
    in memory, each process has its own.
    """
    clock = clock or SystemClock()
    location = StorageBucket(address, folder, clock, 0.0)
    object.__setattr__(location, "objects", objects)
    return Pond(location.folder, create=True, clock=clock, retention=retention, store="layers", location=location)
