"""`millpond worker`: works on tasks with the functions of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from millpond.cli.options import Json, Master, PondPlace
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import Server, Tenant, connected, host_and_port

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ("REGISTERS_SECONDS", "worker")

REGISTERS_SECONDS = 5
"""The time after which a worker asks for its servers again: it is back so soon after they restart.

The client's own is a minute. A registration costs a server one call, and nothing is stored.
"""


@verb(
    "worker",
    "millpond worker tasks",
    "millpond worker jobs.tasks --server node-1:7434",
    "millpond worker millpond.pipelines --pond http://localhost:7433",
)
def worker(
    module: Annotated[str, typer.Argument(metavar="MODULE", help="The module with the tasks, as one imports it.")],
    server: Server = "localhost:7434",
    tenant: Tenant = "default",
    pond: PondPlace = "pond",
    master: Master = None,
    json: Json = False,
) -> None:
    """Work on tasks: each public `async def` of a module is the task of its name, and is defined if it is not yet.

    A module with `__all__` brings those that it names. The tasks of `millpond.pipelines` work on `--pond`, with Spark
    on `--master`. It ends when it is interrupted.
    """
    import asyncio
    import os

    import littlehorse
    import littlehorse.worker
    from google.protobuf.empty_pb2 import Empty
    from littlehorse.config import LHConfig
    from littlehorse.worker import LHTaskWorker

    functions = _functions(_module(module))
    host, port = host_and_port(server)
    with connected(server, tenant) as call:
        call("Whoami", Empty())
    # The client takes its settings from the environment, before all others.
    os.environ.update({"LHC_API_HOST": host, "LHC_API_PORT": str(port), "LHC_TENANT_ID": tenant})
    os.environ["MILLPOND_POND"] = pond
    if master is not None:
        os.environ["MILLPOND_SPARK_MASTER"] = master
    config = LHConfig()
    workers = [LHTaskWorker(function, name, config) for name, function in functions.items()]
    for worker_ in workers:
        worker_.register_task_def()
    if json:
        console.print_json({"tasks": list(functions), "server": server})
    else:
        typer.echo(f"working on {', '.join(functions)}; interrupt to end", err=True)
    client: Any = littlehorse.worker
    client.HEARTBEAT_INTERVAL_SECONDS = min(client.HEARTBEAT_INTERVAL_SECONDS, REGISTERS_SECONDS)
    asyncio.run(littlehorse.start(*workers))


def _module(name: str) -> ModuleType:
    import importlib
    import sys

    from millpond.errors import Invalid

    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise Invalid("there is no such module", kind="worker_module", module=name, missing=error.name,
                      hint="name it as Python imports it, from its folder") from None  # fmt: skip


def _functions(module: ModuleType) -> dict[str, Any]:
    import inspect

    from millpond.errors import Invalid

    listed = getattr(module, "__all__", None)
    functions = {
        name: function for name, function in vars(module).items()
        if inspect.iscoroutinefunction(function) and name[0] != "_"
        and (function.__module__ == module.__name__ if listed is None else name in listed)
    }  # fmt: skip
    if not functions:
        raise Invalid("the module has no tasks", kind="worker_module", module=module.__name__,
                      hint="write each task as a public async def")  # fmt: skip
    return functions
