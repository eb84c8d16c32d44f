"""Faults of the threads of a run, as `verify` tells them: none after whatever was done, each damage by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

pytest.importorskip("littlehorse")

from hypothesis import given, settings
from hypothesis import strategies as st
from littlehorse.model import (
    ArchivedThreadRunInfo,
    DeleteWfRunRequest,
    ExternalEventDefId,
    InactiveThreadRun,
    LHStatus,
    NodeRun,
    PutExternalEventDefRequest,
    PutExternalEventRequest,
    VariableValue,
    WfRun,
    WfRunId,
)
from littlehorse.utils import to_variable_value
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import MillpondError
from millpond.testing.workflows import TENANT, WorkflowRuns
from millpond.workflows.engine import key_of, thread_queue
from millpond.workflows.keyspaces import DELETION
from millpond.workflows.processor.rows import RUN_KINDS
from millpond.workflows.store.addresses import Address
from millpond.workflows.store.messages import pack
from millpond.workflows.verify import check_runs, faults_of_threads
from tests.models.workflows.rows import MemoryRows
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_scenarios import perform
from tests.rings.sampling import examples

ACTIVE_MAX = 3


def waits(child: WorkflowThread) -> None:
    child.declare_str("INPUT")
    child.wait_for_event("go-on")


def over_items(wf: WorkflowThread) -> None:
    """Two rows of children, and a step that fails with a text."""
    number = wf.declare_int("number")
    items = wf.declare_json_arr("items").required()
    wf.spawn_thread_for_each(items, waits, "child")
    wf.spawn_thread_for_each(items, waits, "other")
    number.assign(wf.wait_for_event("finish"))


@contextmanager
def few_may_move() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(thread_queue, "THREADS_ACTIVE_MAX", ACTIVE_MAX)
        yield


def begun(children: int) -> Stage:
    """A run with twice as many children: three threads of it move, with the first."""
    stage = Stage()
    for name in ("go-on", "finish"):
        stage.do(PutExternalEventDefRequest(name=name))
    stage.do(Workflow("shop", over_items).compile())
    stage.run("shop", "r", {"items": to_variable_value([f"item {number}" for number in range(children)])})
    return stage


def faults(rows: MemoryRows) -> list[str]:
    return list(faults_of_threads(rows, "r", rows.get(WfRun, ("r",))))


def queued(rows: MemoryRows, number: int) -> InactiveThreadRun:
    row = rows.get(InactiveThreadRun, ("r", number))
    assert row is not None
    return row


# -- damages: each takes a run whose threads 0, 1 and 2 move, and whose threads 3 to 6 are queued --------------------


def _put(rows: MemoryRows, row: WfRun | InactiveThreadRun | NodeRun) -> None:
    rows.bytes[type(row), key_of(row.id)] = row.SerializeToString()


def _change(rows: MemoryRows, act: Callable[[WfRun], object]) -> None:
    run = rows.get(WfRun, ("r",))
    assert run is not None
    act(run)
    _put(rows, run)


def _change_queued(rows: MemoryRows, number: int, act: Callable[[InactiveThreadRun], object]) -> None:
    row = queued(rows, number)
    act(row)
    _put(rows, row)


def _lose(rows: MemoryRows) -> None:
    del rows.bytes[InactiveThreadRun, ("r", 4)]
    _change(rows, lambda run: run.thread_run_queue.remove(4))


def _swap(run: WfRun) -> None:
    run.thread_run_queue[:] = [3, 5, 4, 6]


def _begin(rows: MemoryRows) -> None:
    node = rows.get(NodeRun, ("r", 2, 0))
    assert node is not None
    node.id.thread_run_number = 3
    _put(rows, node)


def _leave_parent(run: WfRun) -> None:
    del run.thread_runs[0].child_thread_ids[-2:]


DAMAGES: dict[str, Callable[[MemoryRows], object]] = {
    "threads 3, 4, 5, 6: in a row of its own, and there is no run": lambda rows: rows.bytes.pop((WfRun, ("r",))),
    "thread 4: neither in the run, nor in its archive, nor in its queue": _lose,
    "threads 5, 6: there, and the run counts 5 threads": lambda rows: _change(
        rows, lambda run: setattr(run, "greatest_threadrun_number", 4)
    ),
    "thread 3: in the run, and in a row of its own": lambda rows: _change(
        rows, lambda run: run.thread_runs.append(queued(rows, 3).thread_run)
    ),
    "thread 5: in the queue, and has no row there": lambda rows: rows.bytes.pop((InactiveThreadRun, ("r", 5))),
    "thread 6: in the queue, and has no row there": lambda rows: _change_queued(
        rows, 6, lambda row: row.archived.CopyFrom(ArchivedThreadRunInfo())
    ),
    "thread 6: in a row as a queued one, and not in the queue": lambda rows: _change(
        rows, lambda run: run.thread_run_queue.remove(6)
    ),
    "thread 4: in the queue behind a later one, or twice": lambda rows: _change(rows, _swap),
    "thread 6: in the queue behind a later one, or twice": lambda rows: _change(
        rows, lambda run: run.thread_run_queue.append(6)
    ),
    "thread 3: queued, and its parent is gone": lambda rows: _change_queued(
        rows, 3, lambda row: setattr(row.thread_run, "parent_thread_id", 9)
    ),
    "threads 5, 6: queued, and its parent does not list it": lambda rows: _change(rows, _leave_parent),
    "thread 4: queued, and its status is that of another one": lambda rows: _change_queued(
        rows, 4, lambda row: setattr(row.thread_run, "status", LHStatus.RUNNING)
    ),
    "thread 3: queued, and has begun": _begin,
    "thread 3: queued, and its specification has no such thread": lambda rows: _change_queued(
        rows, 3, lambda row: setattr(row.thread_run, "thread_spec_name", "none")
    ),
}


@pytest.fixture(scope="module")
def whole() -> MemoryRows:
    with few_may_move():
        rows = begun(3).rows
    assert faults(rows) == []
    return rows


@pytest.mark.parametrize("fault", DAMAGES)
def test_each_kind_of_damage_has_a_name(whole: MemoryRows, fault: str) -> None:
    rows = MemoryRows()
    rows.bytes = dict(whole.bytes)
    DAMAGES[fault](rows)
    assert faults(rows) == [fault]


commands = st.one_of(
    st.just('event r go-on {} "x"'),
    st.sampled_from(['event r finish {} "x"', "event r finish {} 1"]),
    st.builds("{} r {}".format, st.sampled_from(["stop", "resume", "rescue", "skip"]), st.integers(0, 7)),
)


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(30, 300), deadline=None)
@given(st.integers(0, 3), st.lists(commands, max_size=12))
def test_whatever_is_done_the_queue_of_a_run_is_whole_and_in_the_order_of_its_threads(
    children: int, script: list[str]
) -> None:
    with few_may_move():
        stage = begun(children)
        for number, command in enumerate(script):
            with suppress(MillpondError):
                perform(stage, command.format(f"event-{number}"))
            assert faults(stage.rows) == []
            run = stage.rows.get(WfRun, ("r",))
            assert run is not None
            free = ACTIVE_MAX - sum(own.status in (LHStatus.RUNNING, LHStatus.HALTING) for own in run.thread_runs)
            ready = [own for own in run.thread_run_queue if not queued(stage.rows, own).thread_run.halt_reasons]
            assert not ready or free <= 0 or run.status != LHStatus.RUNNING, "who may begin has begun"


# -- in a space -----------------------------------------------------------------------------------------------------


def stored() -> WorkflowRuns:
    runs = WorkflowRuns()
    for name in ("go-on", "finish"):
        runs.send(PutExternalEventDefRequest(name=name))
    runs.register(Workflow("shop", over_items))
    runs.start("shop", "r", items=["a", "b", "c"])
    return runs


def found(runs: WorkflowRuns) -> list[str]:
    return [f"{fault.place}: {fault.found}" for fault in check_runs(runs._space).problems]


def write(runs: WorkflowRuns, row: WfRun) -> None:
    key = Address(("r",), RUN_KINDS[WfRun]).key(TENANT)
    runs._space.write(lambda tx: tx.put(key, pack(row)))


def test_the_queue_of_a_run_that_is_stopped_is_checked_too() -> None:
    with few_may_move():
        runs = stored()
        with runs._space.read() as tx:
            run = runs._processor.partition.reads(tx, TENANT).get(WfRun, ("r",))
    assert run is not None
    assert found(runs) == []
    run.status = LHStatus.HALTED
    run.thread_run_queue.append(4)
    write(runs, run)
    assert found(runs) == ["default/r: thread 4: in the queue behind a later one, or twice"]
    assert [fault.remedy for fault in check_runs(runs._space).problems] == ["delete the run, and start it again"]
    runs.send(DeleteWfRunRequest(id=WfRunId(id="r")))
    runs.restart()
    assert found(runs) == [] and check_runs(runs._space).counts == ()


def test_threads_of_no_run_are_found_unless_they_are_being_deleted() -> None:
    with few_may_move():
        runs = stored()
    runs._space.write(lambda tx: tx.delete(Address(("r",), RUN_KINDS[WfRun]).key(TENANT)))
    assert found(runs) == [
        "default/r: there are steps of it, and no run",
        "default/r: threads 3, 4, 5, 6: in a row of its own, and there is no run",
    ]
    assert check_runs(runs._space).counts == ()
    runs._space.write(lambda tx: tx.put(DELETION.pack(TENANT, "r", b""), b""))
    assert found(runs) == []


def test_an_event_that_came_before_its_run_is_no_fault() -> None:
    runs = WorkflowRuns()
    runs.send(PutExternalEventDefRequest(name="go-on"))
    runs.send(
        PutExternalEventRequest(
            wf_run_id=WfRunId(id="r"), external_event_def_id=ExternalEventDefId(name="go-on"),
            content=VariableValue(str="x"),
        )
    )  # fmt: skip
    assert check_runs(runs._space).counts == () and found(runs) == []
