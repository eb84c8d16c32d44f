"""Searches for runs by all conditions together against a list of them: page by page, forwards and backwards, over one
store and over partitions, while runs come and go; also of runs that are older than the upgrade of their store."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

pytest.importorskip("littlehorse")

from hypothesis import given, settings
from hypothesis import strategies as st
from littlehorse.model import (
    SearchWfRunRequest,
    ThreadSpec,
    ThreadVarDef,
    TypeDefinition,
    Variable,
    VariableDef,
    VariableId,
    VariableMatch,
    VariableType,
    VariableValue,
    WfRun,
    WfRunId,
    WfSpec,
    WfSpecId,
)

from millpond.kernel.keys import decode
from millpond.kernel.space import Space, Transaction
from millpond.server.workflows import run_filters
from millpond.server.workflows.reads import search_runs
from millpond.server.workflows.shared.rows import SharedRows, answer
from millpond.stores.memory import MemorySpace
from millpond.workflows.keyspaces import DEFINITION
from millpond.workflows.partitions import METADATA
from millpond.workflows.partitions.routing import partition_of_row
from millpond.workflows.processor import ReadRows
from millpond.workflows.store import RunReads, RunStore, delete_run, joins
from millpond.workflows.store.initialization import Initialization
from tests.rings.sampling import examples

TENANT, SPEC, OTHER = "default", "labelled", "other"
UPGRADED_MS = 6
EXAMPLES = examples(100, 3_000)
COLORS = ["red", "blue", "r" * 65, "r" * 66]
SEARCHED = {"color": True, "size": True, "list": True, "note": False}
TYPES = {"color": VariableType.STR, "size": VariableType.INT, "list": VariableType.JSON_ARR, "note": VariableType.STR}

Values = dict[str, VariableValue]


@dataclass(frozen=True)
class Begun:
    """A run; `late_ms` is how much later than it its variables were made, in what came from elsewhere."""

    name: str
    ms: int
    status: int
    spec: str
    revision: int
    values: Values = field(hash=False)
    late_ms: int = 0


def texts(*choices: str) -> st.SearchStrategy[VariableValue]:
    return st.sampled_from([VariableValue(str=text) for text in choices])


values = st.fixed_dictionaries(
    {"color": texts("red", "red", "red", *COLORS)},
    optional={
        "size": st.integers(0, 1).map(lambda size: VariableValue(int=size)),
        "list": st.sampled_from([VariableValue(json_arr='["red","blue"]'), VariableValue(json_arr='["red"]')]),
        "note": texts("a", "b"),
    },
)
FILTERS = ({"color"}, {"color"}, {"color", "size"}, {"size"}, {"list"}, {"color", "list", "note"}, set[str]())
seldom = st.sampled_from([False, False, False, True])


@st.composite
def runs(draw: st.DrawFn, letter: str, most: int) -> list[Begun]:
    """Some runs, of which some are children of a run that need not be there."""
    begun = []
    for number in range(draw(st.integers(0, most))):
        name = f"{letter}{draw(st.integers(0, 2))}_{letter}{number}" if draw(seldom) else f"{letter}{number}"
        ms = draw(st.integers(0, 10))
        late = draw(st.integers(0, 2)) if ms < UPGRADED_MS - 2 else 0
        spec = OTHER if draw(seldom) else SPEC
        begun.append(Begun(name, ms, draw(st.integers(1, 2)), spec, draw(st.integers(0, 1)), draw(values), late))
    return begun


@st.composite
def requests(draw: st.DrawFn) -> SearchWfRunRequest:
    request = SearchWfRunRequest(wf_spec_name=SPEC, limit=draw(st.integers(1, 4)))
    if draw(st.booleans()):
        request.status = draw(st.integers(1, 2))  # type: ignore[assignment]
    if draw(seldom):
        request.wf_spec_major_version = 0
        if draw(st.booleans()):
            request.wf_spec_revision = draw(st.integers(0, 1))
    for name, at in (("earliest_start", st.integers(0, 8)), ("latest_start", st.integers(4, 14))):
        if draw(seldom):
            getattr(request, name).FromMilliseconds(draw(at))
    if draw(seldom):
        request.parent_wf_run_id.id = f"r{draw(st.integers(0, 2))}"
    wanted = draw(values)
    for name in sorted(wanted.keys() & draw(st.sampled_from(FILTERS))):
        request.variable_filters.append(VariableMatch(var_name=name, value=wanted[name]))
    return request


class Ground:
    """The stores of some partitions, and one more of metadata; with one, there is only that."""

    def __init__(self, partitions: int, *, upgraded: bool) -> None:
        self.spaces: list[Space] = [MemorySpace() for _ in range(partitions)]
        self.log = Initialization(0, UPGRADED_MS if upgraded else None, migrated=True)
        self.store = RunStore(TENANT, self.log, lambda row: ("",) if SEARCHED[row.id.name] else ())
        self.spaces[METADATA].write(put_specs)

    def at(self, name: str) -> Space:
        shared = len(self.spaces) > 1
        return self.spaces[partition_of_row(TENANT, WfRun, (name,), len(self.spaces)) if shared else METADATA]

    def put(self, run: Begun) -> None:
        path = run.name.split("_")
        id_ = WfRunId(id=path[-1], parent_wf_run_id=WfRunId(id=path[0]) if len(path) > 1 else None)
        spec = WfSpecId(name=run.spec, major_version=0, revision=run.revision)

        def put(tx: Transaction) -> None:
            row = WfRun(id=id_, wf_spec_id=spec, status=run.status)  # type: ignore[arg-type]
            row.start_time.FromMilliseconds(run.ms)
            self.store.put(tx, row)
            for thread, (name, value) in ((thread, pair) for thread in (0, 1) for pair in run.values.items()):
                # Those of another thread do not count.
                of_thread = value if thread == 0 else VariableValue(str="red")
                variable = Variable(id=VariableId(wf_run_id=id_, thread_run_number=thread, name=name), value=of_thread)
                variable.wf_spec_id.CopyFrom(spec)
                variable.created_at.FromMilliseconds(run.ms + run.late_ms)
                self.store.put(tx, variable)

        self.at(run.name).write(put)

    def delete(self, run: Begun) -> None:
        delete_run(self.at(run.name), self.store, tuple(run.name.split("_")))

    def local(self, number: int, tenant: str, act: object) -> object:
        with self.spaces[number].read() as tx:
            return act(ReadRows(tx, RunReads(tenant, self.log)))  # type: ignore[operator]

    def remote(self, number: int, tenant: str, request: bytes) -> bytes:
        answered = self.local(number, tenant, lambda rows: answer(rows, decode(request)))
        assert isinstance(answered, bytes)
        return answered

    def page(self, request: SearchWfRunRequest, *, newest: bool) -> tuple[list[str], bytes]:
        def act(rows: object) -> object:
            return search_runs(rows, request, newest=newest)  # type: ignore[arg-type]

        if len(self.spaces) == 1:
            page = self.local(METADATA, TENANT, act)
        else:  # every other partition is that of another process
            page = act(SharedRows(TENANT, len(self.spaces), lambda n: n % 2 == 0, self.local, self.remote))
        results = page.results  # type: ignore[attr-defined]
        names = ["_".join(part for part in (run.parent_wf_run_id.id, run.id) if part) for run in results]
        return names, page.bookmark  # type: ignore[attr-defined]


def put_specs(tx: Transaction) -> None:
    for name, revision in ((SPEC, 0), (SPEC, 1), (OTHER, 0), (OTHER, 1)):
        spec = WfSpec(id=WfSpecId(name=name, major_version=0, revision=revision), entrypoint_thread_name="main")
        variables = [
            ThreadVarDef(
                var_def=VariableDef(name=own, type_def=TypeDefinition(primitive_type=TYPES[own])), searchable=searchable
            )
            for own, searchable in SEARCHED.items()
        ]
        spec.thread_specs["main"].CopyFrom(ThreadSpec(variable_defs=variables))
        tx.put(DEFINITION.pack(TENANT, 2, name, 0, revision), b"\x01" + spec.SerializeToString())


def expected(runs: list[Begun], request: SearchWfRunRequest, *, newest: bool) -> list[str]:
    """The runs that meet a request, in order; one that is found by a variable has the time of that."""
    found = sorted((at_of(run, request), run.name.split("_")) for run in runs if meets(run, request))
    return ["_".join(path) for _, path in (reversed(found) if newest else found)]


def at_of(run: Begun, request: SearchWfRunRequest) -> int:
    by_variable = any(SEARCHED[match.var_name] and match.var_name != "list" for match in request.variable_filters)
    return run.ms + run.late_ms * by_variable


def meets(run: Begun, request: SearchWfRunRequest) -> bool:
    at = at_of(run, request)
    return (
        run.spec == SPEC
        and (not request.HasField("status") or run.status == request.status)
        and (not request.HasField("wf_spec_revision") or run.revision == request.wf_spec_revision)
        and (not request.HasField("earliest_start") or at >= request.earliest_start.ToMilliseconds())
        and (not request.HasField("latest_start") or at <= request.latest_start.ToMilliseconds())
        and (not request.HasField("parent_wf_run_id") or run.name.startswith(f"{request.parent_wf_run_id.id}_"))
        and all(run.values.get(match.var_name) == match.value for match in request.variable_filters)
    )


@pytest.mark.usefixtures("processor")
@settings(max_examples=EXAMPLES)
@given(
    there=runs("r", 14), coming=runs("s", 3), going=st.sets(st.integers(0, 13)),
    request=requests(), newest=st.booleans(), partitions=st.sampled_from([1, 2, 4]), upgraded=st.booleans(),
    looked=st.integers(1, 12), missed=st.integers(0, 3), candidates=st.integers(1, 5),
)  # fmt: skip
def test_every_page_together_has_the_runs_that_meet_all_conditions(
    there: list[Begun], coming: list[Begun], going: set[int], request: SearchWfRunRequest, newest: bool,
    partitions: int, upgraded: bool, looked: int, missed: int, candidates: int,
) -> None:  # fmt: skip
    there = [run for run in there if upgraded or not run.late_ms]
    coming = [run for run in coming if upgraded or not run.late_ms]
    ground = Ground(partitions, upgraded=upgraded)
    for run in there:
        ground.put(run)
    left = [run for number, run in enumerate(there) if number not in going]
    leaving = [run for number, run in enumerate(there) if number in going]
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joins, "LOOKED_MAX", looked)
        patch.setattr(joins, "_MISSED_MAX", missed)
        patch.setattr(run_filters, "CANDIDATES_MAX", candidates)
        while True:
            names, bookmark = ground.page(request, newest=newest)
            assert len(names) <= request.limit
            found += names
            if not bookmark:
                break
            request.bookmark = bookmark
            if leaving:
                ground.delete(leaving.pop())
            if coming:
                ground.put(coming.pop())
    stay = {run.name for run in left}
    assert [name for name in found if name in stay] == expected(left, request, newest=newest)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("newest", [True, False])
def test_a_run_from_before_the_upgrade_whose_variables_came_later_is_not_passed_over(
    newest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "_MISSED_MAX", 0)
    ground, red = Ground(1, upgraded=True), VariableValue(str="red")
    between = (8, 9) if newest else (4, 5)
    for run in (Begun("r0", 3, 2, SPEC, 0, {"color": red}, 2),
                *(Begun(f"r{ms}", ms, 1, SPEC, 0, {"color": red}) for ms in between)):  # fmt: skip
        ground.put(run)
    request = SearchWfRunRequest(wf_spec_name=SPEC, limit=3, status=2)  # type: ignore[arg-type]
    request.variable_filters.append(VariableMatch(var_name="color", value=red))
    assert ground.page(request, newest=newest) == (["r0"], b"")
