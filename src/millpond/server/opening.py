"""The pond that a node serves, opened as its settings say: in a folder, or in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millpond.client.location import BucketLocation, parse_location
from millpond.maps.loads.bucket_place import bucket_unsupported
from millpond.pond import open_pond
from millpond.versions.place import VersionsPlace

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.pond import Pond
    from millpond.settings import Settings

__all__ = ("open_served",)


def open_served(settings: Settings, clock: Clock) -> Pond:
    """Open the pond of a node, to serve it.

    Raises: as `open_pond`, and as `BucketLocation.open`; `Invalid`, kind `bucket_unsupported`, for a setting that a
    node on a bucket cannot have.
    """
    location = parse_location(settings.server.data)
    if isinstance(location, BucketLocation):
        return _in_bucket(location, settings, clock)
    return open_pond(
        Path(settings.server.data).absolute(),
        clock=clock,
        serve=True,
        maps_part_retention=settings.maps.part_retention,
        maps_history=settings.maps.history,
        versions=VersionsPlace(settings.versions.space, settings.versions.objects),
        events_store=settings.events.store,
        events_reports=settings.events.reports,
        maps_memory_max=settings.maps.memory_max,
        maps_store=settings.maps.store,
    )


def _in_bucket(location: BucketLocation, settings: Settings, clock: Clock) -> Pond:
    stated = {
        "replication": settings.nodes.urls,
        "shards": settings.maps.store == "shard",
        "another place for repositories": settings.versions.space or settings.versions.objects,
        "a Redis for events": settings.events.store,
        "another log of workflows": settings.workflows.log,
        "another store of runs": settings.workflows.store != "pond",
        "backups": settings.objects.backups,
        "readers": settings.server.readers > 1,
    }
    for part in (part for part, value in stated.items() if value):
        raise bucket_unsupported(part, location.url)
    return location.open(
        clock=clock, serve=True, max_staleness=settings.objects.max_staleness / 1000, cache=settings.objects.cache,
        maps_memory_max=settings.maps.memory_max, maps_history=settings.maps.history,
        space=settings.objects.space, events_reports=settings.events.reports,
    )  # fmt: skip
