"""One map of an open pond: what a user does with it.

A single `get` needs neither compiled kernels nor a snapshot: what does is imported where it is first used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.deferred import opened_once
from millpond.errors import Corrupt, Invalid, NotFound
from millpond.maps.faces import MapFace
from millpond.maps.inputs.single_key import single_key
from millpond.maps.map_rows import LayeredRows, MapRows, ShardRows, compact_rows
from millpond.maps.model.catalogue import same_map
from millpond.maps.model.definition import Kind, MapDefinition, Store
from millpond.maps.model.store_limits import aggregate_unsupported, need_alerts, unsupported
from millpond.maps.shard.shard import Shard
from millpond.maps.snapshots.freshness import Freshness
from millpond.times.instants import clear_instant, parse_instant
from millpond.tracing import span

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.maps.alerts.map_alerts import MapAlerts
    from millpond.maps.inputs.key_columns import Key, OnInvalid
    from millpond.maps.inputs.mapping import ColumnMapping
    from millpond.maps.inputs.spans import Between
    from millpond.maps.layered.head import Layers
    from millpond.maps.loads.deletion import DeleteReport
    from millpond.maps.loads.load import LoadResult
    from millpond.maps.loads.loading import Loading
    from millpond.maps.maintenance.maintenance import MaintenanceReport
    from millpond.maps.predicates.predicate import Where
    from millpond.maps.snapshots.freeze import SnapshotManifest
    from millpond.maps.snapshots.leased import MapSnapshots
    from millpond.maps.snapshots.needed_ranges import NeededRanges
    from millpond.maps.snapshots.snapshot import Snapshot
    from millpond.stores.objects import Objects

__all__ = ("Map", "go_over")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS_HERE_MAX = 8
"""Keys for which only the files that may have them are opened, of this machine; for the next one all files are."""


@dataclass(repr=False)
class Map(MapFace):
    """A map: get it from `Pond.map` or `Pond.create_map`.

    After the map was dropped, by this process or another, every call raises `NotFound`, kind `map_dropped`, also when
    a new map has the name.
    """

    definition: MapDefinition
    loading: Loading
    opened_shard: Shard | None
    snapshots_folder: Path
    _held: tuple[Snapshot, object] | None = None
    _part: tuple[NeededRanges, object] | None = None
    _keys: int = 0
    rows: MapRows = field(init=False)
    _freshness: Freshness = field(init=False)

    def __post_init__(self) -> None:
        self._held, self._part, self._keys = None, None, 0
        if self.opened_shard is None:
            assert self.definition.store is Store.LAYERS, "other maps have a shard"
            self.rows = LayeredRows(self.definition, self.loading, lambda: self.objects, self._of_key)
        else:
            self.rows = ShardRows(self.opened_shard, self.loading, lambda: self.objects)
        self._freshness = Freshness(self.loading.space, self.definition, self.opened_shard)

    def _follow(self) -> None:
        """Take on the fields and settings that the map has by now: handles stay good when they change."""
        if self.opened_shard is None:
            current = self._current()
            if current != self.definition:
                go_over(self, current, None)

    def _current(self) -> MapDefinition:
        """The map with the settings of now, which another process may have changed."""
        with self.loading.space.read() as tx:
            return same_map(tx, self.definition)

    @opened_once
    def shard(self) -> Shard:
        """The shard.

        Raises: `Invalid`, kind `store_unsupported`, for a layered map.
        """
        if self.opened_shard is None:
            raise unsupported(self.name, "shard")
        return self.opened_shard

    @opened_once
    def objects(self) -> Objects:
        """The files of the map's snapshots."""
        return self.loading.open_files(self.snapshots_folder)

    @opened_once
    def layers(self) -> Layers | None:
        """The layers of a layered map; None for a map in a shard."""
        return None if self.opened_shard is not None else self.rows.snapshots  # type: ignore[return-value]

    @opened_once
    def snapshots(self) -> MapSnapshots | Layers:
        """The snapshots of the map; a layered map is one at any time."""
        return self.rows.snapshots

    @opened_once
    def alerts(self) -> MapAlerts:
        """The rules of alerts of an aggregate.

        Raises: `Invalid`, kind `alerts_unsupported`, for a map that has none.
        """
        from millpond.maps.alerts.map_alerts import MapAlerts

        need_alerts(self.definition)
        loading = self.loading
        return MapAlerts(
            self.definition, loading.space, loading.clock, self.layers, loading.writing,
            lambda: loading.loads.announce(), self.objects,
            lambda: self.snapshots.refreeze(),
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Map({self.definition.summary})"

    @property
    def name(self) -> str:
        """The map's name."""
        return self.definition.name

    @property
    def kind(self) -> Kind:
        """The map's kind."""
        return self.definition.kind

    def load(
        self, data: Any, *, columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
        rejects: str | Path | None = None, zone: str | None = None, time_unit: str | None = None,
        source: str = "", again: bool = False, extra: str | None = None,
    ) -> LoadResult:  # fmt: skip
        """Load rows and merge them: an Arrow table, reader or batches, a pandas or polars frame, or a list of dicts.

        Columns have the map's names (`key, effective_time, value` …, a column per field of a struct), unless `columns`
        maps them. More than `max_rejects` rows that cannot be stored fail the load as a whole; `rejects` names a file
        that they are written to, with their reasons. Times that name no zone are in `zone`
        (`UTC`, `Europe/Berlin`), or refused. Times that are numbers count in `time_unit` (`s`, `ms`, `us`, `ns`);
        without one they are milliseconds, and those that could be seconds are refused. The same data loaded twice is
        one part and changes nothing, unless `again`. Columns that the map lacks are refused, unless `extra` is
        `ignore`, or `add`, which adds fields to a layered map.

        Raises: `Invalid` for columns or rows that cannot be stored; `Unavailable` when the disk is full.
        """
        from millpond.maps.inputs.mapping import mapping_of
        from millpond.maps.loads.load import load_data

        self._follow()
        return load_data(
            self.loading, self.definition, data, columns=mapping_of(columns, extra), max_rejects=max_rejects,
            rejects=rejects, zone=zone, time_unit=time_unit, source=source, again=again,
        )  # fmt: skip

    def get(
        self, key: Key, at: object = None, *, known_at: object = None, between: Between | None = None,
        resolution: str | None = None, window: str | None = None,
    ) -> Any:  # fmt: skip
        """The value of one key (ranged maps: one number) as of a time, by default now; None when there is none.

        A struct is a dict; a session is `{"start": …, "end": …}` with aware datetimes. `known_at`, `between`,
        `resolution`, `window`: as in `lookup`.

        Raises: `Invalid` for a key or time that the map cannot have.
        """
        if between is not None or resolution is not None or window is not None:
            return self.lookup(
                [key], at, known_at=known_at, between=between, resolution=resolution, window=window
            )[0].as_py()  # fmt: skip
        time, encoded = self._instant(at), single_key(self.definition, key)
        if known_at is not None:
            self._follow()
            with self.rows.past.snapshot(known_at) as snapshot:
                value = None if encoded is None else snapshot.value(encoded, time)
        else:
            value = None if encoded is None else self.rows.value(encoded, time)
        return {"start": _moment(value[0]), "end": _moment(value[1])} if isinstance(value, tuple) else value

    def _instant(self, at: object) -> int | None:
        if not self.kind.timed:
            return None
        return self.loading.clock.now_ms() if at is None else parse_instant(at)

    def lookup(
        self, keys: Any, at: Any = None, *, on_invalid: OnInvalid = "error", known_at: Any = None,
        between: Between | None = None, resolution: str | None = None, window: str | None = None,
    ) -> pa.Array:  # fmt: skip
        """The values of many keys at their times: Arrow arrays in, an Arrow array of the same length out.

        `keys`: a list or an Arrow column (docs/inputs.md lists the types). `at`: one time, or a column of as many; by
        default now. A key without a value is null in the answer. The answer comes from the snapshot, which is brought
        up to date first. `on_invalid="miss"` answers null for a value that is not a key or not a time.
        `known_at`, one time or a column, asks a layered map as it was then: what was loaded later does not count.
        `between`, two times or columns in place of `at`, combines the buckets of an aggregate that begin from the first
        on and before the second; a coarser `resolution` (`1 day`) those of the bucket that holds the time; a `window`
        (`7 days`) those in so long a time before that bucket.

        Raises: `Invalid` for columns of another type or length, and for values that are not keys or not times.
        """
        from millpond.maps.inputs.spans import Buckets

        if at is None and self.kind.timed and between is None:
            at = clear_instant(self.loading.clock.now_ms())
        buckets = Buckets(between, resolution, window)
        with span("lookup", map=self.name):
            if known_at is not None:
                self._follow()
                return self.rows.past.lookup(keys, at, known_at, on_invalid, buckets=buckets)
            if not buckets:
                return self._of_keys(keys, on_invalid).lookup(keys, at, on_invalid=on_invalid)
            return self.snapshot().lookup(
                keys, at, on_invalid=on_invalid, between=between, resolution=resolution, window=window
            )  # fmt: skip

    def scan(
        self, where: Where = None, columns: Sequence[str] | None = None, *, known_at: object = None,
        resolution: str | None = None,
    ) -> pa.RecordBatchReader:  # fmt: skip
        """The rows that meet a condition, as Arrow batches; conditions on keys and times limit what is read.

        `where` is text such as `key = 'JFK' and temp > 80`, a list of `(column, comparison, value)` which must all
        hold, or a pyarrow expression. Of an aggregate, rows may have a coarser `resolution`, and a condition is about
        them. The reader shows the map as it was when its first batch was read, or as
        it was `known_at` a time.

        Raises: `Invalid` for a column the map does not have, or a condition that is not understood.
        """
        from millpond.maps.scan import scan

        self._follow()
        rows = self.rows.rows if known_at is None else self.rows.past.rows_at(known_at)
        if resolution is not None:
            from millpond.maps.inputs.spans import coarser

            rows = partial(rows, resolution=coarser(self.definition, resolution).resolution)
        return scan(rows, self.definition, where, columns)

    def freeze(self) -> SnapshotManifest:
        """Bring the snapshot up to date; its manifest.

        Raises: `Unavailable` when the disk is full.
        """
        return self.snapshots.freeze()

    def snapshot(
        self, *, keys: Sequence[str | int | None] | None = None, window: Sequence[object] | None = None
    ) -> Snapshot:  # fmt: skip
        """The up-to-date snapshot, open; each caller closes its own. A snapshot returned earlier stays usable.

        A subset of `keys` `[lower, upper)` (numbers, for ranged maps), or of a `window` of time `[since, until)`, is
        smaller, and refuses lookups outside; None is no bound on that side.

        Raises: `Invalid` for bounds that the map cannot have.
        """
        if keys is None and window is None:
            return self._whole().another()
        return self._subset(keys, window)

    def _stamp(self) -> object:
        """A mark of the map as it is now: a snapshot that was opened with the same shows all of it."""
        return self._freshness.stamp()

    def _proving(self, manifest: SnapshotManifest) -> object:
        """The stamp with which a snapshot is opened; None when the map moved on meanwhile."""
        return self._freshness.proving(manifest)

    def _open(self) -> Snapshot | None:
        """The snapshot that is open, if it shows the map as it is now."""
        try:
            now = self._stamp()
        except NotFound:
            self._held = None
            raise
        held, stamp = self._held or (None, None)
        return held if held is not None and stamp == now else None

    def _whole(self) -> Snapshot:
        return self._open() or self._opened()

    def _opened(self) -> Snapshot:
        """The snapshot of now, opened; with what the one before has open."""
        from millpond.maps.snapshots.snapshot import Snapshot

        try:
            self._follow()
            manifest = self.freeze()
        except NotFound:  # it was dropped: its files may go
            self._held = None
            raise
        held = None if self._held is None else self._held[0]
        if held is None or held.manifest.id != manifest.id:
            held = Snapshot.open(
                self.objects, manifest, memory_max=self.loading.memory_max,
                before=held.finder if held is not None else None,
            )  # fmt: skip
        self._held = held, self._proving(manifest)
        if self.objects.collected:
            self._part = None  # it is asked no more, and keeps the files of its state
        return held

    def _of_key(self, address: bytes | int) -> Snapshot:
        """A snapshot to ask for a key or a number: of the first keys, or in a bucket, with the files that they need."""
        snapshot = self._open()
        if snapshot is None and isinstance(address, bytes):
            self._keys += 1
            if not self.objects.collected:
                return self._in_part(self._needed(), [address])
            if self._held is None and self._keys <= KEYS_HERE_MAX:
                snapshot = self._needed().of_keys([address])
        return snapshot or self._opened()

    def _of_keys(self, keys: Any, on_invalid: OnInvalid) -> Snapshot:
        """A snapshot to ask for keys: of files in a bucket with those that they need."""
        snapshot = self._open()
        if snapshot is not None or not self.kind.keyed or self.objects.collected:
            return snapshot or self._opened()
        from millpond.maps.inputs.key_columns import keys_of, one_array

        part, distinct = self._needed(), keys_of(self.definition, one_array(keys, "key"), on_invalid).unique()
        if len(distinct) > part.keys_max and not part.in_pieces:
            return self._opened()
        values = distinct.to_pylist()
        return self._in_part(part, [key.encode() if isinstance(key, str) else key for key in values if key is not None])

    def _in_part(self, part: NeededRanges, keys: Sequence[bytes]) -> Snapshot:
        snapshot = part.of_keys(keys)
        if snapshot is not None:
            return snapshot
        try:
            return self._opened()
        except (Corrupt, NotFound):  # a file was lost or damaged: keys that others have are answered
            part.in_pieces = True
            return part.of_keys(keys) or self._opened()

    def _needed(self) -> NeededRanges:
        """The pieces of files that were needed so far, of the map as it is now."""
        from millpond.maps.snapshots.needed_ranges import NeededRanges

        part, stamp = self._part or (None, None)
        if part is None or stamp is None or stamp != self._stamp():
            self._follow()
            manifest = self.freeze()
            if part is None or part.manifest.id != manifest.id:
                part = NeededRanges(self.objects, manifest, part)
            self._part = part, self._proving(manifest)
        return part

    def _subset(self, keys: Sequence[str | int | None] | None, window: Sequence[object] | None) -> Snapshot:
        from millpond.maps.snapshots.subset import open_subset

        self._follow()
        manifest = self.freeze()
        return open_subset(
            self.objects, self.definition, manifest, keys, window, self.loading.clock.now_ms(), self.loading.memory_max
        )

    def condense(self, before: object = None) -> MaintenanceReport:
        """Drop repeated values and join touching sessions, of rows before a time (default: the map's setting).

        The order is an entry of the log, and is carried out after the loads that stand before it.

        Raises: `Invalid` without `before` when the map has no such setting.
        """
        if self.kind is Kind.AGGREGATE:
            raise aggregate_unsupported(self.name, "condense")
        self._follow()
        return self.rows.maintain("condense", self._watermark(before, self._current().condense_ms, "condense"))

    def retain(self, before: object = None) -> MaintenanceReport:
        """Delete rows older than a time (default: the map's setting); an entry of the log, as `condense`.

        Of an aggregate with `roll_up`, rows of whole buckets of that width that are older become one, and stay.

        Raises: `Invalid` without `before` when the map has no such setting.
        """
        self._follow()
        current = self._current()
        watermark = self._watermark(before, current.retain_ms, "retain")
        if current.aggregation is not None:
            from millpond.maps.model.rolled_up import retained_from

            watermark = retained_from(current, watermark)
        return self.rows.maintain("retain", watermark)

    def delete(self, where: Where, *, now: bool = False, branches: bool = False) -> DeleteReport:
        """Delete the rows for which a condition holds, as `scan` reads it: an entry of the log that says how many.

        Rows that are loaded later stay. `now` purges the rows from all files of the map as well, and reads what is left
        as a proof: see `DeleteReport.left`. `branches` purges what is in use, too: each branch gets a commit without
        the rows, with what is staged there; the commits of tags and merge bases have the map without them from then on.

        Raises: `Invalid` for a condition that text cannot say, or that is not understood; for `branches` without `now`.
        """
        from millpond.maps.loads.deletion import condition_text

        self._follow()
        text = condition_text(self.definition, where)
        if branches and not now:
            raise Invalid("branches lose rows by a purge", kind="delete_branches", map=self.name,
                          hint="purge now, too: now=True")  # fmt: skip
        if now:
            self._held = self._part = None  # what this handle keeps open would keep its files
        with self.loading.reports.job("maintenance", act="delete", map=self.name) as job:
            job.running()
            report = self.rows.delete(text, now=now, branches=branches)
            job.note(rows_removed=report.rows_removed)
        return report

    def _watermark(self, before: object, age_ms: int | None, setting: str) -> int:
        if before is not None:
            return parse_instant(before)
        if age_ms is None:
            raise Invalid(
                f"the map has no {setting} setting", kind="maintenance_setting", map=self.name,
                setting=setting, hint=f"alter_map({self.name!r}, {setting}='30d'), or say before=…",
            )  # fmt: skip
        return self.loading.clock.now_ms() - age_ms

    def compact(self) -> MaintenanceReport:
        """Rewrite the shard's file without free pages, or fold all layers to one, which gives disk back.

        Raises: `Unavailable` when the disk has no room for the copy.
        """
        from millpond.maps.snapshots.stretches import write_here

        self._follow()
        return compact_rows(self.rows, self.loading, self.name, write_here)

    def info(self) -> dict[str, Any]:
        """The definition, rows, bytes, position in the log, queued parts and snapshot of the map."""
        from millpond.maps.log.queue import applied_position
        from millpond.maps.snapshots.refresh import current_manifest

        stats = self.rows.stats()
        manifest = current_manifest(self.loading.space, self.objects, self.definition)
        queue = self.loading.loads.queue.parts(self.name)
        with self.loading.space.read() as tx:
            current = same_map(tx, self.definition)
            position = applied_position(tx, self.name)
        return {
            **{name: value for name, value in current.to_dict().items() if name != "hash_bits"},
            "store": str(current.store),
            "rows": stats.rows, "version": stats.version, "shard_bytes": stats.bytes, "position": position,
            "parts_queued": len(queue), "rows_queued": sum(part.rows for part in queue),
            "snapshot": manifest.id if manifest else None,
            "snapshot_current": manifest is not None and manifest.shard_version == stats.version,
        }  # fmt: skip

    def close(self) -> None:
        """Close the shard, and release the snapshot. Snapshots that were returned stay open."""
        self._held = self._part = None
        self.rows.close()


def go_over(pond_map: Map, definition: MapDefinition, shard: Shard | None) -> None:
    """Let a handle read from the other store from now on: the shard, or layers."""
    for name in ("shard", "layers", "snapshots", "alerts"):
        pond_map.__dict__.pop(name, None)
    pond_map.definition, pond_map.opened_shard = definition, shard
    pond_map.__post_init__()


def _moment(millis: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=millis)
