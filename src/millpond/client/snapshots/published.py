"""Opening snapshots that were published to a bucket or a shared folder: only what this machine lacks is fetched.

    with open_published("weather", where="s3://bucket/millpond") as snapshot:
        snapshot.lookup(keys, at=times)

Copies lie in the machine's cache of snapshots, beside those of nodes, and go by the same rules. While the place cannot
be reached, the copy that was fetched last is shown, and a warning says so.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from millpond.client.snapshots.cache import Confirmation, SnapshotStore
from millpond.clock import Clock, SystemClock
from millpond.errors import Invalid, NotFound, Unavailable
from millpond.maps.model.definition import check_name
from millpond.maps.snapshots.manifest import load_manifest
from millpond.maps.snapshots.published import PublishedLocation, copy_snapshot, damage_of, read_head
from millpond.maps.snapshots.snapshot import Snapshot
from millpond.ranges import FetchReport
from millpond.settings import Settings, load_settings
from millpond.stores.objects import ObjectStore
from millpond.stores.objects.bucket import endpoint_set

__all__ = ("fetch_published", "open_published", "published_location")

_LOG = logging.getLogger(__name__)
_DAMAGED = "remove the object, if it is there, and push the map again: millpond snapshots push MAP --to PLACE"


def published_location(settings: Settings) -> PublishedLocation:
    """The place that the settings name.

    Raises: `Invalid` when they name none.
    """
    if not settings.objects.place:
        raise Invalid(
            "no place for published snapshots is set", kind="objects_unset", setting="objects",
            hint="set objects.place to s3://bucket/prefix in millpond.toml, or MILLPOND_OBJECTS_PLACE",
        )  # fmt: skip
    return PublishedLocation(settings.objects.place)


def open_published(
    name: str, *, where: str | None = None, clock: Clock | None = None, **settings: Any
) -> Snapshot:  # fmt: skip
    """The published snapshot of a map, open; ranges that lie on this machine are not fetched again.

    `where` is the setting `objects.location`, and `settings` have their groups: `client_cache="…"`.

    Raises: `NotFound` when the map was not published there; `Denied`; `Unavailable` when the place cannot be reached
    and nothing was fetched before; `Corrupt`, naming the object that is damaged.
    """
    loaded = load_settings(objects_place=where, **settings)
    try:
        return fetch_published(name, loaded, clock or SystemClock())[0]
    except Unavailable as error:
        store, pond = _store(loaded)
        fetched = store.open(pond, check_name(name), "", loaded.maps.memory_max)
        if fetched is None:
            raise
        _LOG.warning("%s; the snapshot of %s that was fetched last is shown", error, name)
        return fetched.snapshot


def fetch_published(name: str, settings: Settings, clock: Clock) -> tuple[Snapshot, FetchReport]:
    """The published snapshot that counts, open, and what had to be fetched.

    Raises: as `open_published`, also while an older copy is here.
    """
    location = published_location(settings)
    name = check_name(name)
    source = location.of(name)
    store, pond = _store(settings)
    with store.usable(), store.alone(pond, name, settings.client.snapshot_fetch_timeout / 1000):
        head = read_head(source)
        if head is None:
            raise NotFound(
                "the map was not published here", kind="published_not_found", map=name, where=location.where,
                hint="publish it: millpond snapshots push",
            )  # fmt: skip
        snapshot, report = _bring(source, store, pond, head[0].manifest, settings, clock)
    if report.ranges:
        store.sweep(clock.now_ms())
    return snapshot, report


def _bring(
    source: ObjectStore, store: SnapshotStore, pond: str, manifest_id: str, settings: Settings, clock: Clock
) -> tuple[Snapshot, FetchReport]:
    """Fetch what is missing, let it count here, and remove what it replaces. Call it while the store is locked."""
    now = clock.now_ms()
    with damage_of(source.where, _DAMAGED):
        manifest = load_manifest(source, manifest_id)
        objects = store.objects(pond, manifest.map, manifest.incarnation)
        report = copy_snapshot(source, objects, manifest)
    snapshot = Snapshot.open(objects, manifest, memory_max=settings.maps.memory_max)
    store.confirm(pond, manifest.map, "", Confirmation(manifest.id, manifest.incarnation, "", now))
    store.collect(pond, manifest, now)
    return snapshot, report


def _store(settings: Settings) -> tuple[SnapshotStore, str]:
    """The machine's cache, and the name under which copies from this place lie there."""
    location = f"{endpoint_set()} {settings.objects.place}".encode()
    return SnapshotStore(settings.client.snapshots), f"published-{hashlib.blake2b(location, digest_size=8).hexdigest()}"
