"""`millpond verify`: what lies on the disk, and whether all nodes hold the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from millpond.cli.options import Json, PondLocation, existing_pond
from millpond.cli.terminal import console, exits
from millpond.cli.verbs import verb
from millpond.client.location import NodesLocation, parse_location
from millpond.clock import SystemClock
from millpond.errors import MillpondError

if TYPE_CHECKING:
    from millpond.nodes.replication.log_agreement import Agreement

__all__ = ("verify",)


@verb(
    "verify",
    "millpond verify",
    "millpond verify --full",
    "millpond verify --pond data/pond --json",
    "millpond verify --pond http://n1:7433",
)
def verify(
    pond: PondLocation = "pond",
    full: Annotated[bool, typer.Option("--full", help="Decode every row, not only a sample of each map.")] = False,
    wait: Annotated[
        int, typer.Option("--wait", metavar="SECONDS", min=0, help="How long nodes that are behind are waited for.")
    ] = 60,
    json: Json = False,
) -> None:
    """Check every promise on the data itself: catalogue, shards, snapshots, parts. Ends with 1 when one is broken.

    Damaged parts and snapshots are quarantined; each problem says what was done, or what to do. Of a pond on nodes,
    each node checks itself, and the rows of every map are compared between them.
    """
    location = parse_location(pond)
    with existing_pond(pond) as opened:
        with console.progress("verifying", quiet=json):
            report = opened.verify(full=full)
        problems = [str(problem) for problem in report.problems]
        with console.progress("comparing nodes", quiet=json):
            compared = _compared(location.urls, wait, problems) if isinstance(location, NodesLocation) else None
    if json:
        result = {"pond": str(pond), "checked": report.checked, "counts": dict(report.counts), "problems": problems}
        console.print_json(result if compared is None else result | {"agreement": compared.to_dict()})
    else:
        _show(report.checked, problems, compared)
    if problems or (compared is not None and not compared.ok):
        raise typer.Exit(exits.EXIT_NO_ANSWER)


def _compared(urls: str, wait: int, problems: list[str]) -> Agreement | None:
    """The comparison of a pond's nodes; None for a node that is alone, or when the nodes cannot be compared."""
    from millpond.client.transport import Nodes
    from millpond.nodes.replication.log_agreement import agreement
    from millpond.nodes.replication.peer import Peer
    from millpond.settings import load_settings

    nodes = Nodes(urls, load_settings())
    try:
        nodes.learn()
        if len(nodes.connections) < 2:
            return None
        return agreement([Peer(connection) for connection in nodes.connections], SystemClock(), seconds=wait)
    except MillpondError as error:
        problems.append(f"the nodes cannot be compared: {exits.sentence(error)}")
        return None
    finally:
        nodes.close()


def _show(checked: int, problems: list[str], compared: Agreement | None) -> None:
    if problems:
        console.print_table(["problem"], [[problem] for problem in problems])
    else:
        console.say(f"all is well: {checked:,} things checked")
    if compared is None or not compared.findings:
        return
    console.print_table(
        ["map", "node", "state", "rows", "position", "behind", "digest", "reason"],
        [
            [
                finding.map,
                finding.node,
                finding.state,
                finding.rows,
                finding.position,
                finding.behind or None,
                _brief(finding.digest),
                finding.reason,
            ]
            for finding in compared.findings
        ],
        whole=("node", "state"),
        spared=("behind", "reason"),
    )
    if compared.ok:
        console.say("all nodes agree")
    elif compared.differing:
        console.say("nodes differ: 'millpond repair URL' makes a node equal to the primary")


def _brief(digest: str | None) -> str | None:
    """Enough of a digest to see whether two are equal; `--json` has all of it."""
    return f"{digest[:8]}…" if digest else None
