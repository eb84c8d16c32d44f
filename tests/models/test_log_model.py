"""The content of a pond at a position is a function of its log: of nothing else, on no node, however it was merged."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.maps.loads.merge_queue import merge_queued
from millpond.maps.model.definition import Kind
from millpond.pond import open_pond
from tests.harness.audit import canonical_bits
from tests.harness.models import MapModel
from tests.harness.rows import canonical_of
from tests.harness.scratch import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Map, Pond
    from millpond.maps.log.log import Entry
    from millpond.maps.parts.part import PartFile
    from tests.harness.models import Row

DAY = 86_400_000
NOW = 20_000 * DAY
NAMES = ("one", "two")
KINDS = (Kind.STATE, Kind.TEMPORAL_STATE, Kind.SESSION, Kind.TEMPORAL_RANGED_STATE)
SCHEMES = ("auto", "hash", "lookup")
KEYS, TIMES = st.sampled_from("abc"), st.integers(0, 9)
SPANS = st.tuples(TIMES, TIMES).map(lambda span: tuple(sorted(span)))
ADDRESSES = {
    Kind.STATE: st.tuples(KEYS),
    Kind.TEMPORAL_STATE: st.tuples(KEYS, TIMES),
    Kind.SESSION: st.builds(lambda key, span: (key, *span), KEYS, SPANS),
    Kind.TEMPORAL_RANGED_STATE: st.builds(lambda span, time: (*span, time), SPANS, TIMES),
}


def rows(kind: Kind) -> st.SearchStrategy[list[Row]]:
    values = st.none() if kind is Kind.SESSION else st.integers(0, 2)
    return st.lists(st.tuples(ADDRESSES[kind], values), min_size=1, max_size=5)


@dataclass
class ModelledMap:
    """A map as the model has it: its rows, and the settings that hold for what comes next."""

    model: MapModel
    settings: dict[str, object]

    @property
    def by_update(self) -> bool:
        """True when rows are retained by the time they were put."""
        return self.settings["retain_by"] == "update_time" or self.model.kind is Kind.STATE

    @property
    def condenses_by_update(self) -> bool:
        """True when rows are condensed by the time they were put."""
        return self.settings["condense_by"] == "update_time" and self.model.kind.timed


def held(pond: Pond) -> dict[str, object]:
    """All that two nodes must agree on: settings, rows, and when each was put."""
    found = {}
    for pond_map in pond.maps():
        batches = list(pond_map.shard.read_rows())
        found[pond_map.name] = pond_map.definition, canonical_bits(batches, pond_map.definition), put_times(pond_map)
    return found


def put_times(pond_map: Map) -> list[object]:
    if not pond_map.shard.tracking:
        return []
    with pond_map.shard.view() as view:
        if view.tx is None:
            return []
        rows = []
        for batch in view.read_rows():
            addresses = batch.select(list(pond_map.kind.address))
            times = view.generation.updates.times(view.tx, batch, -1).tolist()
            rows += [(*address.values(), time) for address, time in zip(addresses.to_pylist(), times, strict=True)]
        return sorted(rows, key=repr)


@dataclass
class Node:
    """A pond that follows: its clock is another than the primary's."""

    folder: Path
    ahead_ms: int
    pond: Pond = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        clock = ManualClock(now=NOW + self.ahead_ms, ids=self.ahead_ms)
        self.pond = open_pond(self.folder, clock=clock, maps_part_retention=1000 * DAY)

    def reopen(self) -> None:
        self.pond.close()
        self.open()

    def follow(self, primary: Pond, *, limit: int = 1000) -> list[Entry]:
        entries = primary.log.entries(self.pond.log.position()[0], limit)
        for entry in entries:
            parts = {}
            for part in entry.body.get("parts", ()):
                source = primary.parts.file(part["id"])
                assert source is not None, part
                parts[part["id"]] = self.folder / f"{part['id']}.upload"
                shutil.copyfile(source, parts[part["id"]])
            self.pond.log.enter(entry, parts)
            self.pond.log.enter(entry, {})  # known: nothing happens
        return entries


class World:
    """A primary, the model of it, and two nodes that follow: one merges each entry, one when it likes."""

    def __init__(self, folder: Path, data: st.DataObject) -> None:
        self.data, self.maps = data, dict[str, ModelledMap]()
        self.clock = ManualClock(now=NOW)
        self.primary = open_pond(folder / "primary", clock=self.clock, maps_part_retention=1000 * DAY)
        self.eager = Node(folder / "eager", 5 * DAY)
        self.lazy = Node(folder / "lazy", 7 * DAY)
        self.exact = data.draw(st.booleans(), label="update times from the start")

    def close(self) -> None:
        for pond in (self.primary, self.eager.pond, self.lazy.pond):
            pond.close()

    def act(self) -> None:
        self.clock.advance(self.data.draw(st.sampled_from((0, DAY, DAY)), label="time passes"))
        free = [name for name in NAMES if name not in self.maps]
        acts = ["create"] * bool(free)
        if self.maps:
            acts += ["load"] * 5 + ["alter", "condense", "retain", "retain", "drop", "merge", "reopen"]
        getattr(self, self.data.draw(st.sampled_from(acts)))()

    def name(self) -> str:
        return self.data.draw(st.sampled_from(sorted(self.maps)))

    def create(self) -> None:
        name = self.data.draw(st.sampled_from([name for name in NAMES if name not in self.maps]))
        kind = self.data.draw(st.sampled_from(KINDS))
        settings = {
            "overwrite": self.data.draw(st.sampled_from((True, True, False))),
            "retain": self.data.draw(st.sampled_from((None, "30d"))),
            "retain_by": self.data.draw(st.sampled_from(("effective_time", "update_time"))),
            "condense_by": self.data.draw(st.sampled_from(("effective_time", "update_time"))),
        }
        value = None if kind is Kind.SESSION else "long"
        scheme = self.data.draw(st.sampled_from(SCHEMES))
        self.primary.create_map(name, kind=kind, value=value, scheme=scheme, **settings)
        self.maps[name] = ModelledMap(MapModel(kind), settings | {"maintenance_suspended": False})

    def alter(self) -> None:
        name = self.name()
        changes = [
            {"overwrite": True},
            {"overwrite": False},
            {"maintenance_suspended": True},
            {"maintenance_suspended": False},
        ]
        if not self.exact:
            changes += [{"retain": "30d", "retain_by": "update_time"}, {"retain": None}]
            changes += [{"condense_by": "update_time"}, {"condense_by": "effective_time"}]
        change = self.data.draw(st.sampled_from(changes))
        self.primary.alter_map(name, **change)
        self.maps[name].settings |= change

    def drop(self) -> None:
        name = self.name()
        self.primary.drop_map(name)
        del self.maps[name]

    def load(self) -> None:
        parts: list[PartFile] = []
        brought: dict[str, list[tuple[str, list[Row]]]] = {}
        chosen = self.data.draw(st.lists(st.sampled_from(sorted(self.maps)), min_size=1, max_size=3))
        for name in chosen:
            drawn = self.data.draw(rows(self.maps[name].model.kind))
            writer = self.primary.part_writer(name)
            writer.write(canonical_of(self.primary.map(name).definition, drawn))
            [part] = writer.finish()
            parts.append(part)
            brought.setdefault(name, []).append((part.manifest.id, drawn))
        for name, some in brought.items():
            modelled = self.maps[name]
            modelled.model.overwrite = bool(modelled.settings["overwrite"])
            modelled.model.load(some, now=self.clock.now)
        self.primary.commit_load(parts, wait=self.data.draw(st.booleans(), label="wait"))

    def condense(self) -> None:
        name = self.name()
        modelled = self.maps[name]
        before = self.watermark(by_update=modelled.condenses_by_update)
        self.primary.log.order_maintenance(name, "condense", before)
        if not modelled.settings["maintenance_suspended"]:
            modelled.model.condense(before, by=str(modelled.settings["condense_by"]))

    def watermark(self, *, by_update: bool) -> int:
        return self.clock.now - self.data.draw(st.integers(-1, 3)) * DAY if by_update else self.data.draw(TIMES)

    def retain(self) -> None:
        name = self.name()
        modelled = self.maps[name]
        before = self.watermark(by_update=modelled.by_update)
        self.primary.log.order_maintenance(name, "retain", before)
        if modelled.settings["maintenance_suspended"]:
            return
        if modelled.settings["retain"] is None and not modelled.condenses_by_update:
            # Rows whose age nobody kept count as put now.
            modelled.model.updated = dict.fromkeys(modelled.model.updated, self.clock.now)
        modelled.model.retain(before, by="update_time" if modelled.by_update else "effective_time")

    def merge(self) -> None:
        names = self.data.draw(st.lists(st.sampled_from(NAMES), unique=True))
        for pond in (self.primary, self.lazy.pond):
            here = [name for name in names if name in {pond_map.name for pond_map in pond.maps()}]
            merge_queued(pond.loads, pond.loading.shard_of, here)

    def reopen(self) -> None:
        self.lazy.reopen()

    def follow(self) -> None:
        while self.eager.follow(self.primary, limit=1):
            self.eager.pond.merge()
        self.lazy.follow(self.primary, limit=self.data.draw(st.integers(0, 4)))

    def audit(self) -> None:
        self.primary.merge()
        while self.eager.follow(self.primary, limit=1):
            self.eager.pond.merge()
        self.lazy.follow(self.primary)
        self.lazy.pond.merge()
        wanted = held(self.primary)
        for node in (self.eager, self.lazy):
            assert node.pond.log.position() == self.primary.log.position()
            assert held(node.pond) == wanted
            assert node.pond.verify().ok
        assert wanted.keys() == self.maps.keys()
        for name, modelled in self.maps.items() if self.exact else ():
            definition = self.primary.map(name).definition
            assert canonical_bits([canonical_of(definition, modelled.model.scan())], definition) == wanted[name][1]
            assert self.primary.log.applied(name) == self.primary.log.position()[0]


@pytest.mark.usefixtures("process")
@given(data=st.data())
def test_the_log_alone_decides(data: st.DataObject) -> None:
    with scratch_folder() as folder, ExitStack() as held_open:
        world = World(folder, data)
        held_open.callback(world.close)
        world.create()
        for _ in range(data.draw(st.integers(1, 10), label="acts")):
            world.act()
            world.follow()
        world.audit()
