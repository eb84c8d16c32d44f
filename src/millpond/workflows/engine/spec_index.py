"""Facts of a specification that steps of its runs ask for again and again, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from google.protobuf.message import Message
from littlehorse.model import (
    Node,
    ThreadSpec,
    VariableAssignment,
    VariableMutation,
    WaitForChildWfNode,
    WfRunVariableAccessLevel,
    WfSpec,
)

from millpond.workflows.engine.values.messages import parts_of

__all__ = ("SpecFacts", "facts_of")


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


def facts_of(spec: WfSpec) -> SpecFacts:
    """The facts of a specification."""
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
