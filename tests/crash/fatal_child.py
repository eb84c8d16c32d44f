"""A process that opens a pond and merges what waits, and dies while a part of a certain load is being merged.

python -m tests.crash.fatal_child <pond> <load id> [<step>]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import millpond
from millpond.clock import ManualClock
from millpond.kernel.steps import listening
from millpond.maps.loads import merge_queue

FATAL_STEP = "shard.changed_uncommitted"


def main(folder: Path, load: str, fatal_step: str = FATAL_STEP) -> None:
    """Open the pond, which merges."""
    merging = merge_queue._merge_whole

    def watched(loads, shard, parts):  # type: ignore[no-untyped-def]
        def die(step: str) -> None:
            if step == fatal_step and any(queued.load == load for queued, _ in parts):
                os.kill(os.getpid(), signal.SIGKILL)

        with listening(die):
            return merging(loads, shard, parts)

    merge_queue._merge_whole = watched  # type: ignore[assignment]
    with millpond.open(folder, clock=ManualClock(now=5)) as pond:
        pond.merge()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
