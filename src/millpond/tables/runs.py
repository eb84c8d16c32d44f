"""Runs of workflows as a table of SQL: `select status, count(*) from runs where workflow = 'nightly' group by status`.

| a condition on | leaves |
|---|---|
| `id` | those runs |
| `tenant`, `workflow`, `status`, `began` | the runs that the index has of them |

Invariant: runs are read page by page, each page of one moment, so commands go on meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from millpond.errors import Unavailable
from millpond.kernel.page import pages
from millpond.tables.rows import TIME, Left, Row, RowTable
from millpond.workflows.deferred import protocol
from millpond.workflows.keyspaces import INITIALIZED

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.kernel.space import Space
    from millpond.workflows.processor import ReadRows

__all__ = ("IDS_MAX", "RUNS", "RunReading", "RunRows", "RunSearch", "RunsInSpace", "run_table", "runs_in")

T = TypeVar("T")
PAGE = 500
IDS_MAX = 100
"""The ids that one request to a node asks for."""
PARTS_MAX = 100
"""Pairs of a workflow and a status that are searched one by one; where there are more, all runs are read."""
_TEXT = pa.string()
RUNS = pa.schema([
    ("tenant", _TEXT), ("id", _TEXT), ("workflow", _TEXT), ("version", pa.int64()), ("revision", pa.int64()),
    ("status", _TEXT), ("began", TIME), ("ended", TIME), ("error", _TEXT),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunSearch:
    """Conditions on runs; the empty one leaves all."""

    workflow: str | None = None
    status: str | None = None
    start_ms: int | None = None
    stop_ms: int | None = None
    """Runs that began at `start_ms` or later, and not later than `stop_ms`."""


class RunReading(Protocol):
    """The runs of a pond, as somebody may read them."""

    def tenants(self) -> Sequence[str]:
        """The tenants whose runs may be read."""

    def named(self, tenant: str, ids: Sequence[str]) -> list[Row]:
        """The runs of some ids."""

    def page(self, tenant: str, search: RunSearch, bookmark: bytes) -> tuple[list[Row], bytes | None]:
        """The next runs that a search leaves, and the bookmark of those after them; None at the end."""


class RunRows(ABC):
    """Runs that are read as they are stored."""

    @abstractmethod
    def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads the rows of a tenant."""

    def named(self, tenant: str, ids: Sequence[str]) -> list[Row]:
        """The runs of some ids."""
        return self.read(tenant, lambda rows: _rows(rows, tenant, ids))

    def page(self, tenant: str, search: RunSearch, bookmark: bytes) -> tuple[list[Row], bytes | None]:
        """The next runs that a search leaves, and the bookmark of those after them; None at the end."""
        from millpond.workflows.store import TagQuery

        if search.status is not None and search.status not in protocol.LHStatus.keys():  # noqa: SIM118, it is no dictionary
            return [], None
        code = None if search.status is None else int(protocol.LHStatus.Value(search.status))
        conditions = replace(
            TagQuery.runs(status=code, spec=search.workflow), start_ms=_bound(search.start_ms),
            stop_ms=_bound(search.stop_ms),
        )  # fmt: skip

        def page(rows: ReadRows) -> tuple[list[Row], bytes | None]:
            listed = rows.search(conditions, limit=PAGE, bookmark=bookmark)
            return _rows(rows, tenant, ["_".join(address.run) for address in listed.rows]), listed.bookmark

        return self.read(tenant, page)


def run_table(reading: Callable[[], RunReading | None]) -> RowTable:
    """The table of runs, which are looked for when it is read; without rows where there are no workflows.

    Raises: as the methods of `RunReading`, with the batches.
    """

    def read(left: Left) -> Iterator[list[Row]]:
        runs = reading()
        for tenant in () if runs is None else runs.tenants():
            if left.holds("tenant", tenant):
                yield from _pages(runs, tenant, left)  # type: ignore[arg-type]

    return RowTable("runs", RUNS, read)


def runs_in(space: Space, folder: Path) -> RunsInSpace | None:
    """The runs that are stored in the space of a pond; None where there are none.

    Raises: `Unavailable`, kind `runs_elsewhere`, when the pond has them in a store of their own.
    """
    with space.read() as tx:
        there = tx.get(INITIALIZED.pack()) is not None
    if not there:
        if (folder / "workflows").exists():
            raise Unavailable("the runs of this pond are in a store of their own", kind="runs_elsewhere", folder=folder,
                              hint="ask the node that serves it, on the page SQL of its console")  # fmt: skip
        return None
    return RunsInSpace(space)


class RunsInSpace(RunRows):
    """Runs that lie in a space."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def tenants(self) -> list[str]:
        from millpond.workflows.verify import tenants_in

        with self._space.read() as tx:
            return list(tenants_in(tx))

    def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        from millpond.workflows.processor import ReadRows
        from millpond.workflows.store import RunReads
        from millpond.workflows.store.initialization import initialization

        with self._space.read() as tx:
            born = initialization(tx)
            assert born is not None, "it is never undone"
            return act(ReadRows(tx, RunReads(tenant, born)))


def _pages(runs: RunReading, tenant: str, left: Left) -> Iterator[list[Row]]:
    if (ids := left.points("id")) is not None:
        yield runs.named(tenant, ids)
        return
    specs, statuses = left.points("workflow") or [None], left.points("status") or [None]
    if len(specs) * len(statuses) > PARTS_MAX:
        specs, statuses = [None], [None]
    began = left.span("began")
    for spec, status in product(specs, statuses):
        search = RunSearch(spec, status, began.lower, began.upper)
        for rows, _ in pages(partial(runs.page, tenant, search), b"", itemgetter(1)):
            yield rows


def _bound(ms: int | None) -> int | None:
    """A time as the index has it, where there are none before 1970."""
    return None if ms is None else max(0, ms)


def _rows(rows: ReadRows, tenant: str, paths: Sequence[str]) -> list[Row]:
    runs = ((path, rows.get(protocol.WfRun, (path,))) for path in paths)
    return [_row(tenant, path, run) for path, run in runs if run is not None]


def _row(tenant: str, path: str, run: Any) -> Row:
    spec = run.wf_spec_id
    error = run.thread_runs[0].error_message if run.thread_runs else ""
    began, ended = (
        getattr(run, name).ToMilliseconds() if run.HasField(name) else None for name in ("start_time", "end_time")
    )
    return (
        tenant, path, spec.name, spec.major_version, spec.revision, protocol.LHStatus.Name(run.status), began, ended,
        error or None,
    )  # fmt: skip
