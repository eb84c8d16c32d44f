"""`millpond console`: the pages of a pond, in a folder or a bucket, in a browser, without a node that serves it."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import TYPE_CHECKING, Annotated

import typer

from millpond.cli.options import Json
from millpond.cli.serve import UMASK, send_log
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.client.location import FolderLocation, NodesLocation, parse_location
from millpond.clock import SystemClock
from millpond.error_values import shown_address
from millpond.errors import Invalid, NotFound

if TYPE_CHECKING:
    from millpond.server.run import Service

__all__ = ("show_console",)


@verb("console", "millpond console data/pond", "millpond console s3://bucket/pond --no-browser --port 8080")
def show_console(
    pond: Annotated[
        str,
        typer.Argument(
            metavar="POND",
            help="The pond: a folder, or a bucket such as s3://bucket/pond.",
            envvar="MILLPOND_POND",
            show_default="./pond",
        ),
    ] = "pond",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port to listen on; 0: any.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    json: Json = False,
) -> None:
    """Look at a pond in a browser, until interrupted: its maps, versions, events and runs.

    The pond is served to this machine alone, and to whoever opens the address that is printed: it counts once. The
    pages of a pond that a node serves are at the node's own address.
    """
    from millpond.nodes.tokens import draw_token, hash_token
    from millpond.server.run import Service
    from millpond.settings import load_settings

    _check_location(pond)
    token, ticket = draw_token(SystemClock()), draw_token(SystemClock())
    reader = {"name": "console", "sha256": hash_token(token), "rights": {"admin": ["*"]}}
    settings = load_settings(
        server_data=pond, server_host="127.0.0.1", server_port=port, server_tokens=[reader],
        server_log_level="warning",
    )  # fmt: skip
    os.umask(UMASK)
    send_log(settings)
    with Service(settings) as service:
        service.app.state.tickets[ticket] = token
        service.run(lambda: _begin(service, ticket, browser=browser, as_json=json))


def _check_location(pond: str) -> None:
    """Insist on a pond that is there, for a node would make one.

    Raises: `Invalid` for that of nodes; `NotFound`; as `BucketLocation.open`.
    """
    location = parse_location(pond)
    if isinstance(location, NodesLocation):
        url = shown_address(pond)
        raise Invalid("a node serves its own console", kind="node_url", url=url, hint=f"open {url} in a browser")
    if not isinstance(location, FolderLocation):
        location.open_existing(space=os.environ.get("MILLPOND_OBJECTS_SPACE", "")).close()
    elif not (location.folder / "pond.json").is_file():
        raise NotFound("there is no pond", kind="pond_not_found", folder=pond, hint="millpond init makes one")


def _begin(service: Service, ticket: str, *, browser: bool, as_json: bool) -> None:
    url = f"{service.node.url}/console/sign-in?ticket={ticket}"
    text = f"the console is at {url}\nthis address opens it once; end with Ctrl-C"
    console.said({"url": url}, text).show(as_json=as_json)
    sys.stdout.flush()
    if browser:
        webbrowser.open(url)
