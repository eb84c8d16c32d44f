"""`millpond warm`, and what a command says when it has to compile first."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from millpond.cli.options import Json, examples
from millpond.cli.terminal import console

__all__ = ("compile_all", "register", "warm")


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(epilog=examples("millpond warm", "millpond warm --processes 2 --json"))(warm)


def warm(
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="How many compile at once.", show_default="processors"),
    ] = None,
    json: Json = False,
) -> None:
    """Compile all machine code now, so that no later command waits for it. Once for each installation is enough.

    Lookups and loads run as machine code that is compiled when it is first used. It is stored beside the package or,
    where that cannot be written to, in the user's cache, or where NUMBA_CACHE_DIR says. In an image, run it as the
    last step of the build: every user of the image has it then.
    """
    from millpond.arrays import warming
    from millpond.clock import SystemClock

    clock = SystemClock()
    began = clock.monotonic()
    with console.progress("compiling", total=len(warming.kernel_types()), unit="kernels", quiet=json) as advance:
        done = warming.warm(processes, advance)
    seconds = clock.monotonic() - began
    if json:
        console.print_json(
            {
                "kernels": done.kernels, "compiled": done.compiled, "processes": done.processes,
                "seconds": round(seconds, 3), "cache": done.cache,
            }
        )  # fmt: skip
    elif done.compiled:
        console.say(f"compiled {done.compiled} of {done.kernels} kernels in {seconds:.1f} s; they are in {done.cache}")
    else:
        console.say(f"all {done.kernels} kernels are compiled; they are in {done.cache}")


def compile_all(*, quiet: bool) -> None:
    """Say that there is something to compile, and compile all of it at once where several processors can.

    It is called when a command meets the first kernel that is not compiled. What one process would compile alone, now
    and in the commands after this one, several compile together; with one processor it compiles what it needs.
    """
    from millpond.arrays import warming
    from millpond.arrays.compile_cache import cache_place
    from millpond.errors import MillpondError

    place = cache_place()
    if not quiet:
        where = "no folder can store it, see 'millpond warm -h'" if place is None else f"stored in {place.folder}"
        sys.stderr.write(f"compiling machine code, once: {where}\n")
    if place is None or warming.processors() < 2:
        return
    with (
        suppress(MillpondError),  # then this process compiles what it needs
        console.progress("compiling", total=len(warming.kernel_types()), unit="kernels", quiet=quiet) as advance,
    ):
        warming.warm(advance=advance)
