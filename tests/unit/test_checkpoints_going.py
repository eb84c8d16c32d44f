"""A checkpoint of a partition that goes while it is restored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import PutTaskDefRequest

from millpond.stores.memory import MemorySpace
from millpond.stores.objects import MemoryObjects
from millpond.workflows.partitions import METADATA, Checkpoints
from tests.unit.test_partitions import cluster, rows

if TYPE_CHECKING:
    from tests.unit.test_partitions import Cluster

__all__ = ("cluster",)


class _Going(MemoryObjects):
    """Objects of which one goes after so many of its parts were read."""

    going, left = "", 0

    def get_range(self, name: str, start: int, stop: int | None = None) -> memoryview:
        if name == self.going:
            self.left -= 1
            if self.left < 0:
                self.delete(name)
        return super().get_range(name, start, stop)


def test_of_a_checkpoint_that_goes_while_it_is_read_no_rows_stay(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.workflows.partitions.checkpoints.FRAME_BYTES", 1)
    objects = _Going()
    checkpoints, store = Checkpoints(objects), cluster.followers[METADATA]
    cluster.define()
    cluster.settle()
    checkpoints.save(METADATA, store.space)
    expected = rows(store.space)
    cluster.do(PutTaskDefRequest(name="a"))
    cluster.settle()
    checkpoints.save(METADATA, store.space)
    newest = checkpoints.positions(METADATA)[-1]
    frames = len(rows(store.space)) + 1  # it is checked whole, then most of it is put
    objects.going, objects.left = f"{METADATA}/{newest:020d}.rows", 1 + 2 * frames + 1 + 2 * (frames - 2)
    space = MemorySpace()
    assert checkpoints.restore(METADATA, space) < newest
    assert rows(space) == expected
