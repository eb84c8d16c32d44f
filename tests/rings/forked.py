"""Commands of guides run in children of a process that has imported them: half a second less for each.

    terminal ── forked_command.py ── words, folder, environment, files ──▶ this process ── forks ──▶ the command
                        ◀── its pid, then its exit code ──┘

Invariants:
* The process imports and does nothing else: it has one thread, and a child has what a fresh process would have.
* A child has the terminal's environment, folder and files, and none of another's.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import millpond

__all__ = ("script", "start_server")

ROOT = Path(__file__).parents[2]
NOT_IMPORTED = ("millpond.spark", "millpond.testing", "millpond.__main__")
"""Spark is imported by few commands, and starts a thread."""


def start_server(stack: ExitStack) -> str:
    """Start the process; the path of its socket."""
    place = f"{stack.enter_context(TemporaryDirectory(prefix='millpond-forked-'))}/socket"
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.rings.forked", place], env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
    )  # fmt: skip
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return place


def script(place: str) -> str:
    """A shell script that is the command `millpond`."""
    return f'#!/bin/sh\nexec "{sys.executable}" -IS "{Path(__file__).with_name("forked_command.py")}" "{place}" "$@"\n'


def _import_all() -> None:
    for module in pkgutil.walk_packages(millpond.__path__, "millpond."):
        if not module.name.startswith(NOT_IMPORTED):
            importlib.import_module(module.name)


def _run(words: list[str]) -> int:
    """In the child: the command; its exit code."""
    from millpond.cli.main import main

    sys.argv = ["millpond", *words]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _serve(listener: socket.socket) -> list[str]:
    """Fork children until the process is ended; in a child, the words of its command."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    commands: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == woken:
                    os.read(woken, 4096)
                    _reap(commands)
                    continue
                connection, _address = listener.accept()
                task, files = _received(connection)
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
                connection.sendall(f"{pid}\n".encode())


def _reap(commands: dict[int, socket.socket]) -> None:
    while commands:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with commands.pop(pid) as connection:
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
    _import_all()
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        os.write(1, b"ready\n")
        words = _serve(listener)
    code = _run(words)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take all modules down would take longer than most commands


if __name__ == "__main__":
    main()
