"""Partitions on a log whose owner's clock jumps: timers come in time, and stores stay functions of the log."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest.importorskip("littlehorse")
if find_spec("rocksdict") is None:
    pytest.skip("the extra kafka is not installed", allow_module_level=True)

from littlehorse.model import RunWfRequest

from millpond.workflows.engine import TaskClaim
from millpond.workflows.partitions import followed, partition_of_key
from millpond.workflows.partitions.entries import ClockEntry, TimerEntry, decode_entry
from tests.unit.test_partitions import DAY, PARTITIONS, TENANT, Cluster, cluster, replayed, rows, task_of, until

__all__ = ("cluster",)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("jump", [2 * DAY, -2 * DAY])
def test_a_clock_that_jumps_and_comes_back_delays_no_timer(cluster: Cluster, jump: int, moved: bool) -> None:
    cluster.define()
    cluster.do(RunWfRequest(wf_spec_name="timed", id="a"))
    cluster.clock.now += jump
    assert cluster.do(TaskClaim(task_of("a"), "worker")) is not None  # its timeout is 2 seconds
    cluster.settle()
    cluster.clock.now -= jump
    number = partition_of_key(TENANT, "a", PARTITIONS)
    if moved:  # the next owner, perhaps another machine, has nothing but the log
        cluster.followers[number].stop()
        cluster.follow(number)
    cluster.clock.advance(1_000)
    until(lambda: clock_entries(cluster, number) == 1)
    cluster.clock.advance(2_500)
    until(lambda: any(isinstance(decode_entry(entry.data), TimerEntry) for entry in cluster.entries(number)))
    cluster.settle()
    assert cluster.do(TaskClaim(task_of("a"), "worker")) is not None, "the second attempt is queued"
    cluster.settle()
    assert clock_entries(cluster, number) == 1
    entries = cluster.entries(number)
    assert rows(replayed(number, entries, [1, 2])) == rows(cluster.followers[number].space)


def clock_entries(cluster: Cluster, number: int) -> int:
    return sum(isinstance(decode_entry(entry.data), ClockEntry) for entry in cluster.entries(number))


def test_timers_are_set_anew_some_by_each_entry(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "TIMERS_PULLED_PER_WRITE", 2)
    cluster.define()
    number = partition_of_key(TENANT, "a", PARTITIONS)
    names = [name for name in map(str, range(100)) if partition_of_key(TENANT, name, PARTITIONS) == number][:5]
    for name in names:
        cluster.do(RunWfRequest(wf_spec_name="timed", id=name))
    cluster.clock.now += 2 * DAY
    for name in names:
        cluster.do(TaskClaim(task_of(name), "worker"))
    cluster.clock.now -= 2 * DAY
    until(lambda: clock_entries(cluster, number) == 3)
    cluster.clock.advance(2_500)
    until(lambda: cluster.followers[number].backlog().due_ms is None)
    assert [cluster.do(TaskClaim(task_of(name), "worker")) is not None for name in names] == [True] * 5
