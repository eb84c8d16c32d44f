"""`millpond serve` and `config`: running a node."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, comma_list
from millpond.cli.terminal import console
from millpond.cli.verbs import verb

if TYPE_CHECKING:
    from millpond.nodes.node import Node
    from millpond.settings import Settings

__all__ = ("UMASK", "ConfigFile", "DataFolder", "config", "send_log", "serve")

UMASK = 0o077
_ALLOCATED_MIN = 10_000
"""The objects that are made before the collector looks for garbage in cycles."""
"""Files of a node are its user's alone: keys that sign URLs lie there."""

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", envvar="MILLPOND_CONFIG", metavar="FILE", help="The file of settings.",
        show_default="./millpond.toml, if it is there",
    ),
]  # fmt: skip
DataFolder = Annotated[
    str | None,
    typer.Option(
        "--data", "--pond", metavar="PLACE", help="The pond: a folder, or s3://bucket/prefix.", show_default="./pond"
    ),
]
Others = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="GROUP.NAME=VALUE", help="Any setting; `millpond config` shows them all."),
]


# -- serve --------------------------------------------------------------------------------------------


@verb(
    "serve",
    "millpond serve",
    "millpond serve --data data/pond --port 7433",
    "millpond serve --config node1.toml --log-level debug",
    "millpond serve --host 0.0.0.0 --tls-cert node.pem --tls-key node.key --set maps.part_retention=14d",
)
def serve(
    data: DataFolder = None,
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on.", show_default="7433")] = None,
    grpc_port: Annotated[
        str | None, typer.Option("--grpc-port", help="Port for gRPC; off: none.", show_default="the one after --port")
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option("--nodes", metavar="URL,URL", help="All nodes of the pond, the primary first."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="This node as it stands in --nodes.", show_default="of host and port")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option("--tls-cert", metavar="FILE", help="Speak https with it.")] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="The certificate's key.")] = None,
    log_level: Annotated[
        str | None,
        typer.Option(
            "--log-level", help="debug, with a line for every request; info, warning or error.", show_default="info"
        ),
    ] = None,
    without_peers: Annotated[
        bool, typer.Option("--without-peers", help="Go on though some nodes do not answer: it may fork the log.")
    ] = False,
    others: Others = None,
    json: Json = False,
) -> None:
    """Serve a pond over HTTP, until interrupted. The folder is made if it is not there yet.

    Prints one line when it is ready. It ends in order: requests finish, what is being merged is merged, within 15 s
    in all.
    """
    from millpond.settings import load_settings, unknown_in_environment

    settings = load_settings(
        config, said="command line", **_said(others), server_data=data, server_host=host, server_port=port,
        server_grpc_port=grpc_port, nodes_urls=tuple(comma_list(nodes)) or None, server_url=url, tls_cert=tls_cert,
        tls_key=tls_key, server_log_level=log_level,
    )  # fmt: skip
    os.umask(UMASK)
    send_log(settings)
    _warn_of(unknown_in_environment())

    gc.disable()  # what modules make stays: to look through it again and again takes an eighth of the start
    from millpond.arrays.malloc import keep_memory
    from millpond.server.run import Service

    gc.freeze()
    gc.enable()
    keep_memory()
    with Service(settings) as service:
        service.node.follower.soundness.readiness.without_peers = without_peers
        service.run(lambda: _begin(service.node, as_json=json))


def _begin(node: Node, *, as_json: bool) -> None:
    """Say that the node is ready.

    What lives as long as it does is not looked through by the collector again: that would hold up every question for a
    tenth of a second. Of what follows little is garbage in cycles, so it is looked for seldom.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATED_MIN)
    _announce(node, as_json=as_json)


def send_log(settings: Settings) -> None:
    """Send the node's log to standard error, in UTC; leave out the routine messages of its libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(_utc_lines())
    level = settings.server.log_level.upper()
    logging.basicConfig(level=level, handlers=[handler], force=True)
    if level != "DEBUG":
        for talker in ("uvicorn.error", "asyncio"):
            logging.getLogger(talker).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def _warn_of(unknown: list[str]) -> None:
    for name in unknown:
        logging.getLogger("millpond.server").warning("%s in the environment is no setting: see 'millpond config'", name)


def _utc_lines() -> logging.Formatter:
    class Lines(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return console.neutral(super().format(record))

    lines = Lines("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    lines.converter = time.gmtime
    return lines


def _announce(node: Node, *, as_json: bool) -> None:
    maps = [pond_map.name for pond_map in node.pond.maps()]
    data, grpc_port = node.settings.server.data, node.settings.server.grpc_port
    if as_json:
        port = None if grpc_port == "off" else grpc_port
        console.print_json({"url": node.url, "grpc_port": port, "data": data, "role": node.role, "maps": maps})
    else:
        count = f"{len(maps)} map{'' if len(maps) == 1 else 's'}"
        grpc = "" if grpc_port == "off" else f"; gRPC: port {grpc_port}"
        console.say(f"serving {data} at {node.url} ({node.role}, {count}); its routes: {node.url}/docs{grpc}")
    sys.stdout.flush()


def _said(others: list[str] | None) -> dict[str, Any]:
    """The settings given by `--set`."""
    settings: dict[str, Any] = {}
    for assignment in others or ():
        name, equals, value = assignment.partition("=")
        if not equals:
            raise typer.BadParameter(f"write --set GROUP.NAME=VALUE, not {assignment}")
        settings[name.strip()] = value.strip()
    return settings


# -- config -------------------------------------------------------------------------------------------


@verb("config", "millpond config", "millpond config --changed", "MILLPOND_SERVER_PORT=8000 millpond config --json")
def config(
    config: ConfigFile = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only those that are not their default.")] = False,
    others: Others = None,
    json: Json = False,
) -> None:
    """Show every setting: its value, its default, where the value came from, and what it means."""
    from millpond.settings import explain, unknown_in_environment

    listed = [setting for setting in explain(config, **_said(others)) if not changed or setting.origin != "default"]
    for name in unknown_in_environment():
        typer.echo(f"{name} in the environment is no setting", err=True)
    if json:
        console.print_json_list(setting._asdict() for setting in listed)
        return
    if not listed:
        console.say("every setting is its default")
        return
    console.print_table(
        ["setting", "value", "default", "from", "meaning"],
        [
            [setting.name, _shown(setting.value), _shown(setting.default), setting.origin, setting.meaning]
            for setting in listed
        ],
    )


def _shown(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(item["name"] if isinstance(item, dict) else str(item) for item in value) or None
    return str(value) if value != "" else None
