"""Loading: data of any form into parts, parts into one load, the load into shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any

from millpond.argument_types import need_list, need_type
from millpond.error_values import ShownAsTable
from millpond.errors import Corrupt, Unavailable
from millpond.kernel.job_reports import NO_JOB, JobReport
from millpond.kernel.signal import Signal
from millpond.kernel.space import ReadTransaction
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.inputs.missing_fields import with_fields
from millpond.maps.inputs.normalise import Normalised, normalise
from millpond.maps.inputs.rejects import RejectWriter
from millpond.maps.inputs.tables import batches_of
from millpond.maps.inputs.zones import TimeForm, time_form
from millpond.maps.layered.fields import alter_fields
from millpond.maps.layered.head import Layers
from millpond.maps.layered.maintenance import fold_loaded
from millpond.maps.layered.writer import LayerWriter, WrittenLayer
from millpond.maps.loads.committed import Committed
from millpond.maps.loads.layered_load import Brought, LayeredLoad, parts_of
from millpond.maps.loads.loading import Loading
from millpond.maps.loads.loads import Loads, Quarantined
from millpond.maps.loads.merge_queue import merge_queued
from millpond.maps.loads.pond_folder import writer_folder
from millpond.maps.loads.retention import tidy_up
from millpond.maps.log.apply import events_alone
from millpond.maps.log.deduplication import check_stream
from millpond.maps.log.failures import Failure
from millpond.maps.log.log import head_of
from millpond.maps.log.queue import applied_everywhere, applied_position
from millpond.maps.model.catalogue import check_map, known_map
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartFile, PartWriter
from millpond.maps.snapshots.stretches import Writes, write_here
from millpond.stores.files import remove_tree
from millpond.tracing import span

__all__ = (
    "AppliedWait", "LoadResult", "commit_load", "commit_reported", "load_data", "load_job_set",
    "note_result", "refuse_quarantined", "row_writer", "seal_data", "wait_applied", "wait_for", "write_data",
)  # fmt: skip


MERGE_SECONDS = 600.0
"""The time limit of a load that waits to be merged by others."""
_MAPS_SHOWN = 20
"""So many maps of a load are named in its last event."""
_BUSY = ("map_busy", "pond_busy", "space_in_use")
"""Errors of merging that pass by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult(ShownAsTable):
    """The result of a load. `rows` counts rows after equal addresses within a part became one; `maps` has it by map.

    `load`: its id. `position`: that of its entry in the log. `synchronised`: True when its rows can be read already.
    `seconds`: from the call to its return, reading, sorting and merging included; with Spark, its tasks.
    `quarantined`: parts that could not be merged, with their reasons. `empty`: the files without a row.
    `commit`: that of a load on a branch.
    """

    load: str
    rows: int
    rejected: int
    parts: int
    duplicate_parts: int
    maps: dict[str, int]
    seconds: float
    quarantined: tuple[Quarantined, ...] = field(default=())
    position: int = 0
    synchronised: bool = True
    empty: tuple[str, ...] = ()
    commit: str = ""


def commit_load(
    loading: Loading, parts: Sequence[Brought], *, source: str = "", rejected: int = 0, load_id: str | None = None,
    stream: tuple[str, int] | None = None, wait: bool = True, unsynced: AbstractSet[str] = frozenset(),
    void: bool = False, writes: Writes = write_here,
) -> LoadResult:  # fmt: skip
    """Adopt all parts, and layers, as one load or none, then merge them, unless not to `wait` for that.

    `unsynced`: the parts whose files are not on the disk yet, but in the system's memory. `void`: there are no parts,
    but the load id is taken, so that nothing is entered under it any more. `writes` has the ranges of folds written.

    A load id, or an epoch of a stream, that was entered before is answered as then, and nothing is entered.

    Raises:
        Corrupt: a part was damaged; it lies in `quarantine/`, what else the load brought was merged.
        Conflict: a part was written for a map that was dropped meanwhile; or a node serves the pond.
        Unavailable: the disk is full; the load is kept and merged later.
    """
    began = loading.clock.monotonic()
    layered = LayeredLoad(loading.layers_of, [item for item in parts if isinstance(item, WrittenLayer)])
    with loading.writing():
        with layered.opened(), span("commit", parts=len(parts)):
            committed = loading.loads.commit(
                parts_of(parts), source, rejected=rejected, load_id=load_id, stream=stream, unsynced=unsynced,
                layered=layered, void=void,
            )  # fmt: skip
        if layered.watched:
            loading.tell_alerts()
        if wait and not layered.names.issuperset(committed.rows):  # layers wait for nothing
            _wait_merged(loading, committed)
        if loading.served:
            loading.loads.to_fold |= layered.names
        else:
            fold_loaded(loading, layered.names, writes)
            with suppress(Unavailable):  # the load is made: the next one tidies up
                tidy_up(loading.loads, committed.position)
    return LoadResult(
        load=committed.load, rows=sum(committed.rows.values()), rejected=committed.rejected, parts=committed.parts,
        duplicate_parts=committed.duplicates, maps=committed.rows, seconds=loading.clock.monotonic() - began,
        position=committed.position, synchronised=wait,
    )  # fmt: skip


def wait_applied(loading: Loading, position: int, maps: Sequence[str] | None, timeout: float = MERGE_SECONDS) -> None:
    """Wait until every entry about these maps (all: None) up to a position is applied; a pond that is not served
    merges here.

    Raises:
        Corrupt: a part of the entry at this position was quarantined.
        Unavailable: it takes longer than `timeout` seconds; or the disk is full; or merging fails, for the reason
        given.
    """
    _merged_up_to(loading, position, maps, timeout).conclude()


def _wait_merged(loading: Loading, committed: Committed) -> None:
    names = tuple(committed.rows)
    # A load of nothing new has no entry of its own: what was quarantined at that position is another's.
    _merged_up_to(loading, committed.position, names, MERGE_SECONDS).conclude(quarantined=bool(committed.parts))


class AppliedWait:
    """A wait of a served pond until every entry about some maps (all: None) up to a position is applied.

    A failure of merging counts when its attempt began after the wait did.
    """

    def __init__(self, loading: Loading, position: int, maps: Sequence[str] | None) -> None:
        self._loads, self._position, self._maps = loading.loads, position, maps
        self._since = self._loads.failures.ask(self._loads.queue.maps() if maps is None else maps, position)
        self._failed: Failure | None = None
        if not self.ended():
            self._loads.changed.ring()

    @property
    def changed(self) -> Signal:
        """Rings when it may have ended: for entries that are there, not with each load that comes behind them."""
        with self._loads.space.read() as tx:
            entered = self._position <= head_of(tx).position
        return self._loads.settled if entered else self._loads.changed

    def ended(self) -> bool:
        """True when they are applied, or merging one of them failed. `Loads.changed` rings when that may be."""
        with self._loads.space.read() as tx:
            failed = [
                failure for failure in self._loads.failures.all(after=self._since)
                if failure.kind not in _BUSY and (self._maps is None or failure.map in self._maps)
                and applied_position(tx, failure.map) < self._position
            ]  # fmt: skip
            self._failed = failed[0] if failed else None
            return bool(failed) or _applied(tx, self._maps) >= self._position

    def conclude(self, *, quarantined: bool = True) -> None:
        """Say what was wrong; `quarantined`: also with the parts of the entry at the position.

        Raises: as `wait_applied`.
        """
        ended = self.ended()
        if self._failed is not None:
            raise Unavailable(
                "what was loaded cannot be merged now", kind="merge_failed", map=self._failed.map,
                cause=self._failed.kind, reason=self._failed.reason,
                hint="the load is kept, and merged when this is mended: see millpond parts",
            )  # fmt: skip
        if not ended:
            raise Unavailable(
                "merging takes longer than was waited for", kind="merge_slow", position=self._position,
                hint="the load is kept; wait again, or see what the maps are busy with",
            )  # fmt: skip
        if quarantined:
            refuse_quarantined(self._loads, self._position, self._maps)


def _merged_up_to(loading: Loading, position: int, maps: Sequence[str] | None, timeout: float) -> AppliedWait:
    if not loading.served:
        merge_queued(loading.loads, loading.shard_of, maps)
    wait = AppliedWait(loading, position, maps)
    wait.changed.wait_for(wait.ended, loading.clock.monotonic() + timeout)
    return wait


def refuse_quarantined(loads: Loads, position: int, maps: Sequence[str] | None) -> None:
    """Raise what was wrong with the parts of the entry at a position.

    Raises: `Corrupt` when one of them, of these maps (all: None), was quarantined.
    """
    for quarantined in loads.queue.quarantined():
        if quarantined.position == position and (maps is None or quarantined.map in maps):
            raise Corrupt(
                "a part of the load could not be merged",
                kind="part_quarantined",
                map=quarantined.map,
                part=quarantined.part,
                file=str(loads.places.quarantine(quarantined)),
                reason=quarantined.reason,
                hint="its other parts count: mend what the reason names, then: millpond parts retry"
                if _counts_in_part(loads, quarantined) else "load the data again",
            )  # fmt: skip


def _counts_in_part(loads: Loads, quarantined: Quarantined) -> bool:
    """True when other parts of the same events, of an aggregate, are added."""
    with loads.space.read() as tx:
        definition, queued = known_map(tx, quarantined.map), quarantined.queued
        adds = definition is not None and definition.aggregation is not None
        return adds and queued is not None and events_alone(tx, queued) is None


def _applied(tx: ReadTransaction, maps: Sequence[str] | None) -> int:
    if maps is None:
        return applied_everywhere(tx)
    return min((applied_position(tx, name) for name in maps), default=head_of(tx).position)


def wait_for(loads: Loads, holds: Callable[[], bool], timeout: float) -> bool:
    """Wait until something holds in the space; True when it came to hold in time."""
    return loads.changed.wait_for(holds, loads.clock.monotonic() + timeout)


def load_data(
    loading: Loading, definition: MapDefinition, data: Any, *,
    columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
    rejects: str | Path | None = None, zone: str | None = None, time_unit: str | None = None, source: str = "",
    again: bool = False,
) -> LoadResult:  # fmt: skip
    """Load rows of any form into one map, see `Map.load`."""
    began = loading.clock.monotonic()
    check_map(loading.space, definition)  # before the rows are sorted; committing checks it again
    mapping = mapping_of(columns)
    data, definition = with_fields(
        data, definition, mapping, lambda missing: alter_fields(loading, definition.name, {"add": missing})
    )
    folder = writer_folder(loading.folder, loading.clock)
    salt = loading.clock.random_id() if again else ""
    writer = row_writer(
        definition, folder, loading.layers_of(definition.name), source=source, salt=salt, memory_max=loading.memory_max
    )
    with loading.reports.job(load_job_set([definition.name])) as job:
        job.running()
        try:
            brought, rejected = write_data(
                writer, definition, data, columns=mapping, max_rejects=max_rejects, rejects=rejects,
                times=time_form(zone, time_unit), source=source, job=job,
            )  # fmt: skip
            loading.loads.accepted.note_sealed(parts_of(brought))
            result = commit_load(loading, brought, source=source, rejected=rejected)
        finally:
            writer.close()
            remove_tree(folder)
        note_result(job, result)
    return replace(result, seconds=loading.clock.monotonic() - began)


def load_job_set(maps: Collection[str]) -> str:
    """The job set that a load of these maps reports to; none or several have one together.

    >>> load_job_set(["weather"]), load_job_set([])
    ('load/weather', 'load')
    """
    return f"load/{next(iter(maps))}" if len(maps) == 1 else "load"


def note_result(job: JobReport, result: LoadResult) -> None:
    """Let the event that ends a load tell its result."""
    job.note(load=result.load, rows=result.rows, rejected=result.rejected, position=result.position)
    if len(result.maps) > 1:
        job.note(maps=" ".join(f"{name}:{rows}" for name, rows in list(result.maps.items())[:_MAPS_SHOWN]))


def row_writer(
    definition: MapDefinition, folder: Path, layers: Layers | None, *, source: str, salt: str, memory_max: int | None
) -> PartWriter | LayerWriter:
    """The writer of a load's rows of one map: of a layer where it has `layers`, else of parts below a folder."""
    if layers is not None:
        return LayerWriter(layers, salt=salt)
    return PartWriter(definition, folder, source=source, salt=salt, memory_max=memory_max)


def commit_reported(
    loading: Loading, parts: Sequence[PartFile], *, source: str = "", rejected: int = 0, load_id: str | None = None,
    stream: tuple[str, int] | None = None, wait: bool = True, unsynced: AbstractSet[str] = frozenset(),
    void: bool = False,
) -> LoadResult:  # fmt: skip
    """As `commit_load`, for a load that nobody reported so far."""
    need_list("parts", parts, PartFile)
    need_type("load_id", load_id, str, NoneType)
    check_stream(stream)
    job_set = load_job_set({part.manifest.map for part in parts})
    with loading.reports.job(job_set, load_id or "", parts=len(parts)) as job:
        result = commit_load(
            loading, parts, source=source, rejected=rejected, load_id=load_id, stream=stream, wait=wait,
            unsynced=unsynced, void=void,
        )  # fmt: skip
        note_result(job, result)
    return result


def seal_data(
    definition: MapDefinition, data: Any, folder: Path, *, columns: ColumnMapping | Mapping[str, Any] | None = None,
    max_rejects: int = 0, rejects: str | Path | None = None, times: TimeForm | None = None, source: str = "",
    salt: str = "", job: JobReport = NO_JOB, memory_max: int | None = None,
) -> tuple[list[PartFile], int]:  # fmt: skip
    """Rows of any form as sealed parts below `folder`, and how many were rejected, see `Map.load`."""
    writer = PartWriter(definition, folder, source=source, salt=salt, memory_max=memory_max)
    parts, rejected = write_data(
        writer, definition, data, columns=columns, max_rejects=max_rejects, rejects=rejects, times=times,
        source=source, job=job,
    )  # fmt: skip
    return parts_of(parts), rejected


def write_data(
    writer: PartWriter | LayerWriter, definition: MapDefinition, data: Any, *,
    columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
    rejects: str | Path | None = None, times: TimeForm | None = None, source: str = "", job: JobReport = NO_JOB,
) -> tuple[Sequence[Brought], int]:  # fmt: skip
    """Rows of any form as a writer makes them, and how many were rejected, see `Map.load`."""
    mapping = mapping_of(columns)
    with RejectWriter(rejects, max_rejects=max_rejects, source=source) as rejected:
        batches = batches_of(data, definition, mapping)
        _write(writer, (normalise(batch, definition, mapping, times) for batch in batches), rejected, job)
    return writer.finish(), rejected.count


def _write(
    writer: PartWriter | LayerWriter, batches: Iterable[Normalised], rejected: RejectWriter, job: JobReport
) -> None:
    first_row = 0
    for batch in batches:
        rejected.write(batch.rejected, first_row=first_row)
        writer.write(batch.rows)
        first_row += batch.rows.num_rows + batch.rejected.num_rows
        job.progress(first_row)
