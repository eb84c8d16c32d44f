"""A story of two ponds: a primary that loads, quarantines, takes again, drops and expires; a replica that follows it.

Acts may be repeated: their loads have ids, so doing one twice ends as doing it once does.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.clock import ManualClock
from millpond.maps.loads.merger import Merger
from millpond.pond import open_pond
from millpond.testing.faults import flip_byte
from tests.crash import story
from tests.harness.audit import canonical_bits
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond import Pond
    from tests.harness.models import Row

DAY = 86_400_000
NOW = 20_000 * DAY


def rows_of(name: str, load: int) -> list[Row]:
    """The rows of a load: some new, some that replace those of the load before."""
    keys = [f"k{(load + n) % 7}" for n in range(4)]
    return [((key, n), load) for n in range(3) for key in keys] if name == "t" else [((key,), load) for key in keys]


def copy_whole(source: Path, target: Path) -> None:
    """Copy a part, unless it is there: after a kill, which a thread of the merger may bring, all of it or nothing."""
    if not target.exists():
        unfinished = target.with_name(f".{target.name}")
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, unfinished)
        unfinished.rename(target)


def load(pond: Pond, number: int, *, wait: bool = True, stream: tuple[str, int] | None = None) -> None:
    """Load into both maps, once."""
    parts = []
    for name in ("m", "t"):
        writer = pond.part_writer(name)
        writer.write(canonical_of(pond.map(name).definition, rows_of(name, number)))
        parts += writer.finish()
        copy_whole(parts[-1].file, pond.folder.parent / "intact" / parts[-1].manifest.id)
    pond.commit_load(parts, load_id=f"load-{number}", stream=stream, wait=wait)


def follow(pond: Pond) -> None:
    """Let the replica take what is new, and merge it."""
    with open_pond(pond.folder.parent / "replica", clock=pond.clock, maps_part_retention=999 * DAY) as replica:
        replica.log.join(pond.log.pond_id)
        for entry in pond.log.entries(replica.log.position()[0]):
            parts = {}
            for part in entry.body.get("parts", ()):
                parts[part["id"]] = pond.folder.parent / "uploads" / part["id"]
                copy_whole(pond.folder.parent / "intact" / part["id"], parts[part["id"]])
            replica.log.enter(entry, parts)
            replica.log.enter(entry, parts)
        replica.merge()


# -- acts ---------------------------------------------------------------------------------------------


def create(pond: Pond) -> None:
    pond.create_map("m", kind="state", value="long", exist_ok=True, retain="999d")
    pond.create_map("t", kind="temporal_state", value="long", exist_ok=True)


def retain(pond: Pond) -> None:
    """Order it once an act: ordered again, it would come after more loads."""
    entries = pond.log.entries(max(0, pond.log.position()[0] - 10))
    if not any(entry.kind == "retain" and entry.stamp_ms == pond.clock.now_ms() for entry in entries):
        pond.log.order_maintenance("t", "retain", 1)


def fold(pond: Pond) -> None:
    load(pond, 2, wait=False)
    retain(pond)
    load(pond, 3, wait=False, stream=("query", 1))
    load(pond, 4, wait=False, stream=("query", 2))
    pond.merge()


def quarantine(pond: Pond) -> None:
    """A load of which one part is damaged while it waits."""
    harmed = pond.folder.parent / "harmed"
    load(pond, 5, wait=False)
    for part in pond.parts.list():
        place = pond.parts.file(part.part)
        if (part.map, part.load) == ("m", "load-5") and part.state != "quarantined" and not harmed.exists():
            assert place is not None
            harmed.touch()
            flip_byte(place, 6000)
    pond.merge()


def take_again(pond: Pond) -> None:
    for part in pond.parts.list(state="quarantined"):
        copy = pond.folder.parent / "again" / part.part
        copy_whole(pond.folder.parent / "intact" / part.part, copy)
        pond.parts.replace(part.part, copy)
    pond.parts.retry()


def condense(pond: Pond) -> None:
    pond.map("t").condense(before=9)


def alter(pond: Pond) -> None:
    pond.alter_map("t", overwrite=False)
    load(pond, 7)


def begin_again(pond: Pond) -> None:
    if [pond_map.name for pond_map in pond.maps() if pond_map.get("k0", at=99) is not None] == ["m", "t"]:
        pond.drop_map("m")
    pond.create_map("m", kind="state", value="long", exist_ok=True)


def serve(pond: Pond) -> None:
    folder, clock = pond.folder, pond.clock
    pond.close()
    with open_pond(folder, clock=clock, serve=True) as served:
        merger = Merger(served)
        merger.start()
        try:
            load(served, 9)
            retain(served)
            load(served, 10, wait=False)
        finally:
            merger.stop()


def expire(pond: Pond) -> None:
    pond.parts.expire(pond.clock.now_ms())


ACTS: tuple[Callable[[Pond], None], ...] = (
    create, lambda pond: load(pond, 1), fold, follow, quarantine, lambda pond: load(pond, 6), take_again, condense,
    alter, begin_again, lambda pond: load(pond, 8), serve, follow, expire, lambda pond: load(pond, 11), follow,
)  # fmt: skip


def clock_of(telling: int, act: int) -> ManualClock:
    return ManualClock(now=NOW + act * DAY, ids=(telling * len(ACTS) + act) * 10_000)


def open_primary(folder: Path, telling: int, act: int) -> Pond:
    folder.mkdir(exist_ok=True)
    for name in ("intact", "uploads", "again"):
        (folder / name).mkdir(exist_ok=True)
    return open_pond(folder / "primary", clock=clock_of(telling, act), maps_part_retention=999 * DAY)


def tell(folder: Path, *, telling: int, first: int = 0, done: Callable[[int], None] = lambda act: None) -> None:
    """Open the primary anew for each act from `first` on and do it; `done` is called after each with its number."""
    for number in range(first, len(ACTS)):
        with open_primary(folder, telling, number) as pond:
            ACTS[number](pond)
        done(number)


def held(pond: Pond) -> dict[str, object]:
    """The content both ponds must agree on: rows, and the time each was put."""
    found = {}
    for pond_map in pond.maps():
        with pond_map.shard.view() as view:
            batches = list(view.read_rows())
            times: list[int] = []
            if pond_map.shard.tracking:
                times = [time for rows in batches for time in view.generation.updates.times(view.tx, rows, -1).tolist()]
        found[pond_map.name] = canonical_bits(batches, pond_map.definition), sorted(times)
    return found


def warm(folder: Path) -> None:
    """Load what the story needs."""
    story.warm(folder)
