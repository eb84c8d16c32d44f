"""Pipelines that begin when data come: each load and commit has one run, by policy, over restarts and two that look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from littlehorse.model import LHStatus, ScheduledWfRun, ScheduledWfRunId, ScheduleWfRequest, WfRun
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.clock import ManualClock
from millpond.errors import Invalid
from millpond.nodes import data_starts
from millpond.nodes.data_starts import DataStarts
from millpond.pipelines import alert, alerted, committed, loaded, pipeline, sql
from millpond.pipelines.plan import drawn
from millpond.pond import Pond
from millpond.server.workflows.data_watch import at_cursor
from millpond.testing import temporary_pond
from millpond.testing.workflows import TENANT, WorkflowRuns
from millpond.workflows.engine.cron import MISSED, Cron, parse_cron
from millpond.workflows.engine.data_starts import mark_of
from tests.rings.sampling import examples

MINUTE = 60


class World:
    """A pond with a map, and a workflow that takes ten minutes and begins when the map was loaded."""

    def __init__(self, pond: Pond, on: str = "loaded:weather", **policy: Any) -> None:
        assert isinstance(pond.clock, ManualClock)
        self.pond, self.cron = pond, Cron("", on=on, **{"overlap": False, **policy})
        self.runs = WorkflowRuns(clock=pond.clock)

        def body(wf: WorkflowThread) -> None:
            wf.sleep(10 * MINUTE)

        self.runs.register(Workflow("flow", body))
        for name in ("weather", "other"):
            pond.create_map(name, kind="state", value="temp double", exist_ok=True)
        self.positions: list[int] = []
        self.put()

    def put(self, *, paused: bool = False) -> None:
        cron = self.cron.switched(paused=paused)
        request = ScheduleWfRequest(wf_spec_name="flow", id="flow", cron_expression=cron.text())
        self.runs.send(at_cursor(self.pond, request))

    def load(self, name: str = "weather") -> int:
        self.pond.map(name).load([{"key": "a", "temp": float(len(self.positions))}])
        self.positions.append(self.pond.log.position()[0])
        return self.positions[-1]

    def look(self, times: int = 1) -> None:
        """Look as so many nodes at the same moment."""
        while arrived := [DataStarts(self.pond).look(self.runs._processor) for _ in range(times)]:
            for _, request in [own for one in arrived for own in one]:
                self.runs.send(request)
            if not any(arrived):
                return

    def pass_time(self, minutes: int) -> None:
        """Let time pass; somebody looks each minute."""
        for _ in range(minutes):
            self.look()
            self.runs.pass_time(timedelta(minutes=1))
        self.look()

    def marks(self) -> list[tuple[str, int, int]]:
        """The mark, the begin and the end of each run, in their order; of one that is open it is now."""
        with self.runs._space.read() as tx:
            reads = self.runs._processor.partition.reads(tx, TENANT)
            rows = [
                reads.get(WfRun, (path,)) for status in (LHStatus.RUNNING, LHStatus.COMPLETED)
                for path in reads.runs("flow", status, 1000)[0]
            ]  # fmt: skip
        whole = []
        for row in rows:
            assert row is not None
            end = row.end_time.ToMilliseconds() if row.status == LHStatus.COMPLETED else self.runs.clock.now_ms()
            whole.append((row.start_time.ToMilliseconds(), end, mark_of(row.id.id)))
        return [(mark, start, end) for start, end, mark in sorted(whole)]

    def began(self) -> list[str]:
        return [mark for mark, _, _ in self.marks()]

    def cursor(self) -> str:
        row = self.runs._row(ScheduledWfRun, ScheduledWfRunId(id="flow"))
        return parse_cron(row.cron_expression).after


@contextmanager
def world(**policy: Any) -> Iterator[World]:
    with temporary_pond() as pond:
        yield World(pond, **policy)


def test_each_load_begins_one_run_and_no_other_map_does() -> None:
    with world(overlap=True) as own:
        own.load("other")
        first, second = own.load(), own.load()
        own.look(times=2)
        own.runs.restart()
        own.look()
        third = own.load()
        own.load("other")
        own.look(times=3)
        assert own.began() == [str(first), str(second), str(third)] and own.cursor() == str(third)


def test_what_was_there_before_begins_nothing_and_a_cursor_stays() -> None:
    with world(missed="all") as own:
        first = own.load()
        own.put()  # as a deploy again: it goes on where it is
        own.look()
        assert own.began() == [str(first)]
        own.put(paused=True)
        own.load()
        own.look()
        own.put()  # resumed: what came meanwhile has no run
        own.look()
        own.pass_time(11)
        assert own.began() == [str(first)]
        last = own.load()
        own.pass_time(1)
        assert own.began() == [str(first), str(last)]


STEPS = st.lists(st.sampled_from(["load", "other", "minutes", "down", "restart", "twice"]), max_size=12)


@settings(max_examples=examples(5, 15), deadline=None)
@given(missed=st.sampled_from(MISSED), overlap=st.booleans(), steps=STEPS)
def test_policies_hold_whatever_happens(missed: str, overlap: bool, steps: list[str]) -> None:
    with world(missed=missed, overlap=overlap) as own:
        loads = []
        for what in steps:
            if what == "load":
                loads.append(str(own.load()))
            elif what == "other":
                own.load("other")
            elif what == "minutes":
                own.pass_time(4)
            elif what == "down":
                own.runs.pass_time(timedelta(minutes=30))
            elif what == "restart":
                own.runs.restart()
            else:
                own.look(times=2)
        own.pass_time(11 * (len(loads) + 1))
        whole = own.marks()
        began = [mark for mark, _, _ in whole]
        assert sorted(began, key=int) == began and len(set(began)) == len(began), "in order, each once"
        assert set(began) <= set(loads)
        if not overlap:
            assert all(start >= end for (_, _, end), (_, start, _) in pairwise(whole))
        if missed == "all":
            assert began == loads
        elif missed == "last" and loads:
            assert began[-1] == loads[-1]
        if loads:
            assert own.cursor() == loads[-1], "all is decided"


def test_commits_begin_runs_and_a_branch_that_is_put_back_begins_none() -> None:
    with temporary_pond() as pond:
        repository = pond.repositories.create("files")
        main = repository.branch("main")
        own = World(pond, on="committed:files/main", missed="all", overlap=True)

        def commit(text: str) -> str:
            main.put("a", text.encode())
            return main.commit(text).id

        own.look()
        ids = [commit("1"), commit("2")]
        own.look(times=2)
        assert sorted(own.began()) == sorted(id_[:16] for id_ in ids) and own.cursor() == ids[-1]
        main.staging.reset_hard(ids[0], force=True)
        own.look()
        assert len(own.began()) == 2 and own.cursor() == ids[0]
        third = commit("3")
        own.look()
        assert third[:16] in own.began() and len(own.began()) == 3
        gone = World(pond, on="committed:nothing/main", missed="all")
        gone.look()
        assert gone.began() == []


def test_each_alert_of_a_rule_begins_one_run_and_others_none() -> None:
    with temporary_pond() as pond:
        sales = pond.create_map("sales", kind="aggregate", value="orders long count", resolution="none")
        sales.alerts.add("orders > 0", name="any")
        sales.alerts.add("orders > 1", name="many")

        def load(*keys: str) -> None:
            sales.load([{"key": key, "time": pond.clock.now_ms()} for key in keys])

        load("before", "before")
        own, of_all = World(pond, on="alerted:sales/many", overlap=True), World(pond, on="alerted:sales", overlap=True)
        own.look()
        assert own.began() == []
        load("a", "b", "b")
        own.look(times=2)
        own.runs.restart()
        load("a", "c")
        own.look(times=3)
        of_all.look()
        crossings = [(event.id, event.headers["rule"]) for event in pond.events.read("millpond", "alerts/sales")][2:]
        assert own.began() == [id_ for id_, rule in crossings if rule == "many"] and len(own.began()) == 2
        assert of_all.began() == [id_ for id_, _ in crossings] and len(crossings) == 5
        gone = World(pond, on="alerted:nothing")
        gone.look()
        assert gone.began() == []


def test_of_more_alerts_than_a_look_reads_the_last_begins_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_starts, "LOADS_READ", 2)
    with temporary_pond() as pond:
        sales = pond.create_map("sales", kind="aggregate", value="orders long count", resolution="none")
        sales.alerts.add("orders > 0", name="any")
        own = World(pond, on="alerted:sales/any", missed="last")
        own.look()
        sales.load([{"key": f"k{number}", "time": pond.clock.now_ms()} for number in range(5)])
        last = list(pond.events.read("millpond", "alerts/sales"))[-1].id
        starts = DataStarts(pond)
        looks = [starts.look(own.runs._processor) for _ in range(3)]
        assert looks[:2] == [[], []]
        own.runs.send(looks[2][0][1])
        assert own.began() == [last] and own.cursor() == last


@pytest.mark.parametrize(
    "text", ["ON=loaded: x", "ON=stolen:a", "ON=loaded:a 0 3 * * *", "ON=committed:a", "ON=alerted:a/", "ON=alerted:A"]
)
def test_what_nobody_can_wait_for_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_cron(text)


def test_a_pipeline_says_for_what_it_waits() -> None:
    def body() -> None:
        sql("select 1")

    own = pipeline(body, name="own", when=loaded("weather", "flights"), missed="all")
    assert "when weather or flights is loaded (missed: all)" in "\n".join(drawn(own.plan))
    own = pipeline(body, name="own", when=committed("pond", branch="fix"))
    assert "when pond/fix is committed (missed: last)" in "\n".join(drawn(own.plan))
    own = pipeline(body, name="own", when=alerted("sales", rule="late"))
    assert "when sales/late is alerted (missed: all)" in "\n".join(drawn(own.plan))
    for wrong in ({"when": loaded("weather"), "schedule": "0 3 * * *"}, {"when": "weather"}, {"when": loaded()}):
        with pytest.raises(Invalid, match="when="):
            pipeline(body, name="own", **wrong)


def test_an_alert_is_a_parameter_of_what_alerts_begin() -> None:
    def body(crossing: dict = alert) -> None:  # type: ignore[type-arg,assignment]
        sql("select {key}", key=crossing.key)  # type: ignore[attr-defined]

    def text(crossing: str = alert) -> None:  # type: ignore[assignment]
        sql("select {key}", key=crossing)

    assert pipeline(body, name="own", when=alerted("sales")).plan.when == "alerted:sales"
    for function, when in ((body, loaded("sales")), (body, ""), (text, alerted("sales"))):
        with pytest.raises(Invalid, match="an alert is a dict"):
            pipeline(function, name="own", when=when)
