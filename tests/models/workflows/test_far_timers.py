"""Timers of any delay that a client can name are at instants that a key can hold."""

from __future__ import annotations

import pytest

pytest.importorskip("littlehorse")

from hypothesis import given
from hypothesis import strategies as st
from littlehorse.model import (
    ExponentialBackoffRetryPolicy,
    ExternalEventDef,
    PutExternalEventDefRequest,
    PutTaskDefRequest,
    VariableAssignment,
    VariableValue,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.kernel.keys import encode
from millpond.workflows.engine.limits import INSTANT_MS_MAX
from tests.models.workflows.stage import Stage

INT_MAX = (1 << 63) - 1


def check_timers(stage: Stage) -> None:
    """Insist that there are timers, and that each can be a key."""
    assert stage.timers
    for timer in stage.timers.values():
        assert 0 <= timer.at <= INSTANT_MS_MAX
        encode((timer.at,))


@given(seconds=st.integers(-INT_MAX - 1, INT_MAX))
def test_an_event_is_awaited_for_any_number_of_seconds(seconds: int) -> None:
    def awaits(wf: WorkflowThread) -> None:
        wf.declare_int("seconds")
        wf.wait_for_event("ready", timeout=1)

    stage = Stage()
    stage.do(PutExternalEventDefRequest(name="ready"))
    spec = Workflow("awaits", awaits).compile()
    (node,) = [node for node in spec.thread_specs["entrypoint"].nodes.values() if node.HasField("external_event")]
    node.external_event.timeout_seconds.CopyFrom(VariableAssignment(variable_name="seconds"))
    stage.do(spec)
    stage.run("awaits", "r", {"seconds": VariableValue(int=seconds)})
    check_timers(stage)


def test_a_retry_is_delayed_as_long_as_can_be() -> None:
    policy = ExponentialBackoffRetryPolicy(base_interval_ms=1, multiplier=1e30, max_delay_ms=INT_MAX)

    def delayed(wf: WorkflowThread) -> None:
        wf.execute("work", retries=2, exponential_backoff=policy)

    stage = Stage()
    stage.do(PutTaskDefRequest(name="work"))
    stage.do(Workflow("delayed", delayed).compile())
    stage.run("delayed", "r", {})
    for attempt in range(2):
        assert stage.claim("work") is not None
        stage.report("r", "0-1", attempt, "failed", VariableValue())
        check_timers(stage)
        stage.pass_time(1)
    assert [timer.at for timer in stage.timers.values()] == [INSTANT_MS_MAX]


@given(seconds=st.integers(0, INT_MAX))
def test_an_event_is_retained_for_any_number_of_seconds(seconds: int) -> None:
    stage = Stage()
    definition = PutExternalEventDefRequest(name="ready", retention_policy={"seconds_after_put": seconds})
    assert isinstance(stage.do(definition), ExternalEventDef)
    stage.event("r", "ready", VariableValue(), "one")
    check_timers(stage)
