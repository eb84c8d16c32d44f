"""Kills a process at each step of each act on a stream, and looks at what it left: `… FOLDER lmdb`, or `bucket`.

A program of its own: it forks for each act, so that what is killed has been started already.
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from millpond.clock import ManualClock, SystemClock
from millpond.events.days import DAY_MS
from millpond.events.embedded import expire
from millpond.events.embedded.check import check_streams
from millpond.events.embedded.garbage import collect_objects
from millpond.events.embedded.large_rows import LargeRows, object_of
from millpond.events.embedded.rows import keys_of
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch, NewEvent
from millpond.events.index import State
from millpond.events.protocol import StreamStore, Work
from millpond.kernel.space import Space
from millpond.stores.bucket_space.space import BucketSpace
from millpond.stores.lmdb.space import LmdbSpace
from millpond.stores.objects import StoreBelow, open_objects
from millpond.testing.faults import occurrences
from tests.crash.stream_acts import LATER, STREAM, compress, delete, delivered, drop, erase
from tests.crash.versions_killed import forked, killed_at, logged
from tests.harness.contracts.stream_site import NOON, RULES, TODAY, everything
from tests.rings.sampling import drawn

DAYS = [NOON + day * DAY_MS for day in range(3)]
Events: TypeAlias = list[tuple[int, bytes]]

expire.ROWS_PER_WRITE = 2


def prepare(store: StreamStore, clock: ManualClock) -> None:
    """Three days: two closed, one open; twenty events in each."""
    for day in range(3):
        clock.now = NOON + day * DAY_MS
        store.append([delivered(1 + 20 * day, 20, clock.now)])
    clock.now = LATER


def append(store: StreamStore) -> None:
    """Events that were stored, late ones, and ones that begin a day."""
    store.append([delivered(59, 4, NOON), delivered(63, 2, LATER)])


ACTS: dict[str, Callable[[StreamStore], None]] = {
    "append": append, "compress": compress, "expire": drop, "delete": delete, "erase": erase,
}  # fmt: skip


def fold(store: StreamStore) -> None:
    """Small events, until the rows of the open day are folded."""
    for position in range(61, 70):
        events = [NewEvent(LATER, b"%d" % position + bytes(30_000))]
        store.append([EventBatch(STREAM, events, "kafka:jobs/0", [position])])


class Passing(ManualClock):
    """A clock whose time passes while somebody waits: for the end of the term of one who was killed."""

    def wait(self, event: threading.Event, due: float | None) -> bool:
        """Wait no longer than it takes to move the clock."""
        assert due is not None
        self.advance(int(1000 * (due - self.monotonic())) + 1)
        return event.is_set()


def collect(store: StreamStore) -> None:
    """Compress, and remove what the rows named before."""
    compress(store)
    assert isinstance(store, EmbeddedStore) and isinstance(store.space, LargeRows)
    for days in (0, 2, 4):
        clock = Passing(now=LATER + days * DAY_MS)
        collect_objects(store.space, clock, clock.now_ms, grace_ms=DAY_MS, dry_run=False)
    with store.space.rows.read() as tx:
        named = {object_of(row) for _, row in tx.scan(keys_of(STREAM).batches.range())}
    assert {info.name for info in store.space.objects.list()} == named - {None}


def in_lmdb(folder: Path, _clock: ManualClock) -> Space:
    return LmdbSpace(folder / "space", durable=False)


def in_bucket(folder: Path, clock: ManualClock) -> Space:
    clock.ids = int(SystemClock().random_id(), 16) >> 8  # two processes draw other ids
    objects = open_objects(folder / "bucket")
    space = BucketSpace(StoreBelow(objects, "space"), clock, max_staleness=0)
    return LargeRows(space, StoreBelow(objects, "events"), clock)


DRIVERS = {"lmdb": in_lmdb, "bucket": in_bucket}
MOMENTS = {"lmdb": 2, "bucket": 1}
OF_BUCKETS = {"fold": fold, "collect": collect}


def open_space(folder: Path, clock: ManualClock) -> Space:
    """The space in a folder, of the driver that the command names."""
    return DRIVERS[sys.argv[2]](folder, clock)


def opened(folder: Path, act: Callable[[StreamStore, ManualClock], None]) -> None:
    """Do something with the store in a folder."""
    clock = ManualClock(now=LATER)
    space = open_space(folder, clock)
    act(EmbeddedStore(space, clock, RULES), clock)
    space.close()


def events_of(store: StreamStore) -> Events:
    return [(event.number, event.payload) for event in everything(store, STREAM)]


def look(folder: Path) -> Events:
    found: list[Events] = []
    opened(folder, lambda store, _: found.append(events_of(store)))
    return found[0]


def check(folder: Path, act: str, before: Events, after: Events) -> None:
    """Look at what a killed process left: it is readable, and the act ends when it is done again."""
    clock = ManualClock(now=LATER)
    space = open_space(folder, clock)
    store = EmbeddedStore(space, clock, RULES)
    found = events_of(store)
    assert check_streams(space).ok
    if act == "erase":
        days = [[event for event in some if event[0] >> 20 == day] for some in (found, before, after) for day in DAYS]
        assert all(one in (days[place + 3], days[place + 6]) for place, one in enumerate(days[:3])), "half a day"
    elif act == "expire":
        assert found == before[len(before) - len(found) :] and len(found) >= len(after)
    elif act == "fold":
        assert found == after[: len(found)] and len(found) >= len(before)
    else:
        assert found in (before, after)
    ACTS[act](store)
    assert events_of(store) == after
    index = store.index(STREAM)
    assert index is not None
    states = [state for _, state in index.days()]
    if act in ("compress", "collect", "erase"):
        assert states == [State.COMPRESSED] * 3
    with space.read() as tx:
        stored = list(tx.keys(keys_of(STREAM).batches.range()))
    rows_max = {"append": 65, "compress": 48, "expire": 20, "delete": 0, "erase": 48, "fold": 65, "collect": 48}[act]
    assert len(stored) <= rows_max, "no row is left over"
    due = {"append": TODAY, "expire": TODAY + 2, "fold": TODAY}.get(act)
    assert [entry.day for entry in store.due(Work.COMPRESS, TODAY + 99, limit=9)] == ([due] if due else [])
    store.append([delivered(71, 1, LATER)])
    assert len(events_of(store)) == len(after) + 1
    assert check_streams(space).ok
    space.close()


def run(folder: Path, act: str) -> int:
    """Kill at each step of an act; how many steps."""
    prepared, whole, steps = folder / "prepared", folder / f"{act}.whole", folder / f"{act}.steps"
    shutil.copytree(prepared, whole)
    steps.touch()
    assert forked(lambda: logged(steps, lambda: opened(whole, lambda store, _: ACTS[act](store)))) == 0
    before, after = look(prepared), look(whole)
    moments = drawn(occurrences(steps), MOMENTS[sys.argv[2]], name=" ".join((act, sys.argv[2])))
    for moment in moments:
        left = folder / f"{act} {moment}"
        shutil.copytree(prepared, left)

        def die(left: Path = left, moment: str = moment) -> None:
            killed_at(moment, lambda: opened(left, lambda store, _: ACTS[act](store)))

        assert forked(die) == -signal.SIGKILL, (act, moment)
        assert forked(lambda left=left: check(left, act, before, after)) == 0, (act, moment)  # type: ignore[misc]
        shutil.rmtree(left)
    return len(moments)


def main() -> None:
    folder = Path(sys.argv[1])
    assert forked(lambda: opened(folder / "prepared", prepare)) == 0
    ACTS.update(OF_BUCKETS if sys.argv[2] == "bucket" else {})
    for act in sys.argv[3:] or ACTS:
        print(act, run(folder, act), flush=True)


if __name__ == "__main__":
    main()
