"""The partition in a space does what the engine says: the scenarios again, with every row, timer and queue compared."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("littlehorse")

from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from littlehorse.model import (
    CorrelatedEventId,
    ExternalEventId,
    NodeRunId,
    ReportTaskRun,
    RunWfRequest,
    ScheduledWfRunId,
    StopWfRunRequest,
    TaskRunId,
    VariableValue,
    WfRunId,
)

from millpond.errors import Corrupt
from millpond.stores.lmdb.space import LmdbSpace
from millpond.workflows.engine import (
    AttemptDue,
    AttemptTimedOut,
    CorrelatedEventExpired,
    CorrelatedEventSent,
    CorrelationAwaited,
    CorrelationForgotten,
    DataArrived,
    EventExpired,
    NodeDue,
    Request,
    ScheduleDue,
    ScheduleWaits,
    TaskClaim,
    key_of,
)
from millpond.workflows.keyspaces import QUEUED, TIMER
from millpond.workflows.processor import Partition
from millpond.workflows.processor.codec import (
    LoggedCommand,
    decode_command,
    decode_request,
    encode_command,
    encode_request,
)
from millpond.workflows.processor.rows import RUN_KINDS, queued_after
from millpond.workflows.processor.timers import cancel_timer
from millpond.workflows.store import initialize
from tests.models.workflows import test_scenarios
from tests.models.workflows.stage import Stage

TENANT = "acme"


class PartitionStage(Stage):
    """A stage beside a partition that applies the same commands."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.space = LmdbSpace(folder, durable=False)
        self.partition = Partition(self.space.write(lambda tx: initialize(tx, self.now)))

    def do(self, request: Request) -> Message | None:
        command = LoggedCommand(TENANT, f"command-{len(self.commands)}", request)
        now, fired = self.now, [name for name in self.timer_names() if name not in self.timers]

        def write(tx: Any) -> Any:
            for name in fired:
                cancel_timer(tx, TENANT, name)
            return self.partition.apply(tx, [command], now)[0]

        applied = self.space.write(write)
        if applied.error is not None:
            self.compare()  # before the stage does it, and fails as well
            with pytest.raises(type(applied.error), match=re.escape(str(applied.error))):
                super().do(request)
            self.compare()
            raise applied.error
        reply = super().do(request)
        assert applied.reply == reply
        self.compare()
        return reply

    def timer_names(self) -> set[tuple[object, ...]]:
        with self.space.read() as tx:
            return {tuple(TIMER.unpack(key)[2:]) for key in tx.keys(TIMER.range())}

    def compare(self) -> None:
        """Compare all rows, timers and queues with those of the stage."""
        with self.space.read() as tx:
            rows = self.partition.reads(tx, TENANT)
            for kind, key in self.rows.bytes:
                assert rows.get(kind, key) == self.rows.get(kind, key), (kind, key)
            for kind in {kind for kind, _ in self.rows.bytes}:
                prefixes = {key[:1] for own, key in self.rows.bytes if own is kind}
                for prefix in prefixes if kind in RUN_KINDS else [*prefixes]:
                    found = sorted(key for key, _ in rows.list(kind, prefix))
                    assert found == [key for key, _ in self.rows.list(kind, prefix)]
            assert self.timer_names() == set(self.timers)
            for definition, tasks in self.queues.items():
                queued = [(task.run, task.guid) for task in queued_after(tx, TENANT, definition, None, 1000)]
                assert queued == [key_of(task) for task in tasks]
            assert sum(1 for _ in tx.keys(QUEUED.range())) == sum(map(len, self.queues.values()))


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(10)
@pytest.mark.parametrize("file", sorted(test_scenarios.FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_a_scenario_in_a_space(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_scenarios, "Stage", partial(PartitionStage, tmp_path))
    test_scenarios.test_scenario(file)


# -- requests as bytes ------------------------------------------------------------------------------------

names = st.text("abcXYZ019-", min_size=1, max_size=20)
runs = st.builds(lambda own: WfRunId(id=own), names)
tasks = st.builds(lambda run, guid: TaskRunId(wf_run_id=run, task_guid=guid), runs, names)
nodes = st.builds(lambda run, at: NodeRunId(wf_run_id=run, position=at), runs, st.integers(0, 2**31 - 1))
correlated = st.builds(lambda key: CorrelatedEventId(key=key), names)
requests = st.one_of(
    st.builds(TaskClaim, tasks, st.text(), st.text()),
    st.builds(AttemptTimedOut, tasks, st.integers(0, 99), st.integers(0, 99)),
    st.builds(AttemptDue, tasks, st.integers(0, 99)), st.builds(NodeDue, nodes),
    st.builds(EventExpired, st.builds(lambda run, guid: ExternalEventId(wf_run_id=run, guid=guid), runs, names)),
    st.builds(CorrelationAwaited, correlated, nodes), st.builds(CorrelationForgotten, correlated, nodes),
    st.builds(CorrelatedEventExpired, correlated),
    st.builds(lambda node, text: CorrelatedEventSent(node, ExternalEventId(guid="g"), VariableValue(str=text)), nodes,
              st.text()),
    st.builds(ScheduleDue, st.builds(lambda own: ScheduledWfRunId(id=own), names), st.integers(0, 2**50),
              st.integers(-1, 9), st.integers(-1, 9)),
    st.builds(ScheduleWaits, st.builds(lambda own: ScheduledWfRunId(id=own), names), runs, st.integers(0, 2**50),
              st.integers(0, 2**50), st.integers(-1, 9), st.integers(-1, 9), st.integers(-1, 1)),
    st.builds(DataArrived, st.builds(lambda own: ScheduledWfRunId(id=own), names), runs, st.integers(0, 2**50),
              names, names, st.integers(0, 1), st.integers(-1, 1)),
    st.builds(lambda name, text: RunWfRequest(wf_spec_name=name, variables={"a": VariableValue(str=text)}), names,
              st.text()),
    st.builds(lambda run, thread: StopWfRunRequest(wf_run_id=run, thread_run_number=thread), runs, st.integers(0, 9)),
    st.builds(lambda task, attempt: ReportTaskRun(task_run_id=task, attempt_number=attempt), tasks, st.integers(0, 9)),
)  # fmt: skip


@given(requests, names, names)
def test_requests_come_back_from_their_bytes(request: Request, tenant: str, id_: str) -> None:
    assert decode_request(encode_request(request)) == request
    command = LoggedCommand(tenant, id_, request)
    assert decode_command(encode_command(command)) == command


@given(requests, st.data())
def test_damaged_bytes_are_a_damaged_log(request: Request, data: st.DataObject) -> None:
    whole = encode_request(request)
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        decode_request(whole[:cut])
    except Corrupt:
        return
    raise AssertionError("a part of the bytes is no request")
