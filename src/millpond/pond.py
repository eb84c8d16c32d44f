"""A pond: one folder with maps, and all that keeps them. The place where the parts are put together.

pond.json      format version
space/         the small truths: catalogue, queue of parts, absorbed parts, current snapshots
repositories/ the bytes of repositories' objects, their ranges and indexes
writer/ parts/ shards/ snapshots/ quarantine/    see `maps/loads/loads.py`
running/       a small file for each job that is reported and has not ended
node.lock      held by the node that serves the pond, see `maps/log/ownership.py`
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The keyspaces of all parts, so that whoever clones, saves or checks a pond knows them.
import millpond.events.keyspaces
import millpond.versions.keyspaces  # noqa: F401
from millpond.clock import Clock, SystemClock
from millpond.deferred import opened_once
from millpond.errors import Invalid
from millpond.kernel.job_reports import NO_REPORTS, JobReports
from millpond.maps.faces import PondFace
from millpond.maps.loads.loading import Loading
from millpond.maps.loads.pond_folder import (
    POND_FORMAT,
    StorageFolder,
    StorageLocation,
    holds_something,
    host_name,
    is_alive,
    recover,
    writer_folder,
)
from millpond.maps.log.ownership import OwnerLock
from millpond.maps.map import Map
from millpond.maps.model.beginning import AS_BEFORE, Retention, begin
from millpond.maps.model.definition import Kind, Scheme, Store, ValueType
from millpond.maps.model.store_limits import preferred_store
from millpond.maps.open_maps import OpenMaps
from millpond.maps.pond_catalogue import PondCatalogue
from millpond.maps.shard.shard import Shard
from millpond.memory_bound import MEMORY_MAX, memory_bound
from millpond.migrations import migrate
from millpond.process_settings import tracing_target
from millpond.refs.face import POND, RefsFace, differences_here
from millpond.stores.lmdb.space import LmdbSpace
from millpond.times.durations import is_off
from millpond.tracing import begin_tracing

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.events.events import Events
    from millpond.events.maintenance import MaintenanceRules
    from millpond.kernel.space import Space
    from millpond.kernel.verify import Report
    from millpond.maps.inputs.mapping import ColumnMapping
    from millpond.maps.layered.head import Layers
    from millpond.maps.loads.load import LoadResult
    from millpond.maps.loads.load_files import Advance
    from millpond.maps.loads.loads import Loads
    from millpond.maps.loads.merge_queue import Merged
    from millpond.maps.loads.pond_log import PondLog
    from millpond.maps.loads.pond_parts import PondParts
    from millpond.maps.parts.part import PartFile, PartWriter
    from millpond.reports.open_jobs import OpenJobs
    from millpond.reports.reporter import Reporter
    from millpond.tables.run_list import Runs
    from millpond.versions.location import VersionsLocation
    from millpond.versions.repositories import Repositories
    from millpond.versions.repository import Repository

__all__ = ("REPORTS", "Pond", "open_pond", "reports_wanted")

REPORTS = "MILLPOND_EVENTS_REPORTS"
"""The environment variable that turns reports of work `off`."""


def open_pond(
    folder: str | os.PathLike[str], *, create: bool = True, clock: Clock | None = None, serve: bool = False,
    maps_part_retention: str | int | None = None, versions_space: str = "", versions_objects: str = "",
    versions: VersionsLocation | None = None, events_store: str = "", events_reports: bool | str | None = None,
    maps_memory_max: int | str | None = None, maps_history: str | int | None = None, maps_store: str | None = None,
) -> Pond:  # fmt: skip
    """Open the pond in a folder; made if missing, unless `create` is False.

    `serve`: be the node that serves it: nobody else may change it, and merging is left to a `Merger`.
    `maps_part_retention`: how long merged parts are kept (`7d`, or milliseconds; `off` or 0: not at all), written down
    for whoever opens it next. `versions_space` and `versions_objects`: the place of its repositories, as in
    `docs/versions.md`, where it is not the folder; written down too. `versions` is the same as a value. `events_store`:
    the Redis of its streams, as in `docs/events.md`; written down, but for the password. `events_reports`: whether work
    appends events to the queue `millpond`; by default it does, unless `MILLPOND_EVENTS_REPORTS` is `off`.
    `maps_memory_max`: the memory that freezing a map may take (`512MiB`, or bytes); by default what
    `MILLPOND_MAPS_MEMORY_MAX` says, else 512 MiB. `maps_history`: how far back `known_at` may ask.
    `maps_store`: the store of maps that are made without one, see `create_map`; by default what
    `MILLPOND_MAPS_STORE` says, else `auto`.

    Raises: `Invalid` when the folder holds something else or, without `create`, no pond, or when its repositories
    are in another place; `Conflict` when it is to be served and is already.
    """
    retention = Retention.of(maps_part_retention, maps_history)
    if versions is None and (versions_space or versions_objects):
        from millpond.versions.location import VersionsLocation

        versions = VersionsLocation(versions_space, versions_objects)
    if re.match(r"[A-Za-z0-9+]+:/", os.fspath(folder)):
        raise Invalid("an address is no folder", kind="pond_folder", folder=folder,
                      hint="a pond in a bucket is opened by millpond.open(…), and by commands for maps")  # fmt: skip
    return Pond(
        Path(folder),
        create=create,
        clock=clock or SystemClock(),
        serve=serve,
        retention=retention,
        versions=versions,
        events_store=events_store,
        events_reports=reports_wanted(events_reports),
        memory_max=memory_bound(maps_memory_max),
        store=maps_store,
    )


def reports_wanted(stated: bool | str | None) -> bool:
    """True when the work of a pond is reported: as it is given, else as the environment says.

    >>> reports_wanted("off"), reports_wanted(False), reports_wanted(True)
    (False, False, True)
    """
    value = os.environ.get(REPORTS, True) if stated is None else stated
    return not (is_off(value) or value in (False, "0", "false"))


class Pond(PondFace, RefsFace):
    """An open pond. Use it as a context manager, or `close` it.

    `log`, `parts` and `catalogue` are its parts; `space` holds its small truths. Maps are made and found here, see
    `create_map` and `map`; repositories in `repositories`, streams of events in `events`. `loads` and `loading` are for
    those who keep the pond, not for those who use it. `own_folder` has what this opening alone has: that of a node on a
    bucket is none that others share. A part is opened, and imported, when it is first touched; those
    of a node, and those whose place is given, at once.
    """

    def __init__(
        self, folder: Path, *, create: bool, clock: Clock, serve: bool = False, retention: Retention = AS_BEFORE,
        open_space: Callable[[Path], Space] = LmdbSpace, versions: VersionsLocation | None = None,
        events_store: str = "", events_reports: bool = False, memory_max: int = MEMORY_MAX, store: str | None = None,
        location: StorageLocation | None = None,
    ) -> None:  # fmt: skip
        begin_tracing(tracing_target())
        self.folder = folder
        self.clock = clock
        self._versions_location, self._events_store, self._reported = versions, events_store, events_reports
        self._versions, self._store = ExitStack(), preferred_store(store)
        self.location = location or StorageFolder(folder, open_space)
        self.tell_alerts: Callable[[], None] = self._tell_alerts
        stored_format = self.location.check(create=create)
        with ExitStack() as stack:
            # What was opened is closed in turn when the next fails: whoever opens the pond again finds nothing half.
            self._serving = OwnerLock(folder, may_go=not isinstance(self.location, StorageFolder))
            stack.callback(self._serving.close)
            if serve:
                self.location.serve(self._serving)
            self.own_folder = self._serving.file.parent
            self.space = self.location.open_space()
            stack.callback(self.space.close)
            if stored_format != POND_FORMAT:
                with self._serving.writing():
                    migrate(folder, self.space, stored_format)
            self._retention_ms, history_ms = begin(self.space, clock.random_id, retention)
            self.loading = Loading(
                folder, self.space, clock, lambda: self.loads, self._shard, self._layers, served=serve,
                writing=self._serving.writing, memory_max=memory_max, history_ms=history_ms,
                let_go=self._let_go, shared_layers=self._shared_layers,
                open_files=self.location.open_files, tell_alerts=lambda: self.tell_alerts(),
                beyond_purges=self.location.beyond_purges,
            )  # fmt: skip
            self.open_maps = OpenMaps(self.loading)
            stack.callback(self.open_maps.forget)
            self.catalogue = PondCatalogue(self.loading, self.open_maps)
            stack.callback(self._close_opened, "events")
            stack.callback(self._close_opened, "_reporter")
            stack.callback(self._versions.close)
            if serve and isinstance(self.location, StorageFolder):
                self._cover()
            if (serve and isinstance(self.location, StorageFolder)) or events_store:
                _ = self.events
            if serve or versions is not None:
                _ = self.repositories
            recover(self.loading, self._serving, self.catalogue)
            if events_reports and holds_something(folder / "running"):
                self._reporter.recover()
            self._resources = stack.pop_all()

    def _close_opened(self, name: str) -> None:
        """Close a part, if it was touched."""
        if name in self.__dict__:
            self.__dict__[name].close()

    def _cover(self) -> None:
        from millpond.maps.loads.retention import cover

        cover(self.space)

    # -- parts, opened at their first touch -----------------------------------------------------------

    @opened_once
    def loads(self) -> Loads:
        """The life of loads, see `maps/loads/loads.py`."""
        from millpond.maps.loads.loads import Loads

        return Loads(
            self.space, self.folder, self.clock, keep_ms=self._retention_ms,
            open_reports=lambda: self.reports, tell_alerts=lambda: self.tell_alerts(),
        )  # fmt: skip

    @opened_once
    def log(self) -> PondLog:
        """The log that others follow."""
        from millpond.maps.loads.pond_log import PondLog

        return PondLog(self.loading, self.catalogue.followed)

    @opened_once
    def parts(self) -> PondParts:
        """The parts that are queued, retained or quarantined."""
        from millpond.maps.loads.pond_parts import PondParts

        return PondParts(self.loading)

    @opened_once
    def events(self) -> Events:
        """Streams of events."""
        from millpond.events.events import Events
        from millpond.events.location import open_streams
        from millpond.process_settings import event_rules

        store = open_streams(self.space, self.clock, self._events_store, beside=self.location.beside("events"))
        events = Events(store, self.clock, space=self.space, forget=self._open_jobs.forget)
        events.append_batches.retention_ms = lambda: event_rules().retention_ms
        return events

    @opened_once
    def runs(self) -> Runs:
        """The runs of its workflows: the newest, and one by its id, of whatever tenant."""
        from millpond.tables.run_list import Runs, runs_in

        return Runs(repr(self), lambda: runs_in(self.space, self.folder), lambda: self.events, self.clock)

    @opened_once
    def _open_jobs(self) -> OpenJobs:
        from millpond.reports.open_jobs import OpenJobs

        return OpenJobs(self.folder / "running", host_name(), is_alive)

    def _tell_alerts(self) -> None:
        from millpond.reports.alerts import tell_alerts

        tell_alerts(self.space, lambda: self.events.store)

    @opened_once
    def reports(self) -> JobReports:
        """The place that the pond's work reports to."""
        from millpond.lineage.job_stories import with_stories

        return with_stories(self._reporter if self._reported else NO_REPORTS, self)

    @opened_once
    def _reporter(self) -> Reporter:
        from millpond.events.local_maintenance import OwnMaintenance
        from millpond.events.names import OWN_QUEUE
        from millpond.events.protocol import StreamRules
        from millpond.process_settings import event_rules
        from millpond.reports.reporter import Reporter

        def rules() -> MaintenanceRules | None:  # this process keeps to them, unless a node does
            return None if self._serving.serving or self._serving.served() else event_rules()

        events, forget_ms = self.events, StreamRules().forget_ms
        own = OwnMaintenance(events.store, self.clock, OWN_QUEUE, rules, forget_ms, events.doubt)
        return Reporter(events.store, self.clock, self._open_jobs, own)

    @opened_once
    def repositories(self) -> Repositories:
        """Repositories of objects, among them that of the maps; opening them may look for the server of their rows."""
        from millpond.versions.location import VersionsLocation, open_location
        from millpond.versions.repositories import Background, Repositories

        with ExitStack() as stack:
            stated, base = self._versions_location or VersionsLocation(), self.location.repositories
            location = open_location(self.space, self.folder, stated, self.clock.random_id, base=base)
            stack.callback(location.close)
            background = Background()
            stack.callback(background.close)
            repositories = Repositories(
                location.space, self.clock, location.open_store, open_source=location.open_source, after=background,
                namespace=location.namespace, reports=self.reports, open_repository=self._open_repository,
            )  # fmt: skip
            stack.callback(repositories.close)
            self._versions.push(stack.pop_all())
        return repositories

    def __repr__(self) -> str:
        return f"Pond({str(self.folder) if isinstance(self.location, StorageFolder) else self.location.address!r})"

    def close(self) -> None:
        """Close all files. Closing twice is harmless."""
        self._resources.close()

    # -- maps -----------------------------------------------------------------------------------------

    def create_map(
        self, name: str, *, kind: str | Kind | None = None, value: str | ValueType | None = None,
        scheme: str | Scheme = "auto", hash_bytes: int = 8, overwrite: bool = True, condense: str | int | None = None,
        retain: str | int | None = None, retain_by: str = "effective_time", exist_ok: bool = False,
        hash_bits: int = 64, store: str | Store | None = None, resolution: str | None = None,
        time_zone: str | None = None, key: str | None = None, roll_up: str | None = None,
        as_: str | None = None, condense_by: str = "effective_time",
    ) -> Map:  # fmt: skip
        """Create a map. `kind`, `value`, `scheme` and `hash_bytes` are fixed; the others may be altered.

        `kind`: `state`, `temporal_state`, `ranged_state`, `temporal_ranged_state`, `session`, `aggregate`, or one that
        is called `histogram` or `metric` and has fields of its own. `value`: the type of values as Spark writes it
        (`double`, or `temp double, wind_speed double`), with the rule of each field for an aggregate (`orders long
        count`); None lets every row have its own. Buckets of an aggregate have a `resolution` (`1 hour`), by the clocks
        of a `time_zone`, by default UTC; their `key` may be `tags`. `overwrite=False` keeps the first value of an
        address. `condense` and `retain` are durations; `condense_by` and `retain_by` say from which time of a row they
        count: `effective_time` or `update_time`. With `roll_up`, a width of buckets, old rows of an aggregate are
        combined, not deleted. `as_` is a query of raw rows that says what the aggregate is (`select origin as key,
        count(*) as n from events group by 1`). `store`: `layers` or `shard`; by default as the setting `maps.store`
        says.

        Raises: `AlreadyExists` unless `exist_ok` and the shapes agree; `Invalid` for a setting not understood.
        """
        from millpond.maps.model.new_map import born_in, new_map

        definition = new_map(
            name, kind, value, self.clock.random_id(),
            {"condense": condense, "condense_by": condense_by, "retain": retain, "retain_by": retain_by,
             "overwrite": overwrite, "roll_up": roll_up, "hash_bytes": hash_bytes, "hash_bits": hash_bits},
            resolution=resolution, time_zone=time_zone, scheme=scheme, key=key, query=as_,
        )  # fmt: skip
        definition = born_in(definition, store, self._store, served=self._serving.serving)
        if definition.store is Store.SHARD:
            self.location.refuse("shards")
        return self.map(self.catalogue.create(definition, exist_ok=exist_ok).name)

    def map(self, name: str) -> Map:
        """The map of that name.

        Raises: `NotFound` naming maps with a similar name.
        """
        return self.open_maps.map(self.catalogue.find(name))

    def maps(self) -> list[Map]:
        """All maps, by name."""
        return [self.open_maps.map(definition) for definition in self.catalogue.list()]

    def alter_map(self, name: str, /, **settings: Any) -> Map:
        """Change fields, or the settings `overwrite, condense, condense_by, retain, retain_by, roll_up,
        maintenance_suspended, store`, any time.

        Raises: `Invalid` for anything else; `NotFound`.
        """
        if settings.get("store") == Store.SHARD:
            self.location.refuse("shards")
        return self.open_maps.map(self.catalogue.alter(name, settings))

    def drop_map(self, name: str) -> None:
        """Drop a map with all its rows, parts and snapshots; merged parts are retained as long as those of other maps.

        Handles of the map raise `NotFound` from now on, in every process. An open snapshot answers until it
        is closed; its files go when the pond is next opened, or with the orphans of a node.

        Raises: `NotFound`.
        """
        self.catalogue.drop(name)

    def _shard(self, name: str) -> Shard:
        return self.map(name).shard

    def _layers(self, name: str) -> Layers | None:
        return self.map(name).layers

    # -- repositories ---------------------------------------------------------------------------------

    def repository(self, name: str) -> Repository:
        """The repository of that name; `repositories` makes, lists and deletes them.

        Raises: `NotFound`.
        """
        return self.refs.states.repository if name == POND else self.repositories.get(name)

    # -- loads ----------------------------------------------------------------------------------------

    def part_writer(self, name: str, *, source: str = "") -> PartWriter:
        """A writer of parts for a map; `commit_load` takes the parts that it finishes.

        Raises: `NotFound`.
        """
        from millpond.maps.parts.part import PartWriter

        return PartWriter(
            self.map(name).definition, writer_folder(self.folder, self.clock), source=source,
            memory_max=self.loading.memory_max,
        )  # fmt: skip

    def commit_load(
        self, parts: Sequence[PartFile], *, source: str = "", rejected: int = 0, load_id: str | None = None,
        stream: tuple[str, int] | None = None, wait: bool = True,
    ) -> LoadResult:  # fmt: skip
        """Adopt sealed parts, of one map or several, as one load or not at all; `wait` until they are merged.

        A `load_id` that was committed before, or a (query, epoch) of a `stream` at or before the last one committed,
        adds nothing: the result of the first commit is returned. The id is of its maps, on `main` or its branch.

        Raises: `Corrupt` for a damaged part; `Conflict` when a map was dropped meanwhile, or the `load_id` is of a load
        of other maps; `Unavailable` when the disk is full.
        """
        from millpond.maps.loads.load import commit_reported

        return commit_reported(
            self.loading, parts, source=source, rejected=rejected, load_id=load_id, stream=stream, wait=wait
        )

    def load_files(
        self, files: str | Path | Sequence[str | Path], map: str | None = None, *,
        columns: ColumnMapping | Mapping[str, Any] | None = None, written: str | None = None, max_rejects: int = 0,
        rejects: str | Path | None = None, effective_time: str | None = None, zone: str | None = None,
        time_unit: str | None = None, null: str = "", source: str = "", again: bool = False,
        advance: Advance | None = None, sent: Advance | None = None, extra: str | None = None,
        load_id: str | None = None,
    ) -> LoadResult:  # fmt: skip
        """Load files, folders or patterns as one load: Parquet, CSV, JSON lines, Arrow, or XML for one map or many.

        `written` names the format where the names of the files do not. `effective_time` is the time of XML elements
        that have none. Times that name no zone are in `zone` (`UTC`, `Europe/Berlin`), or refused; times that are
        numbers count in `time_unit` (`s`, `ms`, `us`, `ns`). `null` is what CSV writes where there is no value, besides
        nothing. `advance` is called with rows and bytes as they are read; `sent`, with bytes that are uploaded, is for
        ponds on nodes. Under a `load_id` they are entered once. The rest is as in `Map.load`.

        Raises: `NotFound` for files or a map that do not exist; else as `Map.load`.
        """
        from millpond.maps.loads.load_files import file_reading, load_files

        name = None if map is None else self.catalogue.find(map).name
        reading = file_reading(
            {definition.name: definition for definition in self.catalogue.list()}, name, columns=columns,
            effective_time=effective_time, zone=zone, time_unit=time_unit, null=null, extra=extra,
        )  # fmt: skip
        return load_files(
            self.loading, reading, [files] if isinstance(files, str | Path) else files, written=written,
            max_rejects=max_rejects, rejects=rejects, source=source, again=again, advance=advance, load_id=load_id,
        )  # fmt: skip

    def merge(self) -> Merged:
        """Merge all queued parts, maps in parallel. Loads merge by themselves; call this after a full disk.

        Raises: `Unavailable` when the disk is full; `Conflict` when a node serves the pond.
        """
        from millpond.maps.loads.merge_queue import merge_queued

        with self._serving.writing():
            return merge_queued(self.loads, self._shard)

    # -- questions to all maps ------------------------------------------------------------------------

    def sql(self, text: str, *, known_at: object = None) -> pa.Table:
        """The result of a query in DuckDB's SQL: every map is a table, and `get_state(map, key, at)` a function.

        The tables `events`, `repositories`, `refs`, `commits` and `runs` have what the pond holds beside its maps;
        where a map is named so, `millpond.events` is the table. `map_diff('weather', 'main', 'fix')` has the keys that
        differ between two refs, as `Refs.diff`.

        Raises: `Invalid` when the query is not understood; as `Map.scan` for `known_at`, at which all maps are asked.
        """
        from millpond.maps.sql import query
        from millpond.tables import difference_tables, tables_beside

        differing = difference_tables(differences_here(lambda: self.refs.states))
        return query(self, text, tables_beside(self), known_at=known_at, differing=differing)

    def verify(self, *, full: bool = False, going: Callable[[], bool] = lambda: True) -> Report:
        """Check every invariant on the stored data; `full` decodes all rows, not only a sample of each map.

        Damaged parts and snapshots are quarantined with their reasons, and the report names the remedy. `going` is
        called before each map; the report ends when it returns False.
        """
        from millpond.events.location import check_location
        from millpond.maps.verify import verify_maps
        from millpond.workflows.verify_pond import check_pond_runs

        maps = verify_maps(self.loads, self.maps(), self.folder, self.loading.map_files, full=full, going=going)
        runs = check_pond_runs(self.space, self.location.beside("workflows"), self.clock)
        return maps + check_location(self.space, self.events.store) + runs
