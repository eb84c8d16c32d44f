"""Loads that threads of one process commit at the same time: each is committed once, as a whole."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millpond.clock import ManualClock
from millpond.kernel.steps import listening
from millpond.maps.parts.part import PartFile
from millpond.pond import open_pond
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millpond.maps.loads.load import LoadResult

THREADS = 4


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Any]:
    with open_pond(tmp_path / "pond", clock=ManualClock()) as pond:
        pond.create_map("m", kind="state", value="long")
        yield pond


def sealed(pond: Any, rows: dict[str, int]) -> PartFile:
    writer = pond.part_writer("m")
    writer.write(canonical_of(pond.map("m").definition, [((key,), value) for key, value in rows.items()]))
    [part] = writer.finish()
    return part


def committed(pond: Any, loads: list[list[PartFile]]) -> list[LoadResult]:
    """The results of loads that are committed by a thread each."""
    results: dict[int, LoadResult] = {}

    def commit(number: int) -> None:
        results[number] = pond.commit_load(loads[number], wait=False)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(len(loads))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return [results[number] for number in range(len(loads))]


def test_loads_of_different_parts_do_not_wait_for_each_other(pond: Any) -> None:
    loads = [[sealed(pond, {f"k{number}": number})] for number in range(THREADS)]
    all_there = threading.Barrier(THREADS)

    def meet(step: str) -> None:
        if step == "load.received":
            all_there.wait(60)  # each has moved its parts, and none is in the log

    with listening(meet):
        results = committed(pond, loads)
    assert sorted(result.position for result in results) == [2, 3, 4, 5]
    pond.merge()
    assert [pond.map("m").get(f"k{number}") for number in range(THREADS)] == list(range(THREADS))


def test_loads_with_a_part_in_common_follow_one_another(pond: Any, tmp_path: Path) -> None:
    shared = sealed(pond, {"shared": 7})
    loads = []
    for number in range(THREADS):
        copy = tmp_path / f"copy{number}"
        shutil.copyfile(shared.file, copy)
        loads.append([PartFile(copy, shared.manifest), sealed(pond, {f"k{number}": number})])
    inside: list[int] = []
    most: list[int] = []

    def count(step: str) -> None:
        if step == "load.received":
            inside.append(threading.get_ident())
            most.append(len(inside))
        elif step == "load.committed":
            inside.remove(threading.get_ident())

    with listening(count):
        results = committed(pond, loads)
    assert max(most) == 1
    assert sorted(result.duplicate_parts for result in results) == [0, 1, 1, 1]
    pond.merge()
    assert pond.map("m").get("shared") == 7
    assert pond.parts.list() == []


def test_one_that_is_refused_takes_no_other_with_it(pond: Any) -> None:
    loads = [[sealed(pond, {f"k{number}": number})] for number in range(THREADS)]
    loads[1][0].file.unlink()
    outcomes: dict[int, object] = {}

    def commit(number: int) -> None:
        try:
            outcomes[number] = pond.commit_load(loads[number], wait=False).parts
        except Exception as error:
            outcomes[number] = type(error).__name__

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert outcomes == {0: 1, 1: "Corrupt", 2: 1, 3: 1}
    pond.merge()
    assert [pond.map("m").get(f"k{number}") for number in range(THREADS)] == [0, None, 2, 3]
