"""The contract of streams: deletions, of a stream or of one job, and the ages of rules."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from millpond.errors import Fenced, Invalid, NotFound
from millpond.events.age_settings import StoredAges
from millpond.events.ages import AgeRule, Ages
from millpond.events.census import Census, first_due_ms
from millpond.events.check import check_store
from millpond.events.days import DAY_MS
from millpond.events.deletion import delete_job, finish_deletions
from millpond.events.event import EventBatch, NewEvent
from millpond.events.jobs.active import ActiveJobs
from millpond.events.maintenance import EventMaintenance, MaintenanceRules
from millpond.events.names import StreamName
from millpond.events.protocol import NoteKind, StreamStore, Work
from millpond.events.watchers import Watchers
from tests.harness.contracts.stream_site import (
    NOON,
    RULES,
    STREAM,
    TODAY,
    StreamSite,
    append,
    compress,
    days,
    delivered,
    everything,
    index_of,
    payloads_of,
)

__all__ = ("DeletionContract",)

OWN = MaintenanceRules(compress_after_ms=2 * DAY_MS, retention_ms=5 * DAY_MS, bytes_per_second=0)


def _of_jobs(*jobs: str, time_ms: int = NOON) -> EventBatch:
    """An event for each job, whose payload is its name."""
    events = [NewEvent(time_ms, job.encode(), "queued", {"job_id": job}) for job in jobs]
    return EventBatch(STREAM, events)


def _jobs_of(store: StreamStore) -> str:
    return "".join(payloads_of(store))


def _three_days(site: StreamSite, store: StreamStore, jobs: Sequence[str] = ("aba", "bab", "ccb")) -> None:
    """A compressed day, a closed one and an open one."""
    for number, of_day in enumerate(jobs):
        store.append([_of_jobs(*of_day, time_ms=site.clock.now)])
        if number < 2:
            site.clock.now += DAY_MS
    store.close_day(STREAM, TODAY + 1)
    compress(store, STREAM, index_of(store).segments[:1])


class DeletionContract:
    """Deletions and ages."""

    # --- a stream

    def test_a_deleted_stream_has_no_events_and_its_ids_go_on(self, site: StreamSite, store: StreamStore) -> None:
        _three_days(site, store)
        last = everything(store)[-1].number
        other = append(store, "other", stream=StreamName("etl", "other"))
        assert store.delete(STREAM) == 9
        assert everything(store) == [] and days(store) == [] and store.delete(STREAM) == 0
        index = index_of(store)
        assert index.dropped_id == index.last_id > last
        site.clock.now -= 9 * DAY_MS  # ids do not follow it back
        assert append(store, "new").first_id > index.last_id and payloads_of(store) == ["new"]
        assert everything(store, StreamName("etl", "other"))[0].number == other.first_id
        assert check_store(store).ok

    def test_todays_events_go_to_today_after_a_deletion(self, site: StreamSite, store: StreamStore) -> None:
        for _ in range(3):
            append(store, "a")
            store.delete(STREAM)
        append(store, "b")
        assert days(store) == [(0, "open", 1)]
        assert store.expire(STREAM, TODAY) == 1

    def test_sources_do_not_store_anew_what_was_deleted(self, site: StreamSite, store: StreamStore) -> None:
        store.append([delivered("abc")])
        store.delete(STREAM)
        again = store.append([delivered("abcd")])[0]
        assert (again.count, again.repeated) == (1, 3) and payloads_of(store) == ["d"]
        store.delete(STREAM)
        site.clock.now += RULES.forget_ms + 2 * DAY_MS
        store.expire(STREAM, TODAY)
        assert store.index(STREAM) is None, "forgotten like any stream that is long without events"

    def test_a_reader_of_a_deleted_stream_finds_a_gap(self, store: StreamStore) -> None:
        append(store, "a", "b")
        events = everything(store)
        store.delete(STREAM)
        assert [store.read(STREAM, after).gap for after in (0, *(event.number for event in events))] == [
            False, True, True,
        ]  # fmt: skip
        place = store.read(STREAM, events[-1].number).after
        assert not store.read(STREAM, place).gap and append(store, "c").first_id > place

    def test_watchers_of_a_deleted_stream_hear_of_it_each_time(self, site: StreamSite, store: StreamStore) -> None:
        watchers = Watchers(store, site.clock)
        try:
            with watchers.watch(STREAM, 0) as watch, ThreadPoolExecutor(1) as pool:
                for turn in (1, 2):
                    append(store, "a")
                    while not watch.next_batch(None):
                        pass
                    while not watch.caught_up:
                        watch.next_batch(None)
                    heard = pool.submit(watch.next_batch, None)
                    store.delete(STREAM)
                    assert heard.result(30) == [] and (watch.gap, watch.gaps) == (True, turn)
        finally:
            watchers.close()

    def test_a_switch_of_what_was_deleted_is_fenced(self, store: StreamStore) -> None:
        append(store, "a")
        store.close_day(STREAM, TODAY)
        seen = index_of(store).segments
        store.delete(STREAM)
        append(store, "b")
        store.close_day(STREAM, TODAY)
        with pytest.raises(Fenced):
            compress(store, STREAM, seen)
        assert payloads_of(store) == ["b"]

    # --- a job

    def test_the_events_of_a_job_go_and_all_others_stay(self, site: StreamSite, store: StreamStore) -> None:
        _three_days(site, store)
        before = everything(store)
        assert delete_job(store, STREAM, "b") == 4
        assert everything(store) == [event for event in before if event.payload != b"b"]
        assert days(store) == [(0, "compressed", 2), (1, "compressed", 1), (2, "compressed", 2)]
        assert index_of(store).last_id == before[-1].number and store.notes.read(NoteKind.ERASURE) == {}
        assert store.append([_of_jobs("b")])[0].first_id > before[-1].number and _jobs_of(store) == "aaaccb"
        assert check_store(store).ok
        with pytest.raises(NotFound) as caught:
            delete_job(store, STREAM, "x")
        assert caught.value.kind == "job_not_found"

    def test_days_without_the_job_are_left_alone(self, site: StreamSite, store: StreamStore) -> None:
        _three_days(site, store, ["ab", "b", "c"])
        assert delete_job(store, STREAM, "a") == 1
        assert days(store) == [(0, "compressed", 1), (1, "closed", 1), (2, "open", 1)]

    def test_a_day_of_one_job_alone_goes_with_it(self, site: StreamSite, store: StreamStore) -> None:
        _three_days(site, store, ["a", "bb", "a"])
        before = everything(store)
        assert delete_job(store, STREAM, "b") == 2
        assert _jobs_of(store) == "aa" and [day for day, *_ in days(store)] == [0, 2]
        assert delete_job(store, STREAM, "a") == 2
        assert days(store) == [] and [due.stream for due in store.due(Work.FORGET, TODAY + 9, limit=9)] == [STREAM]
        page = store.read(STREAM, before[0].number)
        assert (page.events, page.after, page.more, page.gap) == ([], before[-1].number, False, False)
        assert store.follow({STREAM: page.after}, site.clock.monotonic()) == set(), "nothing is news"

    def test_an_interrupted_deletion_is_ended_by_maintenance(self, site: StreamSite, store: StreamStore) -> None:
        _three_days(site, store)

        class Stopped(Exception):
            pass

        class Stopping:
            """A store whose process ends before anything is erased."""

            def __getattr__(self, name: str) -> object:
                return getattr(store, name)

            def erase(self, *_: object) -> int:
                raise Stopped

        with pytest.raises(Stopped):
            delete_job(Stopping(), STREAM, "b")  # type: ignore[arg-type]
        assert _jobs_of(store) == "abababccb" and len(store.notes.read(NoteKind.ERASURE)) == 1
        assert EventMaintenance(site.open(), site.clock, OWN, RULES.forget_ms).compress().failed == 0
        assert _jobs_of(store) == "aaacc" and store.notes.read(NoteKind.ERASURE) == {} and finish_deletions(store) == []

    def test_a_segment_that_somebody_changed_is_not_erased(self, site: StreamSite, store: StreamStore) -> None:
        _three_days(site, store)
        (seen, *_) = index_of(store).segments
        store.expire(STREAM, TODAY)
        with pytest.raises(Fenced):
            store.erase(STREAM, seen, "b", 1 << 62)

    def test_active_jobs_follow_deletions(self, site: StreamSite, store: StreamStore) -> None:
        store.append([_of_jobs("a", "b")])
        active = ActiveJobs(site.open())
        for expected, act in (("ab", None), ("a", "b"), ("", "all")):
            if act is not None:
                delete_job(store, STREAM, act) if act == "b" else store.delete(STREAM)
            with active.of(STREAM) as jobs:
                assert "".join(jobs) == expected
        store.append([_of_jobs("c")])
        with active.of(STREAM) as jobs:
            assert list(jobs) == ["c"]

    # --- ages

    def test_rules_are_set_read_and_removed(self, site: StreamSite, store: StreamStore) -> None:
        settings = StoredAges(store)
        settings.set("etl", retention="30d", compress_after=DAY_MS)
        settings.set("etl", "nightly", retention="off")
        settings.set("other", retention="9d")
        assert StoredAges(site.open()).rules("etl") == [
            AgeRule("etl", None, DAY_MS, 30 * DAY_MS), AgeRule("etl", "nightly", None, 0),
        ]  # fmt: skip
        assert settings.holding("etl", "nightly") == AgeRule("etl", "nightly", DAY_MS, 0)
        settings.remove("etl", "nightly")
        assert [rule.job_set for rule in settings.rules()] == [None, None]
        with pytest.raises(NotFound):
            settings.remove("etl", "nightly")

    @pytest.mark.parametrize(
        ("ages", "kind"),
        [
            ({"retention": -1}, "duration"), ({"retention": "soon"}, "duration"), ({"retention": 0}, "event_age_zero"),
            ({"compress_after": "0"}, "event_age_zero"), ({}, "event_ages_none"),
            ({"compress_after": "2d", "retention": "2d"}, "event_ages_order"),
        ],
    )  # fmt: skip
    def test_ages_that_are_not_meant_are_refused(self, store: StreamStore, ages: dict[str, object], kind: str) -> None:
        with pytest.raises(Invalid) as caught:
            StoredAges(store).set("etl", **ages)  # type: ignore[arg-type]
        assert caught.value.kind == kind and StoredAges(store).rules() == []

    def test_maintenance_takes_the_most_specific_age(self, site: StreamSite, store: StreamStore) -> None:
        names = [StreamName(queue, job_set) for queue in ("etl", "web") for job_set in ("long", "nightly", "short")]
        settings = StoredAges(store)
        settings.set("etl", retention="8d", compress_after="off")
        settings.set("etl", "long", retention="off", compress_after="1d")
        settings.set("web", "short", retention="1d")
        for name in names:
            append(store, "x", stream=name)
        dropped: dict[StreamName, int] = {}
        packed: dict[StreamName, int] = {}
        for day in range(1, 12):
            site.clock.now += DAY_MS
            worker = EventMaintenance(site.open(), site.clock, OWN, RULES.forget_ms)
            worker.compress()
            worker.expire()
            for name in names:
                states = [state.value for _, state in index_of(store, name).days()]
                if not states:
                    dropped.setdefault(name, day)
                elif states == ["compressed"]:
                    packed.setdefault(name, day)
        # It is noon, so a day is due half a day later than its age.
        assert dropped == {names[1]: 9, names[2]: 9, names[3]: 6, names[4]: 6, names[5]: 2}
        assert packed == {names[0]: 2, names[3]: 3, names[4]: 3}

    def test_the_first_due_moment_is_that_of_each_streams_age(self, site: StreamSite, store: StreamStore) -> None:
        settings, census = StoredAges(store), Census(store)
        assert first_due_ms(store, Work.EXPIRE, Ages(0, 5 * DAY_MS)) is None
        append(store, "old", stream=StreamName("etl", "old"))
        append(store, "new", stream=StreamName("web", "new"), time_ms=NOON)
        settings.set("etl", retention="off", compress_after="9d")
        settings.set("web", "new", retention="1d")
        rules = {(rule.queue, rule.job_set): rule for rule in settings.rules()}
        census.turn(threading.Event(), Ages(2 * DAY_MS, 0, rules))
        midnight = (TODAY + 1) * DAY_MS
        assert census.due_ms == {Work.COMPRESS: midnight + 2 * DAY_MS, Work.EXPIRE: midnight + DAY_MS}
