"""One run while a command works on it: its row, its specification, its threads and their node runs."""

from __future__ import annotations

from littlehorse.model import (
    LHStatus,
    Node,
    NodeRun,
    NodeRunId,
    ThreadRun,
    ThreadSpec,
    VariableValue,
    WfRun,
    WfSpec,
)

from millpond.errors import Conflict, Internal, Invalid, NotFound
from millpond.workflows.engine.keys import Key, key_of, run_path
from millpond.workflows.engine.spec_index import SpecFacts, facts_of
from millpond.workflows.engine.wakeups import Awake
from millpond.workflows.engine.work import Work

__all__ = (
    "TERMINAL",
    "FAILED",
    "Run",
    "load",
    "existing",
)

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
            self._facts = facts_of(self.spec)
        return self._facts

    def thread(self, number: int) -> ThreadRun:
        """The thread with a number."""
        return self.threads[number]

    def thread_spec(self, thread: ThreadRun) -> ThreadSpec:
        """The part of the specification that a thread follows."""
        return self.spec.thread_specs[thread.thread_spec_name]

    def node_run(self, thread: ThreadRun) -> NodeRun:
        """The node run at which a thread is."""
        return self.node_run_at(thread.number, thread.current_node_position)

    def node_run_at(self, thread: int, position: int) -> NodeRun:
        """The node run at a position of a thread."""
        node_run = self.work.rows.get(NodeRun, (self.path, thread, position))
        if node_run is None:
            raise Internal("a node run is missing", kind="run_rows", run=self.path, thread=thread, position=position)
        return node_run

    def node(self, node_run: NodeRun) -> Node:
        """The node of a node run."""
        return self.spec.thread_specs[node_run.thread_spec_name].nodes[node_run.node_name]

    def node_run_id(self, thread: ThreadRun, position: int) -> NodeRunId:
        """The id of a node run."""
        return NodeRunId(wf_run_id=self.row.id, thread_run_number=thread.number, position=position)

    def put(self, node_run: NodeRun) -> None:
        """Write a node run."""
        self.work.rows.put(key_of(node_run.id), node_run)

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
