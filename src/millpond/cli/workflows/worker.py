"""`millpond worker`: works on tasks with the functions of a module."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Annotated, Any

import typer

from millpond.cli.options import Json, Master, PondLocation
from millpond.cli.terminal import console, exits
from millpond.cli.verbs import verb
from millpond.cli.workflows.server import ServerBeside, Tenant, server_beside, worker_config
from millpond.cli.workflows.spark_location import DeployMode, Shared, name_spark
from millpond.errors import Invalid

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
    pond: PondLocation = "pond",
    master: Master = None,
    deploy_mode: DeployMode = "client",
    shared: Shared = None,
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

    from millpond.cli.workflows.task_worker import TaskWorker

    name_spark(master, deploy_mode, shared)
    functions = _functions(_module(module))
    server = server_beside(server, pond)
    config = worker_config(server, tenant, pond)
    worker_ = TaskWorker(functions, config, console.tell, end_seconds=end)
    worker_.register()

    def ready() -> None:
        if json:
            console.print_json({"tasks": list(functions), "server": server})
        else:
            console.tell(f"working on {', '.join(functions)}; interrupt to end")

    asyncio.Runner().run(worker_.run(ready))
    exits.leave(0)  # a thread of an attempt that was handed back may go on


def _module(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise Invalid("there is no such module", kind="worker_module", module=name, missing=error.name,
                      hint="name it as Python imports it, from its folder") from None  # fmt: skip


def _functions(module: ModuleType) -> dict[str, Any]:
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
