"""Records of output are what changed between two states of a tenant, whatever commands led from one to the other."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from littlehorse.model import (
    Checkpoint,
    CorrelatedEvent,
    ExternalEvent,
    ExternalEventDef,
    LHStatus,
    MetadataOutputTopicRecord,
    OutputTopicConfig,
    OutputTopicRecord,
    PutTenantRequest,
    StructDef,
    TaskDef,
    TaskRun,
    UserTaskDef,
    UserTaskRun,
    Variable,
    WfRun,
    WfRunVariableAccessLevel,
    WfSpec,
    WorkflowEvent,
    WorkflowEventDef,
)
from littlehorse.workflow import Workflow, WorkflowThread

from millpond.errors import MillpondError
from millpond.kernel.keys import EVERYTHING
from millpond.kernel.scans import put_rows
from millpond.stores.memory import MemorySpace
from millpond.workflows.engine import Command, Key, Outcome, Request, key_of
from millpond.workflows.engine.metadata.tenancy import CLUSTER
from millpond.workflows.engine.values.masks import shown
from millpond.workflows.keyspaces import TIMER
from millpond.workflows.outputs import outputs_after
from millpond.workflows.processor import Partition
from millpond.workflows.processor.codec import LoggedCommand
from millpond.workflows.processor.timers import cancel_timer
from millpond.workflows.store import initialize
from tests.models.workflows import test_scenarios
from tests.models.workflows.stage import Stage
from tests.models.workflows.test_random_commands import RUNS, commands
from tests.rings.sampling import examples

TENANT = "acme"
ALL, NONE = OutputTopicConfig.ALL_ENTITY_EVENTS, OutputTopicConfig.NO_ENTITY_EVENTS
EXECUTION = {
    TaskRun: "task_run", WorkflowEvent: "workflow_event", WfRun: "wf_run", UserTaskRun: "user_task_run",
    Variable: "variable", ExternalEvent: "external_event", CorrelatedEvent: "correlated_event",
    Checkpoint: "task_checkpoint",
}  # fmt: skip
METADATA = {
    WfSpec: "wf_spec", TaskDef: "task_def", ExternalEventDef: "external_event_def",
    WorkflowEventDef: "workflow_event_def", UserTaskDef: "user_task_def", StructDef: "struct_def",
}  # fmt: skip
SPECS = {**RUNS, "published": "", "masked": 'secret="s"'}
Rows = dict[tuple[type[Message], Key], bytes]
Row = tuple[str, bytes]


def published(wf: WorkflowThread) -> None:
    """A run with a variable that others see, and one that they do not."""
    seen = wf.declare_str("seen", "nothing").as_public()
    own = wf.declare_str("own", "nothing")
    for _ in range(3):
        text = wf.wait_for_event("ready")
        seen.assign(text)
        own.assign(text)


class OutputStage(Stage):
    """A stage beside a partition with topics of output: what it tells is compared with all rows before and after."""

    def __init__(self, level: int = ALL) -> None:
        super().__init__()
        self.space, self.level, self.expected = MemorySpace(), level, list[Row]()
        self.partition = Partition(self.space.write(lambda tx: initialize(tx, self.now)), outputs=True)
        config = OutputTopicConfig(default_recording_level=level)  # type: ignore[arg-type]
        self._command(PutTenantRequest(id=TENANT, output_topic_config=config), CLUSTER)

    def copied(self) -> OutputStage:
        """A stage with the same rows, on which nothing was told yet."""
        other = OutputStage(self.level)
        other.rows.bytes, other.commands = dict(self.rows.bytes), list(self.commands)
        with self.space.read() as tx:
            rows = list(tx.scan(EVERYTHING))
        other.space.write(lambda tx: put_rows(tx, rows))
        other.expected = list(self.expected)
        return other

    def do(self, request: Request) -> Message | None:
        with self.space.read() as tx:
            set_ = {tuple(TIMER.unpack(key)[2:]) for key in tx.keys(TIMER.range())}
        for name in set_ - set(self.timers):  # one that fired
            self.space.write(lambda tx, name=name: cancel_timer(tx, TENANT, name))  # type: ignore[misc]
        with contextlib.suppress(MillpondError):  # the stage says the same
            self._command(request, TENANT)
        return super().do(request)

    def _command(self, request: Request, tenant: str) -> None:
        command = LoggedCommand(tenant, f"command-{len(self.commands)}", request)
        self.space.write(lambda tx: self.partition.apply(tx, [command], self.now))

    def _apply(self, command: Command) -> Outcome:
        before = dict(self.rows.bytes)
        outcome = super()._apply(command)
        self.expected += self.changes(before)
        return outcome

    def changes(self, before: Rows) -> list[Row]:
        """The records that a tenant is told, by all rows before a command and all rows behind it."""
        first: list[Row] = []
        others: list[Row] = []
        last: list[Row] = []
        for (kind, key), row in sorted(self.rows.bytes.items(), key=lambda item: (item[0][0].__name__, item[0][1])):
            old = before.get((kind, key))
            if old == row:
                continue
            if kind in METADATA:
                record = MetadataOutputTopicRecord(**{METADATA[kind]: kind.FromString(row)})  # type: ignore[arg-type]
                name = "/".join(f"{part:05d}" if isinstance(part, int) else part for part in key)
                others.append(
                    (f"metadata {METADATA[kind].upper()}/{name}", record.SerializeToString(deterministic=True))
                )
            elif kind in EXECUTION and self.level == ALL:
                of_run = self.of_run(kind, key, row, old)
                if of_run is not None:
                    status = WfRun.FromString(row).status if kind is WfRun else None
                    (others if status is None else first if status == LHStatus.RUNNING else last).append(of_run)
        return [*first, *others, *last]

    def of_run(self, kind: type[Message], key: Key, row: bytes, old: bytes | None) -> Row | None:
        message = kind.FromString(row)
        if isinstance(message, WfRun) and old is not None and WfRun.FromString(old).status == message.status:
            return None
        if isinstance(message, Variable) and not self.is_public(message):
            return None
        record = OutputTopicRecord(**{EXECUTION[kind]: shown(message)})  # type: ignore[arg-type]
        record.timestamp.FromMilliseconds(self.now)
        own = str(key[0]) if kind is CorrelatedEvent else str(key[0]).split("_")[0]
        return f"execution {own}", record.SerializeToString(deterministic=True)

    def is_public(self, variable: Variable) -> bool:
        spec = self.rows.get(WfSpec, key_of(variable.wf_spec_id))
        assert spec is not None
        levels = {
            definition.access_level
            for thread in spec.thread_specs.values() for definition in thread.variable_defs
            if definition.var_def.name == variable.id.name
        }  # fmt: skip
        return levels <= {WfRunVariableAccessLevel.PUBLIC_VAR, WfRunVariableAccessLevel.INHERITED_VAR}

    def compare(self) -> None:
        """Compare all that was told with all that had to be."""
        with self.space.read() as tx:
            page = outputs_after(tx, (0, 0), count=100_000, size=1 << 30)
        assert [place for place, _ in page] == sorted({place for place, _ in page})
        noted = [(f"{output.topic} {output.key}", output.record) for _, output in page if output.topic]
        assert noted == self.expected


@cache
def _prepared(level: int) -> OutputStage:
    stage = OutputStage(level)
    patched, test_scenarios.Stage = test_scenarios.Stage, lambda: stage  # type: ignore[misc, assignment]
    try:
        test_scenarios.prepared()
    finally:
        test_scenarios.Stage = patched  # type: ignore[misc]
    stage.do(Workflow("published", published).compile())
    return stage


def play(spec: str, script: list[str], level: int) -> OutputStage:
    """Play a script of commands, of which some fail, on one run."""
    stage = _prepared(level).copied()
    test_scenarios.perform(stage, f"run {spec} r {SPECS[spec]}")
    for number, command in enumerate(script):
        with contextlib.suppress(MillpondError):
            test_scenarios.perform(stage, command.format(f"event-{number}"))
    stage.compare()
    return stage


@pytest.mark.usefixtures("processor")
@settings(max_examples=examples(25, 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(SPECS)), st.lists(commands, max_size=15))
def test_any_commands_tell_what_they_changed(spec: str, script: list[str]) -> None:
    play(spec, script, ALL)


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(4)
@pytest.mark.parametrize("file", sorted(test_scenarios.FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_a_scenario_tells_what_it_changed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[OutputStage] = []

    def begun() -> Stage:
        stages.append(OutputStage())
        return stages[-1]

    monkeypatch.setattr(test_scenarios, "Stage", begun)
    test_scenarios.test_scenario(file)
    for stage in stages:
        stage.compare()


@pytest.mark.usefixtures("processor")
def test_without_events_of_runs_definitions_alone_are_told() -> None:
    stage = play("published", ['event r ready e "x"'], NONE)
    assert stage.expected
    assert all(name.startswith("metadata ") for name, _ in stage.expected)


@pytest.mark.usefixtures("processor")
def test_variables_that_others_may_see_are_told_and_no_others() -> None:
    stage = play("published", ['event r ready a "x"', 'event r ready b "y"'], ALL)
    records = [OutputTopicRecord.FromString(record) for name, record in stage.expected if name == "execution r"]
    values = [(record.variable.id.name, record.variable.value.str) for record in records if record.HasField("variable")]
    assert values == [("seen", "nothing"), ("seen", "x"), ("seen", "y")]
    assert next(record.WhichOneof("payload") for record in records) == "wf_run"
