"""Ages by rules: maintenance and the lag find what a look at every stream finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import ManualClock
from millpond.errors import Invalid
from millpond.events.age_settings import StoredAges
from millpond.events.ages import AgeRule
from millpond.events.census import first_due_ms
from millpond.events.days import DAY_MS
from millpond.events.embedded.store import EmbeddedStore
from millpond.events.event import EventBatch, NewEvent
from millpond.events.maintenance import EventMaintenance, MaintenanceRules
from millpond.events.names import StreamName
from millpond.events.protocol import Work
from millpond.stores.memory import MemorySpace

NAMES = [StreamName(queue, job_set) for queue in "pq" for job_set in "abc"]
_ages = st.sampled_from([None, "off", "1d", "2d", "5d", "9d"])
_rules = st.dictionaries(
    st.tuples(st.sampled_from("pq"), st.sampled_from([None, "a", "b"])), st.tuples(_ages, _ages), max_size=5
)


def age_ms(rules: dict[tuple[str, str | None], AgeRule], stream: StreamName, work: Work, own_ms: int) -> int:
    """The age of a stream, looked for by hand."""
    for key in ((stream.queue, stream.job_set), (stream.queue, None)):
        rule = rules.get(key) or AgeRule(*stream)
        age = rule.compress_after_ms if work is Work.COMPRESS else rule.retention_ms
        if age is not None:
            return age
    return own_ms


@given(
    rules=_rules, own=st.tuples(st.integers(0, 6), st.integers(0, 6)), now=st.integers(0, 15),
    days=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 12), max_size=6),
)  # fmt: skip
def test_what_is_due_is_what_a_look_at_every_stream_finds(
    rules: dict[tuple[str, str | None], tuple[str | None, str | None]], own: tuple[int, int], now: int,
    days: dict[StreamName, int],
) -> None:  # fmt: skip
    clock = ManualClock(now=0)
    store = EmbeddedStore(MemorySpace(), clock)
    for stream, day in days.items():
        clock.now = day * DAY_MS
        store.append([EventBatch(stream, [NewEvent(clock.now, b"x")])])
    settings = StoredAges(store)
    for (queue, job_set), (compress_after, retention) in rules.items():
        later = None if retention in (None, "off") else retention
        early = compress_after if compress_after in (None, "off") or later is None or compress_after < later else None
        if early is not None or retention is not None:
            settings.set(queue, job_set, compress_after=early, retention=retention)
    clock.now = now * DAY_MS
    given_rules = {(rule.queue, rule.job_set): rule for rule in settings.rules()}
    worker = EventMaintenance(store, clock, MaintenanceRules(own[0] * DAY_MS, own[1] * DAY_MS), DAY_MS)
    for work, own_days in zip((Work.COMPRESS, Work.EXPIRE), own, strict=True):
        due_ms = {
            stream: (day + 1) * DAY_MS + age
            for stream, day in days.items()
            if (age := age_ms(given_rules, stream, work, own_days * DAY_MS))
        }
        assert {stream for stream, _ in worker.due(work, clock.now)} == {
            stream for stream, due in due_ms.items() if due <= clock.now
        }
        assert first_due_ms(store, work, worker.ages) == min(due_ms.values(), default=None)


def test_a_rule_for_a_pattern_is_refused_unless_it_is_a_name() -> None:
    """Other commands take patterns of job sets: a rule would be one that never holds."""
    clock = ManualClock(now=0)
    store = EmbeddedStore(MemorySpace(), clock)
    settings = StoredAges(store)
    for names in (("etl", "night*"), ("etl", "night?"), ("et*", None)):
        with pytest.raises(Invalid, match="not of a pattern"):
            settings.set(*names, retention="off")
    assert not settings.rules()
    store.append([EventBatch(StreamName("et*", "night?"), [NewEvent(0, b"x")])])
    assert settings.set("et*", "night?", retention="1d") in settings.rules("et*")
    assert settings.set("et*", retention="1d") in settings.rules("et*")
