"""Searches for runs by the values of their variables.

Candidates come from indexes: those of the filters whose variables are searchable, and that of the runs which fit the
other conditions. Where they do not tell all of a value, rows are read, at most `CANDIDATES_MAX` a page. So a page may
hold less than its limit and still have a bookmark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from littlehorse.model import (
    SearchWfRunRequest,
    ThreadVarDef,
    Variable,
    VariableMatch,
    VariableType,
    WfRunId,
    WfRunIdList,
    WfSpec,
)

from millpond.errors import Invalid
from millpond.kernel.patience import patiently
from millpond.workflows.engine.values.conversions import type_of_def
from millpond.workflows.store import TagQuery
from millpond.workflows.store.addresses import Address, Kind, path_of
from millpond.workflows.store.joins import Index
from millpond.workflows.store.tags import TEXT_CHARACTERS_MAX, value_part

if TYPE_CHECKING:
    from millpond.kernel.keys import Part
    from millpond.workflows.processor import ReadRows

__all__ = ("CANDIDATES_MAX", "filtered_runs", "instant_of")

CANDIDATES_MAX = 5_000
"""Candidates of one page, whose rows are read."""
_AT_ONCE = 100
_SCALARS = (VariableType.STR, VariableType.INT, VariableType.BOOL, VariableType.DOUBLE)


def filtered_runs(rows: ReadRows, request: SearchWfRunRequest, limit: int, *, newest: bool) -> WfRunIdList:
    """One page of the runs that meet all conditions, and whose variables have the values of all filters.

    Raises:
        Invalid: no such specification, or a filter names no variable of its first thread.
    """
    query, compared = _queries(rows, request, newest=newest)
    page, bookmark, left = WfRunIdList(), request.bookmark or None, CANDIDATES_MAX
    while True:
        chunk = min(left, _AT_ONCE) if compared else limit
        entries = rows.search(query, limit=chunk, bookmark=bookmark)
        for number, address in enumerate(patiently(entries.rows)):
            if not _fits(rows, compared, address):
                continue
            if len(page.results) == limit:  # the page that follows begins with this one
                begin = rows.search(query, limit=number, bookmark=bookmark).bookmark if number else bookmark
                page.bookmark = begin or b""
                return page
            page.results.append(_run_of(address))
        bookmark = entries.bookmark
        left -= chunk
        if bookmark is None:
            return page
        if not compared or left <= 0 or len(entries.rows) < chunk:
            page.bookmark = bookmark
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


def _queries(rows: ReadRows, request: SearchWfRunRequest, *, newest: bool) -> tuple[TagQuery, list[VariableMatch]]:
    """The indexes to read, with the times of the request, and the filters that they do not decide."""
    major = request.wf_spec_major_version if request.HasField("wf_spec_major_version") else None
    revision = request.wf_spec_revision if request.HasField("wf_spec_revision") else None
    declared = _declared(rows, request, major, revision)
    indexes, compared = [], []
    for match in request.variable_filters:
        if match.var_name not in declared:
            raise Invalid("the first thread of the specification has no such variable", kind="search",
                          spec=request.wf_spec_name, variable=match.var_name)  # fmt: skip
        part = value_part(match.value)
        indexed = part is not None and all(variable.searchable for variable in declared[match.var_name])
        if indexed:
            query = TagQuery.variables(request.wf_spec_name, match.var_name, part)
            indexes.append(Index(Kind.VARIABLE, query.attributes, (0, match.var_name)))
        if not indexed or not _is_whole(part, declared[match.var_name]):
            compared.append(match)
    status = request.status if request.HasField("status") else None
    parent = path_of(request.parent_wf_run_id) if request.HasField("parent_wf_run_id") else None
    runs = TagQuery.runs(status=status, spec=request.wf_spec_name, major=major, revision=revision, parent=parent)
    first, *also = *indexes, Index(Kind.RUN, runs.attributes)
    start, stop = (instant_of(request, name) if request.HasField(name) else None
                   for name in ("earliest_start", "latest_start"))  # fmt: skip
    return TagQuery(first.kind, first.attributes, start, stop, newest, first.rest, tuple(also)), compared


def _is_whole(part: Part, declared: list[ThreadVarDef]) -> bool:
    """True when the index of a variable tells all of a value: others are shortened, or items of a list."""
    return (type(part) is not str or len(part) <= TEXT_CHARACTERS_MAX) and all(
        type_of_def(variable.var_def).primitive_type in _SCALARS for variable in declared
    )


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


def _fits(rows: ReadRows, compared: list[VariableMatch], address: Address) -> bool:
    """True when the variables of a candidate have the values of some filters."""
    path = "_".join(address.run)
    return all(_has(rows.get(Variable, (path, 0, match.var_name)), match.value) for match in compared)


def _has(variable: Variable | None, value: object) -> bool:
    return variable is not None and variable.value == value
