"""The application: its commands, and its treatment of errors.

Every command's module imports only typer at its top; a command imports the rest when it runs, so that help is
instant. One place turns errors into a sentence (or JSON) and an exit code; a traceback is shown only when
`MILLPOND_TRACEBACK` is set.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from millpond.arrays.compiled import watch
from millpond.cli import (
    backups,
    demo,
    events,
    jobs,
    loads,
    lookups,
    maintenance,
    maps,
    nodes,
    options,
    parts,
    ponds,
    queries,
    repair,
    serve,
    snapshots,
    tokens,
    verify,
    warm,
)
from millpond.cli import (
    watch as watch_command,
)
from millpond.cli.enrich import command
from millpond.cli.terminal import exits
from millpond.cli.versions import branches, commits, differences, log, objects, repositories, tags
from millpond.cli.workflows import runs, tenancy, worker
from millpond.maps.shard.open_shards import raise_file_limit

__all__ = ("app", "main")

_ORDER = (
    "init",
    "create",
    "maps",
    "load",
    "get",
    "query",
    "scan",
    "enrich",
    "maintenance",
    "alter",
    "drop",
    "repo",
    "branch",
    "fs",
    "commit",
    "diff",
    "log",
    "merge",
    "revert",
    "cherry-pick",
    "reset",
    "tag",
    "events",
    "watch",
    "runs",
    "run",
    "worker",
    "tenant",
    "principal",
    "quota",
    "serve",
    "config",
    "token",
    "parts",
    "jobs",
    "node",
    "snapshots",
    "backup",
    "restore",
    "verify",
    "repair",
    "warm",
    "demo",
    "version",
)


class _Front(TyperGroup):
    """A group of commands whose errors end as a sentence and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order in which one needs them."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its errors become a sentence."""
        try:
            with watch(lambda: warm.compile_all(quiet=options.wants_json(ctx))):
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


def _is_control(error: Exception) -> bool:
    """True when the error is typer's own: a usage error it words itself, an exit, an abort."""
    return isinstance(error, typer.Exit | typer.Abort) or hasattr(error, "format_message")


def _tell(error: Exception, *, as_json: bool) -> int:
    reported = exits.understood(error)
    line = json.dumps(exits.as_object(reported)) if as_json else f"error: {exits.sentence(reported)}"
    sys.stderr.write(line + "\n")
    return exits.exit_code(reported)


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

for _noun in (
    ponds,
    maps,
    loads,
    lookups,
    queries,
    command,
    maintenance,
    repositories,
    branches,
    objects,
    commits,
    differences,
    log,
    tags,
    events,
    watch_command,
    runs,
    tenancy,
    worker,
    parts,
    jobs,
    nodes,
    snapshots,
    verify,
    repair,
    serve,
    tokens,
    warm,
    backups,
    demo,
):
    _noun.register(app)


def main() -> None:
    """The entry point of the `millpond` command."""
    raise_file_limit()
    app(prog_name="millpond")


if __name__ == "__main__":
    main()
