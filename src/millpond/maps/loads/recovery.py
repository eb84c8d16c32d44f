"""Finishing what a crash cut off, when a pond is opened."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from millpond.errors import Conflict, Corrupt, Unavailable
from millpond.maps.loads.pond_folder import holds_something, is_alive, sweep_pond
from millpond.maps.model.keyspaces import MAINTENANCE, QUEUE

if TYPE_CHECKING:
    from millpond.kernel.space import Space
    from millpond.maps.loads.loading import Loading
    from millpond.maps.log.ownership import OwnerLock
    from millpond.maps.pond_catalogue import PondCatalogue

__all__ = ("recover",)


def recover(loading: Loading, owner: OwnerLock, catalogue: PondCatalogue) -> None:
    """Finish what a crash cut off; a pond that was closed in order costs a look at its folders and its queue."""
    if not owner.serving and owner.served():
        return  # the node that serves the pond sees to it
    if holds_something(loading.folder / "clone"):
        from millpond.maps.log.clone import resume_clone

        resume_clone(loading.folder, loading.space)
    if any(holds_something(loading.folder / name) for name in ("writer", "parts", "quarantine")):
        loading.loads.recover(is_alive)
    if not owner.serving and _waits(loading.space):
        # What a crash or a full disk left waiting. Who only wants to ask need not wait for it to be merged, nor
        # be kept from it by a map that is damaged.
        from millpond.maps.loads.merge_queue import merge_queued

        with suppress(Unavailable, Corrupt, Conflict), owner.writing():
            merge_queued(loading.loads, loading.shard_of, wait_seconds=0)
    catalogue.finish_drops()
    sweep_pond(loading.folder)


def _waits(space: Space) -> bool:
    """True when parts or orders of maintenance are queued."""
    with space.read() as tx:
        return any(next(tx.keys(keys.range()), None) is not None for keys in (QUEUE, MAINTENANCE))
