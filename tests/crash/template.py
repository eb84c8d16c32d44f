"""A warm process that forks a child for every telling of the story, so that imports are paid for once.

Its argument names the module of the story, which has `warm(folder)` and `tell(folder, telling=, first=, done=)`.

Reads one JSON object a line: `{"folder": …, "telling": …, "log": … or null, "kill_at": … or null}`; answers with the
child's exit code, negative for the signal that ended it. The child writes the number of each act it has done into
`<folder>.done`, one a line, and goes on from the last that is there.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from millpond.testing.faults import arm
from tests.harness.scratch import scratch_folder


def child(story: Any, task: dict[str, Any]) -> None:
    folder = Path(task["folder"])
    done = Path(f"{folder}.done").open("a+", encoding="ascii", buffering=1)  # noqa: SIM115
    with done, arm(log=task["log"], kill_at=task["kill_at"]):
        done.seek(0)
        first = len(done.read().split())
        story.tell(folder, telling=task["telling"], first=first, done=lambda act: print(act, file=done))


def fork(story: Any, task: dict[str, Any]) -> int:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            child(story, task)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    story = importlib.import_module(sys.argv[1])
    with scratch_folder() as folder:
        story.warm(folder)
    for line in sys.stdin:
        print(fork(story, json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
