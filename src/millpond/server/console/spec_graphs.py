"""Specifications of workflows as graphs: what a page lists of each node, and what is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from millpond.console import Flow, flow_graph
from millpond.json_forms import FormError, parse_object
from millpond.workflows.named import node_number

__all__ = ("drawings", "states_of", "threads_of")

_THREADS_MAX, _NODES_MAX = 20, 200
_BAD = ("ERROR", "EXCEPTION")
_NAMED = {
    "external_event": ("external_event_def_id", "name"), "user_task": ("user_task_def_name",),
    "start_thread": ("thread_spec_name",), "start_multiple_threads": ("thread_spec_name",),
    "throw_event": ("event_def_id", "name"), "run_child_wf": ("wf_spec_name",),
}  # fmt: skip
"""The field of a node of each kind that names what it is about."""


def threads_of(spec: Any) -> list[dict[str, Any]]:
    """The threads of a specification, that with which it begins first: nodes, each with what may follow it.

    Of large ones the first nodes; `more` is true then.
    """
    first = spec.entrypoint_thread_name
    names = sorted(spec.thread_specs, key=lambda name: (name != first, name))
    return [_thread(name, spec.thread_specs[name]) for name in names[:_THREADS_MAX]]


def _thread(name: str, thread: Any) -> dict[str, Any]:
    # The entry point comes first; the others by the number that their names begin with.
    is_entry = {own: node.WhichOneof("node") == "entrypoint" for own, node in thread.nodes.items()}
    names = sorted(thread.nodes, key=lambda own: (not is_entry[own], node_number(own)))
    handlers = {
        handler.handler_spec_name for node in thread.nodes.values() for handler in node.failure_handlers
    } | {own.handler_spec_name for own in thread.interrupt_defs}  # fmt: skip
    return {
        "name": name, "more": len(names) > _NODES_MAX, "handlers": sorted(handlers),
        "nodes": [_node(own, thread.nodes[own]) for own in names[:_NODES_MAX]],
    }  # fmt: skip


def _node(name: str, node: Any) -> dict[str, Any]:
    kind = node.WhichOneof("node") or "nop"
    return {
        "name": name, "kind": kind.replace("_", " "), "label": _label(kind, getattr(node, kind)),
        "next": list(dict.fromkeys(edge.sink_node_name for edge in node.outgoing_edges)),
    }  # fmt: skip


def _label(kind: str, own: Any) -> str:
    """The words in the box of a node: what it is about, or its kind."""
    if kind == "task":
        return _step_of_pipeline(own) or own.task_def_id.name or "task"
    for field in _NAMED.get(kind, ()):
        own = getattr(own, field)
    words = kind.replace("_", " ")
    return f"{words}: {own}" if kind in _NAMED and own else {"entrypoint": "begin", "exit": "end"}.get(kind, words)


def _step_of_pipeline(task: Any) -> str:
    """The name of the step of a pipeline that a task stands for; nothing for another task."""
    if not task.variables:
        return ""
    try:
        literal = parse_object(task.variables[0].literal_value.json_obj.encode() or b"{}")
    except FormError:
        return ""
    name, kind = literal.get("name"), literal.get("kind")
    if not isinstance(name, str) or not isinstance(kind, str):
        return ""
    return name if name == kind else f"{name} [{kind}]"


def states_of(steps: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The state of each node of which steps are known; the last one counts."""
    states = {}
    for step in steps:
        status = step["status"]
        ended = "bad" if status in _BAD else "good" if status == "COMPLETED" else ""
        states[step["name"]] = ended or ("now" if status in ("RUNNING", "STARTING") else "")
    return states


def drawings(threads: Iterable[Mapping[str, Any]], states: Mapping[str, Mapping[str, str]]) -> dict[str, Markup]:
    """The drawing of each thread that is listed whole; states of nodes by the name of the thread."""
    return {thread["name"]: _drawn(thread, states.get(thread["name"], {})) for thread in threads if not thread["more"]}


def _drawn(thread: Mapping[str, Any], states: Mapping[str, str]) -> Markup:
    labels = {node["name"]: node["label"] for node in thread["nodes"]}
    edges = [(node["name"], sink) for node in thread["nodes"] for sink in node["next"] if sink in labels]
    return flow_graph(Flow(thread["name"], labels, edges, states))
