"""The pond a Spark call speaks of: an open one, a folder, a bucket, nodes by their URLs, or the session's own.

To other processes it travels as a `Location`: the folder's absolute path, the address of the bucket, or the URLs with
what is needed to be let in. What differs between them, each does in its way; nobody else looks which it is.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from pyspark.sql import SparkSession

from millpond.client.location import parse_location
from millpond.clock import Clock, SystemClock
from millpond.errors import Invalid, MillpondError, NotFound
from millpond.kernel.job_reports import NO_REPORTS, JobReports
from millpond.maps.loads.pond_folder import writer_folder
from millpond.refs.face import ref_twice
from millpond.stores.objects import open_objects
from millpond.times.instants import clear_instant

if TYPE_CHECKING:
    from millpond.client.map import RemoteMap
    from millpond.client.pond import RemotePond
    from millpond.client.ref_ponds import RemoteRefPond
    from millpond.client.transport import Nodes
    from millpond.maps.map import Map
    from millpond.maps.protocols import MapLike
    from millpond.maps.snapshots.manifest import SnapshotManifest
    from millpond.pond import Pond
    from millpond.refs.pond import RefPond
    from millpond.settings import Settings
    from millpond.spark.change_log import Change, Log
    from millpond.spark.planned_snapshot import PlannedSnapshots
    from millpond.spark.staging import StagingDir

__all__ = (
    "POND", "SparkBucket", "SparkFolder", "SparkNodes", "OpenPond", "Location", "PondLike", "Rights", "nodes_at",
    "opened",
    "location_named", "location_of", "rights_of",
)  # fmt: skip

OpenPond: TypeAlias = "Pond | RemotePond"
PondLike: TypeAlias = "OpenPond | RefPond | RemoteRefPond | str | os.PathLike[str]"
AnyLocation = TypeVar("AnyLocation", "SparkFolder", "SparkNodes")

POND = "spark.millpond.pond"
"""The setting of a session that names the pond for calls that name none."""

_TOKEN, _AUTHORITY = "spark.millpond.token", "spark.millpond.tls_ca"


@dataclass(frozen=True, slots=True)
class Rights:
    """With what nodes let a session in: its token, and who vouches for them."""

    token: str = field(default="", repr=False)
    tls_ca: str = ""


class Location(Protocol):
    """The location of a pond, as it travels to executors; `where` names it in options and settings."""

    def __hash__(self) -> int: ...

    @property
    def where(self) -> str: ...

    @property
    def branch(self) -> str: ...

    def open(self) -> OpenPond:
        """Open the pond.

        Raises: `Invalid` when there is none in the folder; `Unavailable` when no node answers.
        """

    def reports(self) -> AbstractContextManager[JobReports]:
        """The place that jobs report to; none when the pond cannot be opened."""

    def staging_dir(
        self, clock: Clock, owner: int, *, lasting: bool = True, load_id: str | None = None
    ) -> StagingDir:  # fmt: skip
        """The staging directory of a new job; leftovers in a folder are removed when the process `owner` is dead.

        Without `lasting` the job's folder is made by its first attempt and goes with its last. What was entered under
        a `load_id` is not entered again.
        """

    def log(self, name: str, clock: Clock) -> Log:
        """The log of the pond, as far as it is about one map."""

    def at(self, branch: str | None, ref: str | None) -> Location:
        """The place as it is on a branch, or at a ref.

        Raises: `Invalid` where both are named.
        """

    def map(self, pond: OpenPond, name: str) -> Map | RemoteMap:
        """A map, as it is on the branch or at the ref.

        Raises: `NotFound`.
        """

    def maps(self, pond: OpenPond) -> Sequence[Map | RemoteMap]:
        """All maps, likewise."""

    def alter(self, pond: OpenPond, name: str, **settings: Any) -> MapLike:
        """Change the fields of a map for a load.

        Raises: as `Pond.alter_map`.
        """

    def pin(
        self, pond: OpenPond, name: str, age_ms: int = 0, since_ms: int = 0
    ) -> tuple[PlannedSnapshots, SnapshotManifest]:
        """The map as it is now, or was at most `age_ms` ago; it is frozen first if it moved on. Of layers in a folder
        or a bucket it is as it was at `since_ms`, or so many times `age_ms` later.

        Raises: `NotFound` for a map that is not there.
        """

    def part(self, change: Change) -> AbstractContextManager[Path]:
        """The file of the part of a change, on an executor.

        Raises: `NotFound` when it is kept no more.
        """


def _at_ref(location: AnyLocation, branch: str | None, ref: str | None) -> AnyLocation:
    if branch and ref:
        raise ref_twice(branch, ref)
    if not branch and not ref:
        return location
    return replace(location, branch="" if branch == "main" else branch or "", ref=ref or "")


def _check_staged(ref: str) -> None:
    if ref:
        raise Invalid("a ref is only read", kind="ref_read_only", ref=ref, hint="load on a branch: branch=")


@dataclass(frozen=True, slots=True)
class SparkFolder:
    """A pond in a folder that driver and executors see under one path, which is absolute; on a branch, or at a ref."""

    where: str
    branch: str = ""
    ref: str = ""

    @property
    def folder(self) -> Path:
        """The folder."""
        return Path(self.where)

    def open(self) -> Pond:
        """Open the pond in the folder, which must be there."""
        from millpond.pond import open_pond

        return open_pond(self.folder, create=False, clock=SystemClock())

    @contextmanager
    def reports(self) -> Iterator[JobReports]:
        """Those of the pond, opened for as long as this lasts."""
        with ExitStack() as opened_pond:
            reports = NO_REPORTS
            with suppress(MillpondError):
                reports = opened_pond.enter_context(self.open()).reports
            yield reports

    def staging_dir(
        self, clock: Clock, owner: int, *, lasting: bool = True, load_id: str | None = None
    ) -> StagingDir:  # fmt: skip
        """A folder below the pond's own."""
        from millpond.spark.staging import FolderStagingDir

        _check_staged(self.ref)
        return FolderStagingDir(writer_folder(self.folder, clock, owner), lasting, load_id, self.branch)

    def log(self, name: str, clock: Clock) -> Log:
        """The log in the pond's space."""
        from millpond.spark.change_log import FolderLog

        return FolderLog(self.open(), name)

    def at(self, branch: str | None, ref: str | None) -> SparkFolder:
        """The pond on a branch, or at a ref."""
        return _at_ref(self, branch, ref)

    def map(self, pond: OpenPond, name: str) -> Map:
        """A map of the pond, or of it on the branch or at the ref."""
        from millpond.pond import Pond

        if isinstance(pond, Pond) and self.branch:
            return pond.branch(self.branch).map(name)
        return pond.at(self.ref).map(name) if isinstance(pond, Pond) and self.ref else cast("Pond", pond).map(name)

    def maps(self, pond: OpenPond) -> Sequence[Map | RemoteMap]:
        """All maps of the pond, or of it on the branch."""
        return cast("Pond", pond).branch(self.branch).maps() if self.branch else pond.maps()

    def alter(self, pond: OpenPond, name: str, **settings: Any) -> MapLike:
        """Change the fields of a map, on the branch by a commit of its own."""
        if self.branch:
            return cast("Pond", pond).branch(self.branch).alter_map(name, **settings)
        return pond.alter_map(name, **settings)

    def pin(
        self, pond: OpenPond, name: str, age_ms: int = 0, since_ms: int = 0
    ) -> tuple[PlannedSnapshots, SnapshotManifest]:
        """Freeze the map: its snapshot stays while somebody leases it."""
        from millpond.spark.planned_snapshot import snapshots_of

        pond_map, now = self.map(pond, name), SystemClock().now_ms()
        if age_ms:
            # A shard has one state, and history may be kept for less: then the newest is taken.
            known_at = clear_instant(now - (now - since_ms) % age_ms)
            with suppress(Invalid, NotFound), pond_map.rows.past.leased(known_at) as leased:
                return snapshots_of(self, pond_map), leased.manifest
        with pond_map.snapshots.current() or nullcontext() as current:
            young = current is not None and current.manifest.created_ms > now - age_ms
            manifest = current.manifest if current is not None and young else pond_map.freeze()
        return snapshots_of(self, pond_map), manifest

    @contextmanager
    def part(self, change: Change) -> Iterator[Path]:
        """The part where it lies."""
        assert change.file is not None, "a change of a folder's log has the file of its part"
        yield Path(change.file)


@dataclass(frozen=True, slots=True)
class SparkBucket(SparkFolder):
    """A pond in a bucket, by its address, that driver and executors reach each with their own credentials."""

    def open(self) -> Pond:
        """Open the pond, which must be there."""
        from millpond.client.location import BucketLocation

        return BucketLocation(self.where).open(create=False)

    @contextmanager
    def reports(self) -> Iterator[JobReports]:
        """None: work on a pond in a bucket is not reported."""
        yield NO_REPORTS

    def staging_dir(
        self, clock: Clock, owner: int, *, lasting: bool = True, load_id: str | None = None
    ) -> StagingDir:  # fmt: skip
        """A prefix below the pond's own."""
        from millpond.spark.bucket_staging import BucketStagingDir, job_name

        _check_staged(self.ref)
        return BucketStagingDir(open_objects(self.where), job_name(clock), lasting, load_id, self.branch)


@dataclass(frozen=True, slots=True)
class SparkNodes:
    """A pond on nodes: their URLs by commas; on a branch, or at a ref.

    `rights` are the session's, and go with it to executors, whose own settings win where they name some.
    """

    where: str
    rights: Rights = field(default_factory=Rights)
    branch: str = ""
    ref: str = ""

    def settings(self) -> Settings:
        """The settings of this process, with the driver's token and authority as defaults."""
        from millpond.settings import load_settings

        settings = load_settings()
        token, tls_ca = settings.client.token or self.rights.token, settings.tls.ca or self.rights.tls_ca
        return load_settings(client_token=token or None, tls_ca=tls_ca or None)

    def nodes(self) -> Nodes:
        """Connections to the nodes."""
        from millpond.client.transport import Nodes

        return Nodes(self.where, self.settings(), clock=SystemClock())

    def open(self) -> RemotePond:
        from millpond.client.pond import RemotePond

        return RemotePond(self.where, self.settings(), clock=SystemClock())

    @contextmanager
    def reports(self) -> Iterator[JobReports]:
        """Those of a client, connected for as long as this lasts; its settings may turn them off."""
        with ExitStack() as opened_pond:
            reports = NO_REPORTS
            with suppress(MillpondError):
                if self.settings().events.reports:
                    reports = opened_pond.enter_context(self.open()).reports
            yield reports

    def staging_dir(
        self, clock: Clock, owner: int, *, lasting: bool = True, load_id: str | None = None
    ) -> StagingDir:  # fmt: skip
        """The nodes take the parts; a temporary folder each executor has of its own."""
        from millpond.spark.staging import NodesStagingDir

        _check_staged(self.ref)
        return NodesStagingDir(self, load_id or clock.random_id(), drawn=load_id is None)

    def log(self, name: str, clock: Clock) -> Log:
        """The log, of the first node that answers."""
        from millpond.spark.change_log import NodesLog

        return NodesLog(self, name, clock)

    def at(self, branch: str | None, ref: str | None) -> SparkNodes:
        """The pond on a branch, or at a ref."""
        return _at_ref(self, branch, ref)

    def map(self, pond: OpenPond, name: str) -> RemoteMap:
        """A map of the pond, or of it on the branch or at the ref."""
        return nodes_at(self, pond).map(name)

    def maps(self, pond: OpenPond) -> Sequence[RemoteMap]:
        """All maps, likewise."""
        return nodes_at(self, pond).maps()

    def alter(self, pond: OpenPond, name: str, **settings: Any) -> MapLike:
        """Change the fields of a map, on the branch by a commit of its own."""
        there = cast("RemotePond", pond)
        return (there.branch(self.branch) if self.branch else there).alter_map(name, **settings)

    def pin(
        self, pond: OpenPond, name: str, age_ms: int = 0, since_ms: int = 0
    ) -> tuple[PlannedSnapshots, SnapshotManifest]:
        """Pin the snapshot on the nodes for some hours."""
        from millpond.client.connections import node_urls
        from millpond.client.snapshots.pin import SnapshotPin
        from millpond.client.snapshots.planned import plan_snapshot
        from millpond.spark.planned_snapshot import NodesSnapshots

        pin = SnapshotPin(node_urls(self.where), self.map(pond, name).name, branch=self.branch, ref=self.ref)
        pinned, manifest = plan_snapshot(pin, age_ms=age_ms, settings=self.settings())
        return NodesSnapshots(self, pinned), manifest

    @contextmanager
    def part(self, change: Change) -> Iterator[Path]:
        """The part, fetched into a temporary file."""
        with tempfile.TemporaryDirectory(prefix="millpond-") as scratch, self.open() as pond:
            file = Path(scratch) / change.part
            pond.parts.fetch(change.part, file)
            yield file


def nodes_at(location: SparkNodes, pond: OpenPond) -> RemotePond | RemoteRefPond:
    """An open pond on nodes as it is on the branch, or at the ref, of its place.

    Raises: `NotFound`.
    """
    there = cast("RemotePond", pond)
    return there.branch(location.branch) if location.branch else there.at(location.ref) if location.ref else there


def location_of(pond: PondLike | None, session: SparkSession | None = None, *, refs: bool = False) -> Location:
    """The pond that is meant: the one given, else the session's.

    Raises: `Invalid` when there is neither, and for a pond at a ref where not `refs`.
    """
    location = pond if pond is not None else (session.conf.get(POND, None) if session else None)
    if location is None:
        raise Invalid(
            "no pond is named", kind="pond_unnamed", hint=f"pass pond=…, or set {POND}; sources take option('pond', …)"
        )
    if not isinstance(location, str | os.PathLike):
        pond, at = _ref_in(location)
        if at is not None and not refs:
            raise Invalid("this is done on main", kind="ref_unsupported", pond=repr(location),
                          hint="name the pond itself")  # fmt: skip
        return _pond_location(pond).at(*(at or (None, None)))
    return location_named(os.fspath(location), Rights() if session is None else rights_of(session))


def rights_of(session: SparkSession) -> Rights:
    """The token and authority in the session's settings."""
    return Rights(session.conf.get(_TOKEN, None) or "", session.conf.get(_AUTHORITY, None) or "")


def location_named(location: str, rights: Rights) -> Location:
    """The place that a text names; where the rights leave something open, with what this process is set to.

    Raises: `Invalid` for URLs that are not understood.
    """
    return parse_location(location).either(_folder, lambda urls: _nodes(urls, rights), _bucket)


def _ref_in(pond: OpenPond | RefPond | RemoteRefPond) -> tuple[OpenPond, tuple[str | None, str | None] | None]:
    """The pond, and its branch or ref, if it is that of one."""
    from millpond.client.ref_ponds import RemoteBranchPond, RemoteRefPond
    from millpond.refs.pond import BranchPond, RefPond

    if not isinstance(pond, RefPond | RemoteRefPond):
        return pond, None
    at = (pond.ref, None) if isinstance(pond, BranchPond | RemoteBranchPond) else (None, pond.ref)
    return cast("OpenPond", pond.refs.pond if isinstance(pond, RefPond) else pond.pond), at


def _pond_location(pond: OpenPond) -> Location:
    from millpond.maps.loads.bucket_location import StorageBucket
    from millpond.pond import Pond

    if not isinstance(pond, Pond):
        return SparkNodes(pond.nodes.where, Rights(pond.settings.client.token, pond.settings.tls.ca or ""))
    return SparkBucket(pond.location.address) if isinstance(pond.location, StorageBucket) else _folder(pond.folder)


def _bucket(url: str) -> Location:
    from millpond.maps.loads.bucket_location import bucket_location

    return SparkBucket(bucket_location(url, SystemClock()).address)


def _folder(folder: Path) -> Location:
    return SparkFolder(str(folder.absolute()))  # executors work elsewhere than the driver


def _nodes(urls: str, rights: Rights) -> Location:
    from millpond.client.connections import node_urls
    from millpond.settings import load_settings

    ours = load_settings()
    rights = Rights(rights.token or ours.client.token, rights.tls_ca or ours.tls.ca or "")
    return SparkNodes(",".join(node_urls(urls)), rights)


@contextmanager
def opened(pond: PondLike | None, location: Location) -> Iterator[OpenPond]:
    """The pond at a place: the one that was given when it is open, else opened for as long as this lasts.

    Raises: `Invalid` when there is no pond in the folder; `Unavailable` when no node answers.
    """
    if pond is not None and not isinstance(pond, str | os.PathLike):
        yield _ref_in(pond)[0]
        return
    with location.open() as made:
        yield made
