"""A process that may open few files uses many maps: loads a row into each, gets it, opens the pond anew, gets it again.

python -m tests.unit.many_maps_child <folder> <maps> <files>
"""

from __future__ import annotations

import json
import resource
import sys
import threading
from contextlib import suppress
from pathlib import Path

import millpond
from millpond.clock import ManualClock, SystemClock
from millpond.errors import Unavailable
from tests.harness.rows import canonical_of

CLOCK = SystemClock()


def timed(took: dict[str, float], name: str, began: float) -> float:
    now = CLOCK.monotonic()
    took[name] = round(now - began, 3)
    return now


def main(folder: Path, maps: int, files: int) -> None:
    """Print how long everything took."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    took: dict[str, float] = {}
    names = [f"m{number:05d}" for number in range(maps)]
    began = CLOCK.monotonic()
    with millpond.open(folder, clock=ManualClock(now=1)) as pond:
        for name in names:
            pond.create_map(name, kind="state", value="string")
        began = timed(took, "create", began)
        for first in range(0, maps, 250):
            parts = []
            for name in names[first : first + 250]:
                writer = pond.part_writer(name)
                writer.write(canonical_of(pond.map(name).definition, [(("k",), name)]))
                parts += writer.finish()
            pond.commit_load(parts)
        began = timed(took, "load", began)
        for name in names:
            assert pond.map(name).get("k") == name
        began = timed(took, "get", began)
        _get_at_once(pond, names[::7])
        began = timed(took, "get at once", began)
    with millpond.open(folder, clock=ManualClock(now=2)) as pond:
        began = timed(took, "open", began)
        assert pond.map(names[-1]).get("k") == names[-1]
        began = timed(took, "first get", began)
        for name in names:
            assert pond.map(name).get("k") == name
        timed(took, "get again", began)
        _use_up(pond, names[: max(3, maps // 100)])
    print(json.dumps(took))


def _get_at_once(pond: millpond.Pond, names: list[str]) -> None:
    wrong: list[str] = []

    def ask() -> None:
        wrong.extend(name for name in names if pond.map(name).get("k") != name)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _use_up(pond: millpond.Pond, names: list[str]) -> None:
    """Somebody takes all files: what is refused is refused in words, and works when they are given back."""
    taken = []
    try:
        while True:
            taken.append(Path("/dev/null").open("rb"))  # noqa: SIM115
    except OSError:
        pass
    for name in names:
        with suppress(Unavailable):
            pond.map(name).get("k")
            pond.map(name).load({"key": ["k"], "value": ["again"]})
    for file in taken:
        file.close()
    for name in names:
        assert pond.map(name).get("k") in (name, "again")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
