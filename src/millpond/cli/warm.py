"""`millpond warm`: all machine code compiled beforehand."""

from __future__ import annotations

from typing import Annotated

import typer

from millpond.cli.options import Json
from millpond.cli.terminal import console
from millpond.cli.verbs import verb
from millpond.clock import SystemClock

__all__ = ("warm",)


@verb("warm", "millpond warm", "millpond warm --processes 2 --json")
def warm(
    processes: Annotated[
        int | None,
        typer.Option("--processes", metavar="N", min=1, help="How many compile at once.", show_default="processors"),
    ] = None,
    json: Json = False,
) -> console.Shown:
    """Compile all machine code now, so that no later command waits for it. Once for each installation is enough.

    Lookups and loads run as machine code that is compiled when it is first used. It is stored beside the package or,
    where that cannot be written to, in the user's cache, or where NUMBA_CACHE_DIR says. In an image, run it as the
    last step of the build: every user of the image has it then.
    """
    from millpond.arrays import warming

    clock = SystemClock()
    began = clock.monotonic()
    with console.progress("compiling", total=len(warming.kernel_types()), unit="kernels", quiet=json) as advance:
        done = warming.warm(processes, advance)
    seconds = clock.monotonic() - began
    text = f"all {done.kernels} kernels are compiled; they are in {done.cache}"
    if done.compiled:
        text = f"compiled {done.compiled} of {done.kernels} kernels in {seconds:.1f} s; they are in {done.cache}"
    facts = {"kernels": done.kernels, "compiled": done.compiled, "processes": done.processes}
    return console.said(facts | {"seconds": round(seconds, 3), "cache": done.cache}, text)
