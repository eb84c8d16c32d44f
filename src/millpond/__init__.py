"""Millpond: the state that data pipelines need.

>>> import millpond
>>> pond = millpond.open("pond")                                    # doctest: +SKIP
>>> pond.map("weather").get("JFK", at="2013-02-08T18:00Z")          # doctest: +SKIP
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, overload

from millpond.clock import Clock
from millpond.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Corrupt,
    Denied,
    Fenced,
    Internal,
    Invalid,
    MillpondError,
    NotFound,
    Unavailable,
    Uncertain,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millpond.copies import CopyReport
    from millpond.copies.repair import RepairReport
    from millpond.maps.enrich import Lookup
    from millpond.maps.loads.load import LoadResult
    from millpond.maps.map import Map
    from millpond.maps.protocols import PondLike
    from millpond.maps.snapshots.snapshot import Snapshot
    from millpond.pond import Pond

__all__ = (
    "AlreadyExists", "Closed", "Conflict", "Corrupt", "Denied", "Fenced", "Internal", "Invalid", "LoadResult", "Lookup",
    "Map", "MillpondError", "NotFound", "Pond", "Unavailable", "Uncertain", "__version__", "copy", "open",
    "open_snapshot", "repair",
)  # fmt: skip

__version__ = "0.1.0"


@overload
def open(where: os.PathLike[str], *, create: bool = True, clock: Clock | None = None, **settings: Any) -> Pond: ...
@overload
def open(where: str, *, create: bool = True, clock: Clock | None = None, **settings: Any) -> PondLike: ...
def open(
    where: str | os.PathLike[str], *, create: bool = True, clock: Clock | None = None, **settings: Any
) -> PondLike:
    """Open the pond in a folder, which is made if missing unless `create` is False; or a pond on nodes, by a URL.

    `settings` of a pond on nodes are those of clients, with their groups: `client_token="…"`,
    `client_synchronise=True`. A folder takes `maps_part_retention`, `maps_history`, `maps_memory_max`,
    `maps_store`, `versions_space`, `versions_objects`, `events_store` and `events_reports`; a bucket `maps_history`,
    `maps_memory_max`, `maps_store`, `events_reports`, `cache`, `cache_max`, `max_staleness` and `space`.

    Raises:
        Invalid: the folder holds something else or, without `create`, no pond; an address or setting not understood.
        Unavailable: none of the nodes can be reached.
    """
    from millpond.client.location import parse_location

    return parse_location(where).open(create=create, clock=clock, **settings)


def copy(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, maps: Sequence[str] = (),
    without_runs: bool = False, clock: Clock | None = None, advance: Callable[[int], object] = lambda _bytes: None,
) -> CopyReport:  # fmt: skip
    """Copy a pond to a folder or a bucket, or these `maps` of it into the pond there; what is copied is verified.

    Of a whole pond go its layered maps with their history, its branches, tags, repositories, events and runs of
    workflows; of maps by name `main`, with its history. From a folder or a node to a new folder go maps in shards, too.
    `without_runs` leaves runs behind where they need not go: from a node, or with shards, to a new folder they come.
    The copy goes on with its runs when it is served, or a pipeline is run there: let one of the two ponds do so.
    Copied again, what changed since is sent, also after a copy that was cut short. `advance` is called with bytes as
    they are sent.

    Raises:
        NotFound: there is no pond at the source, or no such map.
        Invalid: a part of the source cannot be copied, it is named, before anything is made; the target is a node.
        Conflict: the target has a pond or a map of its own, or was changed since it was copied.
        Corrupt: a file of the source is damaged, or what was copied does not verify.
        Unavailable: a place cannot be reached, or a disk is full.
        Denied: a place refuses us.
    """
    from millpond.copies import copy_pond

    return copy_pond(source, target, maps=maps, without_runs=without_runs, clock=clock, advance=advance)


def repair(
    place: str | os.PathLike[str], source: str | os.PathLike[str], *,
    advance: Callable[[int], object] = lambda _bytes: None,
) -> RepairReport:  # fmt: skip
    """Put back the files of layered maps that are damaged or missing in a pond in a folder or a bucket.

    `source` has them: another copy of the pond, or a place of its backups. Damaged files go to quarantine, what comes
    is checked; the report says what was put back, and the problems that are left. `advance` is called with bytes.

    Raises:
        NotFound: there is no pond, or neither a pond nor a backup at the source.
        Invalid: a place is on nodes: `millpond repair URL` has them repaired by their peers.
        Unavailable: a place cannot be reached, or a disk is full.
        Denied: a place refuses us.
    """
    from millpond.copies.repair import repair_pond

    return repair_pond(place, source, advance=advance)


def open_snapshot(
    name: str, where: str | None = None, *, clock: Clock | None = None, **settings: Any
) -> Snapshot:  # fmt: skip
    """Open the published snapshot of a map: only ranges that this machine lacks are fetched. Close it after use.

    `where` is `s3://bucket/prefix` or a shared folder, by default the setting `objects.place`; `settings` are
    those of clients, as of `open`. Credentials come from the environment, `AWS_ACCESS_KEY_ID` …, or the profile of AWS.

    Raises:
        NotFound: the map was not published there, or there is no such bucket.
        Denied: the bucket refuses us.
        Unavailable: the place cannot be reached, and nothing was fetched from it before.
        Corrupt: an object is damaged; it is named.
    """
    from millpond.client.snapshots.published import open_published

    return open_published(name, where=where, clock=clock, **settings)


_LAZY = {
    "Lookup": "millpond.maps.enrich",
    "Pond": "millpond.pond",
    "Map": "millpond.maps.map",
    "LoadResult": "millpond.maps.loads.load",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'millpond' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
