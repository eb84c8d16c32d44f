"""Compiling all kernels beforehand, in several processes: `millpond warm`.

Numba compiles under one lock a process, so threads would wait for one another; processes fill the same cache, each
with kernels of its own. Which kernels there are, and for which types, stands in `kernels.txt`, a line for each that
is called from Python:

    millpond.maps.search.kernels only_row (int64, int64[::1])

`tools/kernels.py --write` writes it from a run over everything that maps do; a test compares.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from queue import Empty, SimpleQueue
from typing import IO, Self

import numpy as np

from millpond.arrays.byte_columns import Bytes, run_ends
from millpond.arrays.compile_cache import cache_location
from millpond.arrays.compiled import KERNELS
from millpond.errors import Internal, Unavailable

__all__ = ("KernelType", "Warmed", "kernel_types", "load_ahead", "processors", "spelled", "warm")


@dataclass(frozen=True, slots=True)
class KernelType:
    """A kernel with the types of its arguments, in numba's words."""

    module: str
    name: str
    types: str

    def __str__(self) -> str:
        return f"{self.module} {self.name} {self.types}"


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of `warm`: kernels there are, how many of them were not in the cache, and the folder it lies in."""

    kernels: int
    compiled: int
    processes: int
    cache: str


def kernel_types() -> list[KernelType]:
    """Every line of `kernels.txt`."""
    lines = files("millpond.arrays").joinpath("kernels.txt").read_text(encoding="utf-8").splitlines()
    return [KernelType(*line.split(" ", 2)) for line in lines if line and not line.startswith("#")]


def spelled(types: object) -> str:
    """Numba's types as `kernels.txt` writes them: what numba prints, without what goes without saying.

    >>> spelled("(Array(int64, 1, 'C', False, aligned=True), UniTuple(int64, 5), bool)")
    '(int64[::1], UniTuple(int64, 5), boolean)'
    """
    text = str(types).replace(", aligned=True)", ")").replace("readonly bytes(uint8, 1d, C)", "Bytes(uint8, 1, 'C')")
    for kind in ("bool", "uint8", "int32", "uint32", "int64", "uint64", "float64"):
        text = text.replace(f"Array({kind}, 1, 'C', False)", f"{kind}[::1]")
        text = text.replace(f"Array({kind}, 2, 'C', False)", f"{kind}[:,::1]")
    return text.replace("bool", "boolean").replace("booleanean", "boolean")


def load_ahead() -> None:
    """Load numba in a thread of its own: more than a second that a process has while it waits for its first rows."""
    threading.Thread(target=_load_numba, name="millpond-numba", daemon=True).start()


def _load_numba() -> None:
    # The first kernel that is called brings in the rest of numba; the others wait for it at the same locks.
    run_ends(Bytes(np.zeros(2, np.int64), np.zeros(0, np.uint8)))


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warm(processes: int | None = None, advance: Callable[[int], object] | None = None) -> Warmed:
    """Compile every kernel that is not in the cache yet, in `processes` processes (one a processor).

    `advance` is called with the count of kernels that were finished since the last call, from several threads.

    Raises: `Unavailable` when no folder can hold the cache.
    """
    location = cache_location()
    if location is None:
        raise Unavailable(
            "compiled kernels cannot be stored: no folder for them can be written to", kind="cache_unwritable",
            hint="name one in NUMBA_CACHE_DIR",
        )  # fmt: skip
    kernels = kernel_types()
    work: SimpleQueue[int] = SimpleQueue()
    for number in range(len(kernels)):
        work.put(number)
    count = max(1, min(processes or processors(), len(kernels)))
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(work, advance or (lambda _count: None))) for _ in range(count)]
    return Warmed(len(kernels), sum(worker.compiled for worker in workers), count, str(location.folder))


class _Worker:
    """A process that compiles, and the thread that feeds it: a number a line in, a line out when it is done."""

    def __init__(self, work: SimpleQueue[int], advance: Callable[[int], object]) -> None:
        self.compiled = 0
        self._work, self._advance = work, advance
        self._process = subprocess.Popen(
            [sys.executable, "-m", "millpond.arrays.warming"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Wait until the work is done; end the process at once when something else failed, or was interrupted."""
        try:
            if error[0] is None:
                self._thread.join()
        finally:
            stopped = self._thread.is_alive()
            if stopped:
                self._process.kill()
            self._thread.join()
            code = self._process.wait()
        if code and not stopped:
            raise Internal(
                "a process that compiles kernels ended early", kind="warming_failed", code=code,
                hint="what it printed says why; kernels are compiled when they are used, too",
            )  # fmt: skip

    def _feed(self) -> None:
        tasks, answers = self._process.stdin, self._process.stdout
        assert tasks is not None
        assert answers is not None
        with tasks, answers:
            for number in _taken(self._work):
                if not self._compile(number, tasks, answers):
                    return
                self._advance(1)

    def _compile(self, number: int, tasks: IO[str], answers: IO[str]) -> bool:
        try:
            tasks.write(f"{number}\n")
            tasks.flush()
        except OSError:  # the process ended: its exit code is looked at
            return False
        answer = answers.readline()
        self.compiled += answer == "compiled\n"
        return bool(answer)


def _taken(work: SimpleQueue[int]) -> Iterator[int]:
    while True:
        try:
            yield work.get_nowait()
        except Empty:
            return


def _compile_one(kernel: KernelType) -> bool:
    """Have a kernel in the cache; True when it was not there."""
    importlib.import_module(kernel.module)
    return KERNELS[kernel.module, kernel.name].prepare(kernel.types)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the one that started this ends it
    kernels = kernel_types()
    for line in sys.stdin:
        sys.stdout.write("compiled\n" if _compile_one(kernels[int(line)]) else "there\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
