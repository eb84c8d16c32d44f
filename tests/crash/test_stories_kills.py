"""A process killed while it tells of runs: each event is in its stream once, and none is missing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("littlehorse")

from millpond.clock import ManualClock
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.names import StreamName
from millpond.server.workflows.event_publisher import teller_of
from millpond.stores.lmdb.space import LmdbSpace
from millpond.testing.faults import KILL_AT
from millpond.workflows.keyspaces import STORY
from millpond.workflows.processor import Partition
from millpond.workflows.store import initialize
from millpond.workflows.stories import stories_after
from tests.rings.forked import run_python

PROGRAM = Path(__file__).parent / "stories_killed.py"
STEPS = ("workflows.batch_uncommitted", "workflows.batch_committed", "events.appended", "workflows.told")
MS = 1_700_000_000_000
Fact = tuple[str, str, tuple[tuple[str, str], ...]]


def run(folder: Path, **environment: str) -> int:
    return run_python(str(PROGRAM), str(folder), **environment).returncode


def expected(space: LmdbSpace, folder: Path) -> list[Fact]:
    """The facts of the command log, applied once more."""
    fresh = LmdbSpace(folder, durable=False)
    born = fresh.write(lambda tx: initialize(tx, MS))
    with space.read() as tx:
        partition = Partition(born, stories=True)
        for record in partition.log.records(tx):
            fresh.write(lambda to, record=record: partition.apply(to, [record.entry], record.stamp_ms))
    with fresh.read() as tx:
        stories = stories_after(tx, (0, 0), 10_000)
    fresh.close()
    return [(fact.run, fact.kind, tuple(sorted(fact.headers.items()))) for story in stories for fact in story.facts]


def found_in(store: EmbeddedStore) -> list[Fact]:
    found: list[Fact] = []
    for stream in store.streams("acme", limit=1_000):
        page = store.read(StreamName(*stream))
        found += [(stream.job_set, event.kind, tuple(sorted(event.headers.items()))) for event in page.events]
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", STEPS)
def test_what_was_told_when_the_process_died_is_there_once(tmp_path: Path, name: str) -> None:
    for at in (2, 6):
        folder = tmp_path / f"killed-{at}"
        assert run(folder, **{KILL_AT: f"{name}:{at}"}) == -signal.SIGKILL
        space, clock = LmdbSpace(folder), ManualClock(MS)
        store = EmbeddedStore(space, clock)
        teller = teller_of(space, clock, store.append)
        while teller.turn():
            pass
        wanted = expected(space, tmp_path / f"again-{at}")
        assert sorted(found_in(store)) == sorted(wanted)
        for run_id in {run_id for run_id, _, _ in wanted}:  # and each run's in their order
            assert [fact for fact in found_in(store) if fact[0] == run_id] == [
                fact for fact in wanted if fact[0] == run_id
            ]
        with space.read() as tx:
            assert next(tx.keys(STORY.range()), None) is None
        space.close()
