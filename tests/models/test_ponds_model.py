"""A pond tells what the model tells, through every reader, whatever was loaded, frozen, cared for and reopened."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.clock import ManualClock
from millpond.maps.maintenance import maintenance
from millpond.maps.model.definition import PLAIN_KINDS, Kind, Store
from millpond.maps.model.store_limits import tracks_updates
from tests.harness import strategies
from tests.harness.audit import audit_map, audit_sql
from tests.harness.models import MapModel, bits_of
from tests.harness.rows import canonical_of, table_of
from tests.harness.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from millpond import Map, Pond
    from millpond.maps.maintenance.maintenance import MaintenanceReport
    from millpond.maps.model.definition import MapDefinition
    from tests.harness.models import Row
    from tests.harness.strategies import Pools

DAY = 86_400_000


@dataclass
class Both:
    """A pond with one map, and the model of it; each act is done to both."""

    folder: Path
    definition: MapDefinition
    clock: ManualClock = field(default_factory=lambda: ManualClock(now=20_000 * DAY))

    def __post_init__(self) -> None:
        self.model = MapModel(self.definition.kind, overwrite=self.definition.overwrite)
        self.pond = self.open()
        definition = self.definition
        self.pond.create_map(
            "m", kind=definition.kind, value=definition.value, scheme=definition.scheme,
            hash_bytes=definition.hash_bytes, hash_bits=definition.hash_bits, overwrite=definition.overwrite,
            retain=definition.retain_ms, retain_by=definition.retain_by, store=definition.store,
            condense_by=definition.condense_by,
        )  # fmt: skip

    def open(self) -> Pond:
        return millpond.open(self.folder / "pond", clock=self.clock)

    @property
    def map(self) -> Map:
        return self.pond.map("m")

    def close(self) -> None:
        self.pond.close()

    def reopen(self) -> None:
        self.pond.close()
        self.pond = self.open()

    @property
    def layered(self) -> bool:
        return self.definition.store is Store.LAYERS

    def put(self, part: list[Row]) -> None:
        """Load one table into the model: a layer and a part of the same rows are known by different names."""
        self.model.load([((self.layered, self.content(part)), part)], now=self.clock.now)

    def put_all(self, parts: list[list[Row]]) -> None:
        """Load several parts into the model."""
        self.model.load([((False, self.content(part)), part) for part in parts], now=self.clock.now)

    def content(self, part: list[Row]) -> Hashable:
        """The bytes that parts with the same rows have in common."""
        unique = MapModel(self.model.kind, overwrite=self.model.overwrite)
        unique.put(part)
        return bits_of(unique.scan())

    def load_table(self, part: list[Row]) -> None:
        self.clock.advance(DAY)
        self.map.load(table_of(self.definition, part))
        self.put(part)

    def load_parts(self, parts: list[list[Row]]) -> None:
        """Several parts as one load, as the tasks of a job bring them."""
        self.clock.advance(DAY)
        sealed = []
        for part in parts:
            writer = self.pond.part_writer("m")
            writer.write(canonical_of(self.map.definition, part))
            sealed += writer.finish()
        self.put_all(parts)
        self.pond.commit_load(sealed)

    def condense(self, before: int, rows_per_change: int) -> None:
        fewer = self.model.condense(before, by=self.definition.condense_by)
        report = self.maintained("condense", before, rows_per_change)
        assert report.rows_removed == fewer
        assert self.map.condense(before=before).rows_removed == 0

    def retain(self, before: int, rows_per_change: int) -> None:
        if self.retain_by is None:
            # Rows whose age nobody kept count as put now.
            self.model.updated = dict.fromkeys(self.model.updated, self.clock.now)
        fewer = self.model.retain(before, by=self.retain_by or "update_time")
        report = self.maintained("retain", before, rows_per_change)
        assert report.rows_removed == fewer
        assert self.map.retain(before=before).rows_removed == 0

    def maintained(self, act: str, before: int, rows_per_change: int) -> MaintenanceReport:
        """The report of maintenance; that of a shard is cut into small changes."""
        if self.layered:
            return getattr(self.map, act)(before=before)
        return getattr(maintenance, act)(
            self.map.shard, self.map.definition, before, clock=self.clock, rows_per_change=rows_per_change
        )

    @property
    def retain_by(self) -> str | None:
        """The time by which rows of the map expire; None where their age is not known."""
        definition = self.definition
        if definition.retain_by == "update_time" or not definition.kind.timed:
            return "update_time" if tracks_updates(definition) else None
        return "effective_time"

    def compact(self) -> None:
        assert self.map.compact().rows_removed == 0


@st.composite
def cared_for(draw: st.DrawFn, kind: Kind, store: Store) -> MapDefinition:
    """A map whose rows may grow old."""
    return replace(
        draw(strategies.definitions(kind=kind)),
        store=store,
        retain_ms=draw(st.sampled_from((None, 365 * DAY))),
        retain_by=draw(st.sampled_from(("effective_time", "update_time"))),
        condense_by=draw(st.sampled_from(("effective_time", "update_time"))),
    )


ACTS = ("table", "parts", "parts", "reopen", "condense", "condense", "retain", "compact")


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("store", Store)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@given(data=st.data())
def test_every_reader_answers_like_the_model(kind: Kind, store: Store, data: st.DataObject) -> None:
    definition = data.draw(cared_for(kind, store))
    pools = data.draw(strategies.pools(definition))
    part = strategies.rows(definition, pools)
    with scratch_folder() as folder, closing(Both(folder, definition)) as both:
        both.load_parts(data.draw(st.lists(part, min_size=1, max_size=3)))
        for act in data.draw(st.lists(st.sampled_from(ACTS), max_size=4)):
            step(both, act, data, pools)
            audit_map(both.map, both.model, data.draw(strategies.questions(definition, pools)))


def step(both: Both, act: str, data: st.DataObject, pools: Pools) -> None:
    part = strategies.rows(both.definition, pools)
    if act == "table":
        both.load_table(data.draw(part))
    elif act == "parts":
        both.load_parts(data.draw(st.lists(part, min_size=1, max_size=3)))
    elif act in ("condense", "retain"):
        watermarks = {time + beside for time in pools.times for beside in (0, 1) if time < strategies.TIME_MAX}
        if act == "retain" or both.definition.condense_by == "update_time":
            watermarks |= {both.clock.now - DAY, both.clock.now}
        getattr(both, act)(data.draw(st.sampled_from(sorted(watermarks) or [0])), data.draw(st.integers(2, 6)))
    else:
        getattr(both, act)()


@pytest.mark.usefixtures("processor")
@pytest.mark.sample(2)
@pytest.mark.parametrize("store", Store)
@pytest.mark.parametrize("kind", PLAIN_KINDS)
@settings(max_examples=settings().max_examples // 3)
@given(data=st.data())
def test_sql_answers_like_the_model(kind: Kind, store: Store, data: st.DataObject) -> None:
    definition = replace(data.draw(strategies.definitions(kind=kind)), store=store)
    pools = data.draw(strategies.pools(definition))
    part = strategies.rows(definition, pools)
    with scratch_folder() as folder, closing(Both(folder, definition)) as both:
        both.load_parts(data.draw(st.lists(part, min_size=1, max_size=3)))
        audit_sql(both.pond, both.map, both.model, data.draw(strategies.questions(definition, pools)))
