"""Stories of a partition that follows a log: what is dropped of them is an entry of that log."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("littlehorse")

from littlehorse.model import PutTaskDefRequest, RunWfRequest

from millpond.clock import ManualClock, SystemClock
from millpond.errors import Unavailable
from millpond.events.event import EventBatch
from millpond.kernel.keys import EVERYTHING, Prefix
from millpond.server.workflows import event_publisher
from millpond.server.workflows.event_publisher import teller_of
from millpond.server.workflows.outbox import Tally
from millpond.stores.memory import MemorySpace
from millpond.workflows.engine import Request
from millpond.workflows.keyspaces import INITIALIZED, STORY
from millpond.workflows.partitions import Follower
from millpond.workflows.partitions.entries import StoryEntry, decode_entry, encode_entry
from millpond.workflows.partitions.followed import FollowedPartition
from millpond.workflows.store import initialize
from millpond.workflows.stories import stories_after
from tests.harness.embedded_log import EmbeddedLog
from tests.models.workflows.specs import request

SECONDS = 20


@pytest.mark.parametrize("dropped", [True, False])
def test_an_entry_of_stories_comes_back_from_its_bytes(dropped: bool) -> None:
    entry = StoryEntry(7, 3, dropped)
    assert decode_entry(encode_entry(entry)) == entry


def test_what_is_dropped_is_dropped_by_all_who_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_publisher, "STORIES_WAITING_MAX", 10)
    clock, log, tally = ManualClock(), EmbeddedLog(MemorySpace(), Prefix("log"), 2, SystemClock()), Tally()
    follower = Follower(log, 1, MemorySpace(), clock, lambda _: None, stories=True)
    follower.own(True)
    follower.start()

    def do(command: Request) -> None:
        follower.submit("acme", command).result(SECONDS)

    def refuse(batches: Sequence[EventBatch]) -> object:
        raise Unavailable("no Redis", kind="redis_unreachable")

    def note(place: tuple[int, int], dropped: bool) -> None:
        follower.note(StoryEntry(*place, dropped), wait=dropped)

    do(PutTaskDefRequest(name="work"))
    do(request("retried"))
    for number in range(25):
        do(RunWfRequest(wf_spec_name="retried", id=f"r{number}"))
    teller_of(follower.space, clock, refuse, note, tally.add).drop()
    with follower.space.read() as tx:
        rows = stories_after(tx, (0, 0), 100)
        own = {key: row for key, row in tx.scan(EVERYTHING) if key not in INITIALIZED}
    assert (tally.number, len(rows)) == (15, 11)
    assert {(fact.kind, fact.headers["events"]) for fact in rows[0].facts} == {("dropped", "2")}
    assert [story.facts[0].run for story in rows[1:]] == [f"r{number}" for number in range(15, 25)]

    other = MemorySpace()
    entries = log.read(1, 0, 1_000)
    partition = FollowedPartition(other.write(lambda tx: initialize(tx, 0)), 1, 2, stories=True)
    other.write(lambda tx: partition.apply_entries(tx, entries))
    with other.read() as tx:
        found = {key: row for key, row in tx.scan(EVERYTHING) if key not in INITIALIZED}
    stories = STORY.range()
    assert {key: own[key] for key in own if stories.holds(key)} == {
        key: found[key] for key in found if stories.holds(key)
    }
    log.close()
    follower.stop()
