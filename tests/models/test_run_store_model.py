"""The store of runs against a dict: objects put, taken, deleted, in both layouts, their tags, and pages meanwhile."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from hypothesis import given
from hypothesis import strategies as st
from littlehorse.model import NodeRun, NodeRunId, TaskRun, TaskRunId, Variable, VariableId, VariableValue, WfRunId

from millpond.kernel.keys import EVERYTHING
from millpond.kernel.space import Space, Transaction
from millpond.stores.memory import MemorySpace
from millpond.workflows.keyspaces import TAG
from millpond.workflows.store import Address, Kind, RunStore, TagQuery, delete_run
from millpond.workflows.store.addresses import address_of, group_of
from millpond.workflows.store.messages import Stored
from millpond.workflows.store.tags import tag_keys, tags_of
from tests.harness.contracts.run_stores import UPGRADED_MS, run_of, store_in
from tests.harness.legacy_rows import migrate_store, write_legacy

RUNS = ("a", "ab", "b-1")


@st.composite
def objects(draw: st.DrawFn, ms_max: int = 2 * UPGRADED_MS) -> Stored:
    name = draw(st.sampled_from(RUNS))
    run = WfRunId(id=name)
    kind = draw(st.sampled_from([Kind.RUN, Kind.NODE_RUN, Kind.TASK_RUN, Kind.VARIABLE]))
    at, text = draw(st.integers(0, 12)), draw(st.text(max_size=80))
    match kind:
        case Kind.RUN:
            return run_of(name, draw(st.integers(0, ms_max)), draw(st.integers(0, 6)), draw(st.sampled_from("xy")))
        case Kind.NODE_RUN:
            return NodeRun(id=NodeRunId(wf_run_id=run, thread_run_number=at % 2, position=at), node_name=text)
        case Kind.TASK_RUN:
            guid = draw(st.sampled_from([f"0-{at}", "ut-0-1-2", "00-1", "free"]))
            task = TaskRun(id=TaskRunId(wf_run_id=run, task_guid=guid), status=at % 5)  # type: ignore[arg-type]
            task.task_def_id.name = text
            return task
    return Variable(id=VariableId(wf_run_id=run, name=f"v{at}"), value=VariableValue(str=text))


acts = st.one_of(
    st.tuples(st.just("put"), objects()),
    st.tuples(st.just("take"), objects()),
    st.tuples(st.just("delete"), objects()),
    st.tuples(st.just("delete_run"), st.sampled_from(RUNS)),
    st.tuples(st.just("migrate"), st.integers(1, 5)),
)


@pytest.mark.usefixtures("processor")
@given(st.lists(objects(UPGRADED_MS - 1), max_size=12), st.lists(acts, max_size=12))
def test_the_store_is_as_the_model(old: list[Stored], then: list[tuple[str, object]]) -> None:
    space = MemorySpace()
    model: dict[Address, Stored] = {}
    for message in old:
        write_old(space, message)
        model[address_of(message.id)] = message
    store = store_in(space)
    for verb, what in then:
        act(space, store, model, verb, what)
        check(space, store, model)


def write_old(space: Space, message: Stored) -> None:
    def write(tx: Transaction) -> None:
        write_legacy(tx, "default", message, (f"0/__of_{message.id.SerializeToString().hex()}",))

    space.write(write)


def act(space: Space, store: RunStore, model: dict[Address, Stored], verb: str, what: object) -> None:
    if verb == "delete_run":
        assert isinstance(what, str)
        delete_run(space, store, (what,), rows_max=3)
        for address in [address for address in model if address.run == (what,)]:
            del model[address]
    elif verb == "migrate":
        assert isinstance(what, int)
        migrate_store(space, lambda _: store, rows_max=what)
    else:
        message: Stored = what  # type: ignore[assignment]
        address = address_of(message.id)
        if verb == "put":
            put(space, store, message)
            model[address] = message
        elif verb == "take":
            assert space.write(lambda tx: store.take(tx, address)) == model.get(address)
        else:
            assert space.write(lambda tx: store.delete(tx, address)) == (model.pop(address, None) is not None)


def put(space: Space, store: RunStore, message: Stored) -> None:
    # A run that was there before the upgrade keeps its time: the engine never changes it.
    def change(tx: Transaction) -> None:
        before = store.take(tx, message.id)
        if before is not None and address_of(message.id).kind is Kind.RUN:
            message.start_time.CopyFrom(before.start_time)  # type: ignore[union-attr]
        elif before is None and address_of(message.id).kind is Kind.RUN and older_rows(tx, message):
            message.start_time.FromMilliseconds(0)  # type: ignore[union-attr]
        store.put(tx, message)

    space.write(change)


def older_rows(tx: Transaction, message: Stored) -> bool:
    run = address_of(message.id).run[0]
    return any(f"/{run}/".encode() in key for key in tx.keys(EVERYTHING) if key.startswith(b"default/0/"))


def check(space: Space, store: RunStore, model: dict[Address, Stored]) -> None:
    with space.read() as tx:
        for name in RUNS:
            for kind in (Kind.RUN, Kind.NODE_RUN, Kind.TASK_RUN, Kind.VARIABLE):
                expected = sorted(
                    (address.key("default"), address) for address in model
                    if address.run == (name,) and address.kind is kind
                )  # fmt: skip
                assert list(store.objects(tx, (name,), kind)) == [model[address] for _, address in expected]
                for place, (_, after) in enumerate(expected, 1):
                    behind = [model[address] for _, address in expected[place:]]
                    assert list(store.objects(tx, (name,), kind, after=after)) == behind
        for address, message in model.items():
            assert store.get(tx, address) == message
            assert address_of(address.id()) == address
        grouped = [address for address in model if tx.get(address.key("default")) is not None]
        tags = {key for one in grouped for key in tag_keys("default", one, tags_of(model[one], paths=("",)))}
        assert set(tx.keys(TAG.range())) == tags
        for name in RUNS:
            if not any(address.run == (name,) for address in grouped):
                assert not list(tx.keys(group_of("default", (name,)).range()))


changes = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=6)


@given(st.sets(st.integers(0, 30), max_size=20), st.lists(changes, max_size=12), st.integers(1, 4))
def test_pages_joined_hold_what_stays_and_nothing_twice(
    first: set[int], between: list[list[tuple[int, bool]]], limit: int
) -> None:
    space = MemorySpace()
    store = store_in(space)
    there, stayed = set(first), set(first)
    for at in first:
        put(space, store, run_of(f"r{at}", at))
    seen: list[str] = []
    bookmark, rounds = None, iter(between)
    while True:
        with space.read() as tx:
            page = store.search(tx, TagQuery.runs(), limit=limit, bookmark=bookmark)
        seen += [address.run[0] for address in page.rows]
        if page.bookmark is None:
            break
        bookmark = page.bookmark
        for at, add in next(rounds, []):
            change(space, store, at, add)
            (there.add if add else there.discard)(at)
            if not add:
                stayed.discard(at)
    assert len(seen) == len(set(seen))
    assert {f"r{at}" for at in stayed} <= set(seen)
    assert [int(name[1:]) for name in seen] == sorted(int(name[1:]) for name in seen)


def change(space: Space, store: RunStore, at: int, add: bool) -> None:
    if add:
        put(space, store, run_of(f"r{at}", at))
    else:
        delete_run(space, store, (f"r{at}",))
