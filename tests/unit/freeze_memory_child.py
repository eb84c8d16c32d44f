"""A map that is frozen by a process under a limit of memory.

    python -m tests.unit.freeze_memory_child POND MEMORY_MAX LIMIT_BYTES

The limit holds for the memory that the process allocates after it froze a small map.
"""

from __future__ import annotations

import json
import resource
import sys
import threading

import millpond
from tests.unit.versions_memory_child import memory


def main() -> None:
    threading.stack_size(1 << 20)  # stacks count, used or not
    folder, memory_max, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with millpond.open(folder, maps_memory_max=memory_max) as pond:
        pond.map("small").freeze()
        before = memory()
        most = before["VmData"] + limit
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        manifest = pond.map("large").freeze()
    print(json.dumps([layer.index for layer in manifest.layers]))


if __name__ == "__main__":
    main()
