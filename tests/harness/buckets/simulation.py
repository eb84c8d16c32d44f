"""Processes that write to one space over a model bucket, act in between one another's requests, and are killed.

Each write brings a token of its own and counts all of them. After each step the log itself is read:

* numbers are dense, each batch follows the one before, and no number ever changed its batch;
* a token is there at most once, one whose write was acknowledged exactly once, and one whose write raised something
  other than `Uncertain` never;
* the count is that of the tokens; the order that a process had acknowledged is the order of the log.

At the end a process that opens the space anew has the rows that all batches make.
"""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from millpond.errors import Unavailable, Uncertain
from millpond.kernel.keys import EVERYTHING, KeyRange
from millpond.kernel.space import ReadTransaction, Transaction
from millpond.stores.bucket_space.batch_log import batch_name
from millpond.stores.bucket_space.forms import NO_CHAIN, Trimmed, decode_batch
from millpond.stores.bucket_space.space import BucketSpace
from tests.harness.buckets.model_bucket import WHERE, BucketClient, Killed, ModelBucket

__all__ = ("SimulatedClock", "Simulation")

TOKEN, TOTAL = b"token ", b"total"
TOKENS = KeyRange(TOKEN, b"token!")
DEPTH_MAX = 3
CHECKPOINT_BATCHES = 5
FOLLOWER_MS = 3_000


@dataclass
class SimulatedClock:
    """Time that passes with each look, and with each wait."""

    random: random.Random
    name: str
    skew_ms: int
    seconds: float = 1.0
    ids: int = 0

    def now_ms(self) -> int:
        self.seconds += 0.001
        return int(self.seconds * 1000) + self.skew_ms

    def monotonic(self) -> float:
        self.seconds += 0.001
        return self.seconds

    def wait(self, event: threading.Event, due: float | None) -> bool:
        assert due is not None
        self.seconds = max(self.seconds, due)
        return event.is_set()

    def wait_for(self, condition: threading.Condition, predicate: Callable[[], bool], due: float | None) -> bool:
        raise NotImplementedError

    def chance(self) -> float:
        return self.random.random()

    def random_id(self) -> str:
        self.ids += 1
        return f"{struct.unpack('>I', self.name.encode())[0]:08x}{self.ids:08x}"


@dataclass
class Simulation:
    """One run of a seed."""

    seed: int
    bucket: ModelBucket = field(init=False)
    random: random.Random = field(init=False)
    spaces: dict[str, BucketSpace] = field(default_factory=dict)
    acknowledged: dict[str, list[str]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    trace: list[str] = field(default_factory=list)
    kills: int = 0
    _acting: list[str] = field(default_factory=list)
    _tokens: int = 0
    _opened: int = 0

    def __post_init__(self) -> None:
        self.bucket, self.random = ModelBucket(self.seed), random.Random(self.seed)

    def run(self, steps: int) -> Simulation:
        """Let processes act, and check after each act."""
        for _ in range(steps):
            self._act()
            self.check()
        self.bucket.land()
        self.check(final=True)
        return self

    def _act(self) -> None:
        free = [name for name in ("p0", "p1", "p2") if name not in self._acting]
        process = self.random.choice(free)
        self._acting.append(process)
        try:
            self._step(process)
        except Killed:
            self.kills += 1
            self.spaces.pop(process, None)
            self.trace.append(f"{process} killed")
        finally:
            self._acting.remove(process)

    def _between(self) -> None:
        """Something that happens while a request is under way."""
        chance = self.random.random()
        if chance < 0.02:
            raise Killed
        if chance < 0.03 and self._acting == self._acting[-1:]:
            self.bucket.down = self.random.randrange(2, 150)
        if chance < 0.25 and len(self._acting) < DEPTH_MAX:
            self._act()

    def _space(self, process: str) -> BucketSpace:
        space = self.spaces.get(process)
        if space is None:
            self._opened += 1
            clock = SimulatedClock(self.random, f"{self._opened:04d}", self.random.randrange(-5000, 5000))
            client = BucketClient(self.bucket, f"{process} {self._opened}", self._between)
            space = self.spaces[process] = BucketSpace(
                client, clock, max_staleness=self.random.choice([0, 1.0]), checkpoint_batches=CHECKPOINT_BATCHES,
                follower_ms=FOLLOWER_MS,
            )  # fmt: skip
        return space

    def _step(self, process: str) -> None:
        try:
            space = self._space(process)
            chance = self.random.random()
            if chance < 0.05:
                self.spaces.pop(process).close()
                return
            if chance < 0.2:
                with space.read() as tx:
                    self._check_rows(tx)
                return
        except Unavailable:
            return
        self._tokens += 1
        token = f"{process}-{self._tokens}"
        self.unknown.add(token)  # until more is known: the process may be killed
        try:
            place = space.write(lambda tx: self._add(tx, token))
        except Uncertain:
            self.trace.append(f"{token} uncertain")
            return
        except Unavailable:
            self.unknown.discard(token)
            self.refused.add(token)
            self.trace.append(f"{token} refused")
            return
        self.unknown.discard(token)
        self.acknowledged.setdefault(process, []).append(token)
        self.trace.append(f"{token} is {place}")

    @staticmethod
    def _add(tx: Transaction, token: str) -> int:
        count = int(tx.get(TOTAL) or b"0") + 1
        assert tx.get(TOKEN + token.encode()) is None, "a write is not made twice"
        tx.put(TOTAL, b"%d" % count)
        tx.put(TOKEN + token.encode(), b"%d" % count + bytes(40_000 if count % 7 == 0 else 0))
        return count

    @staticmethod
    def _check_rows(tx: ReadTransaction) -> None:
        rows = [int(value.rstrip(b"\0")) for _, value in tx.scan(TOKENS)]
        assert sorted(rows) == list(range(1, len(rows) + 1))
        assert int(tx.get(TOTAL) or b"0") == len(rows)

    # -- the log itself -------------------------------------------------------------------------------

    def check(self, *, final: bool = False) -> None:
        """The invariants, from the objects."""
        rows, order = self._replayed()
        assert len(order) == len(set(order)), "a token is there twice"
        there = set(order)
        for tokens in self.acknowledged.values():
            lost = [token for token in tokens if token not in there]
            assert not lost, f"acknowledged, and not there: {lost}"
            places = [order.index(token) for token in tokens]
            assert places == sorted(places), "a process's writes are in another order"
        assert not there & self.refused, "refused, and there"
        assert there <= self.unknown | {token for tokens in self.acknowledged.values() for token in tokens}
        if final:
            calm = BucketClient(self.bucket, "calm", lambda: None)
            calm.calm = True
            with BucketSpace(calm, SimulatedClock(self.random, "calm", 0)).read() as tx:
                assert dict(tx.scan(EVERYTHING)) == rows

    def _replayed(self) -> tuple[dict[bytes, bytes], list[str]]:
        rows: dict[bytes, bytes] = {}
        order: list[str] = []
        number, chain = 1, NO_CHAIN
        while (name := batch_name(number)) in self.bucket.objects:
            first = decode_batch(number, self.bucket.first[name], name, WHERE)
            now = decode_batch(number, self.bucket.objects[name], name, WHERE)
            assert not isinstance(first, Trimmed)
            assert isinstance(now, Trimmed) or now == first, "a number changed its batch"
            batch, chain_after = first
            assert batch.before == chain
            for key, value in batch.changes:
                if value is None:
                    rows.pop(key, None)
                else:
                    rows[key] = value
                    order += [key.removeprefix(TOKEN).decode()] if key != TOTAL else []
            number, chain = number + 1, chain_after
        logged = [name for name in self.bucket.objects if name.startswith("log/")]
        assert len(logged) == number - 1, "numbers are dense"
        return rows, order
