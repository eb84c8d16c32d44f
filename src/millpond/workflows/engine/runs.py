"""One run while a command works on it: its row, its specification, its threads and their node runs.

Threads that are awake: those that may have something to do, because something that they depend on has changed.

The others are not looked at, so that a step of a run with many threads costs what it changes.

Invariants:

* A thread depends on its own node's rows, on the statuses of its parent, its children and their failure handlers, on
  external events, and, where its specification has nodes that watch variables, on the variables that it sees.
* Advancing all threads after a command would change nothing that advancing the awake ones has not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from google.protobuf.message import Message
from littlehorse.model import (
    LHStatus,
    Node,
    NodeRun,
    NodeRunId,
    ThreadRun,
    ThreadSpec,
    ThreadType,
    VariableAssignment,
    VariableMutation,
    VariableValue,
    WaitForChildWfNode,
    WfRun,
    WfRunVariableAccessLevel,
    WfSpec,
)

from millpond.errors import Conflict, Internal, Invalid, NotFound
from millpond.workflows.engine.keys import Key, key_of, run_path
from millpond.workflows.engine.values.messages import parts_of
from millpond.workflows.engine.work import Work

__all__ = ("TERMINAL", "FAILED", "Run", "load", "existing", "Awake", "SpecFacts")

TERMINAL = frozenset({LHStatus.COMPLETED, LHStatus.ERROR, LHStatus.EXCEPTION})
FAILED = frozenset({LHStatus.ERROR, LHStatus.EXCEPTION})


class Run:
    """A run with all that its steps need."""

    def __init__(self, work: Work, row: WfRun, spec: WfSpec) -> None:
        self.work = work
        self.row = row
        self.spec = spec
        self.path = run_path(row.id)
        self.threads = {thread.number: thread for thread in row.thread_runs}
        self.queue = set(row.thread_run_queue)
        self.awake = Awake(self.threads)
        self.variables_changed = False
        self._facts: SpecFacts | None = None

    @property
    def facts(self) -> SpecFacts:
        """The facts of the specification that steps ask for."""
        if self._facts is None:
            self._facts = _facts_of(self.spec)
        return self._facts

    def thread(self, number: int) -> ThreadRun:
        return self.threads[number]

    def thread_spec(self, thread: ThreadRun) -> ThreadSpec:
        """The part of the specification that a thread follows."""
        return self.spec.thread_specs[thread.thread_spec_name]

    def node_run(self, thread: ThreadRun) -> NodeRun:
        return self.node_run_at(thread.number, thread.current_node_position)

    def node_run_at(self, thread: int, position: int) -> NodeRun:
        node_run = self.work.rows.get(NodeRun, (self.path, thread, position))
        if node_run is None:
            raise Internal("a node run is missing", kind="run_rows", run=self.path, thread=thread, position=position)
        return node_run

    def node(self, node_run: NodeRun) -> Node:
        return self.spec.thread_specs[node_run.thread_spec_name].nodes[node_run.node_name]

    def node_run_id(self, thread: ThreadRun, position: int) -> NodeRunId:
        return NodeRunId(wf_run_id=self.row.id, thread_run_number=thread.number, position=position)

    def put(self, node_run: NodeRun) -> None:
        """Write a node run."""
        id_ = node_run.id
        self.work.rows.put((self.path, id_.thread_run_number, id_.position), node_run)

    def save(self) -> None:
        """Write the row of the run."""
        self.work.rows.put((self.path,), self.row)

    def children(self, thread: ThreadRun) -> list[ThreadRun]:
        """The child threads of a thread, but for those that are archived or queued."""
        children = (self.threads.get(number) for number in thread.child_thread_ids)
        return [child for child in children if child is not None]

    def put_output(self, thread: ThreadRun, node: str, value: VariableValue) -> None:
        """Store the newest output of a node."""
        self.work.rows.put(self._output_key(thread, node), value)

    def output(self, thread: ThreadRun, node: str) -> VariableValue | None:
        """The newest output of a node in a thread, or None when it has none."""
        return self.work.rows.get(VariableValue, self._output_key(thread, node))

    def _output_key(self, thread: ThreadRun, node: str) -> Key:
        return (self.path, thread.number, node)


def load(work: Work, path: str) -> Run | None:
    """The run with a path, or None."""
    row = work.rows.get(WfRun, (path,))
    if row is None:
        return None
    spec = work.rows.get(WfSpec, key_of(row.wf_spec_id))
    if spec is None:
        raise NotFound(
            "the specification of the run was deleted",
            kind="workflow_spec",
            run=path,
            spec=row.wf_spec_id.name,
            hint="put it again, or delete the run",
        )
    return Run(work, row, spec)


def existing(work: Work, path: str, thread: int = 0) -> Run:
    """The run with a path, and a thread of that number in it.

    Raises:
        NotFound: no such run.
        Invalid: no such thread.
        Conflict: the thread has ended and is archived.
    """
    run = load(work, path)
    if run is None:
        raise NotFound("no run with this id", kind="workflow_run", run=path,
                       hint="a child is named behind the runs above it: a_b")  # fmt: skip
    if thread not in run.threads and thread not in run.queue and 0 <= thread <= run.row.greatest_threadrun_number:
        raise Conflict("the thread is archived", kind="failed_precondition", run=path, thread=thread)
    if thread not in run.threads and thread not in run.queue:
        raise Invalid("no thread with this number", kind="workflow_thread", run=path, thread=thread,
                      hint=f"its threads are 0 to {run.row.greatest_threadrun_number}")  # fmt: skip
    return run


class Awake:
    """The numbers of the threads of one run that are awake."""

    def __init__(self, threads: Mapping[int, ThreadRun]) -> None:
        self.numbers: set[int] = set()
        self._threads = threads

    def wake(self, numbers: Iterable[int]) -> None:
        """Let threads be looked at."""
        self.numbers.update(numbers)

    def wake_if(self, specs: frozenset[str]) -> None:
        """Let threads of some thread specifications be looked at."""
        if specs:
            self.wake(number for number, thread in self._threads.items() if thread.thread_spec_name in specs)

    def touch(self, thread: ThreadRun) -> None:
        """Note that a thread's status, or a reason for which it halts, has changed."""
        self.numbers.add(thread.number)
        self.wake(thread.child_thread_ids)
        if thread.HasField("parent_thread_id"):
            self.numbers.add(thread.parent_thread_id)
            parent = self._threads.get(thread.parent_thread_id)
            if thread.type == ThreadType.FAILURE_HANDLER and parent is not None and parent.HasField("parent_thread_id"):
                self.numbers.add(parent.parent_thread_id)  # it may wait for the failed thread to be handled

    def taken(self) -> set[int]:
        """The threads that are awake; none is any more."""
        numbers, self.numbers = self.numbers, set()
        return numbers


@dataclass(frozen=True, slots=True)
class SpecFacts:
    """Facts that steps need; a `thread` is the name of a thread specification."""

    watching: frozenset[str]
    """The threads with nodes that a change of a variable may complete."""
    inherits: bool
    """True when variables of the parent run are seen, which change without this run."""
    retained: bool
    """True when a thread says for how long it is retained."""
    awaiting: dict[str, frozenset[str]]
    """For each external event, the threads with nodes that wait for it."""
    outputs: dict[str, frozenset[str]]
    """For each thread, the nodes whose outputs another node, an edge or a mutation reads."""


def _facts_of(spec: WfSpec) -> SpecFacts:
    return _facts(spec.SerializeToString(deterministic=True))


@lru_cache(maxsize=1024)
def _facts(data: bytes) -> SpecFacts:
    threads = dict(WfSpec.FromString(data).thread_specs)
    events: dict[str, set[str]] = {}
    for name, thread in threads.items():
        for node in thread.nodes.values():
            if node.WhichOneof("node") == "external_event":
                events.setdefault(node.external_event.external_event_def_id.name, set()).add(name)
    declared = [variable for thread in threads.values() for variable in thread.variable_defs]
    return SpecFacts(
        watching=frozenset(name for name, thread in threads.items() if any(map(_watches, thread.nodes.values()))),
        inherits=any(variable.access_level == WfRunVariableAccessLevel.INHERITED_VAR for variable in declared),
        retained=any(thread.HasField("retention_policy") for thread in threads.values()),
        awaiting={event: frozenset(names) for event, names in events.items()},
        outputs={name: _outputs_read(thread) for name, thread in threads.items()},
    )


def _watches(node: Node) -> bool:
    match node.WhichOneof("node"):
        case "wait_for_condition":
            return True
        case "sleep":
            return node.sleep.WhichOneof("sleep_length") != "raw_seconds"
        case _:
            return False


def _outputs_read(thread: ThreadSpec) -> frozenset[str]:
    nodes: set[str] = set()
    for name in thread.nodes:
        _collect(thread.nodes[name], name, nodes)
    return frozenset(nodes)


def _collect(message: Message, node: str, nodes: set[str]) -> None:
    if isinstance(message, VariableAssignment) and message.WhichOneof("source") == "node_output":
        nodes.add(message.node_output.node_name)
    if isinstance(message, VariableMutation) and message.WhichOneof("rhs_value") == "node_output":
        nodes.add(node)
    if isinstance(message, WaitForChildWfNode):
        nodes.add(message.child_wf_run_source_node)
    for part in parts_of(message):
        _collect(part, node, nodes)
