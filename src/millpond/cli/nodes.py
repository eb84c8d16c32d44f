"""`millpond node`: the status of nodes, the end of their work before they are stopped, and changes of their list."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, NodeLocation
from millpond.cli.terminal import console
from millpond.cli.verbs import verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millpond.client.transport import Outcome

__all__ = ("drain", "status")

_PAUSE_SECONDS = 0.25


@verb("node status", "millpond node status", "millpond node status --pond http://n1:7433 --json")
def status(pond: NodeLocation = None, json: Json = False) -> None:
    """Show every node: its role, whether it is ready and why not, its position, its lag, its clock and its version.

    Ends with 11 when a node is not ready or cannot be reached.
    """
    from millpond.client.transport import Nodes
    from millpond.settings import load_settings

    settings = load_settings()
    nodes = Nodes(pond or settings.nodes.urls or settings.own_url(), settings)
    try:
        nodes.learn()
        outcomes = nodes.all(lambda node: node.once.request("GET", "/v1/node").json())
    finally:
        nodes.close()
    rows = [_row(outcome, outcomes) for outcome in outcomes]
    if json:
        console.print_json_list(rows)
    else:
        columns = ["node", "role", "ready", "position", "lag", "clock", "version", "why not"]
        console.print_table(columns, [[_shown(row[name]) for name in columns] for row in rows], whole=("node",))
    if not all(row["ready"] for row in rows):
        raise typer.Exit(11)


def _row(outcome: Outcome[Any], outcomes: Sequence[Outcome[Any]]) -> dict[str, Any]:
    facts = outcome.value
    if facts is None:
        reason = None if outcome.error is None else outcome.error.values.get("reason", outcome.error.message)
        nothing = dict.fromkeys(("role", "position", "lag", "clock", "version"))
        return {"node": outcome.node, "ready": False, **nothing, "why not": f"it cannot be reached: {reason}"}
    reasons = list(facts["reasons"])
    if facts.get("settings_differ"):
        reasons.append("its setting `nodes.urls` is another list than the pond's, which counts")
    last = max(other.value["position"] for other in outcomes if other.value is not None)
    clock = max(facts["clock_skews_ms"].values(), key=abs, default=0)
    return {
        "node": outcome.node, "role": facts["role"], "ready": facts["ready"], "position": facts["position"],
        "lag": last - facts["position"], "clock": f"{-clock:+} ms" if clock else "0 ms", "version": facts["version"],
        "why not": "; ".join(reasons) or None,
    }  # fmt: skip


def _shown(value: object) -> object:
    return ("yes" if value else "no") if isinstance(value, bool) else value


@verb("node drain", "millpond node drain http://n2:7433", "millpond node drain http://n2:7433 --undo")
def drain(
    node: Annotated[str, typer.Argument(metavar="URL", help="The node to drain.")],
    undo: Annotated[bool, typer.Option("--undo", help="Take work again.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is safe to stop the node.")] = True,
    json: Json = False,
) -> console.Shown:
    """Let a node take no new work, and wait until what runs has ended: then it is safe to stop it.

    Clients go on to other nodes. A restart of the node ends the draining, too.
    """
    from millpond.client.connections import node_urls
    from millpond.client.transport import Connection
    from millpond.settings import load_settings

    connection = Connection(node_urls(node)[0], load_settings())
    outcome = connection.request("POST", "/v1/nodes/drain", json={"draining": not undo}, repeatable=True).json()
    never = threading.Event()
    with console.progress(f"draining {connection.url}", quiet=json or undo):
        while wait and not undo and not outcome["safe"]:
            never.wait(_PAUSE_SECONDS)
            outcome = connection.request("GET", "/v1/nodes/drain").json()
    if undo:
        text = f"{connection.url} takes work again"
    elif outcome["safe"]:
        text = f"{connection.url} does nothing any more: it is safe to stop it"
    else:
        text = f"{connection.url} still works: {outcome['requests']} requests, {outcome['uploads']} uploads"
    return console.said({"node": connection.url, **outcome}, text)
