"""The program of a reading process, which a node starts: `python -m millpond.cli.reader`, with its channel."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection

from millpond.arrays.malloc import keep_memory
from millpond.cli.serve import UMASK, send_log
from millpond.server.reader import serve_reads
from millpond.server.readers import Order


def _prepare(order: Order) -> None:
    os.umask(UMASK)
    send_log(order.settings)
    keep_memory()


if __name__ == "__main__":
    serve_reads(Connection(int(sys.argv[1])), _prepare)
