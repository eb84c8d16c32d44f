"""Writers and readers of a campaign: each is a thread with clients of its own, and a generator of its own seed.

| actor | clients | does |
|---|---|---|
| writer | all nodes; one waits until loads are merged everywhere | small loads; one that failed is mostly repeated |
| reader | all nodes in random orders, or one of them | lookups of a load's rows, marks, scans, for the oracle |

Unavailability is counted. Any other error is a wrong answer: a node that does not know says that it is unavailable.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millpond.client.pond import RemotePond, open_nodes
from millpond.errors import MillpondError, Unavailable, Uncertain
from millpond.maps.model.columns import INSTANT
from tests.harness.chaos.batches import MAPS, LoadId, batch_of, mark_question
from tests.harness.chaos.oracle import Sight
from tests.harness.chaos.sights import sight_of_answers, sight_of_rows
from tests.harness.rows import presented_rows, table_of

if TYPE_CHECKING:
    from millpond.clock import Clock
    from millpond.maps.model.definition import MapDefinition
    from tests.harness.chaos.oracle import Oracle
    from tests.harness.frame.history import History
    from tests.harness.models import Row

__all__ = ("Reader", "Site", "Writer")

TRIES_MAX = 5
REPEAT_CHANCE = 0.8
SYNCHRONISED_CHANCE = 0.4
QUESTIONS_PER_CLIENT = 25
RECENT = 12
UPLOAD_LOST = "part_not_uploaded"
"""The kind of the error when a disk is taken after a part came, and before the load is entered."""


@dataclass(frozen=True)
class Site:
    """The world of the actors: nodes, maps, and those who take notes."""

    seed: int
    urls: Sequence[str]
    definitions: dict[str, MapDefinition]
    oracle: Oracle
    history: History
    counts: Counter[str]
    clock: Clock
    stop: threading.Event
    client: dict[str, Any]

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than the campaign."""
        self.clock.wait(self.stop, self.clock.monotonic() + seconds)

    def wrong(self, error: BaseException, act: str) -> None:
        """Note an error that no fault explains."""
        self.oracle.report(f"error: {type(error).__name__} of {act}: {error}")


class Writer:
    """One writer: its loads have numbers from 1 on in every map."""

    def __init__(self, site: Site, number: int) -> None:
        self.site, self.number = site, number
        self._chance = random.Random(f"writer {site.seed} {number}")
        self._numbers: Counter[str] = Counter()

    def run(self) -> None:
        """Load until the campaign stops."""
        site = self.site
        urls = ",".join(site.urls)
        try:
            with (
                open_nodes(urls, **site.client, client_synchronise=True) as synchronising,
                open_nodes(urls, **site.client) as quick,
            ):
                while not site.stop.is_set():
                    self._load(synchronising if self._chance.random() < SYNCHRONISED_CHANCE else quick)
                    site.pause(self._chance.uniform(0.05, 0.5))
        except Exception as error:
            site.wrong(error, f"writer {self.number}")

    def _load(self, pond: RemotePond) -> None:
        name = self._chance.choice(sorted(MAPS))
        self._numbers[name] += 1
        load = LoadId(name, self.number, self._numbers[name])
        rows = batch_of(self.site.seed, load).rows
        tries = 1
        while tries < TRIES_MAX and self._chance.random() < REPEAT_CHANCE:
            tries += 1
        self.site.oracle.begin(load)
        self.site.history.add("begin", load=str(load))
        surely_not = True
        for attempt in range(tries):
            outcome = self._try(pond, load, rows)
            if outcome == "acknowledged":
                return
            surely_not = surely_not and outcome == "denied"
            if attempt + 1 < tries:
                self.site.pause(0.5)
            if self.site.stop.is_set():
                break
        self.site.oracle.fail(load, denied=surely_not)
        self.site.counts["loads given up"] += 1

    def _try(self, pond: RemotePond, load: LoadId, rows: Sequence[Row]) -> str:
        """Send a load once: `acknowledged`, `denied` (the error says that nothing was done), or `uncertain`."""
        site = self.site
        try:
            result = pond.map(load.map).load(table_of(site.definitions[load.map], rows))
        except MillpondError as error:
            site.counts["load attempts that failed"] += 1
            site.history.add("failed", load=str(load), kind=error.kind, error=str(error))
            if not isinstance(error, Unavailable) and error.kind != UPLOAD_LOST:
                site.wrong(error, f"load {load}")
            return "uncertain" if isinstance(error, Uncertain) or error.kind == "load_behind" else "denied"
        site.oracle.acknowledge(load, result.position, synchronised=result.synchronised)
        site.counts["loads acknowledged"] += 1
        site.counts["synchronised"] += result.synchronised
        site.history.add(
            "acknowledged", load=str(load), position=result.position, synchronised=result.synchronised,
            duplicates=result.duplicate_parts,
        )  # fmt: skip
        return "acknowledged"


class Reader:
    """One reader; a client lives for some questions, then another one is opened."""

    def __init__(self, site: Site, number: int) -> None:
        self.site, self.number = site, number
        self._chance = random.Random(f"reader {site.seed} {number}")

    def run(self) -> None:
        """Ask until the campaign stops."""
        try:
            while not self.site.stop.is_set():
                self._ask_as_one_client()
        except Exception as error:
            self.site.wrong(error, f"reader {self.number}")

    def _ask_as_one_client(self) -> None:
        site = self.site
        urls = list(site.urls)
        self._chance.shuffle(urls)
        if self._chance.random() < 0.5:
            del urls[1:]
        reader = f"reader {self.number} of {','.join(str(site.urls.index(url)) for url in urls)}"
        try:
            with open_nodes(",".join(urls), **site.client) as pond:
                for _ in range(QUESTIONS_PER_CLIENT):
                    if site.stop.is_set():
                        return
                    self._ask(pond, reader)
                    site.pause(self._chance.uniform(0.01, 0.15))
        except Unavailable:
            site.counts["reads unanswered"] += 1
            site.pause(0.2)

    def _ask(self, pond: RemotePond, reader: str) -> None:
        name = self._chance.choice(sorted(MAPS))
        acts = (self._lookup, self._lookup, self._lookup, self._mark, self._mark, self._scan)
        act = self._chance.choice(acts)
        try:
            problems = act(pond, name, reader)
        except Unavailable:
            self.site.counts["reads unanswered"] += 1
            return
        except MillpondError as error:
            problems = [f"error: {type(error).__name__} {error.kind} of {name}, read by {reader}: {error}"]
            self.site.oracle.report(problems[0])
        self.site.counts["reads checked"] += 1
        for problem in problems:
            self.site.history.add("wrong", problem=problem, reader=reader, act=act.__name__, map=name)

    def _lookup(self, pond: RemotePond, name: str, reader: str) -> list[str]:
        """All own rows of one load, often a recent one."""
        begun = sorted(load for load in self.site.oracle.loads() if load.map == name)
        if not begun:
            return []
        load = self._chance.choice(begun)
        if self._chance.random() < 0.6:
            load = self._chance.choice([other for other in begun if other.writer == load.writer][-RECENT:])
        batch = batch_of(self.site.seed, load)
        floor = self.site.oracle.floor(name, load)
        kind = MAPS[name]
        keys = pa.array([key for key, _ in batch.questions], pa.string() if kind.keyed else pa.int64())
        times = pa.array([at for _, at in batch.questions], pa.int64()).cast(INSTANT) if kind.timed else None
        answers = pond.map(name).lookup(keys, times).to_pylist()
        return self.site.oracle.judge(floor, sight_of_answers(batch, answers), reader)

    def _mark(self, pond: RemotePond, name: str, reader: str) -> list[str]:
        """The number of a writer's last load."""
        if not MAPS[name].valued:
            return self._lookup(pond, name, reader)
        writer = self._chance.choice(sorted({load.writer for load in self.site.oracle.loads()}) or [0])
        key, at = mark_question(name, writer)
        floor = self.site.oracle.floor(name)
        found = pond.map(name).get(key, at=at if MAPS[name].timed else None)
        return self.site.oracle.judge(floor, Sight(name, frozenset(), marks={writer: found}), reader)

    def _scan(self, pond: RemotePond, name: str, reader: str) -> list[str]:
        """Every row of the map."""
        definition = self.site.definitions[name]
        floor = self.site.oracle.floor(name)
        with pond.map(name).scan() as stream:
            rows = presented_rows(definition, stream.read_all())
        batches = [batch_of(self.site.seed, load) for load in self.site.oracle.loads() if load.map == name]
        return self.site.oracle.judge(floor, sight_of_rows(definition, batches, rows), reader)
