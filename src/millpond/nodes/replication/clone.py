"""Cloning: a node, or one of its maps, becomes a copy of a peer's.

A node that is new, was away for longer than the log is kept, or is ordered to give up a log of its own, takes first
what the peer's space says, then each shard, at least as far as that says; what came after is pulled as ever. All of
it is gathered beside what the node has, and nothing of that is touched before the last byte has come and was checked.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from millpond.clock import Clock
from millpond.errors import Conflict, NotFound
from millpond.kernel.steps import step
from millpond.maps.log.clone import (
    Clone,
    adopt_clone,
    adopt_copy,
    clone_folder,
    definitions_of,
    forget_quarantined,
    quarantine_of,
    shard_file,
)
from millpond.maps.model.definition import MapDefinition
from millpond.nodes.replication.source import PondSource, ShardFile, SpaceFile
from millpond.pond import Pond
from millpond.stores.files import remove_tree
from millpond.stores.objects.bringing import bring

__all__ = ("RECOPIED", "clone_map", "clone_pond")

SHARDS_AT_ONCE = 2
RECOPIED = "recopied"
"""The folder of a pond in which copies of single maps are gathered."""
TRIES = 5
"""A peer that drops maps meanwhile is asked anew so often."""

_LOG = logging.getLogger(__name__)


def clone_pond(pond: Pond, peer: PondSource, clock: Clock) -> None:
    """Make the whole pond a copy of the peer's.

    Raises:
        Unavailable: the peer cannot be reached, or the disk is full; what came is kept for the next time.
        Conflict: the peer changes its maps faster than they can be fetched.
        Corrupt: what came is damaged.
    """
    for attempt in range(1, TRIES + 1):
        try:
            clone = _gather(pond, peer, clock)
        except Conflict as error:
            if error.kind != "clone_moved" or attempt == TRIES:
                raise
            _LOG.info("%s; asking anew", error)
        else:
            adopt_clone(pond.folder, pond.space, clone)
            pond.open_maps.forget()
            pond.log.announce()
            _LOG.info("this pond is a copy of %s as of position %d", peer.url, clone.position)
            return


def _gather(pond: Pond, peer: PondSource, clock: Clock) -> Clone:
    folder = clone_folder(pond.folder)
    for file in folder.glob("*"):
        # What is not whole goes on where it stopped; what is, may be older than the state that comes now.
        if file.is_file() and file.suffix != ".partial":
            file.unlink()
    state = peer.fetch(SpaceFile.STATE, folder / "state.arrow")
    step("clone.state_fetched")
    position = int(state.headers["state-position"])
    definitions = definitions_of(state.file)
    maps = _fetch_shards(pond.folder, peer, definitions, position)
    step("clone.shards_fetched")
    quarantine = quarantine_of(peer.fetch(SpaceFile.QUARANTINE, folder / "quarantine.arrow").file)
    if any(part.position > position for part in quarantine):
        # The shard may have passed it: entered here again later, nobody would notice that it is missing.
        raise _moved(peer, "a part was quarantined")
    return Clone(clock.random_id(), state.headers["millpond-pond"], position, maps)


def _fetch_shards(
    folder: Path, peer: PondSource, definitions: Sequence[MapDefinition], position: int
) -> tuple[str, ...]:
    def fetch(definition: MapDefinition) -> str | None:
        target = shard_file(folder, definition)
        try:
            peer.fetch(ShardFile(definition, position), target)
        except NotFound as error:
            if error.kind == "shard_empty":
                return None
            raise _moved(peer, error.message) from error
        step("clone.shard_fetched")
        return target.stem

    return tuple(name for name in bring(fetch, definitions, SHARDS_AT_ONCE) if name is not None)


def _moved(peer: PondSource, reason: str) -> Conflict:
    return Conflict("the peer moved on while it was cloned", kind="clone_moved", node=peer.url, reason=reason,
                    hint="try again")  # fmt: skip


def clone_map(pond: Pond, peer: PondSource, name: str) -> int:
    """Make one map a copy of the peer's, and say up to which position; its parts are merged on from there.

    Nobody merges into the map meanwhile. The node must have entered what the peer has: pull first.

    Raises: as `clone_pond`; `NotFound` when the peer has no such map; `Conflict` when it lacks a part of it itself.
    """
    opened = pond.map(name)
    folder = pond.folder / RECOPIED / f"{opened.name}.{opened.definition.incarnation}"
    target = folder / "data.mdb"
    with opened.shard.exclusive():
        position = 0
        file: Path | None = None
        try:
            fetched = peer.fetch(ShardFile(opened.definition, pond.log.applied(name)), target)
            position, file = int(fetched.headers["shard-position"]), fetched.file
        except NotFound as error:
            if error.kind != "shard_empty":
                raise
        quarantine_file = peer.fetch(SpaceFile.QUARANTINE, folder / "quarantine.arrow").file
        if any(part.map == opened.name for part in quarantine_of(quarantine_file)):
            raise Conflict("the peer has quarantined a part of the map", kind="clone_lacks", node=peer.url,
                           map=name, hint="ask another node")  # fmt: skip
        step("clone.map_fetched")
        adopt_copy(opened.shard, file)
        step("clone.map_switched")
    forget_quarantined(pond.folder, pond.space, opened.name, position)
    remove_tree(folder)
    pond.log.announce()
    return position
