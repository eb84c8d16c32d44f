"""Searches for the newest runs that meet conditions, and what lists show of each.

    workflow, status, tags, times ─▶ one walk of their indexes, from the newest on ─▶ a page of runs, and its bookmark

Invariants:
* a page reads an index, or several together; a tag has one, for a variable without one is refused;
* a page looks at so many candidates at most: one that holds less than it may, or nothing, still has a next page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millpond.server.console.pages import PAGE_ROWS
from millpond.workflows.deferred import engine, pipeline_starts, protocol
from millpond.workflows.named import filters_of, spec_of, status_of

if TYPE_CHECKING:
    from millpond.server.console.runs import Calls

__all__ = ("Search", "failed_runs", "newest", "run_facts", "times_of")


@dataclass(frozen=True, slots=True)
class Search:
    """The conditions of a search, which a run meets together; those that are empty are none."""

    workflow: str = ""
    status: str = ""
    tags: Sequence[str] = ()
    """`NAME=VALUE` of variables that the workflow declares as searchable."""
    earliest_ms: int = 0
    latest_ms: int = 0


def newest(
    call: Calls, search: Search, *, limit: int = PAGE_ROWS, bookmark: bytes = b""
) -> tuple[list[dict[str, Any]], bytes]:
    """A page of the newest runs, and the bookmark of the next one; an empty one at the end.

    Raises: `Invalid` for a status that none has, a tag by which runs cannot be found, and a bookmark of another search;
    `NotFound` for a workflow of which there is none.
    """
    from millpond.server.workflows.reads import search_runs

    request = _request(call, search)
    request.limit, request.bookmark = limit, bookmark
    page = call.rows("SearchWfRun", lambda rows: search_runs(rows, request, newest=True))
    if search.workflow and not page.results:
        spec_of(call, search.workflow)
    runs = call.all("GetWfRun", page.results)
    return [run_facts(run) for run in runs if run is not None], page.bookmark


def failed_runs(call: Calls, limit: int) -> list[dict[str, Any]]:
    """The newest runs that ended with an error or an exception, each with its words."""
    runs = [run for status in ("ERROR", "EXCEPTION") for run in newest(call, Search("", status), limit=limit)[0]]
    return sorted(runs, key=lambda run: run["began_ms"] or 0, reverse=True)[:limit]


def run_facts(run: Any) -> dict[str, Any]:
    """A run as lists show it."""
    return {
        "id": engine.run_path(run.id), "workflow": run.wf_spec_id.name, "status": protocol.LHStatus.Name(run.status),
        "error": run.thread_runs[0].error_message if run.thread_runs else "", **times_of(run, "start_time", "end_time"),
    }  # fmt: skip


def times_of(row: Any, start: str, end: str) -> dict[str, int | None]:
    """The time at which a thing began, and how long it took."""
    began = getattr(row, start).ToMilliseconds() if row.HasField(start) else None
    took = getattr(row, end).ToMilliseconds() - began if began is not None and row.HasField(end) else None
    return {"began_ms": began, "took_ms": took}


def _request(call: Calls, search: Search) -> Any:
    request: Any = protocol.SearchWfRunRequest()
    if search.workflow:
        request.wf_spec_name = pipeline_starts.spec_name(search.workflow)
    if search.status:
        request.status = status_of(search.status)
    if search.earliest_ms:
        request.earliest_start.FromMilliseconds(search.earliest_ms)
    if search.latest_ms:
        request.latest_start.FromMilliseconds(search.latest_ms)
    if search.tags:
        request.variable_filters.extend(filters_of(call, search.workflow, search.tags))
    return request
