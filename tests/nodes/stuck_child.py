"""A node whose threads know no end: a question that goes on for ever, and a load that is merged for ever."""

from __future__ import annotations

import sys
import threading

from millpond.nodes.limits import NodeLimits
from millpond.server import run
from millpond.settings import load_settings

if __name__ == "__main__":
    run.END_SECONDS = 0.3
    never = threading.Event()
    threading.Thread(target=never.wait, name="a-question").start()
    settings = load_settings(server_data=sys.argv[1], server_port=0, server_grpc_port="off")
    with run.Service(settings, limits=NodeLimits(shutdown_seconds=0.3)) as service:
        service.node.merger.stop = never.wait  # type: ignore[assignment,method-assign]
        service.run(lambda: print("ready", flush=True))
