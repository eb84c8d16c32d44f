"""A pond that lies on nodes, used like one in a folder: `millpond.open("http://n1:7433")`.

The address of one node is enough: it knows the others. Reads go to the first node that can be reached, in the order of
that list; changes go to its first, the primary; parts go to all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.client.catalogue import RemoteCatalogue, map_path
from millpond.client.catching_up import come_up_to
from millpond.client.events import RemoteEvents
from millpond.client.loads import RemoteLoading
from millpond.client.lookup import Questions
from millpond.client.map import RemoteMap
from millpond.client.operations import ask_primary
from millpond.client.parts import RemoteParts
from millpond.client.refs import RemoteRefsFace
from millpond.client.transport import Nodes
from millpond.client.upload import Advance
from millpond.client.versions.repositories import RemoteRepositories
from millpond.client.versions.repository import RemoteRepository
from millpond.clock import Clock, SystemClock
from millpond.deferred import opened_once
from millpond.errors import Denied
from millpond.json_forms import JsonForm
from millpond.kernel.job_reports import NO_REPORTS
from millpond.kernel.verify import Report, problem
from millpond.lineage.job_stories import with_stories
from millpond.maps.faces import PondFace
from millpond.maps.inputs.mapping import ColumnMapping
from millpond.maps.loads import load_files as file_loads
from millpond.maps.loads.load import LoadResult
from millpond.maps.loads.load_files import file_reading
from millpond.maps.log.log import Entry
from millpond.maps.model.definition import MapDefinition
from millpond.maps.parts.part import PartFile, PartWriter
from millpond.maps.protocols import CatalogueOperations
from millpond.reports.remote import remote_reporter
from millpond.settings import Settings, load_settings
from millpond.stores.files import remove_tree
from millpond.tracing import begin_tracing

if TYPE_CHECKING:
    from millpond.kernel.operations import Operation
    from millpond.tables.run_list import Runs

__all__ = ("RemoteLog", "RemotePond", "open_nodes")


def open_nodes(urls: str, *, clock: Clock | None = None, **settings: Any) -> RemotePond:
    """The pond that these nodes keep; `settings` with their groups, such as `client_token` and `client_synchronise`.

    Raises: `Invalid` for an address or a setting that is not understood; `Unavailable` when none can be reached;
    `Denied` when the token is not known.
    """
    return RemotePond(urls, load_settings(**settings), clock=clock or SystemClock())


class RemotePond(PondFace, RemoteRefsFace, CatalogueOperations):
    """A pond on nodes. Use it as a context manager, or `close` it. Threads may share it.

    `log`, `parts` and `catalogue` are its parts, as those of a `Pond`.
    """

    def __init__(self, urls: str | Sequence[str], settings: Settings, *, clock: Clock) -> None:
        begin_tracing(settings.tracing.target)
        self.settings, self.clock = settings, clock
        self.nodes = Nodes(urls, settings, clock=clock)
        self._named = self.nodes.primary()
        status = self.nodes.learn()
        if status.get("role") == "replica" and not status.get("position"):
            # It may be so new that it does not know yet whose copy it is: ask from the first of the list on.
            status = self.nodes.first(lambda node: node.request("GET", "/v1/node")).json()
        self.log = RemoteLog(self.nodes, str(status["pond"]))
        self.questions = Questions(self.nodes, None, settings, clock)
        self.catalogue = RemoteCatalogue(self.nodes, clock)
        self.loading = RemoteLoading(self.nodes, settings, clock, self.questions.changed, self.catalogue.alter)
        self.parts = RemoteParts(self.nodes)
        self.repositories = RemoteRepositories(self._named)
        self.events = RemoteEvents(self.nodes, self.nodes.clock)
        self._reporter = remote_reporter(self.events, self.nodes.clock) if settings.events.reports else None
        self.reports = with_stories(self._reporter or NO_REPORTS, self)
        self._scratch: Path | None = None

    def __repr__(self) -> str:
        return f"RemotePond({self._named.url!r})"

    def close(self) -> None:
        """Close connections and snapshots, and remove parts that were not committed. Closing twice is harmless."""
        if self._reporter is not None:
            self._reporter.close()
        self.questions.close()
        self.nodes.close()
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            remove_tree(scratch)

    # -- maps -----------------------------------------------------------------------------------------

    def _perform(self, operation: Operation, arguments: Mapping[str, Any]) -> RemoteMap:
        return self._map(self.catalogue.create(operation, arguments))

    def map(self, name: str) -> RemoteMap:
        """The map of that name.

        Raises: `NotFound` naming maps with a similar name.
        """
        return self._map(self.catalogue.find(name))

    def maps(self) -> list[RemoteMap]:
        """All maps, by name."""
        return [self._map(definition) for definition in self.catalogue.list()]

    def alter_map(self, name: str, /, **settings: Any) -> RemoteMap:
        """Change settings of a map on every node, see `Pond.alter_map`.

        Raises: `Invalid`; `NotFound`.
        """
        return self._map(self.catalogue.alter(name, settings))

    def drop_map(self, name: str) -> None:
        """Drop a map with all its rows, parts and snapshots on every node.

        Raises: `NotFound`.
        """
        self.catalogue.drop(name)
        self.questions.changed(name.lower())

    def _map(self, definition: MapDefinition) -> RemoteMap:
        return RemoteMap(definition, self.loading, self.questions)

    # -- repositories ---------------------------------------------------------------------------------

    def repository(self, name: str) -> RemoteRepository:
        """The repository of that name on the first node that was named; `repositories` makes, lists and deletes them.

        Raises: `NotFound`.
        """
        return self.repositories.get(name)

    # -- loads ----------------------------------------------------------------------------------------

    def part_writer(self, name: str, *, source: str = "") -> PartWriter:
        """A writer of parts for a map, on this machine; `commit_load` takes the parts that it finishes.

        Raises: `NotFound`.
        """
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="millpond-"))
        return PartWriter(self.catalogue.find(name), self._scratch / self.clock.random_id(), source=source)

    def commit_load(
        self, parts: Sequence[PartFile], *, source: str = "", rejected: int = 0, load_id: str | None = None,
        stream: tuple[str, int] | None = None, wait: bool | None = None, advance: Advance | None = None,
    ) -> LoadResult:  # fmt: skip
        """Upload sealed parts to every node and commit them as one load, or not at all; then remove them here.

        `wait`: return when every node has merged them; by default the setting `synchronise` decides. `advance` is
        called with the bytes uploaded.

        Raises: see `RemoteMap.load`.
        """
        result = self.loading.commit(
            parts, source=source, rejected=rejected, load_id=load_id, stream=stream, wait=wait, advance=advance
        )
        for part in parts:
            part.file.unlink(missing_ok=True)
        return result

    def load_files(
        self, files: str | Path | Sequence[str | Path], map: str | None = None, *,
        columns: ColumnMapping | Mapping[str, Any] | None = None, written: str | None = None, max_rejects: int = 0,
        rejects: str | Path | None = None, effective_time: str | None = None, zone: str | None = None,
        time_unit: str | None = None, null: str = "",
        source: str = "", again: bool = False, advance: file_loads.Advance | None = None,
        sent: Advance | None = None, extra: str | None = None, load_id: str | None = None,
    ) -> LoadResult:  # fmt: skip
        """Load files as one load, see `Pond.load_files`; this machine reads them. `sent` is called with bytes uploaded.

        Raises: as `Pond.load_files`, and as `RemoteMap.load`.
        """
        definitions = {definition.name: definition for definition in self.catalogue.list()}
        name = None if map is None else self.catalogue.find(map).name
        reading = file_reading(
            definitions, name, columns=columns, effective_time=effective_time, zone=zone, time_unit=time_unit,
            null=null, extra=extra,
        )  # fmt: skip
        return self.loading.load_files(
            reading, [files] if isinstance(files, str | Path) else files, written=written, max_rejects=max_rejects,
            rejects=rejects, source=source, again=again, advance=advance, sent=sent, load_id=load_id,
        )  # fmt: skip

    def merge(self) -> None:
        """Wait until every node has merged all loads that were committed before.

        Raises: `Unavailable` naming a node that cannot, and why; `Corrupt` when a part was quarantined.
        """
        for outcome in come_up_to(self.nodes, self.log.position()[0], self.clock, applied=True):
            if outcome.error is not None:
                raise outcome.error
        self.questions.changed(*(definition.name for definition in self.catalogue.list()))

    # -- questions to all maps ------------------------------------------------------------------------

    def sql(self, text: str, *, known_at: object = None) -> pa.Table:
        """The result of a query, see `Pond.sql`: DuckDB runs on this machine and reads the rows it needs.

        Raises: as `Pond.sql`; `Unavailable` when no node can be reached; `Denied` for what the token may not read.
        """
        from millpond.client.differences import differences
        from millpond.client.queryable import QueryablePond
        from millpond.maps.sql import query
        from millpond.tables import difference_tables, tables_beside

        differing = difference_tables(partial(differences, self.nodes))
        return query(QueryablePond(self), text, tables_beside(self), known_at=known_at, differing=differing)

    @opened_once
    def runs(self) -> Runs:
        """The runs of the pond's workflows that the token may read, see `Pond.runs`."""
        from millpond.client.runs import RemoteRuns
        from millpond.tables.run_list import Runs

        return Runs(repr(self), lambda: RemoteRuns(self.nodes), lambda: self.events, self.clock)

    def verify(self, *, full: bool = False) -> Report:
        """Check every invariant on every node, see `Pond.verify`; a node that cannot be reached is a problem.

        Raises: `Denied` when no node allows it to the token.
        """
        outcomes = self.nodes.all(
            lambda node: node.request("POST", "/v1/verify", json={"full": full}, timeout=3600.0, question=True)
        )
        refused = [outcome.error for outcome in outcomes if isinstance(outcome.error, Denied)]
        if refused and len(refused) == len(outcomes):
            raise refused[0]
        report = Report()
        for outcome in outcomes:
            if outcome.value is None:
                denied = isinstance(outcome.error, Denied)
                report += problem(
                    "node", outcome.node, outcome.error, "all nodes take the same tokens" if denied else _START
                )
            else:
                report += _report_of(outcome.node, outcome.value.read(_REPORT))
        return report


_REPORT = JsonForm(Report)
_START = "start it, or repair the network"


def _report_of(node: str, report: Report) -> Report:
    """A node's report, with the node before each place."""
    return replace(
        report, problems=tuple(replace(problem, place=f"{node} {problem.place}") for problem in report.problems)
    )


class RemoteLog:
    """The log of a pond: the primary's, and the copies that the others have of it. `pond_id` is the same on all."""

    def __init__(self, nodes: Nodes, pond_id: str) -> None:
        self._nodes, self.pond_id = nodes, pond_id

    def __repr__(self) -> str:
        return f"RemoteLog({', '.join(self._nodes.urls)!r})"

    def position(self) -> tuple[int, str]:
        """The primary's last position, and the chain up to it; (0, "") for a new pond."""
        status = ask_primary(self._nodes, "GET", "/v1/node").json()
        return status["position"], status["chain"]

    def entries(self, after: int, limit: int = 1000) -> list[Entry]:
        """Log entries after a position.

        Raises: `NotFound` kind `log_trimmed` when that is not kept any more; `Denied`.
        """
        query = {"after": after, "limit": limit}
        response = self._nodes.first(lambda node: node.request("GET", "/v1/log", query=query)).json()
        return [Entry.from_dict(entry) for entry in response["entries"]]

    def applied(self, name: str) -> int:
        """Every entry about this map up to this position has been applied, where it is asked."""
        return int(self._nodes.first(lambda node: node.request("GET", map_path(name))).json()["position"])
