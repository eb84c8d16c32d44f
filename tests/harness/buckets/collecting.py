"""Ponds over one bucket in memory that load, fold, drop, collect and purge in between one another's requests, and are
killed.

The files of a load are named by what it brings, and loads bring the same again and again: so a collection meets files
that were garbage, and are about to be needed. After each act, and whenever something is removed:

* every file that a manifest names which the space names is there;
* none is removed that one of those named which the space named a grace time ago, or later; by a purge, none that one
  names now;
* nothing has a row that was loaded once, and purged since, whoever folds and loads in the meantime, or dies.

At the end, when all have ended and two grace times are over, there is nothing else.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millpond.errors import MillpondError
from millpond.kernel.space import ReadTransaction
from millpond.maps.layered import secured
from millpond.maps.layered.history import manifests_named
from millpond.maps.loads import bucket_purges
from millpond.maps.model.beginning import Retention
from millpond.maps.model.catalogue import list_maps
from millpond.maps.model.definition import folder_name
from millpond.maps.model.keyspaces import NAMED
from millpond.maps.snapshots.freeze import files_of
from millpond.maps.snapshots.manifest import load_manifest
from millpond.maps.snapshots.named import named_in
from millpond.stores.bucket_space.space import BucketSpace
from millpond.stores.objects import (
    Level,
    MemoryObjects,
    ObjectInfo,
    ObjectsBelow,
    ObjectStore,
    StoreBelow,
    TaggedObject,
)
from tests.harness.buckets.model_bucket import Killed
from tests.harness.buckets.processes import pond_over

if TYPE_CHECKING:
    from millpond.pond import Pond

__all__ = ("Bucket", "Client", "Collecting", "WorldClock")

GRACE_MS = 60_000
MAPS = ("m", "n")
DEPTH_MAX = 3
RENEW_SECONDS = 5.0
FOLDERS = ("manifests", "indexes", "ranges")


@dataclass
class WorldClock:
    """The time of the world, as a process sees it: time passes with each look, and with each wait."""

    world: Collecting
    skew_ms: int

    def now_ms(self) -> int:
        self.world.seconds += 0.001
        return int(self.world.seconds * 1000) + self.skew_ms

    def monotonic(self) -> float:
        self.world.seconds += 0.001
        return self.world.seconds

    def wait(self, event: threading.Event, due: float | None) -> bool:
        assert due is not None
        self.world.pass_to(due)
        return event.is_set()

    def wait_for(self, condition: threading.Condition, predicate: Callable[[], bool], due: float | None) -> bool:
        assert due is not None
        self.world.pass_to(due)
        return predicate()

    def chance(self) -> float:
        return self.world.random.random()

    def random_id(self) -> str:
        self.world.ids += 1
        return f"{self.world.ids:016x}"


class Bucket(MemoryObjects):
    """Objects that know when they were put last."""

    def __init__(self, world: Collecting) -> None:
        super().__init__()
        self.world, self.put_ms = world, dict[str, int]()

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        super().put(name, data)
        self.put_ms[name] = int(self.world.seconds) * 1000

    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(under, prefix=prefix, after=after):
            yield ObjectInfo(info.name, info.size, self.put_ms.get(info.name, 0))

    def delete(self, *names: str) -> None:
        self.world.check_removed(names)
        super().delete(*names)


class Client(ObjectStore):
    """The bucket as one process sees it; others act before and after what it changes, but not between its last look at
    the lease and the removal that follows: there only time would tell.
    """

    where = "memory://"

    def __init__(self, bucket: Bucket, between: Callable[[], None]) -> None:
        self.bucket, self.calm, self.dead = bucket, False, False
        self._between, self._thread = between, threading.get_ident()

    def _meanwhile(self) -> None:
        if self.dead:
            raise Killed
        if not self.calm and threading.get_ident() == self._thread:
            try:
                self._between()
            except Killed:
                self.dead = True
                raise

    def put(self, name: str, data: bytes | memoryview | pa.Buffer) -> None:
        self._meanwhile()
        self.bucket.put(name, data)
        self._meanwhile()

    def swap(self, name: str, data: bytes | memoryview | pa.Buffer, expected: str | None) -> str:
        self._meanwhile()
        tag = self.bucket.swap(name, data, expected)
        self._meanwhile()
        return tag

    def delete(self, *names: str) -> None:
        if self.dead:
            raise Killed
        self.bucket.delete(*names)
        self._meanwhile()

    def get(self, name: str) -> pa.Buffer:
        return self.bucket.get(name)

    def get_tagged(self, name: str) -> TaggedObject:
        return self.bucket.get_tagged(name)

    def size(self, name: str) -> int:
        return self.bucket.size(name)

    def list(self, under: str = "", *, prefix: str = "", after: str = "") -> Iterator[ObjectInfo]:
        yield from list(self.bucket.list(under, prefix=prefix, after=after))

    def level(self, folder: str = "") -> Level:
        return self.bucket.level(folder)

    def rename(self, name: str, target: str) -> None:
        raise NotImplementedError

    def put_stream(self, name: str, chunks: Iterable[bytes | memoryview]) -> None:
        raise NotImplementedError

    def local_path(self, name: str) -> Path | None:
        return None


@dataclass
class Collecting:
    """One run of a seed, with its copies below a folder."""

    seed: int
    folder: Path
    seconds: float = 1_000_000.0
    ids: int = 0
    kills: int = 0
    removed: int = 0
    refused: list[str] = field(default_factory=list)
    ponds: dict[str, Pond] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    random: random.Random = field(init=False)
    bucket: Bucket = field(init=False)
    purged: list[bytes] = field(default_factory=list)
    purging: int = 0
    once: dict[str, list[str]] = field(default_factory=dict)
    renewals: dict[int, tuple[Client | None, Callable[[], object]]] = field(default_factory=dict)
    _acting: list[str] = field(default_factory=list)
    _seen: dict[tuple[str, str], float] = field(default_factory=dict)
    _auditor: BucketSpace | None = None

    def __post_init__(self) -> None:
        self.random, self.bucket = random.Random(self.seed), Bucket(self)

    def run(self, steps: int) -> Collecting:
        """Let processes act, and check after each act."""
        with pytest.MonkeyPatch.context() as patched:
            for module in (secured, bucket_purges):
                patched.setattr(module, "repeating", self.repeating)
            for name in MAPS:
                self._pond("p0").create_map(name, kind="state", value="long", exist_ok=True)
            for _ in range(steps):
                self._act()
                self.check()
            self._quiet()
        return self

    # -- time -----------------------------------------------------------------------------------------

    def pass_to(self, due: float) -> None:
        """Let time pass, in which those who live renew their marks."""
        while self.seconds < due:
            self.seconds = min(due, self.seconds + RENEW_SECONDS)
            for client, renew in list(self.renewals.values()):
                if client is None or not client.dead:
                    self._renew(client, renew)

    def _renew(self, client: Client | None, renew: Callable[[], object]) -> None:
        calm = client is not None and client.calm
        if client is not None:
            client.calm = True
        with suppress(MillpondError):  # its process is in the middle of a write
            renew()
        if client is not None:
            client.calm = calm

    @contextmanager
    def repeating(self, name: str, act: Callable[[], object], seconds: float, clock: object) -> Iterator[None]:
        """As `kernel.worker.repeating`, without a thread."""
        del name, seconds, clock
        process = self._acting[-1] if self._acting else ""
        self.ids += 1
        number = self.ids
        self.renewals[number] = self.clients.get(process), act
        try:
            yield
        finally:
            del self.renewals[number]

    # -- acts -----------------------------------------------------------------------------------------

    def _act(self) -> None:
        process = self.random.choice([name for name in ("p0", "p1", "p2") if name not in self._acting])
        self._acting.append(process)
        try:
            self._step(process)
        except Killed:
            self.kills += 1
            self.ponds.pop(process, None)
        except MillpondError as error:
            self.refused.append(error.kind)
        finally:
            self._acting.remove(process)

    def _between(self) -> None:
        chance = self.random.random()
        if chance < 0.004:
            raise Killed
        if chance < 0.1 and 0 < len(self._acting) < DEPTH_MAX:
            self._act()
            self.check()

    def _pond(self, process: str) -> Pond:
        if process not in self.ponds:
            self.ids += 1
            clock = WorldClock(self, self.random.randrange(-100_000, 100_000))
            client = Client(self.bucket, self._between)
            client.calm = True
            self.clients[process] = client
            folder = self.folder / process / f"{self.ids}"
            self.ponds[process] = pond_over(client, folder, clock, Retention.of(None, 20_000))
            client.calm = False
        return self.ponds[process]

    def _step(self, process: str) -> None:
        pond, chance = self._pond(process), self.random.random()
        name = self.random.choice(MAPS)
        if chance < 0.1:
            self.pass_to(self.seconds + self.random.randrange(1, 100))
        elif chance < 0.35:
            pond.collect_garbage(grace=GRACE_MS)
        elif chance < 0.4:
            self.ponds.pop(process)
        elif chance < 0.42:
            pond.drop_map(name)
        elif chance < 0.48:
            self._purge(pond, name)
        elif chance < 0.55:
            pond.map(name).compact()
        else:
            opened = pond.create_map(name, kind="state", value="long", exist_ok=True)
            content = self.random.randrange(3)
            rows = [{"key": f"k{number}", "value": content} for number in range(content + 1)]
            self.ids += 1
            once = f"once-{self.ids:08}"
            opened.load([*rows, {"key": once, "value": 1}] if content else rows, again=True)
            self.once.setdefault(folder_name(opened.definition), []).extend([once] if content else [])
            assert opened.get("k0") is not None

    def _purge(self, pond: Pond, name: str) -> None:
        """Purge rows that were loaded once."""
        opened = pond.map(name)
        keys = self.once.get(folder_name(opened.definition), [])
        if not keys:
            return
        key = self.random.choice(keys)
        kills = self.kills
        self.purging += 1
        try:
            report = opened.delete(f"key = '{key}'", now=True)
        finally:
            self.purging -= 1
        if report.purged and kills == self.kills:
            self.purged.append(key.encode())
            self.check()

    # -- what must hold -------------------------------------------------------------------------------

    def _files(self, folder: str) -> ObjectsBelow:
        return ObjectsBelow(self.bucket, f"snapshots/{folder}")

    def _named(self) -> set[tuple[str, str]]:
        """The manifests that the space names, each with its folder."""
        if self._auditor is None:
            self._auditor = BucketSpace(StoreBelow(self.bucket, "space"), WorldClock(self, 0), max_staleness=0)
        with self._auditor.read() as tx:
            return {(folder, id_) for folder, ids in _names(tx).items() for id_ in ids}

    def check(self) -> None:
        """All that is named is there."""
        for folder, id_ in self._named():
            self._seen[folder, id_] = self.seconds
            files = self._files(folder)
            for name in files_of(files, [load_manifest(files, id_)]):
                assert files.exists(name), f"{folder}/{name} is named, and not there"
        for name in [info.name for info in self.bucket.list("snapshots")] if self.purged else ():
            data = self.bucket.get(name).to_pybytes()
            assert not [key for key in self.purged if key in data], f"{name} has a row that was purged"

    def check_removed(self, names: Iterable[str]) -> None:
        """Nothing goes that somebody may read."""
        gone = {name for name in names if name.startswith("snapshots/")}
        if not gone:
            return
        self.removed += len(gone)
        named = self._named()
        if self.purging:
            folders = {name.split("/")[1] for name in gone}
            self._seen = {key: at for key, at in self._seen.items() if key in named or key[0] not in folders}
        named |= {key for key, at in self._seen.items() if at > self.seconds - GRACE_MS / 1000}
        for folder, id_ in named:
            files = self._files(folder)
            held = {f"snapshots/{folder}/{name}" for name in files_of(files, [load_manifest(files, id_)])}
            assert not held & gone, f"removed, and named: {held & gone}"

    def _quiet(self) -> None:
        """Nobody writes: what nothing needs goes."""
        self.ponds.clear()
        pond = self._pond("calm")
        pond.location.objects.calm = True  # type: ignore[attr-defined]
        for _ in range(3):
            self.seconds += 2 * GRACE_MS / 1000
            with suppress(MillpondError):
                pond.collect_garbage(grace=GRACE_MS)
        self.check()
        needed = {
            f"snapshots/{folder}/{name}"
            for folder, id_ in self._named()
            for name in files_of(self._files(folder), [load_manifest(self._files(folder), id_)])
        }
        left = {info.name for info in self.bucket.list("snapshots")}
        assert left == needed, f"not needed, and there: {sorted(left - needed)}"


def _names(tx: ReadTransaction) -> dict[str, set[str]]:
    named = {folder_name(definition): set(manifests_named(tx, definition)) for definition in list_maps(tx)}
    for key in tx.keys(NAMED.range()):
        folder = str(NAMED.unpack(key)[0])
        named.setdefault(folder, set()).update(named_in(tx, folder))
    return named
