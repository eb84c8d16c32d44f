"""The newest runs, from a search that lists the oldest first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("littlehorse")

from littlehorse.model import SearchWfRunRequest, WfRunId, WfRunIdList

from millpond.workflows import newest
from millpond.workflows.newest import FIRST_MS, newest_runs

NOW = 1_800_000_000_000
times = st.one_of(st.integers(0, NOW + 5_000), st.integers(NOW - 9 * FIRST_MS, NOW), st.just(NOW - FIRST_MS))


@given(
    began=st.lists(times, max_size=40), limit=st.integers(1, 45), page=st.integers(1, 5),
    earliest=st.one_of(st.none(), times),
)  # fmt: skip
def test_the_newest_come_first_and_once(began: list[int], limit: int, page: int, earliest: int | None) -> None:
    runs = sorted((at, f"run-{number}") for number, at in enumerate(began))

    def call(_method: str, request: SearchWfRunRequest) -> WfRunIdList:
        assert request.wf_spec_name == "nightly"
        last = request.latest_start.ToMilliseconds() if request.HasField("latest_start") else NOW * 2
        inside = [name for at, name in runs if request.earliest_start.ToMilliseconds() <= at <= last]
        start = int(request.bookmark or b"0")
        some = inside[start : start + request.limit]
        more = str(start + len(some)).encode() if start + len(some) < len(inside) else None
        return WfRunIdList(results=[WfRunId(id=name) for name in some], bookmark=more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest, "PAGE", page)
        wanted = SearchWfRunRequest(wf_spec_name="nightly")
        if earliest is not None:
            wanted.earliest_start.FromMilliseconds(earliest)
        found = newest_runs(call, wanted, limit, NOW)
    assert [run.id for run in found] == [name for at, name in reversed(runs) if at >= (earliest or 0)][:limit]


def test_few_pages_are_read_however_many_runs_there_are() -> None:
    calls = 0

    def call(_method: str, request: SearchWfRunRequest) -> WfRunIdList:  # a run every two milliseconds, for a day
        nonlocal calls
        calls += 1
        last = request.latest_start.ToMilliseconds() if request.HasField("latest_start") else NOW
        first = max(request.earliest_start.ToMilliseconds(), NOW - 86_400_000)
        places = range(first + first % 2, min(last, NOW) + 1, 2)
        some = [WfRunId(id=str(at)) for at in places[: request.limit]]
        return WfRunIdList(results=some, bookmark=b"more" if len(places) > len(some) else None)

    listed = newest_runs(call, SearchWfRunRequest(), 51, NOW)
    assert [int(run.id) for run in listed] == list(range(NOW, NOW - 102, -2))
    assert calls < 20
