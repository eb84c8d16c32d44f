"""Many writers at once: the log gives one order, and every node follows it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from tests.harness.cluster_audit import fetch_json
from tests.nodes.fault_story import Story, rows_of, running_story, state_table

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sample(1, of="faults of nodes")

CHILD = Path(__file__).with_name("loading_child.py")
LOADS = 50
MAPS = 5
PROCESSES = 5


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with running_story(tmp_path_factory.mktemp("races")) as opened:
        yield opened


def test_the_same_data_loaded_twice_at_once_is_there_once(story: Story) -> None:
    """Through different nodes' addresses."""
    story.world.clear()
    story.create("same")
    rows = rows_of(story.definition("same").kind, 1)
    keys = [str(address[0]) for address, _ in rows]
    tables = [state_table(keys, 5) for _ in range(4)]
    ponds: list[Any] = [millpond.open(story.cluster.urls[at % 3]) for at in range(4)]
    start = threading.Barrier(4)

    def load(at: int) -> Any:
        start.wait()
        return ponds[at].map("same").load(tables[at])

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(load, range(4)))
    for pond in ponds:
        pond.close()
    assert sum(result.parts for result in results) == 1
    assert sum(result.duplicate_parts for result in results) == 3
    story.put("same", [((key,), 5) for key in keys])
    story.check()
    assert fetch_json(story.cluster, 0, "/v1/maps/same")["rows"] == len(keys)


Load = dict[str, Any]


def loaded_by_processes(story: Story, folder: Path, shares: Sequence[Sequence[Load]]) -> list[Load]:
    """Each share loaded by a process of its own that knows one node, all at once; what they say."""
    begin = folder / "begin"
    children = []
    for number, share in enumerate(shares):
        file = folder / f"loads{number}.json"
        file.write_text(json.dumps(share))
        words = [sys.executable, str(CHILD), story.cluster.urls[number % 3], str(file), str(begin)]
        children.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", child.stderr and child.stderr.read()
        begin.touch()
        said = [child.communicate(timeout=240) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [child.returncode for child in children] == [0] * len(children), [error for _, error in said]
    return [json.loads(line) for output, _ in said for line in output.splitlines()]


def test_the_same_data_loaded_by_two_processes_at_once_is_there_once(story: Story, tmp_path: Path) -> None:
    story.world.clear()
    story.create("both")
    keys = [f"k{number}" for number in range(3_000)]
    share = [{"map": "both", "keys": keys, "value": 7, "source": "file"}]
    said = loaded_by_processes(story, tmp_path, [share, share])
    assert sorted((result["parts"], result["duplicates"]) for result in said) == [(0, 1), (1, 0)]
    story.put("both", [((key,), 7) for key in keys])
    story.check()


def fifty(names: Sequence[str]) -> list[Load]:
    """Loads whose keys overlap, so that their order decides every value."""
    return [
        {"map": names[number % MAPS], "keys": [f"k{key}" for key in range(number % 7, 200, 1 + number % 3)],
         "value": number, "source": str(number)}
        for number in range(LOADS)
    ]  # fmt: skip


def put_in_order(story: Story, loads: Sequence[Load]) -> None:
    """Put into the model what was loaded; the log says in which order, and has each once."""
    entries = fetch_json(story.cluster, 0, "/v1/log", after=0)["entries"]
    order = [entry["body"] for entry in entries if entry["kind"] == "load" and entry["maps"][0] in story.world]
    known = {load["source"]: load for load in loads}
    assert sorted(entry["source"] for entry in order) == sorted(known)
    for body in order:
        load = known[body["source"]]
        assert [part["map"] for part in body["parts"]] == [load["map"]]
        story.put(load["map"], [((key,), load["value"]) for key in load["keys"]])


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.full), PROCESSES])
def test_fifty_loads_at_once_over_five_maps_end_the_same_everywhere(
    story: Story, tmp_path: Path, processes: int
) -> None:
    story.world.clear()
    names = [f"race{processes}{number}" for number in range(MAPS)]
    for name in names:
        story.create(name)
    loads = fifty(names)
    said = loaded_by_processes(story, tmp_path, [loads[share::processes] for share in range(processes)])
    assert [(result["parts"], result["duplicates"]) for result in said] == [(1, 0)] * LOADS
    put_in_order(story, loads)
    story.check()


def test_readers_beside_writers_never_see_half_a_load(story: Story) -> None:
    """Every load gives all keys one value: every scan sees one value."""
    story.world.clear()
    story.create("even")
    keys = [f"k{number}" for number in range(300)]
    target = story.pond.map("even")
    target.load(state_table(keys, 0))
    story.settle()
    done = threading.Event()
    seen: list[set[int]] = []

    def read() -> None:
        while not done.is_set():
            seen.append(set(target.scan().read_all().column("value").to_pylist()))
            seen.append(set(target.lookup(keys).to_pylist()))

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for value in range(1, 12):
                target.load(state_table(keys, value))
        finally:
            done.set()
        for reader in readers:
            reader.result()
    assert all(len(values) == 1 for values in seen), [values for values in seen if len(values) != 1][:3]
    story.put("even", [((key,), 11) for key in keys])
    story.check()
