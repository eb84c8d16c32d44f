"""`millpond repair`: make nodes equal to the primary, or to one that is named; or put back files of a pond's maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Confirmed, Json
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.json_forms import plain, to_json

if TYPE_CHECKING:
    from millpond.client.transport import Connection

__all__ = ("repair",)

_WAIT = {"wait": "1"}
"""The seconds after which it is shown what was done so far."""


@verb(
    "repair",
    "millpond repair http://n2:7433",
    "millpond repair http://n1:7433 http://n2:7433 --json",
    "millpond repair http://n1:7433 --from http://n2:7433 --yes",
    "millpond repair ./pond --from s3://bucket/backups",
)
def repair(
    nodes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL]...", help="The nodes, or a pond's place.", show_default="those of the settings"),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="URL", help="Be equal to this node, or take files from here.", show_default="the primary"
        ),
    ] = None,
    yes: Confirmed = False,
    json: Json = False,
) -> None:
    """Let nodes pull what they lack, fetch damaged parts again, and clone maps whose rows differ from the primary's.

    With --from a node becomes equal to the one that is named. If their logs went different ways, all that only the
    repaired node has is thrown away. Of a pond in a folder or a bucket, damaged or missing files of layered maps
    are put back, --from a copy or a place of its backups.
    """
    from millpond.client.connections import node_urls
    from millpond.settings import load_settings

    if nodes and not all(node.startswith(("http://", "https://")) for node in nodes):
        _put_back(nodes, source, quiet=json)
        return
    settings = load_settings()
    urls = nodes or list(settings.nodes.urls) or [settings.own_url()]
    for url in (*urls, *([] if source is None else [source])):
        node_urls(url)  # before it is shown, or done by half
    if source is not None and not yes:
        typer.confirm(
            f"What {', '.join(urls)} entered and {source} did not is thrown away. Go on?", abort=True, err=True
        )
    for url in urls:
        status = _repair(url, source, settings, quiet=json)
        if json:
            console.print_json(status)
        elif not status["done"]:
            console.say(f"{status['node']}: nothing was to be done")


def _put_back(locations: list[str], source: str | None, *, quiet: bool) -> None:
    """Repair ponds in folders and buckets.

    Raises: `Corrupt` where problems are left.
    """
    import millpond

    if source is None:
        raise typer.BadParameter("name a copy of the pond, or a place of its backups: --from PLACE")
    for location in locations:
        with console.progress(f"repairing {location}", unit="bytes", quiet=quiet) as advance:
            report = millpond.repair(location, source, advance=advance)
        if quiet:
            console.print_json(plain(report))
        else:
            console.say(f"{location}: {console.human_count(report.files, 'file')} put back from {source}")
        if report.problems:
            raise millpond.Corrupt("the pond has problems still", kind="pond_damaged", pond=location,
                                   problems=list(report.problems[:5]), hint="millpond verify lists them")  # fmt: skip


def _repair(url: str, source: str | None, settings: Any, *, quiet: bool) -> dict[str, Any]:
    """Begin a repair, and tell of it as it goes on.

    Raises: what made it fail.
    """
    from millpond.client.connections import node_urls
    from millpond.client.transport import Connection
    from millpond.client.wire_errors import from_wire

    connection = Connection(node_urls(url)[0], settings)
    body = {"source": source, "over": source is not None}
    status = connection.request("POST", "/v1/repair", json=body).json()
    shown = 0
    with console.progress(f"repairing {url}", quiet=quiet):
        while True:
            shown = _show(connection, status, shown, quiet=quiet)
            if status["state"] != "running":
                break
            status = connection.request("GET", "/v1/repair", query=_WAIT).json()
    if status["state"] == "failed":
        error = from_wire(connection.url, 500, to_json(status["error"]))
        assert error is not None, status
        raise error
    return {"node": connection.url, "source": status["source"], "done": status["done"]}


def _show(connection: Connection, status: dict[str, Any], shown: int, *, quiet: bool) -> int:
    for line in status["done"][shown:]:
        if not quiet:
            console.say(f"{connection.url}: {line}")
    return len(status["done"])
