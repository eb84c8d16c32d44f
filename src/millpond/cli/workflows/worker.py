"""`millpond worker`: works on tasks with the functions of a module."""

from __future__ import annotations

from types import ModuleType
from typing import Annotated, Any

import typer

from millpond.cli.options import Json, Master, PondPlace
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import ServerBeside, Tenant, connected, host_and_port, server_beside

__all__ = ("worker",)


@verb(
    "worker",
    "millpond worker tasks",
    "millpond worker jobs.tasks --server node-1:7434",
    "millpond worker millpond.pipelines --pond http://localhost:7433",
)
def worker(
    module: Annotated[str, typer.Argument(metavar="MODULE", help="The module with the tasks, as one imports it.")],
    server: ServerBeside = None,
    tenant: Tenant = "default",
    pond: PondPlace = "pond",
    master: Master = None,
    end: Annotated[
        float, typer.Option("--end", metavar="SECONDS", min=0, help="The time to end what it has, when told to stop.")
    ] = 30.0,
    json: Json = False,
) -> None:
    """Work on tasks: each public `async def` of a module is the task of its name, and is defined if it is not yet.

    A module with `__all__` brings those that it names. The tasks of `millpond.pipelines` work on `--pond`, with Spark
    on `--master`. Interrupted, or told to end by SIGTERM, it takes no more tasks, ends what it has within `--end`
    seconds, hands back the rest, and is gone.
    """
    import asyncio
    import os

    from google.protobuf.empty_pb2 import Empty
    from littlehorse.config import LHConfig

    from millpond.cli.workflows.task_worker import TaskWorker
    from millpond.settings import load_settings

    functions = _functions(_module(module))
    server = server_beside(server, pond)
    host, port = host_and_port(server, load_settings())
    with connected(f"{host}:{port}", tenant) as call:
        call("Whoami", Empty())
    # The client takes its settings from the environment, before all others.
    os.environ.update({"LHC_API_HOST": host, "LHC_API_PORT": str(port), "LHC_TENANT_ID": tenant})
    os.environ["MILLPOND_POND"] = pond
    if master is not None:
        os.environ["MILLPOND_SPARK_MASTER"] = master
    config = LHConfig()
    worker_ = TaskWorker(functions, config, console.tell, end_seconds=end)
    worker_.register()

    def ready() -> None:
        if json:
            console.print_json({"tasks": list(functions), "server": server})
        else:
            console.tell(f"working on {', '.join(functions)}; interrupt to end")

    asyncio.run(worker_.run(ready))


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

    if hasattr(module, "__tasks__"):
        return {function.__name__: function for function in module.__tasks__}
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
