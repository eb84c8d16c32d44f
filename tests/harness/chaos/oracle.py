"""The judgement of a campaign: what was acknowledged must be seen, whole, and never in an older form.

A load is **required** from the moment on at which its visibility was acknowledged: its client waited until every node
had merged it, or a later entry of its map was so acknowledged. What a reader saw is held against the loads that were
required when the reader began to ask. A load that ended in an error may be there or not, but whole.

Invariants of what is seen, each with the word under which a breach is reported:
* `lost`     a required load is there;
* `half`     a load is there with all of its own rows, or with none;
* `doubled`  no address is there twice;
* `strange`  every row is one of a load that was begun, with its value;
* `old`      a mark is the number of the last required load, of a later one, or of one that ended in an error;
* `error`    nodes that do not know answer that they are unavailable, never anything else.

`surprises` are no breach, but worth a look: loads that are there although every error said that nothing was done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.harness.chaos.batches import LoadId
from tests.harness.frame.findings import Findings

__all__ = ("Floor", "Oracle", "Sight")


@dataclass(frozen=True, slots=True)
class Sight:
    """The content of one answer about a map, or about some of its loads (`scope`; None: all).

    `whole`: loads of which every own row was there; `half`: of which only some. `marks`: by writer, the number that
    was seen, or None for no row. `doubled` and `strange`: rows, in words.
    """

    map: str
    scope: frozenset[LoadId] | None = None
    whole: frozenset[LoadId] = frozenset()
    half: frozenset[LoadId] = frozenset()
    marks: Mapping[int, int | None] = field(default_factory=dict)
    doubled: tuple[str, ...] = ()
    strange: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Floor:
    """The loads of a map that were required when a reader began, and the last of them by writer."""

    required: frozenset[LoadId]
    last: Mapping[int, int]


class Oracle(Findings):
    """The knowledge of every load, and every wrong answer. Threads may share it.

    Memory grows by a few bytes for each load of the campaign.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun: set[LoadId] = set()
        self.acknowledged: set[LoadId] = set()
        self.failed: set[LoadId] = set()
        self.denied: set[LoadId] = set()
        self.surprises: set[LoadId] = set()
        self.sights = 0
        self._required: defaultdict[str, set[LoadId]] = defaultdict(set)
        self._last: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._pending: defaultdict[str, dict[LoadId, int]] = defaultdict(dict)
        self._merged: Counter[str] = Counter()

    def begin(self, load: LoadId) -> None:
        """Note a load that a client is about to send."""
        with self._lock:
            self.begun.add(load)

    def acknowledge(self, load: LoadId, position: int, *, synchronised: bool) -> None:
        """Note a load that succeeded, at a position of the log, 0 when that is not known."""
        with self._lock:
            self.acknowledged.add(load)
            self.failed.discard(load)
            self._pending[load.map][load] = position
            if synchronised:
                self._require(load)
                self._merged[load.map] = max(self._merged[load.map], position)
            merged = self._merged[load.map]
            for other, entered in list(self._pending[load.map].items()):
                if 0 < entered <= merged:
                    self._require(other)

    def fail(self, load: LoadId, *, denied: bool = False) -> None:
        """Note a load that ended in an error, and is not repeated; `denied`: each error said that nothing was done."""
        with self._lock:
            self.failed.add(load)
            if denied:
                self.denied.add(load)

    def loads(self) -> list[LoadId]:
        """The loads that were begun."""
        with self._lock:
            return list(self.begun)

    def require_acknowledged(self) -> None:
        """Require whatever was acknowledged: all nodes have merged all they have."""
        with self._lock:
            for load in self.acknowledged:
                self._require(load)

    def _require(self, load: LoadId) -> None:
        self._pending[load.map].pop(load, None)
        self._required[load.map].add(load)
        last = self._last[load.map]
        last[load.writer] = max(last.get(load.writer, 0), load.number)

    def floor(self, name: str, load: LoadId | None = None) -> Floor:
        """The state that an answer must at least have, from now on, about a map or about one load of it."""
        with self._lock:
            required = self._required[name]
            chosen = required if load is None else required & {load}
            return Floor(frozenset(chosen), dict(self._last[name]))

    def judge(self, floor: Floor, sight: Sight, reader: str) -> list[str]:
        """Hold what a reader saw against what was required when it began; the wrong of it is also retained."""
        with self._lock:
            scope = floor.required if sight.scope is None else floor.required & sight.scope
            found = [f"lost: {load} was acknowledged" for load in sorted(scope - sight.whole - sight.half)]
            found += [f"half: {load} is there with some of its rows" for load in sorted(sight.half)]
            found += [f"doubled: {row}" for row in sight.doubled]
            found += [f"strange: {row}" for row in sight.strange]
            found += [f"strange: {load} was never begun" for load in sorted(sight.whole - self.begun)]
            for writer, mark in sorted(sight.marks.items()):
                found += self._judge_mark(floor.last.get(writer, 0), sight.map, writer, mark)
            self.surprises |= sight.whole & self.denied
            self.sights += 1
            for problem in found:
                self.report(f"{problem}; map {sight.map}, read by {reader}")
        return found

    def _judge_mark(self, last: int, name: str, writer: int, mark: int | None) -> list[str]:
        if mark is None:
            return [f"lost: no mark of writer {writer}, {last} was acknowledged"] if last else []
        seen = LoadId(name, writer, mark)
        if seen not in self.begun:
            return [f"strange: the mark of {seen}, which was never begun"]
        if mark < last and seen not in self.failed:
            return [f"old: the mark of {seen}, {last} was acknowledged"]
        return []
