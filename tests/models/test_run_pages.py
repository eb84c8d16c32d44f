"""Pages of the objects of a run: joined they are all of them, in the order of their numbers, wherever they are read."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("littlehorse")

from hypothesis import given
from hypothesis import strategies as st
from littlehorse.model import ListTaskRunsRequest, TaskRun, TaskRunId, WfRunId

from millpond.errors import Invalid
from millpond.kernel.keys import decode
from millpond.kernel.page import Bookmarks
from millpond.kernel.space import Space
from millpond.server.workflows.pages import _bookmarks
from millpond.server.workflows.reads import READS
from millpond.server.workflows.shared import rows as shared
from millpond.stores.memory import MemorySpace
from millpond.workflows.processor import ReadRows
from tests.harness.contracts.run_stores import store_in

guids = st.one_of(
    st.builds("{}-{}".format, st.integers(0, 120), st.integers(0, 120)), st.sampled_from(["free", "00-1", "ut-0-1-2"])
)


def stored(names: set[str]) -> Space:
    space = MemorySpace()
    store = store_in(space)
    for name in names:
        row = TaskRun(id=TaskRunId(wf_run_id=WfRunId(id="r"), task_guid=name))
        space.write(lambda tx, row=row: store.put(tx, row))
    return space


def walked(rows: Any, limit: int) -> list[str]:
    """The ids of the task runs on all pages."""
    request, seen = ListTaskRunsRequest(wf_run_id=WfRunId(id="r"), limit=limit), list[str]()
    while True:
        page: Any = READS[ListTaskRunsRequest](rows, request)
        assert len(page.results) <= limit
        seen += [task.id.task_guid for task in page.results]
        if not page.HasField("bookmark"):
            return seen
        request.bookmark = page.bookmark


@pytest.mark.usefixtures("processor")
@given(st.sets(guids, max_size=40), st.integers(1, 12), st.integers(1, 5), st.booleans())
def test_pages_of_the_task_runs_of_a_run_leave_none_out(
    names: set[str], limit: int, rows_of_a_partition: int, here: bool
) -> None:
    space = stored(names)
    with space.read() as tx, pytest.MonkeyPatch.context() as patches:
        patches.setattr(shared, "PAGE_ROWS", rows_of_a_partition)
        rows = ReadRows(tx, store_in(space))
        several = shared.SharedRows(
            "default", 2, lambda _: here, lambda _number, _tenant, act: act(rows),
            lambda _number, _tenant, request: shared.answer(rows, decode(request)),
        )  # fmt: skip
        every = [key[1] for key, _ in rows.list(TaskRun, ("r",))]
        assert set(every) == names
        assert walked(rows, limit) == walked(several, limit) == every


def test_a_bookmark_that_somebody_made_up_is_refused() -> None:
    request = ListTaskRunsRequest(wf_run_id=WfRunId(id="r"))
    bookmarks: Bookmarks = _bookmarks(request)
    space = stored({"0-1"})
    with space.read() as tx:
        for place in (b"\xff", b"\x20abc"):
            request.bookmark = bookmarks.of(place)
            with pytest.raises(Invalid, match="made up"):
                READS[ListTaskRunsRequest](ReadRows(tx, store_in(space)), request)
