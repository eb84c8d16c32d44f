"""Migrations of specifications: all open runs go on with a newer version, or stay and try again when they advance.

The model applies a plan by hand to every open run after every command. What it does, a migration does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

pytest.importorskip("littlehorse")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from littlehorse.model import (
    DeleteWfSpecRequest,
    LHStatus,
    MigrateWfSpecRequest,
    RunWfRequest,
    WfRun,
    WfSpec,
    WfSpecId,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import Invalid, MillpondError, NotFound
from millpond.workflows.engine.limits import BULK_RUNS_MAX
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_known_defects import found_run
from tests.models.workflows.test_migrations import PLAN, begin, current, moves, new, old, plan
from tests.models.workflows.test_scenarios import perform, prepared
from tests.rings.sampling import examples


def migration(revision: int = 1, nodes: dict[str, str] = PLAN) -> MigrateWfSpecRequest:
    request = MigrateWfSpecRequest(old_wf_spec=WfSpecId(name="flow", major_version=0, revision=0))
    request.migration.new_revision = revision
    thread = request.migration.thread_spec_migrations["entrypoint"]
    thread.new_thread_spec_name = "entrypoint"
    for before, after in nodes.items():
        thread.node_migrations[before].new_node_name = after
    return request


def revisions(stage: Stage) -> dict[str, int]:
    return {str(key[0]): run.wf_spec_id.revision for key, run in stage.rows.list(WfRun, ())}


def _prepared() -> Stage:
    stage = prepared()
    for body in (old, new):
        stage.do(Workflow("flow", body).compile())
    return stage


_PREPARED = _prepared()


@pytest.fixture
def stage() -> Stage:
    """Two versions of a workflow."""
    found = Stage()
    found.rows.bytes = dict(_PREPARED.rows.bytes)
    return found


def test_open_runs_go_on_with_the_newer_version_and_others_stay(stage: Stage) -> None:
    for path, steps in (("done", 2), ("claimed", 2), ("left", 2), ("event", 1), ("task", 0)):
        begin(stage, path, steps)
    perform(stage, "claim work")
    perform(stage, "claim work")
    perform(stage, 'done done 0-3 0 "x"')
    spec = stage.do(migration())
    assert isinstance(spec, WfSpec)
    assert (spec.id.revision, spec.migration) == (0, migration().migration)
    assert set(revisions(stage).values()) == {0}
    stage.pass_time(1)
    assert revisions(stage) == {"task": 1, "event": 1, "left": 1, "claimed": 0, "done": 0}


def test_a_run_that_stays_tries_again_when_its_worker_has_reported(stage: Stage) -> None:
    begin(stage, "r", 2)
    perform(stage, "claim work")
    stage.do(migration(nodes=PLAN | {"4-exit-EXIT": "1-repair-TASK"}))
    stage.pass_time(1)
    assert revisions(stage) == {"r": 0}
    perform(stage, "failed r 0-3 0")
    assert (revisions(stage), found_run(stage, "r").status) == ({"r": 1}, LHStatus.ERROR)
    perform(stage, "rescue r 0")
    assert current(stage, "r")[1] == "1-repair-TASK"
    assert not stage.unheard


def test_a_run_that_cannot_go_on_stays_as_it_is_in_every_row(stage: Stage) -> None:
    def retyped(wf: WorkflowThread) -> None:
        wf.declare_int("name")
        wf.execute("work")

    stage.do(Workflow("flow", retyped).compile())
    begin(stage, "r", 1)
    stage.do(migration(2, {"2-ready-EXTERNAL_EVENT": "1-work-TASK"}))
    before, timers = dict(stage.rows.bytes), len(stage.timers)
    stage.pass_time(1)
    assert (stage.rows.bytes, timers, len(stage.timers)) == (before, 6, 0)


def test_a_run_that_begins_with_the_old_version_goes_on_and_a_chain_of_migrations_has_an_end(stage: Stage) -> None:
    def third(wf: WorkflowThread) -> None:
        new(wf)
        wf.execute("work")

    stage.do(Workflow("flow", third).compile())
    stage.do(migration())
    onward = migration(2, {})
    onward.old_wf_spec.revision = 1
    stage.do(onward)
    begin(stage, "r", 0)
    assert [version.revision for version in found_run(stage, "r").old_wf_spec_versions] == [0, 1]
    assert revisions(stage) == {"r": 2}
    assert stage.do(Workflow("flow", third).compile()).id.revision == 2  # type: ignore[union-attr]


def test_a_specification_that_is_put_again_is_the_same_though_it_is_left(stage: Stage) -> None:
    onward = migration()
    stage.do(onward)
    stage.do(DeleteWfSpecRequest(id=WfSpecId(name="flow", major_version=0, revision=1)))
    begin(stage, "r", 1)
    assert revisions(stage) == {"r": 0}, "the version that it leads to is gone"
    again = stage.do(Workflow("flow", old).compile())
    assert isinstance(again, WfSpec) and again.id.revision == 0


def test_many_runs_go_on_in_steps_and_each_once(stage: Stage) -> None:
    number = BULK_RUNS_MAX + 5
    for at in range(number):
        begin(stage, f"r-{at:03}", 0)
    stuck = migration(nodes={"1-greet-TASK": "3-ready-EXTERNAL_EVENT"})
    stage.claim("greet")
    stage.do(stuck)
    stage.pass_time(1)
    assert sum(revisions(stage).values()) == BULK_RUNS_MAX - 1
    stage.pass_time(1_000)
    assert sum(revisions(stage).values()) == number - 1
    assert not stage.unheard and [name[0] for name in stage.timers] == ["r-000"]  # of its claimed task


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        (lambda r: setattr(r.old_wf_spec, "name", "none"), NotFound, "Migration refers to nonexisting WfSpec none"),
        (lambda r: setattr(r.migration, "new_revision", 9), NotFound, "version=0.9"),
        (lambda r: setattr(r.migration, "new_revision", 0), Invalid, "a newer version"),
        (lambda r: r.migration.thread_spec_migrations["other"].SetInParent(), Invalid, "a thread of the plan"),
        (lambda r: r.MergeFrom(migration(nodes={"1-greet-TASK": "none"})), Invalid, "a node of the plan"),
    ],
    ids=["spec", "version", "older", "thread", "node"],
)
def test_a_migration_names_what_exists(
    stage: Stage, change: Callable[[MigrateWfSpecRequest], None], error: type[MillpondError], problem: str
) -> None:
    request, before = migration(), dict(stage.rows.bytes)
    change(request)
    with pytest.raises(error, match=problem):
        stage.do(request)
    assert (stage.rows.bytes, stage.timers) == (before, {})


paths = st.sampled_from(["a", "b", "c"])
commands = st.one_of(
    st.builds("begin {}".format, paths),
    st.sampled_from(["claim greet", "claim work", "claim repair", "pass 0.1"]),
    st.builds('event {} ready {{}} "x"'.format, paths),
    st.builds("{} {} 0".format, st.sampled_from(["stop", "resume", "rescue"]), paths),
    st.builds(
        '{} {} 0-{} 0 "x"'.format, st.sampled_from(["done", "done", "failed"]), paths, st.integers(1, 5)
    ),
)  # fmt: skip


def _do(stage: Stage, command: str) -> None:
    with suppress(MillpondError):
        verb, path, *_ = command.split()
        if verb == "begin":
            stage.do(RunWfRequest(wf_spec_name="flow", id=path, major_version=0, revision=0))
        else:
            perform(stage, command)


def _by_hand(stage: Stage) -> None:
    """Apply the plan to every open run of the old version."""
    for path, revision in revisions(stage).items():
        if revision == 0:
            with suppress(MillpondError):
                stage.do(moves(path))


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(15, 60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(commands, max_size=12), st.lists(commands, max_size=12),
    st.dictionaries(st.sampled_from(sorted(PLAN)), st.sampled_from(sorted({*PLAN.values(), "4-greet-TASK"}))),
)  # fmt: skip
def test_a_migration_does_what_a_plan_does_to_every_run(
    before: list[str], behind: list[str], nodes: dict[str, str]
) -> None:
    stage, model = Stage(), Stage()
    for played in (stage, model):
        played.rows.bytes = dict(_PREPARED.rows.bytes)
    for number, command in enumerate(before):
        for played in (stage, model):
            _do(played, command.format(number))
    stage.do(migration(nodes=nodes))
    stage.pass_time(1)
    model.do(plan(nodes=nodes))
    _by_hand(model)
    model.pass_time(1)
    for number, command in enumerate(behind, len(before)):
        for played in (stage, model):
            _do(played, command.format(number))
        _by_hand(model)
        assert revisions(stage) == revisions(model)
        assert [stage.show(path) for path in revisions(stage)] == [model.show(path) for path in revisions(model)]
    assert not stage.unheard
