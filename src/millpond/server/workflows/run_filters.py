"""Searches for runs by the values of their variables.

Candidates come from an index: that of the first filter whose variable is searchable, else that of all runs which fit
the other conditions. Their rows are read, at most `CANDIDATES_MAX` a page, so a page may hold less than its limit and
still have a bookmark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from littlehorse.model import SearchWfRunRequest, ThreadVarDef, Variable, WfRun, WfRunId, WfRunIdList, WfSpec

from millpond.errors import Invalid
from millpond.kernel.patience import patiently
from millpond.workflows.engine import run_path
from millpond.workflows.store import Wanted
from millpond.workflows.store.addresses import Kind, path_of
from millpond.workflows.store.tags import value_part

if TYPE_CHECKING:
    from millpond.kernel.keys import Part
    from millpond.workflows.processor import ReadRows
    from millpond.workflows.store.addresses import Address

__all__ = ("CANDIDATES_MAX", "filtered_runs", "instant_of")

CANDIDATES_MAX = 10_000
"""Candidates of one page, whose rows are read."""
_AT_ONCE = 100


def filtered_runs(rows: ReadRows, request: SearchWfRunRequest, limit: int) -> WfRunIdList:
    """One page of the runs whose variables have the values of all filters.

    Raises:
        Invalid: no such specification, or a filter names no variable of its first thread.
    """
    query = _candidates(rows, request)
    page, bookmark, left = WfRunIdList(), request.bookmark or None, CANDIDATES_MAX
    while left > 0:
        chunk = min(left, _AT_ONCE)
        entries = rows.search(query, limit=chunk, bookmark=bookmark)
        for number, address in enumerate(patiently(entries.rows)):
            if not _fits(rows, request, address):
                continue
            if len(page.results) == limit:  # the page that follows begins with this one
                begin = rows.search(query, limit=number, bookmark=bookmark).bookmark if number else bookmark
                page.bookmark = begin or b""
                return page
            page.results.append(_run_of(address))
        bookmark = entries.bookmark
        if bookmark is None:
            return page
        left -= chunk
    page.bookmark = bookmark or b""
    return page


def instant_of(request: Any, field: str) -> int:
    """An instant of a request, UTC milliseconds.

    Raises: `Invalid`.
    """
    try:
        return int(getattr(request, field).ToMilliseconds())
    except ValueError as error:
        raise Invalid("not an instant", kind="search", field=field, reason=error,
                      hint="give seconds and nanos of an instant between the years 1 and 9999") from None  # fmt: skip


def _candidates(rows: ReadRows, request: SearchWfRunRequest) -> Wanted:
    """The index to read, with the times of the request."""
    major = request.wf_spec_major_version if request.HasField("wf_spec_major_version") else None
    revision = request.wf_spec_revision if request.HasField("wf_spec_revision") else None
    declared = _declared(rows, request, major, revision)
    for variable_filter in request.variable_filters:
        if variable_filter.var_name not in declared:
            raise Invalid("the first thread of the specification has no such variable", kind="search",
                          spec=request.wf_spec_name, variable=variable_filter.var_name)  # fmt: skip
    index = next(
        ((variable_filter.var_name, part) for variable_filter in request.variable_filters
         if all(variable.searchable for variable in declared[variable_filter.var_name])
         and (part := value_part(variable_filter.value)) is not None),
        None,
    )  # fmt: skip
    if index is None:
        status = request.status if request.HasField("status") else None
        parent = path_of(request.parent_wf_run_id) if request.HasField("parent_wf_run_id") else None
        query = Wanted.runs(
            status=status, spec=request.wf_spec_name, major=major, revision=revision, parent=parent
        )  # fmt: skip
    else:
        query = _by_variable(request.wf_spec_name, index, major, revision)
    times = [instant_of(request, name) if request.HasField(name) else None
             for name in ("earliest_start", "latest_start")]  # fmt: skip
    return Wanted(query.kind, query.attributes, *times)


def _by_variable(spec: str, index: tuple[str, Part], major: int | None, revision: int | None) -> Wanted:
    return Wanted.variables(spec, index[0], index[1], major=major, revision=revision)


def _declared(
    rows: ReadRows, request: SearchWfRunRequest, major: int | None, revision: int | None
) -> dict[str, list[ThreadVarDef]]:
    """The variables of the first threads of all versions that are searched, each as every version declares it."""
    version = tuple(part for part in (major, revision) if part is not None)
    definitions: dict[str, list[ThreadVarDef]] = {}
    specs = [spec for _, spec in rows.list(WfSpec, (request.wf_spec_name, *version))] if request.wf_spec_name else []
    if not specs:
        raise Invalid(f"Couldn't find WfSpec {request.wf_spec_name[:80]}", kind="search",
                      spec=request.wf_spec_name, hint="give wf_spec_name of one that exists")  # fmt: skip
    for spec in specs:
        for declared in spec.thread_specs[spec.entrypoint_thread_name].variable_defs:
            definitions.setdefault(declared.var_def.name, []).append(declared)
    return definitions


def _run_of(address: Address) -> WfRunId:
    run_name = type(address)(address.run, Kind.RUN).id()
    assert isinstance(run_name, WfRunId)
    return run_name


def _fits(rows: ReadRows, request: SearchWfRunRequest, address: Address) -> bool:
    """True when a candidate, a run or a variable of one, has all values and meets all conditions."""
    path = "_".join(address.run)
    if address.kind is Kind.VARIABLE:
        run = rows.get(WfRun, (path,)) if address.parts[0] == 0 else None
        if run is None or (request.HasField("status") and run.status != request.status):
            return False
        if request.HasField("parent_wf_run_id") and run_path(run.id.parent_wf_run_id) != run_path(
            request.parent_wf_run_id
        ):
            return False
    return all(
        _has(rows.get(Variable, (path, 0, variable_filter.var_name)), variable_filter.value)
        for variable_filter in request.variable_filters
    )


def _has(variable: Variable | None, value: object) -> bool:
    return variable is not None and variable.value == value
