"""The contract of a store of runs, whatever space it is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from littlehorse.model import ExternalEvent as PutEvent
from littlehorse.model import (
    ExternalEventId,
    NodeRun,
    NodeRunId,
    TaskRun,
    TaskRunId,
    Variable,
    VariableId,
    VariableValue,
    WfRun,
    WfRunId,
    WfSpecId,
)

from millpond.errors import Conflict, Invalid
from millpond.kernel.keys import EVERYTHING, starting
from millpond.workflows.keyspaces import TAG
from millpond.workflows.store import Initialization, Kind, RunReads, RunStore, TagQuery, delete_run, initialize
from millpond.workflows.store.initialization import initialization
from tests.harness.legacy_rows import migrate_store, write_legacy

if TYPE_CHECKING:
    from millpond.kernel.space import Space, Transaction
    from millpond.workflows.store.messages import Stored

__all__ = (
    "UPGRADED_MS",
    "RunStoreContract",
    "objects_of_run",
    "put_all",
    "put_legacy",
    "rows_of",
    "run_of",
    "store_in",
)

UPGRADED_MS = 5_000


def run_of(name: str, ms: int = 1_000, status: int = 1, spec: str = "flights") -> WfRun:
    """A run that was started then."""
    run = WfRun(id=WfRunId(id=name), wf_spec_id=WfSpecId(name=spec), status=status)  # type: ignore[arg-type]
    run.start_time.FromMilliseconds(ms)
    return run


def objects_of_run(name: str, *, nodes: int = 3, ms: int = 1_000) -> list[Stored]:
    """A run with nodes, a task, a searchable variable and an event."""
    run = run_of(name, ms)
    task = TaskRun(id=TaskRunId(wf_run_id=run.id, task_guid="0-1"))
    task.task_def_id.name = "load"
    task.scheduled_at.FromMilliseconds(ms)
    variable = Variable(
        id=VariableId(wf_run_id=run.id, name="airport"), value=VariableValue(str="JFK"), wf_spec_id=run.wf_spec_id
    )
    event = PutEvent(id=ExternalEventId(wf_run_id=run.id, guid="g"))
    event.id.external_event_def_id.name = "landed"
    places = [NodeRun(id=NodeRunId(wf_run_id=run.id, position=at), wf_spec_id=run.wf_spec_id) for at in range(nodes)]
    return [run, *places, task, variable, event]


def store_in(space: Space, now_ms: int = UPGRADED_MS) -> RunStore:
    """The store of the tenant `default`, initialized; all variables are searchable."""
    return RunStore("default", space.write(lambda tx: initialize(tx, now_ms)), lambda _: ("",))


def put_all(space: Space, store: RunStore, objects: list[Stored]) -> None:
    """Store objects in one write."""

    def put(tx: Transaction) -> None:
        for message in objects:
            store.put(tx, message)

    space.write(put)


def put_legacy(space: Space, objects: list[Stored]) -> None:
    """Write objects in the legacy layout, the run with a tag."""

    def put(tx: Transaction) -> None:
        for message in objects:
            tags = ("3/__wfSpecName_flights/1000/" + message.id.id,) if isinstance(message, WfRun) else ()
            write_legacy(tx, "default", message, tags)

    space.write(put)


def rows_of(space: Space) -> list[tuple[bytes, bytes]]:
    """All rows of a space."""
    with space.read() as tx:
        return list(tx.scan(EVERYTHING))


def _names(space: Space, store: RunReads, wanted: TagQuery) -> list[str]:
    with space.read() as tx:
        return ["_".join(address.run) for address in store.search(tx, wanted).rows]


class RunStoreContract:
    """Subclasses provide the fixture `space`."""

    def test_an_object_is_read_as_it_was_put(self, space: Space) -> None:
        store, objects = store_in(space), objects_of_run("a")
        put_all(space, store, objects)
        with space.read() as tx:
            assert [store.get(tx, message.id) for message in objects] == objects
            assert store.get(tx, WfRunId(id="b")) is None

    def test_nodes_come_in_the_order_of_their_numbers(self, space: Space) -> None:
        store = store_in(space)
        put_all(space, store, objects_of_run("a", nodes=12))
        with space.read() as tx:
            nodes = list(store.objects(tx, ("a",), Kind.NODE_RUN))
            assert [node.id.position for node in nodes if isinstance(node, NodeRun)] == list(range(12))
            assert list(store.objects(tx, ("a",), Kind.NODE_RUN, 1)) == []

    def test_names_that_begin_alike_or_hold_separators_are_different_runs(self, space: Space) -> None:
        store, names = store_in(space), ["a", "ab", "a/b", "a_b", "a\x00", "a\x01", "ä"]
        for name in names:
            put_all(space, store, objects_of_run(name))
        delete_run(space, store, ("a",))
        assert sorted(_names(space, store, TagQuery.runs())) == sorted(names[1:])

    def test_a_deleted_run_leaves_nothing_and_its_child_stays(self, space: Space) -> None:
        store = store_in(space)
        child = run_of("kid")
        child.id.parent_wf_run_id.id = "a"
        put_all(space, store, [child])
        rows = rows_of(space)
        put_all(space, store, objects_of_run("a"))
        assert _names(space, store, TagQuery.runs(parent=("a",))) == ["a_kid"]
        delete_run(space, store, ("a",), rows_max=2)
        assert rows_of(space) == rows

    def test_a_run_is_gone_from_the_first_slice_of_its_deletion_on(self, space: Space) -> None:
        store = store_in(space)
        put_all(space, store, objects_of_run("a", nodes=20))
        assert not space.write(lambda tx: store.delete_slice(tx, ("a",), 4))
        with space.read() as tx:
            assert store.get(tx, WfRunId(id="a")) is None
            assert list(store.deletions(tx)) == [("a",)]
        with pytest.raises(Conflict):
            put_all(space, store, [run_of("a")])
        delete_run(space, store, ("a",))
        with space.read() as tx:
            assert list(store.deletions(tx)) == []
        put_all(space, store, [run_of("a")])

    def test_runs_are_found_by_status_spec_and_time(self, space: Space) -> None:
        store = store_in(space)
        put_all(space, store, [run_of(f"r{at}", ms=at, status=at % 2) for at in range(12)])
        put_all(space, store, [run_of("other", ms=3, spec="weather")])
        assert _names(space, store, TagQuery.runs(status=0, spec="flights")) == [f"r{at}" for at in range(0, 12, 2)]
        assert len(_names(space, store, TagQuery.runs())) == 13
        within = TagQuery(Kind.RUN, TagQuery.runs(spec="flights").attributes, 9, 10)
        assert _names(space, store, within) == ["r9", "r10"]
        put_all(space, store, [run_of("r0", ms=0, status=2)])
        assert "r0" not in _names(space, store, TagQuery.runs(status=0))
        assert _names(space, store, TagQuery.runs(status=2)) == ["r0"]

    def test_variables_tasks_and_events_are_found(self, space: Space) -> None:
        store = store_in(space)
        put_all(space, store, objects_of_run("a"))
        for wanted in (
            TagQuery.variables("flights", "airport", "JFK"), TagQuery.tasks("load"), TagQuery.external_events("landed"),
            TagQuery.external_events("landed", claimed=False),
        ):  # fmt: skip
            assert _names(space, store, wanted) == ["a"]
        assert _names(space, store, TagQuery.variables("flights", "airport", "EWR")) == []

    def test_a_bookmark_survives_inserts_and_deletes(self, space: Space) -> None:
        store = store_in(space)
        put_all(space, store, [run_of(f"r{at}", ms=at) for at in range(10, 16)])
        with space.read() as tx:
            page = store.search(tx, TagQuery.runs(), limit=2)
        assert page.bookmark is not None
        delete_run(space, store, ("r12",))  # the row that the bookmark names
        put_all(space, store, [run_of("early", ms=1), run_of("late", ms=99)])
        with space.read() as tx:
            rest = store.search(tx, TagQuery.runs(), bookmark=page.bookmark)
            assert [address.run[0] for address in rest.rows] == ["r13", "r14", "r15", "late"]
            assert rest.bookmark is None

    @pytest.mark.parametrize("bookmark", [b"x", b"\x01", b"\x01\xff\xff", b"\x00" * 40])
    def test_a_malformed_bookmark_is_invalid(self, space: Space, bookmark: bytes) -> None:
        store = store_in(space)
        with space.read() as tx, pytest.raises(Invalid, match="bookmark"):
            store.search(tx, TagQuery.runs(), bookmark=bookmark)

    def test_a_bookmark_of_another_search_is_invalid(self, space: Space) -> None:
        store = store_in(space)
        put_all(space, store, [run_of("a"), run_of("b")])
        with space.read() as tx:
            page = store.search(tx, TagQuery.runs(), limit=1)
            with pytest.raises(Invalid, match="bookmark"):
                store.search(tx, TagQuery.runs(status=1), bookmark=page.bookmark)

    def test_reading_a_legacy_store_changes_no_byte(self, space: Space) -> None:
        objects = objects_of_run("asdf")
        put_legacy(space, objects)
        reads = RunReads("default", store_in(space).initialization)
        before = rows_of(space)
        with space.read() as tx:
            assert [reads.get(tx, message.id) for message in objects] == objects
            assert list(reads.objects(tx, ("asdf",), Kind.NODE_RUN)) == objects[1:4]
        assert rows_of(space) == before

    def test_a_processor_moves_what_it_reads_and_lists_show_each_node_once(self, space: Space) -> None:
        objects = objects_of_run("asdf", nodes=12)
        put_legacy(space, objects)
        store = store_in(space)
        assert space.write(lambda tx: store.take(tx, objects[3].id)) == objects[3]
        assert isinstance(objects[5], NodeRun)
        objects[5].node_name = "changed"
        put_all(space, store, [objects[5]])
        with space.read() as tx:
            assert tx.get(b"default/0/4/asdf/0/2") is None
            assert tx.get(b"default/0/4/asdf/0/4") is None
            assert tx.get(b"default/0/4/asdf/0/3") is not None
            assert list(store.objects(tx, ("asdf",), Kind.NODE_RUN)) == objects[1:13]

    def test_a_stale_legacy_row_does_not_count(self, space: Space) -> None:
        objects = objects_of_run("asdf")
        store = store_in(space)
        put_all(space, store, objects)
        put_legacy(space, objects)
        half = RunReads("default", Initialization(0, UPGRADED_MS))
        with space.read() as tx:
            assert list(half.objects(tx, ("asdf",), Kind.NODE_RUN)) == objects[1:4]

    def test_a_run_that_is_partly_legacy_is_deleted_whole(self, space: Space) -> None:
        objects = objects_of_run("asdf")
        put_legacy(space, objects)
        store = store_in(space)
        space.write(lambda tx: store.take(tx, objects[2].id))
        delete_run(space, store, ("asdf",), rows_max=2)
        with space.read() as tx:
            assert not list(tx.keys(starting("default/")))
            assert not list(tx.keys(TAG.range()))

    def test_a_store_that_has_moved_all_rows_is_never_read_twice(self, space: Space) -> None:
        objects = objects_of_run("asdf") + objects_of_run("more")
        put_legacy(space, objects)
        store = store_in(space)
        assert _names(space, store, TagQuery.runs()) == []
        assert migrate_store(space, lambda _: store, rows_max=3) == len(objects)
        with space.read() as tx:
            log = initialization(tx)
            assert log is not None
            assert not log.legacy
            assert not list(tx.keys(starting("default/")))
        assert _names(space, RunReads("default", log), TagQuery.runs()) == ["asdf", "more"]

    def test_a_store_that_is_born_grouped_looks_once(self, space: Space) -> None:
        store = store_in(space)
        assert not store.initialization.legacy
        put_legacy(space, objects_of_run("asdf"))  # rows that it would find, if it looked
        with space.read() as tx:
            assert store.get(tx, WfRunId(id="asdf")) is None
            assert list(store.objects(tx, ("asdf",), Kind.NODE_RUN)) == []

    def test_a_run_younger_than_the_upgrade_is_scanned_once(self, space: Space) -> None:
        put_legacy(space, objects_of_run("old"))
        store = store_in(space)
        put_all(space, store, [run_of("new", ms=UPGRADED_MS)])
        stray = NodeRun(id=NodeRunId(wf_run_id=WfRunId(id="new"), position=9))
        put_legacy(space, [stray])  # a row that it would find, if it looked
        with space.read() as tx:
            assert list(store.objects(tx, ("new",), Kind.NODE_RUN)) == []
