"""A sync that threads share: each returns after one that began when its names were there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from millpond.stores import shared_sync
from millpond.stores.shared_sync import SharedSync

if TYPE_CHECKING:
    from pathlib import Path


class Disk:
    """Syncs that end when they are let."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.count = 0
        self.broken = False
        patch.setattr(shared_sync, "sync", self._sync)

    def _sync(self, _: Path) -> None:
        self.count += 1
        self.begun.release()
        assert self.go.acquire(timeout=60)
        if self.broken:
            raise OSError(5, "Input/output error")


def queued(shared: SharedSync) -> int:
    """The number of threads that wait for the sync of another."""
    return len(shared._changed._waiters)  # type: ignore[attr-defined]


def begin(shared: SharedSync, errors: list[OSError]) -> threading.Thread:
    def run() -> None:
        try:
            shared.run()
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("broken", [False, True])
def test_those_who_come_during_a_sync_share_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    disk, shared, errors = Disk(monkeypatch), SharedSync(tmp_path), list[OSError]()
    first = begin(shared, errors)
    assert disk.begun.acquire(timeout=60)
    others = [begin(shared, errors) for _ in range(3)]
    while queued(shared) < 3:
        assert all(thread.is_alive() for thread in others), "none may rely on the sync that runs"
    disk.broken = broken
    disk.go.release()
    first.join(60)
    assert disk.begun.acquire(timeout=60)
    assert len(errors) == broken
    disk.broken = False
    assert all(thread.is_alive() for thread in others), "their own sync runs still"
    disk.go.release()
    for thread in others:
        thread.join(60)
        assert not thread.is_alive()
    assert disk.count == 2
    assert len(errors) == broken


def test_a_broken_sync_is_only_its_own_threads_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, shared, errors = Disk(monkeypatch), SharedSync(tmp_path), list[OSError]()
    first = begin(shared, errors)
    assert disk.begun.acquire(timeout=60)
    others = [begin(shared, errors) for _ in range(2)]
    while queued(shared) < 2:
        assert all(thread.is_alive() for thread in others)
    disk.go.release()
    assert disk.begun.acquire(timeout=60)
    disk.broken = True
    disk.go.release()
    assert disk.begun.acquire(timeout=60)
    disk.broken = False
    disk.go.release()
    for thread in (first, *others):
        thread.join(60)
        assert not thread.is_alive()
    assert len(errors) == 1, "the last one synced for itself"
    assert disk.count == 3
