"""Series against a list and a set."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millpond.errors import Conflict, Corrupt
from millpond.json_forms import JsonForm
from millpond.kernel.keys import Prefix
from millpond.kernel.series import Segment, Series
from millpond.stores.memory import MemorySpace

pytestmark = pytest.mark.usefixtures("processor")

NAMES = st.sampled_from("abcdefgh")
NUMBER = JsonForm(int)


@dataclass
class Model:
    """A list of what is listed, oldest first, and the positions of all that is remembered."""

    listed: list[tuple[Segment, int]] = field(default_factory=list)
    remembered: dict[str, int] = field(default_factory=dict)

    def remove(self, segment: Segment) -> None:
        self.listed = [row for row in self.listed if row[0] != segment]
        self.remembered.pop(segment.id)


class SeriesInASpace(RuleBasedStateMachine):
    """A series in a space is a list; it forgets what it is told to forget; three series do not see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.space = MemorySpace()
        rows, absorbed = Prefix("queue"), Prefix("absorbed")
        self.series: dict[str, Series[int]] = {
            "a": Series(rows["a"], absorbed["a"], NUMBER),
            "ab": Series(rows["ab"], absorbed["ab"], NUMBER),
            "free": Series(rows["free"], None, NUMBER),
        }
        self.models = {name: Model() for name in self.series}
        self.position = 0

    @rule(where=st.sampled_from(["a", "ab", "free"]), name=NAMES, about=st.integers())
    def adopt(self, where: str, name: str, about: int) -> None:
        self.position += 1
        segment, model = Segment(name, self.position, 3), self.models[where]
        known = name in model.remembered
        assert self.space.write(lambda tx: self.series[where].adopt(tx, segment, about)) is not known
        if not known:
            model.listed.append((segment, about))
            model.remembered[name] = self.position

    @rule(where=st.sampled_from(["a", "ab", "free"]), name=NAMES)
    def adopt_too_late(self, where: str, name: str) -> None:
        model = self.models[where]
        if model.listed and name not in model.remembered:
            newest = model.listed[-1][0]
            with pytest.raises(Conflict) as caught:
                self.space.write(lambda tx: self.series[where].adopt(tx, Segment(name, newest.position), 0))
            assert caught.value.kind == "segment_order"

    @rule(where=st.sampled_from(["a", "ab", "free"]), count=st.integers(1, 3), shift=st.integers(0, 1))
    def retire(self, where: str, count: int, shift: int) -> None:
        model = self.models[where]
        oldest = [segment for segment, _ in model.listed[shift : shift + count]]
        positions = [segment.position for segment in oldest]
        if shift and positions:
            with pytest.raises(Conflict):
                self.space.write(lambda tx: self.series[where].retire(tx, positions))
        elif positions:
            self.space.write(lambda tx: self.series[where].retire(tx, positions))
            del model.listed[: len(positions)]
            if where == "free":
                for segment in oldest:
                    del model.remembered[segment.id]

    @rule(where=st.sampled_from(["a", "ab", "free"]), data=st.data())
    def remove(self, where: str, data: st.DataObject) -> None:
        model = self.models[where]
        if model.listed:
            segment, _ = data.draw(st.sampled_from(model.listed))
            assert self.space.write(lambda tx: self.series[where].remove(tx, segment))
            model.remove(segment)

    @rule(where=st.sampled_from(["a", "ab", "free"]), data=st.data(), about=st.integers())
    def put_back(self, where: str, data: st.DataObject, about: int) -> None:
        """A segment that left comes back in its old place."""
        model = self.models[where]
        listed = {segment.id for segment, _ in model.listed}
        gone = sorted((position, id_) for id_, position in model.remembered.items() if id_ not in listed)
        if gone:
            position, id_ = data.draw(st.sampled_from(gone))
            segment = Segment(id_, position, 4)
            self.space.write(lambda tx: self.series[where].put_back(tx, segment, about))
            model.listed = sorted([*model.listed, (segment, about)], key=lambda row: row[0].position)

    @rule(where=st.sampled_from(["a", "ab", "free"]), back=st.integers(0, 4))
    def forget(self, where: str, back: int) -> None:
        before, model = self.position - back, self.models[where]
        listed = {segment.id for segment, _ in model.listed}
        gone = [id_ for id_, position in model.remembered.items() if position < before and id_ not in listed]
        assert self.space.write(lambda tx: self.series[where].forget(tx, before)) == len(gone)
        for id_ in gone:
            del model.remembered[id_]

    @rule(where=st.sampled_from(["a", "free"]))
    def clear(self, where: str) -> None:
        self.space.write(self.series[where].clear)
        self.models[where] = Model()

    @invariant()
    def agrees(self) -> None:
        names = [*"abcdefgh"]
        with self.space.read() as tx:
            for where, series in self.series.items():
                model = self.models[where]
                assert [(listed.segment, listed.about) for listed in series.listed(tx)] == model.listed
                assert series.members(tx, names) == set(model.remembered)
                assert all(series.knows(tx, name) is (name in model.remembered) for name in names)


TestSeriesInASpace = SeriesInASpace.TestCase


def test_a_row_that_is_none_of_a_series_is_corrupt() -> None:
    space = MemorySpace()
    series = Series(Prefix("q"), Prefix("a"), NUMBER)
    space.write(lambda tx: tx.put(Prefix("q").pack(7), b"[]"))
    with pytest.raises(Corrupt), space.read() as tx:
        list(series.listed(tx))
