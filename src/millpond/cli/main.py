"""The application: its commands, and its treatment of errors.

A command line imports the modules of its own command and of no other; help, which lists all, imports all. A module
imports at its top what is light, or waits (`deferred.py`); a command imports the rest when it runs. One place turns
errors into a sentence (or JSON) and an exit code; a traceback is shown only when `MILLPOND_TRACEBACK` is set.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from millpond import __version__
from millpond.arrays.compile_cache import cache_location
from millpond.arrays.compiled import watch
from millpond.cli import options, verbs
from millpond.cli.plain_options import take_text_as_typed
from millpond.cli.terminal import console, exits
from millpond.kernel.operations import operations_of
from millpond.maps.protocols import MapOperations
from millpond.maps.shard.open_shards import raise_file_limit
from millpond.process_settings import tracing_target
from millpond.tracing import begin_tracing, span

__all__ = ("app", "main")

_MODULES = {
    "init": "ponds",
    "create": "maps",
    "maps": "maps",
    "load": "loads",
    "get": "lookups",
    "query": "queries",
    "scan": "queries",
    "enrich": "enrich.command",
    "maintenance": "maintenance",
    "alert": "alerts",
    "alter": "maps",
    "copy": "copies",
    "rename": "maps",
    "delete": "deletes",
    "drop": "maps",
    "repo": "versions.repositories versions.dumps",
    "branch": "versions.branches",
    "fs": "versions.listing versions.transfers versions.objects",
    "commit": "versions.commits",
    "diff": "versions.differences",
    "log": "versions.log",
    "merge": "versions.commits",
    "revert": "versions.commits",
    "cherry-pick": "versions.commits",
    "reset": "versions.commits",
    "tag": "versions.tags",
    "events": "events event_settings",
    "watch": "watch",
    "runs": "workflows.runs",
    "run": "workflows.runs workflows.logs",
    "worker": "workflows.worker",
    "workflow": "workflows.definitions",
    "task": "workflows.definitions",
    "schedule": "workflows.schedules",
    "user-task": "workflows.user_tasks",
    "external-event": "workflows.external_events",
    "bulk-job": "workflows.bulk_jobs",
    "pipeline": "workflows.pipelines workflows.deployed workflows.logs workflows.backfills",
    "migration": "workflows.migrations",
    "tenant": "workflows.tenancy",
    "principal": "workflows.tenancy",
    "quota": "workflows.tenancy",
    "serve": "serve",
    "console": "console",
    "config": "serve",
    "token": "tokens",
    "parts": "parts",
    "jobs": "jobs",
    "node": "nodes members",
    "snapshots": "snapshots",
    "backup": "backups",
    "restore": "backups",
    "verify": "verify",
    "repair": "repair",
    "warm": "warm",
    "demo": "demo",
    "version": "ponds",
}
"""The modules of each command, in the order in which one needs them."""


_NAME = "millpond.command"
_LASTING = ("console", "serve", "watch", "worker")


class _Commands(Mapping[str, Any]):
    """The commands by their names; a command is made, and its module imported, when it is first looked up."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}
        self._modules = _MODULES | {act.command: "maps" for act in operations_of(MapOperations) if act.command}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            modules = [f"millpond.cli.{module}" for module in self._modules[name].split()]
            for module in modules:
                importlib.import_module(module)
            self._made[name] = verbs.made(name, modules)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


class _Front(TyperGroup):
    """A group of commands whose errors end as a sentence and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": _Commands()})

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order in which one needs them, and without importing them."""
        return list(self.commands)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer; the name of the command is noted."""
        ctx.meta[_NAME] = next((word for word in args if not word.startswith("-")), "")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors become a sentence."""
        try:
            begin_tracing(tracing_target())
            with watch(lambda: _note_compiling(quiet=options.wants_json(ctx))), _traced(ctx):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted; nothing is half-loaded\n")
            raise typer.Exit(exits.EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # the reader of our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            if _is_control(error) or os.environ.get("MILLPOND_TRACEBACK"):
                raise
            raise typer.Exit(_tell(error, as_json=options.wants_json(ctx))) from error


@contextmanager
def _traced(ctx: Any) -> Iterator[None]:
    """The span of a command; what lasts has none, for it is no part of what others ask it for."""
    name = ctx.meta[_NAME]
    left: typer.Exit | None = None
    with nullcontext() if name in _LASTING else span(f"millpond {name}", command=name):
        try:
            yield
        except typer.Exit as error:  # the way of a command that has said what it has to say
            left = error
    if left is not None:
        raise left


def _note_compiling(*, quiet: bool) -> None:
    """Say why the first command of its kind takes seconds: it compiles the kernels that it needs, and no more."""
    location = cache_location()
    where = "no folder can store it, see 'millpond warm -h'" if location is None else f"stored in {location.folder}"
    if not quiet:
        sys.stderr.write(f"compiling machine code, once: {where}\n")


def _is_control(error: Exception) -> bool:
    """True when the error is typer's own: a usage error it words itself, an exit, an abort."""
    return isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "format_message")


def _tell(error: Exception, *, as_json: bool) -> int:
    reported = exits.classify_error(error)
    line = json.dumps(exits.as_object(reported)) if as_json else console.neutral(f"error: {exits.sentence(reported)}")
    sys.stderr.write(line + "\n")
    return exits.exit_code(reported)


take_text_as_typed()
app = typer.Typer(
    cls=_Front,
    name="millpond",
    help="The state that data pipelines need, now and at every past moment, looked up at memory speed.",
    epilog=options.examples(
        "millpond demo",
        'millpond create weather --kind temporal_state --value "temp double, wind_speed double"',
        "millpond load weather weather.csv --key origin --time time_hour",
        "millpond get weather JFK --at 2013-02-08T18:00Z",
        "millpond enrich flights.csv --with weather --key origin --time time_hour --out enriched.parquet",
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(given_option: bool) -> None:
    if given_option:
        console.say(f"millpond {__version__}")
        raise typer.Exit


@app.callback()
def _front(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """The options of `millpond` itself."""


def main() -> None:
    """The entry point of the `millpond` command."""
    raise_file_limit()
    app(prog_name="millpond")


if __name__ == "__main__":
    main()
