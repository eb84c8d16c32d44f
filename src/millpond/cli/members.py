"""`millpond node promote`, `node add`, `node remove` and `node reset`: changes of the list of a pond's nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.client.location import FolderLocation
from millpond.errors import MillpondError, Unavailable

if TYPE_CHECKING:
    from millpond.client.transport import Connection, Nodes

__all__ = ("add", "promote", "remove", "reset")

_PAUSE_SECONDS = 0.5
_STARTING_TRIES = 60
"""So often a node that has not reported yet is asked for: it may be starting."""
_ORDER_SECONDS = 120.0
"""A node answers an order when nodes have followed, or it is clear that they do not."""

RefPath = Annotated[
    str | None,
    typer.Option(
        "--pond", envvar="MILLPOND_POND", metavar="URL", show_default="the nodes of millpond.toml",
        help="A node of the pond, such as http://localhost:7433.",
    ),
]  # fmt: skip


@verb("node promote", "millpond node promote http://n2:7433", "millpond node promote http://n2:7433 --without-primary")
def promote(
    node: Annotated[str, typer.Argument(metavar="URL", help="The node that is to be the primary.")],
    without_primary: Annotated[
        bool, typer.Option("--without-primary", help="The primary is lost. Most nodes must agree.")
    ] = False,
    pond: RefPath = None,
    json: Json = False,
) -> None:
    """Make another node the primary. Loads wait a moment, and go on there.

    The old primary hands over when the new one has every entry. Without it, loads that nobody acknowledged may be lost.
    """
    from millpond.client.transport import Connection

    with _nodes(node, pond) as (url, nodes):
        before, alone = nodes.primary().url, _only_there(nodes.primary())
        order = {"url": url, "without_primary": without_primary}
        outcome = (
            _post(Connection(url, nodes.settings), "promote", order)
            if without_primary
            else _ordered(nodes, "promote", order)
        )
    _show(outcome, json, f"{url} is the primary", f"{url} is the primary already")
    if outcome["changed"] and not json:
        _say_what_stays(before, alone)


@verb("node add", "millpond node add http://n4:7433", "millpond node add http://n4:7433 --no-wait")
def add(
    node: Annotated[
        str, typer.Argument(metavar="URL", help="The new node. It runs, and its `nodes.urls` names the others.")
    ],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the node has everything.")] = True,
    pond: RefPath = None,
    json: Json = False,
) -> None:
    """Make a node that has everything a member: from then on it answers, and loads wait for it."""
    never, tries = threading.Event(), 0
    with _nodes(node, pond) as (url, nodes), console.progress(f"{url} takes what the others have", quiet=json):
        while True:
            try:
                outcome = _ordered(nodes, "add", {"url": url})
                break
            except Unavailable as error:
                tries += 1
                starting = error.kind == "node_not_heard" and tries < _STARTING_TRIES
                if not wait or not (error.kind == "node_not_level" or starting):
                    raise
            never.wait(_PAUSE_SECONDS)
    _show(outcome, json, f"{url} is a node of the pond", f"{url} is a node of the pond already")


@verb("node remove", "millpond node remove http://n3:7433", "millpond node remove http://n3:7433 --lost")
def remove(
    node: Annotated[str, typer.Argument(metavar="URL", help="The node to remove; not the primary.")],
    lost: Annotated[
        bool, typer.Option("--lost", help="The node is off for good. One that runs on would give old answers.")
    ] = False,
    pond: RefPath = None,
    json: Json = False,
) -> None:
    """Take a node out of the pond: it answers nothing any more, and no load waits for it."""
    from millpond.client.transport import Connection

    with _nodes(node, pond) as (url, nodes):
        alone = [] if lost else _only_there(Connection(url, nodes.settings))
        outcome = _ordered(nodes, "remove", {"url": url, "lost": lost})
    _show(outcome, json, f"{url} is removed: stop it", f"{url} is no node of the pond")
    if outcome["changed"] and not json:
        _say_what_stays(url, alone)


@verb("node reset", "millpond node reset /srv/millpond")
def reset(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The data folder of a node that is stopped.")],
) -> console.Shown:
    """Let the setting `nodes.urls` count again in a folder: for a backup that is restored elsewhere, or after a
    disaster.

    Other nodes of the pond may not go on with the old list: two ponds that had one log fork.
    """
    from millpond.maps.log.node_list import NodeList
    from millpond.nodes.membership.stored_lists import StoredLists

    with FolderLocation(folder).open_existing() as pond:
        lists = StoredLists(pond)
        current = lists.current()
        nodes = NodeList(0, ()) if current is None else NodeList(current.epoch + 1, ())
        if current is not None:
            lists.append(nodes, own="", epoch=current.epoch)
    return console.said(
        {"folder": str(folder), "epoch": nodes.epoch},
        f"the setting `nodes.urls` counts in {folder}, from epoch {nodes.epoch} on",
    )


# -- orders -------------------------------------------------------------------------------------------


@contextmanager
def _nodes(node: str, pond: str | None) -> Iterator[tuple[str, Nodes]]:
    """The address of the node, and the pond's nodes by the latest list that one of them has.

    The token goes to those that are named here or in the settings.
    """
    from millpond.client.connections import node_urls
    from millpond.client.transport import Nodes
    from millpond.settings import load_settings

    settings = load_settings()
    url = node_urls(node)[0]
    locations = [*node_urls(pond or settings.nodes.urls or url), url]
    nodes = Nodes(dict.fromkeys(locations), settings)
    try:
        nodes.learn()
        nodes.relearn()
        yield url, nodes
    finally:
        nodes.close()


def _only_there(node: Connection) -> list[str]:
    """The kinds of content that a node alone has; none when it cannot be asked, or does not say."""
    with suppress(MillpondError):
        return list(node.once.request("GET", "/v1/node").json().get("only_here", ()))
    return []


def _say_what_stays(url: str, alone: list[str]) -> None:
    if alone:
        console.say(f"{' and '.join(alone)} in the folder of {url} stay there: nodes copy maps only")


def _ordered(nodes: Nodes, what: str, order: dict[str, Any]) -> dict[str, Any]:
    return nodes.on_primary(lambda primary: _post(primary, what, order))


def _post(connection: Any, what: str, order: dict[str, Any]) -> dict[str, Any]:
    sent = connection.request("POST", f"/v1/nodes/{what}", json=order, timeout=_ORDER_SECONDS, repeatable=True)
    outcome: dict[str, Any] = sent.json()
    return outcome


def _show(outcome: dict[str, Any], json: bool, done: str, already: str) -> None:
    if json:
        console.print_json(outcome)
        return
    console.say(done if outcome["changed"] else already)
    console.say(f"epoch {outcome['epoch']}: {', '.join(outcome['nodes'])}")
    if outcome["pending"]:
        console.say(f"not there yet, and following by themselves: {', '.join(outcome['pending'])}")
