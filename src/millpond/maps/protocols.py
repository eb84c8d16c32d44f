"""The interface of ponds and maps, the same for a pond in a folder and for one on nodes.

`Pond` and `Map` keep these promises in this process, `RemotePond` and `RemoteMap` over the network; one conformance
suite (`tests/harness/contracts/ponds.py`) runs over both. What is declared in `MapOperations` is everywhere with a
method of `Map` that does it, see `kernel/operations.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from millpond.kernel.operations import declared, operation

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.clock import Clock
    from millpond.events.interface import EventsLike
    from millpond.kernel.job_reports import JobReports
    from millpond.kernel.verify import Report
    from millpond.maps.alerts.operations import AlertOperations
    from millpond.maps.enrich import Lookup
    from millpond.maps.inputs.key_columns import Key, OnInvalid
    from millpond.maps.inputs.mapping import ColumnMapping
    from millpond.maps.inputs.spans import Between
    from millpond.maps.loads.deletion import DeleteReport
    from millpond.maps.loads.load import LoadResult
    from millpond.maps.loads.load_files import Advance
    from millpond.maps.loads.pond_parts import PartsByNode
    from millpond.maps.log.log import Entry
    from millpond.maps.log.queue import PartStatus
    from millpond.maps.maintenance.maintenance import MaintenanceReport
    from millpond.maps.model.definition import Kind, MapDefinition, Scheme, Store, ValueType
    from millpond.maps.parts.part import PartFile, PartWriter
    from millpond.maps.predicates.predicate import Where
    from millpond.maps.snapshots.freeze import SnapshotManifest
    from millpond.maps.snapshots.snapshot import Snapshot
    from millpond.refs.protocols import BranchPondLike, RefPondLike, RefsLike
    from millpond.tables.run_list import Runs
    from millpond.versions.protocols import RepositoriesLike, RepositoryLike

__all__ = (
    "CatalogueLike",
    "CatalogueOperations",
    "DefinitionsLike",
    "LogLike",
    "MapLike",
    "MapOperations",
    "PartsLike",
    "PondLike",
)


class MapOperations(Protocol):
    """A map, as requests: a method that is declared here has its request, route and command by that.

    The methods of `MapLike` have theirs by hand: they move Arrow, wait for several nodes, or ask a cached snapshot.
    """


class MapLike(MapOperations, Protocol):
    """A map: see `maps.map.Map` for what each does."""

    @property
    def definition(self) -> MapDefinition: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def alerts(self) -> AlertOperations: ...

    def load(
        self, data: Any, *, columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
        rejects: str | Path | None = None, zone: str | None = None, time_unit: str | None = None,
        source: str = "", again: bool = False, extra: str | None = None,
    ) -> LoadResult: ...  # fmt: skip

    def get(
        self, key: Key, at: object = None, *, known_at: object = None, between: Between | None = None,
        resolution: str | None = None, window: str | None = None,
    ) -> Any: ...  # fmt: skip
    def lookup(
        self, keys: Any, at: Any = None, *, on_invalid: OnInvalid = "error", known_at: Any = None,
        between: Between | None = None, resolution: str | None = None, window: str | None = None,
    ) -> pa.Array: ...  # fmt: skip
    def scan(
        self, where: Where = None, columns: Sequence[str] | None = None, *, known_at: object = None,
        resolution: str | None = None,
    ) -> pa.RecordBatchReader: ...  # fmt: skip

    def freeze(self) -> SnapshotManifest: ...
    def snapshot(
        self, *, keys: Sequence[str | int | None] | None = None, window: Sequence[object] | None = None
    ) -> Snapshot: ...  # fmt: skip

    def condense(self, before: object = None) -> MaintenanceReport: ...
    def retain(self, before: object = None) -> MaintenanceReport: ...
    def compact(self) -> MaintenanceReport: ...
    def delete(self, where: Where, *, now: bool = False, branches: bool = False) -> DeleteReport: ...

    def info(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class CatalogueOperations(Protocol):
    """The maps of a pond, as requests."""

    @operation("POST", "/v1/maps", sent={"as_": "query"})
    def create_map(
        self, name: str, *, kind: str | Kind | None = None, value: str | ValueType | None = None,
        scheme: str | Scheme = "auto", hash_bytes: int = 8, overwrite: bool = True, condense: str | int | None = None,
        retain: str | int | None = None, retain_by: str = "effective_time", exist_ok: bool = False,
        hash_bits: int = 64, store: str | Store | None = None, resolution: str | None = None,
        time_zone: str | None = None, key: str | None = None, roll_up: str | None = None,
        as_: str | None = None, condense_by: str = "effective_time",
    ) -> MapLike:  # fmt: skip
        """Make a map on every node, see `Pond.create_map`.

        Raises: `AlreadyExists`, `Invalid`; `Unavailable` when the primary cannot be reached.
        """
        declared()


class CatalogueLike(CatalogueOperations, Protocol):
    """The maps of a pond: see `pond.Pond` for what each does."""

    def map(self, name: str) -> MapLike: ...
    def maps(self) -> Sequence[MapLike]: ...
    def alter_map(self, name: str, /, **settings: Any) -> MapLike: ...
    def drop_map(self, name: str) -> None: ...


class LogLike(Protocol):
    """The log of a pond: see `maps.loads.pond_log.PondLog` for what each does."""

    @property
    def pond_id(self) -> str: ...

    def position(self) -> tuple[int, str]: ...
    def entries(self, after: int, limit: int = 1000) -> list[Entry]: ...
    def applied(self, name: str) -> int: ...


class PartsLike(Protocol):
    """The parts of a pond: see `maps.loads.pond_parts.PondParts` for what each does."""

    def by_node(self) -> PartsByNode: ...
    def retry(self, part_ids: Sequence[str] | None = None, *, node: str = "") -> Sequence[PartStatus]: ...
    def list(self) -> Sequence[PartStatus]: ...


class DefinitionsLike(Protocol):
    """The definitions of a pond's maps: see `maps.pond_catalogue.PondCatalogue` for what each does."""

    def copy(self, name: str, new: str) -> MapDefinition: ...
    def rename(self, name: str, new: str) -> MapDefinition: ...


class PondLike(CatalogueLike, Protocol):
    """A pond: see `pond.Pond` for what each does."""

    @property
    def catalogue(self) -> DefinitionsLike: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def log(self) -> LogLike: ...
    @property
    def parts(self) -> PartsLike: ...
    @property
    def reports(self) -> JobReports: ...

    @property
    def repositories(self) -> RepositoriesLike: ...
    @property
    def events(self) -> EventsLike: ...
    @property
    def runs(self) -> Runs: ...
    def repository(self, name: str) -> RepositoryLike: ...

    @property
    def refs(self) -> RefsLike: ...
    def branch(self, name: str, *, source: str | None = None) -> BranchPondLike: ...
    def at(self, ref: str) -> RefPondLike: ...
    def history(self, map: str, ref: str = "main") -> pa.Table: ...

    def part_writer(self, name: str, *, source: str = "") -> PartWriter: ...
    def commit_load(self, parts: Sequence[PartFile], *, source: str = "", rejected: int = 0) -> LoadResult: ...

    def load_files(
        self, files: str | Path | Sequence[str | Path], map: str | None = None, *,
        columns: ColumnMapping | Mapping[str, Any] | None = None, written: str | None = None, max_rejects: int = 0,
        rejects: str | Path | None = None, effective_time: str | None = None, zone: str | None = None,
        time_unit: str | None = None, null: str = "", source: str = "", again: bool = False,
        advance: Advance | None = None, sent: Advance | None = None, extra: str | None = None,
        load_id: str | None = None,
    ) -> LoadResult: ...  # fmt: skip

    def enrich(
        self, frame: Any, lookups: Lookup | Iterable[Lookup] | None = None, *, map: str | None = None,
        key: str | None = None, at: str | None = None, into: str | None = None, on_invalid: OnInvalid = "error",
        known_at: Any = None, overwrite: bool = False, flat: bool = False,
    ) -> Any: ...  # fmt: skip

    def training_set(
        self, events: Any, maps: Mapping[str, str | Lookup], *, at: str | None = None, known_at: Any = None,
        on_invalid: OnInvalid = "error", flat: bool = True,
    ) -> Any: ...  # fmt: skip

    def merge(self) -> object: ...
    def sql(self, text: str, *, known_at: object = None) -> pa.Table: ...
    def verify(self, *, full: bool = False) -> Report: ...
    def close(self) -> None: ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
