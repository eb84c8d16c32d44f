"""Actors of a simulation: each draws one action, and does it to a pond. The name of an action goes into the trace.

| actor | actions |
|---|---|
| creator | makes a map that is missing; seldom drops one, or changes whether it overwrites |
| writer | loads rows into one or several maps, with or without waiting; repeats loads that were not acknowledged |
| merger | merges what waits |
| reader | get, lookup and scan, held against the model |
| maintainer | condenses, retains, compacts, freezes |
| follower | takes entries of the primary's log, with their parts, into the second pond |
| operator | closes a pond and opens it again |
| expirer | removes merged parts, and the log that speaks of them, up to some day |
| vandal | changes a byte of a part that waits; merging quarantines it, and an intact copy is handed in |
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from millpond.kernel.steps import step
from millpond.maps.log.queue import maintenance_orders, queued_parts
from millpond.maps.model.catalogue import map_names
from millpond.stores.files import sync
from tests.harness.part_pieces import PIECES, flip_piece
from tests.harness.rows import canonical_of
from tests.harness.simulation.history import History, Proposal
from tests.harness.simulation.site import Site

if TYPE_CHECKING:
    from tests.harness.models import Address, Row
    from tests.harness.strategies import Question

__all__ = (
    "ACTORS",
    "KINDS",
    "Action",
    "World",
    "create",
    "follow",
    "give_up",
    "load_parts",
    "mend",
    "merge",
    "reopen",
    "take_again",
)

KINDS = {"m": "state", "r": "ranged_state", "s": "session", "t": "temporal_state"}
KEYS = ("a", "ab", "a\0", "b", "é", "k" * 400, "k" * 600, "k" * 600 + "x")
TIMES = 40
DAY = 86_400_000


class Action(NamedTuple):
    """Something to do to a pond. `act` returns nothing, or raises what the pond raises."""

    name: str
    site: Site
    act: Callable[[], None]


class World:
    """All that actors see: two ponds, their history, and chance."""

    def __init__(self, folder: Path, sites: tuple[Site, Site], chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.primary, self.replica = sites
        self.history = History()
        self.pending: list[str] = []
        self.acknowledged: set[str] = set()
        self.read: Callable[[Site, str, list[Question]], None] = lambda site, name, questions: None
        self.schemes = {name: chance.choice(("auto", "direct", "hash", "lookup")) for name in KINDS}
        self.damaged: dict[tuple[Site, str], Path] = {}
        """Intact copies of the parts that were damaged, by the pond and their ids."""
        self._uploads = 0

    def any_site(self) -> Site:
        """The primary, or less often the replica."""
        return self.primary if self.chance.random() < 0.6 else self.replica

    def any_map(self, site: Site) -> str | None:
        """The name of a map of a pond."""
        names = [found.name for found in site.pond.maps()]
        return self.chance.choice(names) if names else None

    def upload_folder(self) -> Path:
        """A fresh place for the copy of a part."""
        self._uploads += 1
        return self.folder / "uploads" / str(self._uploads)


def _creator(world: World) -> Action | None:
    pond = world.primary.pond
    known = [found.name for found in pond.maps()]
    missing = [name for name in KINDS if name not in known]
    if missing:
        name = world.chance.choice(missing)
        return Action(f"create {name}", world.primary, lambda: create(world, name))
    name = world.chance.choice(known)
    drawn = world.chance.random()
    if drawn < 0.1:
        return Action(f"drop {name}", world.primary, lambda: pond.drop_map(name))
    if drawn < 0.4:
        overwrite = not pond.map(name).definition.overwrite
        return Action(
            f"alter {name} overwrite={overwrite}", world.primary,
            lambda: _ignore(pond.alter_map(name, overwrite=overwrite)),
        )  # fmt: skip
    return None


def _writer(world: World) -> Action | None:
    names = [found.name for found in world.primary.pond.maps()]
    if not any(name != "s" for name in names):
        return None
    if world.pending and world.chance.random() < 0.5:
        load = world.chance.choice(world.pending)
        if not set(world.history.proposed[load]) <= set(names):
            return None
    else:
        load = f"load-{len(world.history.proposed)}"
        world.history.proposed[load] = _proposal(world.chance, names, len(world.history.proposed))
        world.pending.append(load)
    wait = world.chance.random() < 0.4
    maps = ",".join(world.history.proposed[load])
    return Action(
        f"{load} into {maps}{' and merge' if wait else ''}", world.primary, lambda: load_parts(world, load, wait=wait)
    )


def _merger(world: World) -> Action:
    site = world.any_site()
    return Action("merge", site, lambda: merge(site))


def _reader(world: World) -> Action | None:
    site = world.any_site()
    name = world.any_map(site)
    if name is None:
        return None
    numbers = KINDS[name] == "ranged_state"
    questions: list[Question] = [
        (world.chance.randrange(-1, TIMES) if numbers else world.chance.choice(KEYS), world.chance.randrange(-1, TIMES))
        for _ in range(6)
    ]
    return Action(f"read {name}", site, lambda: world.read(site, name, questions))


def _maintainer(world: World) -> Action | None:
    drawn = world.chance.random()
    if drawn < 0.5:
        site = world.any_site()
        name = world.any_map(site)
        if name is None:
            return None
        found = site.pond.map(name)
        if drawn < 0.25:
            return Action(f"compact {name}", site, lambda: _ignore(found.compact()))
        return Action(f"freeze {name}", site, lambda: _ignore(found.snapshot()))
    timed = [found.name for found in world.primary.pond.maps() if found.definition.kind.timed]
    if not timed:
        return None
    name, before = world.chance.choice(timed), world.chance.randrange(TIMES // 2)
    what = "condense" if world.chance.random() < 0.7 else "retain"
    if drawn < 0.75:
        order = world.primary.pond.log.order_maintenance
        return Action(f"order {what} {name} {before}", world.primary, lambda: _ignore(order(name, what, before)))
    target = world.primary.pond.map(name)
    return Action(
        f"{what} {name} {before}", world.primary, lambda: _ignore(getattr(target, what)(before=before))
    )  # fmt: skip


def _follower(world: World) -> Action:
    count = world.chance.randint(1, 4)
    return Action(f"follow {count}", world.replica, lambda: follow(world, count))


def _operator(world: World) -> Action:
    site = world.any_site()
    return Action("reopen", site, lambda: reopen(site))


def _expirer(world: World) -> Action | None:
    site, days = world.any_site(), world.chance.randrange(20)
    if site is world.primary:
        if world.replica.pond.log.position() != world.primary.pond.log.position():
            return None  # the follower needs the parts
        if world.history.loads.intersection(world.pending):
            return None  # a load is known, and not entered again, for as long as its entry is retained
    before = site.clock.now_ms() - days * DAY
    return Action(f"expire what is {days} days old", site, lambda: _ignore(site.pond.parts.expire(before)))


def _vandal(world: World) -> Action | None:
    """Damages the last part that waits for a map: nothing is merged after it before it is taken again."""
    site = world.any_site()
    with site.space.read() as tx:
        queued = {
            name: found[-1].part for name in map_names(tx)
            if (found := list(queued_parts(tx, name))) and not any(maintenance_orders(tx, name))
        }  # fmt: skip
    if not queued:
        return None
    name = world.chance.choice(sorted(queued))
    piece, share = world.chance.choice(PIECES), world.chance.random()
    return Action(f"damage {piece} of a part of {name}", site, lambda: _damage(world, site, queued[name], piece, share))


ACTORS: tuple[tuple[Callable[[World], Action | None], int], ...] = (
    (_creator, 2), (_writer, 8), (_merger, 3), (_reader, 4), (_maintainer, 4), (_follower, 5), (_operator, 1),
    (_expirer, 1), (_vandal, 2),
)  # fmt: skip
"""All actors, and how often each has its turn."""


def _ignore(_: object) -> None:
    """Drop the result of an action."""


def create(world: World, name: str) -> None:
    """Make a map."""
    value = None if KINDS[name] == "session" else "long"
    world.primary.pond.create_map(
        name, kind=KINDS[name], value=value, scheme=world.schemes[name], store="shard", exist_ok=True
    )


def merge(site: Site) -> None:
    """Merge what waits."""
    site.pond.merge()
    site.disturbed = False


def take_again(site: Site) -> None:
    """Take the parts again that were quarantined, and merge them with what came after them."""
    site.pond.parts.retry()
    merge(site)


def _damage(world: World, site: Site, part: str, piece: str, share: float) -> None:
    source = site.pond.parts.file(part)
    assert source is not None, part
    world.damaged[site, part] = _copied(source, world.upload_folder())
    flip_piece(source, piece, share)
    step("simulation.damaged")
    merge(site)
    assert part in {found.part for found in site.pond.parts.quarantined()}, "a damaged part was merged"
    mend(world, site, part)


def mend(world: World, site: Site, part: str) -> None:
    """Hand in the intact copy of a part that was damaged, if it still is; merge what waits."""
    merge(site)
    if part in {found.part for found in site.pond.parts.quarantined()}:
        copy = _copied(world.damaged[site, part], world.upload_folder())
        site.pond.parts.replace(part, copy)
        merge(site)
    del world.damaged[site, part]


def give_up(world: World, site: Site, name: str) -> None:
    """Drop a map that lacks a part for good, everywhere."""
    world.primary.pond.drop_map(name)
    if site is world.replica:
        follow(world, 1_000_000)


def reopen(site: Site) -> None:
    """Close a pond and open it again."""
    site.close()
    site.open()


def load_parts(world: World, load: str, *, wait: bool) -> None:
    """Load what was proposed under a load id."""
    pond = world.primary.pond
    parts = []
    for name, several in world.history.proposed[load].items():
        for rows in several:
            writer = pond.part_writer(name)
            writer.write(canonical_of(pond.map(name).definition, rows))
            parts += writer.finish()
    result = pond.commit_load(parts, load_id=load, wait=wait)
    assert result.load == load
    world.acknowledged.add(load)
    world.pending.remove(load)


def follow(world: World, count: int) -> None:
    """Take the next entries of the primary's log."""
    primary, replica = world.primary.pond, world.replica.pond
    replica.log.join(primary.log.pond_id)
    for entry in primary.log.entries(replica.log.position()[0], count):
        parts: dict[str, Path] = {}
        for part in entry.body.get("parts", ()):
            source = primary.parts.file(part["id"])
            assert source is not None, f"the primary lost part {part['id']} of entry {entry.position}"
            parts[part["id"]] = _copied(source, world.upload_folder())
        replica.log.enter(entry, parts)


def _copied(part: Path, target: Path) -> Path:
    """The target, a copy of a part that is on the disk."""
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(part, target)
    sync(target)
    return target


def _proposal(chance: random.Random, names: list[str], number: int) -> Proposal:
    """Rows for one to three maps, of which at least one has values, so that few loads are the same as one before."""
    valued = [name for name in names if name != "s"]
    chosen = {chance.choice(valued), *chance.sample(names, min(len(names), chance.randint(0, 2)))}
    return {name: [_rows(chance, name, number) for _ in range(chance.randint(1, 2))] for name in sorted(chosen)}


def _rows(chance: random.Random, name: str, number: int) -> list[Row]:
    found: dict[Address, object] = {}
    for _ in range(chance.randint(1, 6)):
        start, end = sorted((chance.randrange(TIMES), chance.randrange(TIMES)))
        key = chance.choice(KEYS)
        addresses: dict[str, Address] = {"m": (key,), "r": (start, end), "s": (key, start, end), "t": (key, start)}
        found[addresses[name]] = None if name == "s" else number // 2  # some equal ones, for condensing
    return sorted(found.items())
