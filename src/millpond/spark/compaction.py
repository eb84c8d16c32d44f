"""Compaction of a layered map as a job: executors fold stretches of keys, the driver joins them and moves the head.

Invariants:
* The layer, its fence and what a kill leaves are those of `Map.compact`; a small one is folded by the driver.
* Executors write ranges alone, which nothing names before the head does: what a job leaves that fails is collected.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millpond.errors import Invalid
from millpond.maps.maintenance.maintenance import MaintenanceReport
from millpond.maps.map_rows import compact_rows
from millpond.spark.layer_tasks import write_by_tasks
from millpond.spark.locations import PondLike, location_of, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("compact_map",)


def compact_map(session: SparkSession, map: str, *, pond: PondLike | None = None) -> MaintenanceReport:
    """Fold all layers of a map to one, as `Map.compact` does; on the executors, where 256 MiB or more are written.

    Raises: as `Map.compact`; `Invalid` for a pond on nodes; PySpark's error of a job that fails.
    """
    from millpond.pond import Pond

    location = location_of(pond, session)
    with opened(pond, location) as opened_pond:
        if not isinstance(opened_pond, Pond):
            raise Invalid("nodes fold layers themselves", kind="pond_local", pond=location.where,
                          hint="order it by Map.compact, or name the pond's folder or bucket")  # fmt: skip
        pond_map = opened_pond.map(map)
        return compact_rows(pond_map.rows, pond_map.loading, map, partial(write_by_tasks, session))
