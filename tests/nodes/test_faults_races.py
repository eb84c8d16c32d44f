"""Many writers at once: the log gives one order, and every node follows it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import millpond
from millpond.testing.cluster_audit import told
from tests.nodes.fault_story import Story, patient, rows_of, state_table, told_story

if TYPE_CHECKING:
    from collections.abc import Iterator

LOADS = 50
MAPS = 5


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with told_story(tmp_path_factory.mktemp("races")) as opened:
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
    for each in ponds:
        each.close()
    assert sum(result.parts for result in results) == 1
    assert sum(result.duplicate_parts for result in results) == 3
    story.put("same", [((key,), 5) for key in keys])
    story.check()
    assert told(story.cluster, 0, "/v1/maps/same")["rows"] == len(keys)


def test_fifty_loads_at_once_over_five_maps_end_the_same_everywhere(story: Story) -> None:
    """Keys overlap, so the order decides every value: it is the log's, and the loads say where they are in it."""
    story.world.clear()
    names = [f"race{number}" for number in range(MAPS)]
    for name in names:
        story.create(name)
    start = threading.Barrier(LOADS)
    pond = story.pond

    def load(number: int) -> tuple[str, list[str]]:
        name = names[number % MAPS]
        keys = [f"k{key}" for key in range(number % 7, 200, 1 + number % 3)]
        table = state_table(keys, number)
        start.wait()
        patient(story, lambda: pond.map(name).load(table, source=str(number)))
        return name, keys

    with ThreadPoolExecutor(LOADS) as pool:
        brought = list(pool.map(load, range(LOADS)))
    entries = told(story.cluster, 0, "/v1/log", after=0)["entries"]
    order = [int(each["body"]["source"]) for each in entries if each["maps"][0] in names and each["kind"] == "load"]
    assert sorted(order) == list(range(LOADS))
    for number in order:
        name, keys = brought[number]
        story.put(name, [((key,), number) for key in keys])
    story.check()


def test_readers_beside_writers_never_see_half_a_load(story: Story) -> None:
    """Every load gives all keys one value: whoever scans sees one value."""
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
