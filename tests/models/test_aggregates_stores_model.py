"""Aggregates in a shard answer as those in layers do, however loads are cut into parts and rows are rolled up: one
model.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond
from millpond.maps.maintenance import roll_up as rolling
from millpond.maps.parts import part
from tests.models.test_aggregates_model import (
    COLUMNS,
    KEYS,
    RESOLUTIONS,
    VALUE,
    ZONES,
    Event,
    Model,
    check,
    check_coarser,
    coarser,
    loads,
    moments,
    roll_up,
)
from tests.rings.sampling import examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from millpond import Pond

EXAMPLES = examples(4, 100)
acts = st.one_of(
    st.tuples(st.just("load"), loads), st.tuples(st.just("load"), loads),
    st.tuples(st.just("cut"), st.lists(loads, min_size=2, max_size=3)),
    st.tuples(st.just("repeat"), st.none()), st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("delete"), st.sampled_from(KEYS)), st.tuples(st.just("retain"), moments),
    st.tuples(st.just("convert"), st.none()), st.tuples(st.just("roll_up"), st.tuples(moments, st.integers(1, 4))),
)  # fmt: skip


@dataclass
class Story:
    """One map, in a shard at first, and its model; `numbers` tells loads apart."""

    pond: Pond
    model: Model
    last: list[int] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def numbered(self, load: list[Event]) -> list[Event]:
        made = {next(self.numbers): event for event in load}
        made = {number: event | {"units": number} for number, event in made.items()}
        self.model.events |= made
        self.last = list(made)
        return list(made.values())

    def load(self, load: list[Event]) -> None:
        self.pond.map("m").load(self.numbered(load), columns=COLUMNS)

    def cut(self, several: list[list[Event]]) -> None:
        """Load more rows than a part takes."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(part, "PART_ROWS_MAX", 2)
            batches = one_by_one(self.numbered([event for load in several for event in load]))
            self.pond.map("m").load(batches, columns=COLUMNS)

    def repeat(self, _: None) -> None:
        if self.last:
            again = [self.model.events[number] for number in reversed(self.last)]
            assert self.pond.map("m").load(again, columns=COLUMNS).parts == 0

    def compact(self, _: None) -> None:
        self.pond.map("m").compact()

    def delete(self, key: str) -> None:
        self.pond.map("m").delete([("key", "=", key)])
        self.model.without(lambda event: event["key"] == key)
        self.last = []

    def retain(self, before: Any) -> None:
        here = self.model.bucket(before)
        self.pond.map("m").retain(before)
        self.model.without(lambda event: event["time"] < before and self.model.bucket(event["time"]) != here)
        self.last = []

    def roll_up(self, about: tuple[datetime, int]) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(rolling, "ROWS_PER_CHANGE", 3)
            patched.setattr(rolling, "ROWS_PER_BATCH", 2)
            roll_up(self.pond, self.pond.map("m"), self.model, about)
        self.last = []

    def convert(self, _: None) -> None:
        store = self.pond.map("m").definition.store
        self.pond.alter_map("m", store="layers" if store == "shard" else "shard")


def one_by_one(rows: list[Event]) -> Any:
    """Rows that come in a batch each."""
    return pa.Table.from_pylist(rows).to_reader(1)


@contextmanager
def story(pond: Pond, resolution: str, zone: str, scheme: str) -> Iterator[Story]:
    pond.create_map(
        "m", kind="aggregate", value=VALUE, resolution=resolution, time_zone=zone, store="shard", scheme=scheme,
        hash_bits=2,
    )  # fmt: skip
    try:
        yield Story(pond, Model(resolution, zone))
    finally:
        pond.drop_map("m")


def test_an_aggregate_in_a_shard_counts_what_a_model_counts(tmp_path_factory: pytest.TempPathFactory) -> None:
    with millpond.open(tmp_path_factory.mktemp("aggregates") / "pond") as pond:

        @settings(max_examples=EXAMPLES, deadline=None)
        @given(
            st.lists(acts, min_size=1, max_size=10), st.sampled_from(RESOLUTIONS), st.sampled_from(ZONES),
            st.sampled_from(("auto", "direct", "hash")),
        )  # fmt: skip
        def run(drawn: list[tuple[str, Any]], resolution: str, zone: str, scheme: str) -> None:
            with story(pond, resolution, zone, scheme) as played:
                for act, about in drawn:
                    getattr(played, act)(about)
                    check(pond.map("m"), played.model)
                for wide in coarser(played.model):
                    check_coarser(pond.map("m"), wide)

        run()
