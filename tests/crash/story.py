"""A story of one pond in acts: what is done to it, and what it must hold after each act.

Acts may be repeated: doing one twice ends as doing it once does, which is what somebody does who saw a crash. The
clock of a telling gives ids that no other telling gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import millpond
from millpond.clock import ManualClock
from millpond.errors import NotFound
from millpond.maps.loads.merge import Arrived, merge_loads
from millpond.maps.maintenance import maintenance
from millpond.maps.model.definition import Kind, MapDefinition, Scheme
from millpond.maps.parts.part import PartWriter
from millpond.maps.shard.shard import Shard
from millpond.maps.snapshots.groups_of_rows import freeze_groups
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millpond import Pond
    from tests.harness.models import Row

NOW = 1_000_000_000
MINUTE = 60_000
ACTS_MAX = 100
MAPS = {
    "weather": {"kind": "temporal_state", "value": "string", "scheme": "hash", "hash_bits": 2},
    "planes": {"kind": "state", "value": "string", "scheme": "lookup"},
    "nets": {"kind": "ranged_state", "value": "long"},
    "seen": {"kind": "session", "scheme": "direct"},
}
LONG = "long " * 120
World = dict[str, MapModel]
Maps = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True)
class Act:
    """One act.

    `whole`: after a crash all of it is there or nothing; otherwise doing it again to what is there must end as doing it
    once does.
    """

    name: str
    do: Callable[[Pond], object]
    expect: Callable[[World], None]
    whole: bool = True


# -- rows ---------------------------------------------------------------------------------------------


def rows_of(name: str, load: int) -> list[Row]:
    """The rows that a load brings to a map: some new, some that replace those of the load before."""
    keys = [f"k{load + n}" for n in range(5)] + ["", LONG + str(load % 2)]
    if name == "weather":
        return [((key, 10 * load + n), f"v{(load + n) // 3}") for n in range(6) for key in keys]
    if name == "planes":
        return [((key,), LONG + key if key == "k3" else f"p{load}") for key in keys]
    if name == "nets":
        return [((load - n, load + 10 * n), load * n) for n in range(8)]
    return [((key, 10 * load + n, 10 * load + 2 * n + 7), None) for n in range(4) for key in keys]


def load_all(pond: Pond, load: int) -> None:
    """One load that brings two parts to `weather` and one to each other map."""
    parts = []
    for name in sorted(pond_map.name for pond_map in pond.maps()):
        rows = rows_of(name, load)
        pieces = (rows[::2], rows[1::2]) if name == "weather" else (rows,)
        for piece in pieces:
            writer = pond.part_writer(name)
            writer.write(canonical_of(pond.map(name).definition, piece))
            parts += writer.finish()
    pond.commit_load(parts)


def expect_all(world: World, load: int) -> None:
    for name in world:
        world[name].put(rows_of(name, load))


# -- acts ---------------------------------------------------------------------------------------------


def create(pond: Pond, maps: Maps) -> None:
    for name, settings in maps.items():
        pond.create_map(name, **settings, exist_ok=True)  # type: ignore[arg-type]


def expect_created(world: World) -> None:
    world.update({name: MapModel(Kind(str(settings["kind"]))) for name, settings in MAPS.items()})


def freeze(pond: Pond) -> None:
    for pond_map in pond.maps():
        pond_map.freeze()


def condense(pond: Pond, name: str, before: int) -> None:
    target = pond.map(name)
    if target.layers is not None:
        target.condense(before=before)
        return
    maintenance.condense(target.shard, target.definition, before, clock=pond.clock, rows_per_change=16)


def retain(pond: Pond, name: str, before: int) -> None:
    target = pond.map(name)
    if target.layers is not None:
        target.retain(before=before)
        return
    maintenance.retain(target.shard, target.definition, before, clock=pond.clock, rows_per_change=16)


def delete(world: World, name: str, key: str) -> None:
    model = world[name]
    for address in [address for address in model.rows if address[0] == key]:
        del model.rows[address], model.updated[address]


def drop(pond: Pond, name: str) -> None:
    with suppress(NotFound):
        pond.drop_map(name)


def load_planes(pond: Pond) -> None:
    writer = pond.part_writer("planes")
    writer.write(canonical_of(pond.map("planes").definition, rows_of("planes", 1)))
    pond.commit_load(writer.finish())


def nothing(world: World) -> None:
    """The act changes no answer."""


def acts_of(maps: Maps) -> Iterator[Act]:
    """The story of these maps."""
    yield Act("create", partial(create, maps=maps), expect_created, whole=False)
    for load in (1, 2):
        yield Act(f"load {load}", partial(load_all, load=load), partial(expect_all, load=load))
        yield Act(f"freeze {load}", freeze, nothing)
    yield Act(
        "condense weather",
        partial(condense, name="weather", before=25),
        lambda world: world["weather"].condense(25) and None,
        whole=False,
    )
    yield Act(
        "condense seen",
        partial(condense, name="seen", before=25),
        lambda world: world["seen"].condense(25) and None,
        whole=False,
    )
    yield Act(
        "retain weather",
        partial(retain, name="weather", before=14),
        lambda world: world["weather"].retain(14) and None,
        whole=False,
    )
    yield Act("load 3", partial(load_all, load=3), partial(expect_all, load=3))
    yield Act("compact", lambda pond: [pond_map.compact() for pond_map in pond.maps()], nothing)
    yield Act("load 2 again", partial(load_all, load=2), nothing)
    yield Act("freeze 3", freeze, nothing)
    yield Act(
        "delete", lambda pond: pond.map("weather").delete("key = 'k3'"),
        lambda world: delete(world, "weather", "k3"),
    )  # fmt: skip
    yield Act(
        "purge", lambda pond: pond.map("seen").delete("key = 'k4'", now=True),
        lambda world: delete(world, "seen", "k4"),
    )  # fmt: skip
    yield Act("drop", partial(drop, name="planes"), lambda world: world.pop("planes") and None)
    yield Act(
        "create again",
        lambda pond: pond.create_map(
            "planes", kind="state", value="string", store=maps["planes"].get("store", "shard"), exist_ok=True
        ),
        lambda world: world.update(planes=MapModel(Kind.STATE)),
    )
    yield Act("load planes", load_planes, lambda world: world["planes"].put(rows_of("planes", 1)))
    yield Act("freeze 4", freeze, nothing)


ACTS = tuple(acts_of(MAPS))


def worlds(acts: Sequence[Act] = ACTS) -> list[World]:
    """The expected content of the pond before the first act, and after each."""
    history: list[World] = [{}]
    for act in acts:
        world = deepcopy(history[-1])
        act.expect(world)
        history.append(world)
    return history


def clock_of(telling: int, act: int) -> ManualClock:
    """Each act half an hour after the one before, so that snapshots that were replaced are collected."""
    return ManualClock(now=NOW + act * 30 * MINUTE, ids=(telling * ACTS_MAX + act) * 10_000)


def tell(
    folder: Path, *, telling: int, first: int = 0, done: Callable[[int], None] = lambda act: None,
    acts: Sequence[Act] = ACTS,
) -> None:  # fmt: skip
    """Open the pond anew for each act from `first` on and do it; `done` is called after each with its number."""
    for number in range(first, len(acts)):
        with millpond.open(folder, clock=clock_of(telling, number)) as pond:
            acts[number].do(pond)
        done(number)


def warm(folder: Path) -> None:
    """Load what the story needs but for files of snapshots, whose threads would not live on in a forked child."""
    for name, settings in MAPS.items():
        definition = MapDefinition(
            name=name, kind=Kind(settings["kind"]), incarnation="0", scheme=Scheme(settings.get("scheme", "auto"))
        )
        with closing(Shard(folder / name, definition)) as shard:
            for load in (1, 2):
                rows = [(address, None) for address, _ in rows_of(name, load)]
                writer = PartWriter(definition, folder / f"{name}-{load}")
                writer.write(canonical_of(definition, rows))
                [part] = writer.finish()
                merge_loads(shard, [Arrived(load, 0, definition.overwrite, (part,))])
            maintenance.condense(shard, definition, 25, clock=ManualClock())
            list(freeze_groups(definition, shard.read_rows()))
