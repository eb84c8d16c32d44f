"""The contract of a command log."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.errors import Closed, Invalid, NotFound
from millpond.workflows.logs import CommandLog, Entry, Following

__all__ = ("CommandLogContract",)

SECONDS = 30.0


def _taken(following: Following, count: int) -> list[Entry]:
    """The next entries, so many; fewer when no more come."""
    entries: list[Entry] = []
    while len(entries) < count and (more := following.next(count - len(entries), SECONDS)):
        entries += more
    return entries


class CommandLogContract:
    """Subclass it, and make logs with at least two partitions: `log` one that is empty, `opened` the same log anew."""

    @pytest.fixture
    @abstractmethod
    def log(self) -> Iterator[CommandLog]:
        """An empty log."""

    @abstractmethod
    def opened(self, log: CommandLog) -> CommandLog:
        """The same log, as another process sees it."""

    def test_entries_are_read_in_the_order_of_their_appends(self, log: CommandLog) -> None:
        positions = [log.append(0, b"%d" % number).result(SECONDS) for number in range(50)]
        assert positions == sorted(set(positions))
        assert positions[0] == 1
        with closing(log.follow(0, 0)) as following:
            entries = _taken(following, 50)
        assert [entry.position for entry in entries] == positions
        assert [entry.data for entry in entries] == [b"%d" % number for number in range(50)]

    def test_appends_under_way_come_in_their_order(self, log: CommandLog) -> None:
        futures = [log.append(1, b"%d" % number) for number in range(200)]
        positions = [future.result(SECONDS) for future in futures]
        assert positions == sorted(positions)
        with closing(log.follow(1, 0)) as following:
            assert [entry.data for entry in _taken(following, 200)] == [b"%d" % number for number in range(200)]

    def test_partitions_know_nothing_of_one_another(self, log: CommandLog) -> None:
        assert log.partitions >= 2
        log.append(0, b"zero").result(SECONDS)
        assert log.append(1, b"one").result(SECONDS) == 1
        with closing(log.follow(1, 0)) as following:
            assert [entry.data for entry in _taken(following, 1)] == [b"one"]
            assert following.next(10, 0.0) == []

    def test_a_reader_begins_behind_any_position(self, log: CommandLog) -> None:
        for number in range(10):
            log.append(0, b"%d" % number).result(SECONDS)
        for after in (0, 3, 9):
            with closing(log.follow(0, after)) as following:
                first = _taken(following, 1)
                assert [entry.data for entry in first] == [b"%d" % after]
                assert first[0].position == after + 1

    def test_who_follows_at_the_end_gets_what_comes(self, log: CommandLog) -> None:
        log.append(0, b"old").result(SECONDS)
        entries: list[Entry] = []
        with closing(log.follow(0, log.end(0))) as following:
            reader = threading.Thread(target=lambda: entries.extend(_taken(following, 1)))
            reader.start()
            log.append(0, b"new").result(SECONDS)
            reader.join(SECONDS)
        assert [entry.data for entry in entries] == [b"new"]

    def test_the_end_is_the_last_position(self, log: CommandLog) -> None:
        assert log.end(0) == 0
        assert log.append(0, b"a").result(SECONDS) == log.end(0) == 1

    def test_another_process_reads_the_same(self, log: CommandLog) -> None:
        log.append(0, b"a").result(SECONDS)
        other = self.opened(log)
        assert other.partitions == log.partitions
        assert other.end(0) == 1
        with closing(other.follow(0, 0)) as following:
            assert [entry.data for entry in _taken(following, 1)] == [b"a"]

    def test_trimmed_entries_are_never_skipped_in_silence(self, log: CommandLog) -> None:
        for number in range(10):
            log.append(0, b"%d" % number).result(SECONDS)
        log.trim(0, 6)
        log.trim(0, 3)  # they are gone already
        with pytest.raises(NotFound, match="no longer reaches back") as caught:
            log.follow(0, 4)
        assert caught.value.kind == "log_trimmed"
        with closing(log.follow(0, 5)) as following:
            assert [entry.position for entry in _taken(following, 5)] == [6, 7, 8, 9, 10]

    def test_a_trimmed_log_goes_on_where_it_stopped(self, log: CommandLog) -> None:
        for _ in range(3):
            log.append(0, b"x").result(SECONDS)
        log.trim(0, 100)
        assert log.end(0) == 3
        assert log.append(0, b"y").result(SECONDS) == 4
        with closing(log.follow(0, 3)) as following:
            assert [entry.data for entry in _taken(following, 1)] == [b"y"]

    def test_an_entry_that_is_too_large_is_refused_and_not_made(self, log: CommandLog) -> None:
        with pytest.raises(Invalid):
            log.append(0, bytes(65 << 20)).result(SECONDS)
        assert log.append(0, b"small").result(SECONDS) == 1

    def test_a_closed_log_says_so(self, log: CommandLog) -> None:
        log.close()
        log.close()
        with pytest.raises(Closed):
            log.append(0, b"a").result(SECONDS)
        with pytest.raises(Closed):
            log.end(0)

    # Each driver runs it for itself, and a test goes on in the log of the one before: both are what is wanted here.
    @settings(
        max_examples=10, deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )  # fmt: skip
    @given(st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=40)), max_size=20))
    def test_a_log_is_a_list_for_each_partition(self, log: CommandLog, appends: list[tuple[int, bytes]]) -> None:
        before = [log.end(0), log.end(1)]
        for partition, data in appends:
            log.append(partition, data).result(SECONDS)
        for partition in (0, 1):
            expected = [data for where, data in appends if where == partition]
            with closing(log.follow(partition, before[partition])) as following:
                entries = _taken(following, len(expected)) if expected else []
            assert [entry.data for entry in entries] == expected
            assert log.end(partition) == before[partition] + len(expected)
