"""A warm process that forks a child for every clone, which may be killed at a step of it.

Reads one JSON object a line: `{"folder", "url", "map": name or null, "log", "kill_at"}`; answers with the child's exit
code, negative for the signal that ended it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from millpond.client.transport import Connection
from millpond.clock import SystemClock
from millpond.nodes.replication.clone import clone_map, clone_pond
from millpond.nodes.replication.peer import Peer
from millpond.pond import open_pond
from millpond.settings import load_settings
from millpond.testing.faults import arm


def child(task: dict[str, Any]) -> None:
    peer = Peer(Connection(task["url"], load_settings(client_attempts=1)))
    with arm(log=task["log"], kill_at=task["kill_at"]), open_pond(Path(task["folder"]), serve=True) as pond:
        if task["map"] is None:
            clone_pond(pond, peer, SystemClock())
        else:
            clone_map(pond, peer, task["map"])


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                child(json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
