"""Commands of tests run in children of a process that has imported them: a second less for each.

    test or terminal ── words, folder, environment, files ──▶ this process ── forks ──▶ the command
                     ◀── its pid, then its exit code ──┘

A test starts a `Command`; in a terminal, the script `forked_command.py` is `millpond`. A second such process has what
the daemons of Spark's Python workers import: a JVM starts up to seven, and each would import it again. A third has the
tests, for the workers of the run (`workers.py`).

Invariants:
* A command ends with who started it.
* The process imports and does nothing else: no thread of ours runs in it, and a child has what a fresh process would.
* A child has the terminal's environment, folder and files, and none of another's.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import itertools
import json
import os
import pkgutil
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

from tests.rings.servers import shared

__all__ = ("Command", "python_of_spark", "run", "run_python", "script", "start_daemons", "start_server",
           "start_workers")  # fmt: skip

ROOT = Path(__file__).parents[2]
FORKED = Path(__file__).with_name("forked_command.py")
NOT_IMPORTED = ("millpond.airflow", "millpond.server.confined_imports", "millpond.spark", "millpond.testing",
                "millpond.__main__")  # fmt: skip
"""Spark is imported by few commands, and starts a thread; what Airflow loads needs it. Another server of forks has its
own imports."""
WORKERS = ("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.", "pandas", "millpond.spark.", "millpond.maps.")
"""For the daemons of Spark; names that end in a dot are packages with all that is in them."""
_MANY = 8
"""A run that starts so many commands will start more: kernels are loaded for all of them."""


def start_server(stack: ExitStack) -> str:
    """Start the process of commands; the path of its socket."""
    return _start(stack, "commands")


def start_daemons(stack: ExitStack) -> str:
    """Start the process of Spark's daemons; the path of its socket."""
    return _start(stack, "daemons")


def start_workers(stack: ExitStack, places: Sequence[str]) -> str:
    """Start the process of a run's workers, with the tests at some places; the path of its socket."""
    return _start(stack, "workers", *places)


def _start(stack: ExitStack, kind: str, *words: str) -> str:
    place = f"{stack.enter_context(TemporaryDirectory(prefix='millpond-forked-'))}/socket"
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    seed = "random" if kind == "workers" else "0"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rings.forked", place, kind, *words],
        env=os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": seed}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    stack.callback(process.stdout.close)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stdout.readline() == b"ready\n"
    return place


def script(place: str) -> str:
    """A shell script that is the command `millpond`."""
    return f'#!/bin/sh\nexec "{sys.executable}" -IS "{FORKED}" "{place}" "$@"\n'


def python_of_spark() -> str:
    """A shell script that is the Python of Spark; it forks daemons, and starts anything else."""
    fork = f'[ "$1 $2" = "-m pyspark.daemon" ] && exec "{sys.executable}" -IS "{FORKED}" daemons "$@"'
    return f'#!/bin/sh\n{fork}\nexec "{sys.executable}" "$@"\n'


class Command:
    """`millpond` with some words, in a child of the warm process: what `subprocess.Popen` is to a fresh one."""

    def __init__(
        self, words: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
        stderr: IO[str] | None = None,
    ) -> None:  # fmt: skip
        """Start it; its output is `stdout`, and its errors are in `stderr` or those of this process."""
        here = {
            "words": list(words), "folder": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
        }  # fmt: skip
        reading, writing = os.pipe()
        self.stdout = os.fdopen(reading)
        self._connection = socket.socket(socket.AF_UNIX)
        with open(os.devnull) as nothing, os.fdopen(writing, "w") as output:  # noqa: PTH123
            self._connection.connect(shared("commands"))
            files = [nothing.fileno(), output.fileno(), 2 if stderr is None else stderr.fileno()]
            socket.send_fds(self._connection, [json.dumps(here).encode() + b"\n"], files)
        self._answers = self._connection.makefile("rb")
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for the signal that ended it; none while it runs."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit code. Raises: `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("millpond", timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for its end; its output that was not read yet."""
        self.wait(timeout)
        with self.stdout:
            return self.stdout.read(), None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ends at this moment
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        self.returncode = int(self._answers.readline())
        self._answers.close()
        self._connection.close()


def run(
    words: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run `millpond` with some words to its end; what it printed."""
    with TemporaryFile("w+") as errors:
        command = Command(words, env=env, cwd=cwd, stderr=errors)
        output = command.stdout.read()
        code = command.wait(timeout)
        command.stdout.close()
        errors.seek(0)
        return subprocess.CompletedProcess(list(words), code, output, errors.read())


def run_python(
    *words: str, cwd: Path | None = None, timeout: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program: `-c`, its text and its words; `-m` and a module; or a file. Variables are added to those here."""
    return run(["python", *words], cwd=cwd, env=os.environ | variables, timeout=timeout)


def _import_all(kind: str) -> None:
    for name in ("millpond.",) if kind == "commands" else WORKERS:
        found = importlib.import_module(name.rstrip("."))
        modules = pkgutil.walk_packages(found.__path__, name) if name.endswith(".") else ()
        for module in modules:
            if kind != "commands" or not module.name.startswith(NOT_IMPORTED):
                importlib.import_module(module.name)


def _import_numba() -> None:
    from numba.core.registry import cpu_target

    cpu_target.target_context.refresh()  # else the first kernel of each child does it
    cpu_target.typing_context.refresh()


def _load_kernels() -> None:
    """All that were compiled, once: a child that has them saves as long as the import of numba takes."""
    from millpond.arrays import warming

    for kernel in warming.kernel_types():
        warming._compile_one(kernel)


def _run(words: list[str]) -> int:
    """In the child: the command, or the daemon (`-m pyspark.daemon WORKER`); its exit code."""
    try:
        if words[:1] == ["-m"]:
            from pyspark.daemon import manager

            sys.argv = words[1:]
            sys.path[:0] = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
            manager()
        elif words[:1] == ["python"]:
            _run_program([word for word in words[1:] if word != "-u"])  # xdist asks for unbuffered output
        else:
            from millpond.cli.main import main

            sys.argv = ["millpond", *words]
            main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _run_program(words: list[str]) -> None:
    """Run a program by its words, as the interpreter does."""
    sys.modules["__main__"] = program = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.argv, sys.path[:0] = ["-c", *words[2:]], [""]
        exec(compile(words[1], "<string>", "exec"), program.__dict__)
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:0] = words, [str(Path(words[0]).parent)]
        runpy.run_path(words[0], run_name="__main__")


def _serve(listener: socket.socket, *, kernels: bool) -> list[str]:
    """Fork children until the process is ended; in a child, the words of its command."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    commands: dict[int, socket.socket] = {}
    forks = itertools.count(1)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == woken:
                    os.read(woken, 4096)
                    _reap(commands, selector)
                    continue
                if key.data is not None:  # who started it is gone, and nobody else sends anything
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
                    continue
                connection, _address = listener.accept()
                task, files = _received(connection)
                if next(forks) == _MANY and kernels:
                    _load_kernels()
                pid = os.fork()
                if not pid:
                    for other in (connection, listener, *commands.values()):
                        other.close()
                    signal.set_wakeup_fd(-1)
                    for number in (signal.SIGCHLD, signal.SIGTERM):
                        signal.signal(number, signal.SIG_DFL)
                    return _arrived(task, files)
                for file in files:
                    os.close(file)
                commands[pid] = connection
                selector.register(connection, selectors.EVENT_READ, pid)
                connection.sendall(f"{pid}\n".encode())


def _reap(commands: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    while commands:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with commands.pop(pid) as connection:
            with suppress(KeyError):  # it was unregistered when who started it went
                selector.unregister(connection)
            with suppress(OSError):
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _received(connection: socket.socket) -> tuple[bytes, list[int]]:
    task, files, _, _ = socket.recv_fds(connection, 65_536, 3)
    while not task.endswith(b"\n"):
        task += connection.recv(65_536)
    return task, files


def _arrived(task: bytes, files: list[int]) -> list[str]:
    """In the child: be where the terminal is."""
    here = json.loads(task)
    os.setpgid(0, 0)
    os.chdir(here["folder"])
    os.environ.clear()
    os.environ.update(here["environment"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    words: list[str] = here["words"]
    return words


def main() -> None:
    """Serve at the socket that is named; children leave by `main` as a command does."""
    if sys.argv[2] == "workers":
        from tests.rings.workers import import_tests

        import_tests(sys.argv[3:])
    else:
        _import_all(sys.argv[2])
    _import_numba()
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        os.write(1, b"ready\n")
        words = _serve(listener, kernels=sys.argv[2] == "commands")
    code = _run(words)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take all modules down would take longer than most commands


if __name__ == "__main__":
    main()
