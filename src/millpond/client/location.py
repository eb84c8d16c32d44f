"""The location of a pond, parsed once: a folder, a bucket, or nodes by their addresses."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from millpond.error_values import shown_address
from millpond.errors import Invalid, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from millpond.client.pond import RemotePond
    from millpond.clock import Clock
    from millpond.pond import Pond

__all__ = ("BucketLocation", "FolderLocation", "NodesLocation", "PondLocation", "in_bucket", "parse_location")


T = TypeVar("T")

_OF_ALL = ("events_reports", "maps_history", "maps_memory_max", "maps_store", "serve")
_OF_FOLDERS = (*_OF_ALL, "events_store", "maps_part_retention", "versions", "versions_objects", "versions_space")
_OF_BUCKETS = (*_OF_ALL, "cache", "cache_max", "max_staleness", "space")


def _check_taken(settings: Mapping[str, Any], taken: Sequence[str], location: str, elsewhere: str) -> None:
    """Refuse settings that a place does not take.

    Raises: `Invalid`, kind `setting_unknown`.
    """
    for name in (name for name in settings if name not in taken):
        others = elsewhere if name in (*_OF_FOLDERS, *_OF_BUCKETS) else "nodes" if name.startswith("client_") else ""
        raise Invalid(
            f"a pond in a {location} has no such setting", kind="setting_unknown", setting=name,
            hint=f"{f'it is one of {others}; ' if others else ''}a {location} takes {', '.join(sorted(taken))}",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FolderLocation:
    """A pond in a folder of this machine."""

    folder: Path

    def open(self, *, create: bool = True, clock: Clock | None = None, **settings: Any) -> Pond:
        """Open the pond, made if missing unless `create` is False, see `open_pond`.

        Raises: as `open_pond`; `Invalid`, kind `setting_unknown`.
        """
        # Arrow and LMDB are imported with the first pond, so that `import millpond` stays light.
        from millpond.pond import open_pond

        _check_taken(settings, _OF_FOLDERS, "folder", "buckets")
        return open_pond(self.folder, create=create, clock=clock, **settings)

    def either(
        self, of_folder: Callable[[Path], T], of_nodes: Callable[[str], T], of_bucket: Callable[[str], T] | None = None
    ) -> T:  # fmt: skip
        """The result of the function for a folder."""
        return of_folder(self.folder)

    def open_existing(self, **_settings: Any) -> Pond:
        """Open the pond; the settings are those of clients, and a folder has none.

        Raises: `NotFound` when there is none.
        """
        if not (self.folder / "pond.json").is_file():
            raise NotFound(
                "there is no pond here", kind="pond_not_found", pond=self.folder,
                hint="make one with 'millpond init', or name one with --pond or MILLPOND_POND",
            )  # fmt: skip
        return self.open(create=False)


@dataclass(frozen=True, slots=True)
class NodesLocation:
    """A pond on nodes: their addresses, by commas."""

    urls: str

    def open(self, *, create: bool = True, clock: Clock | None = None, **settings: Any) -> RemotePond:
        """Open the pond that is there, whether `create` or not, see `open_nodes`."""
        from millpond.client.pond import open_nodes

        return open_nodes(self.urls, clock=clock, **settings)

    def either(
        self, of_folder: Callable[[Path], T], of_nodes: Callable[[str], T], of_bucket: Callable[[str], T] | None = None
    ) -> T:  # fmt: skip
        """The result of the function for nodes, given their addresses."""
        return of_nodes(self.urls)

    def open_existing(self, **settings: Any) -> RemotePond:
        """Open the pond.

        Raises: as `open_nodes`; `Invalid` for an address that is not understood.
        """
        return self.open(**settings)


@dataclass(frozen=True, slots=True)
class BucketLocation:
    """A pond in a bucket, `s3://bucket/prefix`."""

    url: str

    def open(
        self, *, create: bool = True, clock: Clock | None = None, max_staleness: float | None = None,
        cache: str | os.PathLike[str] = "", cache_max: int | str | None = None,
        maps_memory_max: int | str | None = None, maps_history: str | int | None = None, serve: bool = False,
        space: str = "", events_reports: bool | str | None = None, maps_store: str | None = None, **others: Any,
    ) -> Pond:  # fmt: skip
        """Open the pond, made if missing unless `create` is False. `serve`: be a node of it, one of any number.
        `space`: the database of its rows, `postgresql://user@server:5432/database`, for many changes a second. It is
        written down in the bucket, but for the password, which PGPASSWORD or ~/.pgpass has.

        Credentials and the server come from the environment: `AWS_ACCESS_KEY_ID` …, `AWS_ENDPOINT_URL`.
        `max_staleness`: how old in seconds what is read may be, by default 1; 0 asks the bucket each time. `cache`: the
        folder for copies of files, and `cache_max` the bytes of all copies in it (`16GiB`, or bytes), by default what
        `MILLPOND_BUCKET_CACHE_MAX` says, else 16 GiB. `events_reports`: whether work appends events to the queue
        `millpond`, for a request more each load; by default it does not, unless `MILLPOND_EVENTS_REPORTS` is `on`. The
        others are as in `open_pond`.

        Raises: `Invalid` when the prefix holds something else or, without `create`, no pond, for a bucket without
        conditional writes, and for a setting of another place; `Denied` for a right that is missing; `Unavailable` when
        it cannot be reached.
        """
        # Arrow and obstore are imported with the first pond, so that `import millpond` stays light.
        from millpond.clock import SystemClock
        from millpond.maps.loads.bucket_location import bucket_location, bucket_unsupported
        from millpond.maps.model.beginning import Retention
        from millpond.maps.model.store_limits import preferred_store
        from millpond.memory_bound import memory_bound
        from millpond.pond import REPORTS, Pond, reports_wanted

        _check_taken(others, _OF_BUCKETS, "bucket", "folders")
        if maps_store is not None and preferred_store(maps_store) == "shard":
            raise bucket_unsupported("shards", self.url)
        clock = clock or SystemClock()
        stated = os.environ.get(REPORTS, "off") if events_reports is None else events_reports
        location = bucket_location(
            self.url, clock, cache=cache, max_staleness=max_staleness, cache_max=cache_max, space=space
        )
        return Pond(
            location.folder, create=create, clock=clock, retention=Retention.of(None, maps_history), store="layers",
            memory_max=memory_bound(maps_memory_max), location=location, serve=serve,
            events_reports=reports_wanted(stated),
        )  # fmt: skip

    def either(
        self, of_folder: Callable[[Path], T], of_nodes: Callable[[str], T], of_bucket: Callable[[str], T] | None = None
    ) -> T:  # fmt: skip
        """The result of the function for a bucket, given its address.

        Raises: `Invalid`, kind `bucket_unsupported`, where there is none.
        """
        if of_bucket is not None:
            return of_bucket(self.url)
        raise Invalid(
            "this is done with a folder or a node, not with a bucket", kind="bucket_unsupported", pond=self.url,
            hint="see docs/buckets.md for what works in a bucket",
        )  # fmt: skip

    def move_head(self, space: str) -> bool:
        """Move the rows of the pond to another database; False when they lie there, or there is no pond.

        Raises: as `StorageBucket.move_head`.
        """
        from millpond.clock import SystemClock
        from millpond.maps.loads.bucket_location import bucket_location

        return bucket_location(self.url, SystemClock(), space=space).move_head()

    def open_existing(self, *, space: str = "", **_settings: Any) -> Pond:
        """Open the pond, whose rows lie in the database `space`; the other settings are those of clients, and a bucket
        has none.

        Raises: `NotFound` when there is none; as `open`.
        """
        try:
            return self.open(create=False, space=space)
        except Invalid as error:
            if error.kind != "pond_missing":
                raise
            raise NotFound(
                "there is no pond here", kind="pond_not_found", pond=self.url,
                hint=f"make one with 'millpond init {self.url}', or name one with --pond or MILLPOND_POND",
            ) from error  # fmt: skip


PondLocation: TypeAlias = FolderLocation | BucketLocation | NodesLocation


def in_bucket(location: str) -> bool:
    """True for the address of a bucket."""
    return location.strip().lower().startswith("s3://")


def parse_location(location: str | os.PathLike[str]) -> PondLocation:
    """The location that a text names: an address with a scheme is a bucket's or a node's, all else a folder.

    >>> parse_location("http://localhost:7433")
    NodesLocation(urls='http://localhost:7433')
    >>> parse_location("pond").folder.name
    'pond'

    Raises: `Invalid` for a scheme that no node has.
    """
    if not isinstance(location, str):
        return FolderLocation(Path(location))
    if location.strip().lower().startswith(("http://", "https://")):
        return NodesLocation(location)
    if in_bucket(location):
        return BucketLocation(location.strip())
    if "://" in location:
        raise Invalid(
            "the address of a node is not understood", kind="node_url", url=shown_address(location),
            hint="such as http://localhost:7433",
        )  # fmt: skip
    return FolderLocation(Path(location))
