"""Manifests and series against a list and a set."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millpond.errors import Conflict, Corrupt, Fenced, Invalid
from millpond.json_forms import JsonForm
from millpond.kernel.keys import Prefix
from millpond.kernel.segments import Manifest, Segment
from millpond.kernel.series import Series
from millpond.stores.memory import MemorySpace

pytestmark = pytest.mark.usefixtures("processor")

NAMES = st.sampled_from("abcdefgh")
NUMBER = JsonForm(int)


class Manifests(RuleBasedStateMachine):
    """A manifest does what a list of ids, newest first, and a set of gone ones do."""

    def __init__(self) -> None:
        super().__init__()
        self.manifest = Manifest()
        self.ids: list[str] = []
        self.gone: set[str] = set()
        self.open = False
        self.position = 0
        self.fresh = itertools.count()

    def next_position(self) -> int:
        self.position += 1
        return self.position

    @rule(name=NAMES)
    def adopt(self, name: str) -> None:
        segment = Segment(name, self.next_position(), 5)
        if name in self.ids or name in self.gone:
            assert self.manifest.adopt(segment) == self.manifest
        elif self.open:
            with pytest.raises(Conflict):
                self.manifest.adopt(segment)
        else:
            self.manifest = self.manifest.adopt(segment)
            self.ids.insert(0, name)

    @rule(name=NAMES)
    def open_one(self, name: str) -> None:
        segment = Segment(name, self.next_position(), sealed=False)
        if self.open or name in self.ids or name in self.gone:
            with pytest.raises(Conflict):
                self.manifest.open(segment)
        else:
            self.manifest, self.open = self.manifest.open(segment), True
            self.ids.insert(0, name)

    @rule(entries=st.integers(0, 9))
    def seal(self, entries: int) -> None:
        if not self.open:
            with pytest.raises(Conflict):
                self.manifest.seal(entries)
        else:
            self.manifest, self.open = self.manifest.seal(entries), False
            assert self.manifest.newest is not None
            assert self.manifest.newest.entries == entries

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.ids) - 1))
        stop = data.draw(st.integers(start + 1, len(self.ids)))
        inputs = self.ids[start:stop]
        output = Segment(f"out{next(self.fresh)}", 0, 1)
        if self.open and start == 0:
            with pytest.raises(Conflict):
                self.manifest.compact(inputs, output)
            return
        assert self.manifest.includes_oldest(inputs) == (stop == len(self.ids))
        self.manifest = self.manifest.compact(inputs, output)
        self.ids[start:stop] = [output.id]
        self.gone.update(inputs)

    @rule(inputs=st.lists(NAMES, min_size=1, max_size=3))
    def compact_others(self, inputs: list[str]) -> None:
        """Inputs that are not neighbours in this order change nothing."""
        spans = [self.ids[at : at + len(inputs)] for at in range(len(self.ids))]
        if inputs not in spans:
            with pytest.raises(Fenced):
                self.manifest.compact(inputs, Segment("none", 0))

    @precondition(lambda self: self.ids)
    @rule(count=st.integers(1, 3))
    def retire(self, count: int) -> None:
        inputs = self.ids[-count:]
        if self.open and len(inputs) == len(self.ids):
            with pytest.raises(Conflict):
                self.manifest.retire(inputs)
            return
        self.manifest = self.manifest.retire(inputs)
        del self.ids[-count:]
        self.gone.update(inputs)

    @precondition(lambda self: len(self.ids) > 1)
    @rule()
    def retire_the_newest(self) -> None:
        with pytest.raises(Conflict):
            self.manifest.retire(self.ids[:1])

    @invariant()
    def agrees(self) -> None:
        assert [segment.id for segment in self.manifest.segments] == self.ids
        assert self.manifest.absorbed == self.gone
        assert all(name in self.manifest for name in self.ids)
        assert self.manifest.oldest == (self.manifest.segments[-1] if self.ids else None)


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
                assert series.known(tx, names) == set(model.remembered)
                assert all(series.knows(tx, name) is (name in model.remembered) for name in names)


TestManifests = Manifests.TestCase
TestSeriesInASpace = SeriesInASpace.TestCase


# --- what a manifest refuses to be


@pytest.mark.parametrize(
    "segments",
    [
        (Segment("a", 1), Segment("a", 0)),
        (Segment("a", 1), Segment("b", 1)),
        (Segment("a", 2), Segment("b", 1, sealed=False)),
    ],
    ids=["twice", "same position", "open below"],
)
def test_a_manifest_that_breaks_its_invariants_cannot_be_made(segments: tuple[Segment, ...]) -> None:
    with pytest.raises(AssertionError):
        Manifest(segments)


def test_nothing_cannot_be_replaced() -> None:
    with pytest.raises(Invalid):
        Manifest().adopt(Segment("a", 1)).substitute([], None)


def test_a_row_that_is_none_of_a_series_is_corrupt() -> None:
    space = MemorySpace()
    series = Series(Prefix("q"), Prefix("a"), NUMBER)
    space.write(lambda tx: tx.put(Prefix("q").pack(7), b"[]"))
    with pytest.raises(Corrupt), space.read() as tx:
        list(series.listed(tx))
