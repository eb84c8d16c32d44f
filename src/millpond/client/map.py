"""One map that lies on nodes: what a user does with it is what they do with one in a folder.

Rows are sealed here and go to every node; questions go to the first node that can be reached. Many keys are looked up
in a snapshot that is fetched once for all processes of this machine, see `lookup.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from millpond.client.incarnation_guard import incarnation_headers, of_same_map
from millpond.client.loads import RemoteLoading
from millpond.client.lookup import Questions
from millpond.client.operations import LARGE_SECONDS_MAX, ask_primary, perform
from millpond.json_forms import JsonForm
from millpond.maps.alerts.operations import AlertOperations
from millpond.maps.faces import MapFace
from millpond.maps.inputs.mapping import ColumnMapping, mapping_of
from millpond.maps.inputs.single_key import single_key
from millpond.maps.inputs.spans import Between, Buckets
from millpond.maps.loads.deletion import DeleteReport, condition_text
from millpond.maps.loads.load import LoadResult
from millpond.maps.maintenance.maintenance import MaintenanceReport
from millpond.maps.model.definition import Kind, MapDefinition
from millpond.maps.model.store_limits import need_alerts
from millpond.maps.predicates.to_text import scan_elsewhere
from millpond.maps.protocols import MapOperations
from millpond.times.instants import clear_instant, parse_instant

if TYPE_CHECKING:
    from millpond.client.transport import Connection
    from millpond.kernel.operations import Operation
    from millpond.maps.inputs.key_columns import Key, OnInvalid
    from millpond.maps.predicates.predicate import Where
    from millpond.maps.snapshots.freeze import SnapshotManifest
    from millpond.maps.snapshots.snapshot import Snapshot

__all__ = ("RemoteAlerts", "RemoteMap", "definition_of")

T = TypeVar("T")


def definition_of(description: Mapping[str, Any]) -> MapDefinition:
    """The definition in what a node tells of a map."""
    fields = MapDefinition.__dataclass_fields__
    return MapDefinition.from_dict({name: value for name, value in description.items() if name in fields})


@dataclass(frozen=True, slots=True)
class _Maintained:
    position: int
    report: MaintenanceReport


_MAINTAINED, _DELETED = JsonForm(_Maintained), JsonForm(DeleteReport)


class RemoteAlerts(AlertOperations):
    """The alerts of one map: its rules are at the primary, which judges the loads."""

    def __init__(self, perform: Callable[[Operation, Mapping[str, Any]], Any]) -> None:
        self._perform = perform


@dataclass(frozen=True, repr=False)
class RemoteMap(MapFace, MapOperations):
    """A map on nodes: get it from `RemotePond.map` or `RemotePond.create_map`.

    A snapshot on this machine that is younger than `client.min_time_to_keep_snapshots` answers `lookup` without
    contacting a node, also after another process dropped the map.
    """

    definition: MapDefinition
    loading: RemoteLoading
    questions: Questions

    def __repr__(self) -> str:
        return f"RemoteMap({self.definition.summary})"

    def _of_same_map(self, act: Callable[[], T]) -> T:
        # What has branches is one node, or a bucket: none of its nodes has yet to hear of a map.
        return act() if self.questions.at else of_same_map(self.loading.nodes, self.definition, act)

    @property
    def name(self) -> str:
        """The map's name."""
        return self.definition.name

    @property
    def kind(self) -> Kind:
        """The map's kind."""
        return self.definition.kind

    @property
    def alerts(self) -> AlertOperations:
        """The rules of alerts of an aggregate, at the primary.

        Raises: `Invalid`, kind `alerts_unsupported`, for a map that has none.
        """
        need_alerts(self.definition)
        return RemoteAlerts(self._perform)

    def _perform(self, operation: Operation, arguments: Mapping[str, Any]) -> Any:
        names, headers = {"name": self.name}, incarnation_headers(self.definition)
        nodes, at = self.loading.nodes, self.questions.at
        return self._of_same_map(lambda: perform(nodes, operation, names, arguments, headers, at))

    def load(
        self, data: Any, *, columns: ColumnMapping | Mapping[str, Any] | None = None, max_rejects: int = 0,
        rejects: str | Path | None = None, zone: str | None = None, time_unit: str | None = None,
        source: str = "", again: bool = False, extra: str | None = None,
    ) -> LoadResult:  # fmt: skip
        """Load rows into the map on every node, see `Map.load`; the nodes merge them after the call returns.

        Raises: as `Map.load`; `Unavailable` kinds `load_not_everywhere` (nothing was loaded), `load_behind`,
        `load_unconfirmed`: the same data may be loaded again.
        """
        return self._of_same_map(
            lambda: self.loading.load_data(
                self.definition, data, columns=mapping_of(columns, extra), max_rejects=max_rejects, rejects=rejects,
                zone=zone, time_unit=time_unit, source=source, again=again,
            )
        )  # fmt: skip

    def get(
        self, key: Key, at: object = None, *, known_at: object = None, between: Between | None = None,
        resolution: str | None = None, window: str | None = None,
    ) -> Any:  # fmt: skip
        """The value of a key at a time, see `Map.get`; a node answers.

        Raises: `Invalid` for a key or time the map cannot have; `Unavailable` when no node can be reached.
        """
        if between is not None or resolution is not None or window is not None:
            return self.lookup(
                [key], at, known_at=known_at, between=between, resolution=resolution, window=window
            )[0].as_py()  # fmt: skip
        moment = None if known_at is None else parse_instant(known_at)
        encoded = single_key(self.definition, key)
        instant = None if at is None or not self.kind.timed else parse_instant(at)
        if encoded is None:
            return None
        return self._of_same_map(lambda: self.questions.get(self.definition, encoded, instant, moment))

    def lookup(
        self, keys: Any, at: Any = None, *, on_invalid: OnInvalid = "error", known_at: Any = None,
        between: Between | None = None, resolution: str | None = None, window: str | None = None,
    ) -> pa.Array:  # fmt: skip
        """The values of many keys at their times, see `Map.lookup`; a node answers few keys, and as `known_at`, a local
        snapshot many, and those that combine buckets.

        Raises: as `Map.lookup`; `Unavailable` when there is no snapshot and no node can be reached.
        """
        buckets = Buckets(between, resolution, window)
        return self._of_same_map(
            lambda: self.questions.lookup(
                self.definition, keys, at, on_invalid=on_invalid, known_at=known_at, buckets=buckets
            )
        )

    def scan(
        self, where: Where = None, columns: Sequence[str] | None = None, *, known_at: object = None,
        resolution: str | None = None,
    ) -> pa.RecordBatchReader:  # fmt: skip
        """Rows as Arrow batches, see `Map.scan`; they are streamed. Close the reader to stop.

        Raises: as `Map.scan`; `Unavailable` when the connection is lost, also while the rows are read.
        """
        moment = None if known_at is None else parse_instant(known_at)

        def read(text: str | None, names: Sequence[str]) -> pa.RecordBatchReader:
            return self._of_same_map(lambda: self.questions.scan(self.definition, text, names, moment, resolution))

        return scan_elsewhere(read, self.definition, where, columns)

    def freeze(self) -> SnapshotManifest:
        """Bring the snapshot up to date and fetch it to this machine; its manifest."""
        return self.snapshot().manifest

    def snapshot(
        self, *, keys: Sequence[str | int | None] | None = None, window: Sequence[object] | None = None
    ) -> Snapshot:  # fmt: skip
        """The up-to-date snapshot on this machine, open; or some `keys` or a `window` of time, see `Map.snapshot`."""
        return self._of_same_map(lambda: self.questions.snapshot(self.definition, keys=keys, window=window, fresh=True))

    def condense(self, before: object = None) -> MaintenanceReport:
        """Drop repeated confirmations, join overlapping sessions, on every node; the report is the primary's."""
        return self._maintain("condense", before)

    def retain(self, before: object = None) -> MaintenanceReport:
        """Delete rows older than a time, on every node; the report is the primary's."""
        return self._maintain("retain", before)

    def compact(self) -> MaintenanceReport:
        """Rewrite the shard's file without free pages, on every node; the report is the primary's."""

        def compact() -> Any:
            nodes, primary = self.loading.nodes, self.loading.nodes.primary()
            outcomes = nodes.all(
                lambda node: None if node.withheld and node is not primary else self._order(node, {"what": "compact"})
            )
            for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error
            return outcomes[0].value

        return self._report(self._of_same_map(compact))

    def delete(self, where: Where, *, now: bool = False, branches: bool = False) -> DeleteReport:
        """Delete the rows for which a condition holds, on every node; `now` purges them from the files of the primary,
        `branches` also from all refs.

        Raises: as `Map.delete`; `Uncertain` when the answer is lost: done again, it would delete what came meanwhile.
        """
        body = {"where": condition_text(self.definition, where), "now": now} | ({"branches": True} if branches else {})
        headers, path = incarnation_headers(self.definition), f"/v1/maps/{self.name}/rows/delete"
        nodes, at = self.loading.nodes, self.loading.at
        response = self._of_same_map(
            lambda: ask_primary(nodes, "POST", path, query=at, json=body, headers=headers, timeout=LARGE_SECONDS_MAX)
        )
        self.loading.changed(self.name)
        return response.read(_DELETED)

    def _maintain(self, what: str, before: object) -> MaintenanceReport:
        body = {"what": what} | ({} if before is None else {"before": clear_instant(parse_instant(before))})
        ordered = self._of_same_map(lambda: self.loading.nodes.on_primary(lambda node: self._order(node, body)))
        return self._report(ordered)

    def _order(self, node: Connection, body: dict[str, Any]) -> _Maintained:
        headers, path = incarnation_headers(self.definition), f"/v1/maps/{self.name}/maintenance"
        response = node.request(
            "POST", path, query=self.loading.at, json=body, headers=headers, timeout=LARGE_SECONDS_MAX, repeatable=True
        )
        return response.read(_MAINTAINED)

    def _report(self, response: _Maintained) -> MaintenanceReport:
        self.loading.changed(self.name)
        return response.report

    def info(self) -> dict[str, Any]:
        """The same facts as `Map.info`, from the first node that can be reached."""
        path, headers = f"/v1/maps/{self.name}", incarnation_headers(self.definition)
        nodes = self.loading.nodes
        response = self._of_same_map(
            lambda: nodes.first(lambda node: node.request("GET", path, query=self.questions.at, headers=headers))
        ).json()
        return {name: value for name, value in response.items() if name != "hash_bits"}

    def close(self) -> None:
        """Nothing: the pond holds the connections. The method is there because `Map` has it."""
