"""The command `millpond` for a terminal of tests: run in a child of the process `forked.py`, as if it ran here.

    python -IS tests/rings/forked_command.py SOCKET WORD …

Signals go to the child; its exit code is the exit code. For SOCKET, `daemons` asks who keeps the servers of the run.
"""

import json
import os
import signal
import socket
import sys


def main(place: str, words: list[str]) -> int:
    folder = os.getcwd()  # noqa: PTH109 (pathlib takes longer to import than all else here)
    here = {"words": words, "folder": folder, "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        socket.send_fds(connection, [json.dumps(here).encode() + b"\n"], [0, 1, 2])
        with connection.makefile("r") as answers:
            child = int(answers.readline())
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda number, _: os.kill(child, number))
            code = int(answers.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    place = sys.argv[1]
    if place == "daemons":
        from multiprocessing.connection import Client

        with Client(os.environ["TEST_SERVERS"], "AF_UNIX") as keeper:
            keeper.send(place)
            place = keeper.recv()
    os._exit(main(place, sys.argv[2:]))
