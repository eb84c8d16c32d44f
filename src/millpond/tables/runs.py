"""Runs of workflows as a table of SQL: `select status, count(*) from runs where workflow = 'nightly' group by status`.

| a condition on | leaves |
|---|---|
| `id` | those runs |
| `tenant`, `workflow`, `status`, `began` | the runs that the index has of them |

Invariant: runs are read page by page, each page of one moment, so commands go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from millpond.errors import Unavailable
from millpond.tables.rows import TIME, Left, Row, RowTable
from millpond.workflows.keyspaces import INITIALIZED

if TYPE_CHECKING:
    from pathlib import Path

    from millpond.kernel.space import Space
    from millpond.workflows.processor import ReadRows

__all__ = ("RunReading", "run_table", "runs_in")

T = TypeVar("T")
PAGE = 500
PARTS_MAX = 100
"""Pairs of a workflow and a status that are searched one by one; where there are more, all runs are read."""
_TEXT = pa.string()
_RUNS = pa.schema([
    ("tenant", _TEXT), ("id", _TEXT), ("workflow", _TEXT), ("version", pa.int64()), ("revision", pa.int64()),
    ("status", _TEXT), ("began", TIME), ("ended", TIME), ("error", _TEXT),
])  # fmt: skip


class RunReading(Protocol):
    """The runs of a pond, as somebody may read them."""

    def tenants(self) -> Sequence[str]:
        """The tenants whose runs may be read."""

    def read(self, tenant: str, act: Callable[[ReadRows], T]) -> T:
        """The result of a function that reads the rows of a tenant."""


def run_table(reading: Callable[[], RunReading | None]) -> RowTable:
    """The table of runs, which are looked for when it is read; without rows where there are no workflows.

    Raises: as the methods of `RunReading`, with the batches.
    """

    def read(left: Left) -> Iterator[list[Row]]:
        runs = reading()
        for tenant in () if runs is None else runs.tenants():
            if left.holds("tenant", tenant):
                yield from _pages(runs, tenant, left)  # type: ignore[arg-type]

    return RowTable("runs", _RUNS, read)


def runs_in(space: Space, folder: Path) -> RunReading | None:
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
    return _InSpace(space)


class _InSpace:
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
    from littlehorse.model import LHStatus

    from millpond.workflows.store import Wanted

    if (ids := left.points("id")) is not None:
        yield runs.read(tenant, lambda rows: _rows(rows, tenant, ids))
        return
    specs, statuses = left.points("workflow") or [None], left.points("status") or [None]
    if len(specs) * len(statuses) > PARTS_MAX:
        specs, statuses = [None], [None]
    began = left.span("began")
    for spec, status in product(specs, statuses):
        if status is not None and status not in LHStatus.keys():  # noqa: SIM118, it is no dictionary
            continue
        code = None if status is None else int(LHStatus.Value(status))
        search = replace(Wanted.runs(status=code, spec=spec), start_ms=_bound(began.lower), stop_ms=_bound(began.upper))
        bookmark: bytes | None = b""
        while bookmark is not None:
            page, bookmark = runs.read(tenant, lambda rows, at=bookmark, of=search: _page(rows, tenant, of, at))  # type: ignore[misc]
            yield page


def _bound(ms: int | None) -> int | None:
    """A time as the index has it, where there are none before 1970."""
    return None if ms is None else max(0, ms)


def _page(rows: ReadRows, tenant: str, search: Any, bookmark: bytes) -> tuple[list[Row], bytes | None]:
    page = rows.search(search, limit=PAGE, bookmark=bookmark)
    return _rows(rows, tenant, ["_".join(address.run) for address in page.rows]), page.bookmark


def _rows(rows: ReadRows, tenant: str, paths: Sequence[str]) -> list[Row]:
    from littlehorse.model import WfRun

    runs = ((path, rows.get(WfRun, (path,))) for path in paths)
    return [_row(tenant, path, run) for path, run in runs if run is not None]


def _row(tenant: str, path: str, run: Any) -> Row:
    from littlehorse.model import LHStatus

    spec = run.wf_spec_id
    error = run.thread_runs[0].error_message if run.thread_runs else ""
    began, ended = (
        getattr(run, name).ToMilliseconds() if run.HasField(name) else None for name in ("start_time", "end_time")
    )
    return (
        tenant, path, spec.name, spec.major_version, spec.revision, LHStatus.Name(run.status), began, ended,
        error or None,
    )  # fmt: skip
