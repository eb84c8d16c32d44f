"""Values remembered by the number of a change are never older than an acknowledged write.

LMDB tells the number of a write while it is synced, when readers still see the state before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond import Pond
from millpond.maps.model.catalogue import map_key
from millpond.maps.snapshots.freshness import Freshness
from millpond.pond import open_pond

ROUNDS = 200


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Pond]:
    with open_pond(tmp_path / "pond") as opened:
        opened.create_map("m", kind="state", value="long").load([{"key": "a", "value": 0}])
        yield opened


@contextmanager
def polled(look: Callable[[], object]) -> Iterator[None]:
    """Another thread looks again and again."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            look()

    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(poll)
        try:
            yield
        finally:
            stop.set()
        polling.result()


@pytest.mark.usefixtures("processor")
def test_a_stamp_shows_every_row_that_was_acknowledged(pond: Pond) -> None:
    fresh = Freshness(pond.space, pond.map("m").definition, pond.map("m").shard)
    key = map_key("m")
    first = fresh.stamp().definition
    assert first is not None
    with polled(fresh.stamp):
        for number in range(ROUNDS):
            row = first + b" " * (number % 7 + 1)
            pond.space.write(lambda tx, row=row: tx.put(key, row))
            assert fresh.stamp().definition == row
    pond.space.write(lambda tx: tx.put(key, first))


@pytest.mark.usefixtures("processor")
def test_the_version_of_a_shard_is_that_of_the_last_acknowledged_load(pond: Pond) -> None:
    shard = pond.map("m").shard
    with polled(lambda: shard.version):
        for number in range(ROUNDS // 8):
            pond.map("m").load([{"key": "a", "value": number}])
            with shard.view() as view:
                assert shard.version == view.version
