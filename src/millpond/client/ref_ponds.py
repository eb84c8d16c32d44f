"""A pond on nodes as it is at a ref: `pond.branch("fix")` to read and to load, `pond.at("main~3")` to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from millpond.client.catalogue import RemoteCatalogue
from millpond.client.map import RemoteMap
from millpond.deferred import opened_once
from millpond.maps.faces import PondFace
from millpond.maps.inputs.formats.readers import read_piece
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.loads.load_files import Advance as Progress
from millpond.maps.loads.load_files import ReadPiece, file_reading
from millpond.refs.face import BranchFace
from millpond.refs.layers import ref_read_only, ref_unsupported
from millpond.refs.loads import check_staged
from millpond.refs.protocols import BranchMapsOperations

if TYPE_CHECKING:
    import pyarrow as pa

    from millpond.client.pond import RemotePond
    from millpond.client.upload import Advance
    from millpond.kernel.job_reports import JobReports
    from millpond.kernel.operations import Operation
    from millpond.maps.loads.load import LoadResult
    from millpond.maps.maintenance.maintenance import MaintenanceReport
    from millpond.maps.model.definition import MapDefinition
    from millpond.maps.snapshots.snapshot import Snapshot

__all__ = ("RemoteBranchPond", "RemoteRefMap", "RemoteRefPond")


class RemoteRefMap(RemoteMap):
    """A map at a ref of a pond on nodes: get it from `pond.branch(…).map(…)` or `pond.at(…).map(…)`."""

    @property
    def _ref(self) -> str:
        return next(iter(self.questions.at.values()))

    def __repr__(self) -> str:
        return f"RemoteMap({self.definition.summary}, ref={self._ref!r})"

    @property
    def alerts(self) -> NoReturn:
        """Refuse: alerts are about `main`.

        Raises: `Invalid`.
        """
        raise ref_unsupported(self.name, "alerts")

    def load(
        self, data: Any, *, columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
        rejects: str | Path | None = None, zone: str | None = None, time_unit: str | None = None, source: str = "",
        again: bool = False, extra: str | None = None, commit: bool = True, load_id: str | None = None,
    ) -> LoadResult:  # fmt: skip
        """Load rows into the map on the branch, as a commit; without `commit` they are staged. See `RefMap.load`.

        Raises: as `RemoteMap.load`; `Invalid`, kind `ref_read_only`, at a ref that is no branch.
        """
        if "branch" not in self.questions.at:
            raise ref_read_only(self.name, self._ref)
        check_staged(load_id, commit=commit)
        loading = replace(self.loading, alter=partial(self.loading.alter, commit=commit))
        return loading.load_data(
            self.definition, data, columns=mapping_of(columns, extra), max_rejects=max_rejects, rejects=rejects,
            zone=zone, time_unit=time_unit, source=source, again=again, load_id=load_id, commit=commit,
        )  # fmt: skip

    def snapshot(
        self, *, keys: Sequence[str | int | None] | None = None, window: Sequence[object] | None = None
    ) -> Snapshot:  # fmt: skip
        """The up-to-date snapshot on this machine, open.

        Raises: `Invalid`, kind `ref_unsupported`, for a part of it.
        """
        if keys is not None or window is not None:
            raise ref_unsupported(self.name, "subset")
        return super().snapshot()

    def compact(self) -> MaintenanceReport:
        """Refuse.

        Raises: `Invalid`.
        """
        raise ref_unsupported(self.name, "compact")


class RemoteRefPond(PondFace):
    """A pond on nodes as it is at a ref, to read: maps, `sql` and `enrich`. It needs no closing."""

    _by = "ref"

    def __init__(self, pond: RemotePond, ref: str) -> None:
        self.pond, self.refs, self.ref, self.clock = pond, pond.refs, ref, pond.clock
        at = {self._by: ref}
        self.questions = pond.questions.at_ref(at)
        self.catalogue = RemoteCatalogue(pond.nodes, pond.clock, at)
        self.loading = replace(pond.loading, at=at, alter=self.catalogue.alter)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pond.nodes.where!r}, {self.ref!r})"

    @opened_once
    def reports(self) -> JobReports:
        """The place that jobs report to: that of the pond."""
        return self.pond.reports

    def map(self, name: str) -> RemoteRefMap:
        """A map as it is at the ref.

        Raises: `NotFound` when the map, or the ref, is not there.
        """
        return self._map(self.catalogue.find(name))

    def maps(self) -> list[RemoteRefMap]:
        """All maps at the ref, by name.

        Raises: `NotFound` when the ref is not there.
        """
        return [self._map(definition) for definition in self.catalogue.list()]

    def _map(self, definition: MapDefinition) -> RemoteRefMap:
        return RemoteRefMap(definition, self.loading, self.questions)

    def sql(self, text: str, *, known_at: object = None) -> pa.Table:
        """The result of a query in DuckDB's SQL over the maps at the ref, as `Pond.sql`; `known_at` counts its commits.

        Raises: `Invalid` when the query is not understood.
        """
        from millpond.client.differences import differences
        from millpond.client.queryable import QueryablePond
        from millpond.maps.sql import query
        from millpond.tables.differences import difference_tables

        differing = difference_tables(partial(differences, self.pond.nodes))
        return query(QueryablePond(self), text, known_at=known_at, differing=differing)

    def close(self) -> None:
        """Nothing: the pond holds what is open."""


class RemoteBranchPond(BranchFace, RemoteRefPond, BranchMapsOperations):
    """A pond of a branch on nodes: what is loaded here is seen on the branch, until it is merged."""

    _by = "branch"

    def load_files(
        self, files: str | Path | Sequence[str | Path], map: str | None = None, *, commit: bool = True,
        max_rejects: int = 0, rejects: str | Path | None = None, source: str = "", again: bool = False,
        written: str | None = None, advance: Progress | None = None, sent: Advance | None = None,
        load_id: str | None = None, read: ReadPiece = read_piece, **options: Any,
    ) -> LoadResult:  # fmt: skip
        """Load files, folders or patterns on the branch, as one commit, see `BranchPond.load_files`.

        Raises: as `BranchPond.load_files`, and as `RemoteMap.load`.
        """
        check_staged(load_id, commit=commit)
        definitions = {definition.name: definition for definition in self.catalogue.list()}
        reading = file_reading(definitions, None if map is None else self.catalogue.find(map).name, **options)
        loading = replace(self.loading, alter=partial(self.catalogue.alter, commit=commit))
        return loading.load_files(
            reading, [files] if isinstance(files, str | Path) else files, written=written, max_rejects=max_rejects,
            rejects=rejects, source=source, again=again, advance=advance, sent=sent, load_id=load_id, commit=commit,
            read=read,
        )  # fmt: skip

    def _perform(self, operation: Operation, arguments: Mapping[str, Any]) -> RemoteRefMap:
        return self._map(self.catalogue.create(operation, arguments))

    def alter_map(self, name: str, /, *, commit: bool = True, **settings: Any) -> RemoteRefMap:
        """Change settings or fields of a map on the branch, as `Pond.alter_map`; without `commit` that is staged.

        Raises: `Invalid`; `NotFound`.
        """
        return self._map(self.catalogue.alter(name, settings, commit=commit))
