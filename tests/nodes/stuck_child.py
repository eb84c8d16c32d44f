"""A node whose threads know no end: a question that goes on for ever, and a load that is merged for ever."""

from __future__ import annotations

import sys
import threading

from millpond.server import run
from millpond.settings import load_settings

if __name__ == "__main__":
    run.END_SECONDS = 0.3
    never = threading.Event()
    threading.Thread(target=never.wait, name="a-question").start()
    settings = load_settings(
        server_data=sys.argv[1], server_port=0, server_grpc_port="off", server_shutdown_timeout="300ms"
    )
    with run.Service(settings) as service:
        service.node.merger.stop = never.wait  # type: ignore[assignment,method-assign]
        service.run(lambda: print("ready", flush=True))
