"""Runs of workflows go with their pond into a bucket, to another and out of it again, and go on there."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("littlehorse")
pytest.importorskip("rocksdict")

from littlehorse.model import CorrelatedEventConfig as Correlated
from littlehorse.model import (
    PutCorrelatedEventRequest,
    PutExternalEventDefRequest,
    RunWfRequest,
    ScheduleWfRequest,
    TaskRunId,
    TaskStatus,
    WfRunId,
)
from littlehorse.model.service_pb2 import ReportTaskRun

import millpond
from millpond.clock import ManualClock
from millpond.copies.runs import RUN_ROWS
from millpond.errors import Conflict, Invalid
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from millpond.workflows.engine import TaskClaim
from millpond.workflows.keyspaces import COMMANDS, OWNER
from tests.clients.conftest import serving
from tests.data.make_parts import do, fill, processing, status
from tests.harness.copied_ponds import CHILD, new_place, opened
from tests.rings.forked import run_python
from tests.rings.sampling import drawn
from tests.workflows.test_bucket_pipelines import FLOW, run
from tests.workflows.test_client import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from millpond import Pond
    from tests.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("process")

HOUR_MS = 3_600_000


@pytest.fixture
def url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    return new_place(s3_server, monkeypatch, tmp_path)


def filled(folder: Path, clock: ManualClock) -> None:
    """A pond with a run that sleeps, one that waits for a worker, a schedule, and an event that waits for a run."""
    with opened(folder, clock) as pond:
        fill(pond, clock)
        pond.alter_map("m", store="layers")
        with processing(pond, clock) as processor:
            do(processor, ScheduleWfRequest(id="daily", wf_spec_name="sleeps", cron_expression="0 0 * * *"))
            do(processor, PutExternalEventDefRequest(name="paid", correlated_event_config=Correlated()))
            do(processor, PutCorrelatedEventRequest(key="order-1", external_event_def_id={"name": "paid"}))


def rows_of(pond: Pond) -> dict[bytes, bytes]:
    with pond.space.read() as tx:
        return {key: row for keyspace in RUN_ROWS if keyspace is not COMMANDS for key, row in tx.scan(keyspace.range())}


def test_all_rows_of_runs_come_through_two_buckets_and_go_on(url: str, tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    filled(tmp_path / "one", clock)
    with opened(tmp_path / "one") as pond:
        expected = rows_of(pond)
    places = [str(tmp_path / "one"), url, f"{url}-2", str(tmp_path / "two")]
    for source, target in pairwise(places):
        first, again = millpond.copy(source, target), millpond.copy(source, target)
        assert again.files <= 2 < first.files, (target, again)
    with opened(tmp_path / "two", clock) as pond:
        assert rows_of(pond) == expected
        assert pond.verify().ok
        with processing(pond, clock) as processor:
            assert (status(pond, processor, "sleeps"), status(pond, processor, "works")) == ("RUNNING", "RUNNING")
            clock.advance(2 * HOUR_MS)
            task = TaskRunId(wf_run_id=WfRunId(id="works"), task_guid="0-1")
            do(processor, TaskClaim(task, "a worker", ""))
            do(processor, ReportTaskRun(task_run_id=task, status=TaskStatus.TASK_SUCCESS))
            do(processor, RunWfRequest(wf_spec_name="sleeps", id="later"))
            assert (status(pond, processor, "sleeps"), status(pond, processor, "works")) == ("COMPLETED", "COMPLETED")
    with pytest.raises(Conflict, match="changed since it was copied"):
        millpond.copy(f"{url}-2", tmp_path / "two")
    with pytest.raises(Conflict, match="changed since it was copied"):
        filled(tmp_path / "other", clock)
        millpond.copy(tmp_path / "other", url)
    millpond.copy(url, f"{url}-3", without_runs=True)
    with opened(f"{url}-3") as pond, pond.space.read() as tx:
        assert tx.get(OWNER.packed) is None


def test_a_run_in_the_middle_goes_on_in_the_bucket_and_in_a_folder_after_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.py").write_text(FLOW)
    file, words = tmp_path / "begun", ("day=monday", f"file={tmp_path / 'begun'}")
    waits, folder = tmp_path / "begun.wait", str(tmp_path / "one")
    waits.touch()
    first = subprocess.Popen(
        [sys.executable, "-m", "millpond", "pipeline", "run", "flow.py", *words, "--pond", folder], cwd=tmp_path
    )
    wait_for(file.exists)
    first.kill()
    first.wait()
    waits.unlink()
    millpond.copy(folder, url)
    ended = run(url, *words)
    assert ended["status"] == "COMPLETED"
    assert file.read_text().count("begun") == 2, "the attempt that was cut off is made again"
    with pytest.raises(Conflict, match="changed since it was copied"):
        millpond.copy(folder, url)
    millpond.copy(url, tmp_path / "back")
    assert run(str(tmp_path / "back"), *words) == ended, "a run that has ended is not made again"
    other = run(str(tmp_path / "back"), "day=tuesday", f"file={file}")
    assert (other["status"], other["run"] == ended["run"]) == ("COMPLETED", False)


def test_a_copy_of_runs_that_was_killed_is_gone_on_with(url: str, tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    filled(tmp_path / "one", clock)
    done = run_python("-c", CHILD, str(tmp_path / "one"), f"{url}-whole", **{STEPS_LOG: str(tmp_path / "log")})
    assert done.returncode == 0, done.stderr
    moments = [moment for moment in occurrences(tmp_path / "log") if moment.startswith("copy.")]
    assert "copy.runs_sent:2" in moments
    for number, moment in drawn(list(enumerate(moments)), 2, name="copies of runs"):
        killed = run_python("-c", CHILD, str(tmp_path / "one"), f"{url}-{number}", **{KILL_AT: moment})
        assert killed.returncode < 0, (moment, killed.stderr)
        millpond.copy(tmp_path / "one", f"{url}-{number}")
        millpond.copy(f"{url}-{number}", tmp_path / f"back-{number}")
        with opened(tmp_path / "one") as pond, opened(tmp_path / f"back-{number}") as back:
            assert rows_of(back) == rows_of(pond), moment


def test_runs_of_a_node_go_into_a_bucket(url: str, tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    filled(tmp_path / "one", clock)
    with serving(tmp_path / "one") as node:
        millpond.copy(node, url)
    millpond.copy(url, tmp_path / "back")
    with opened(tmp_path / "back") as pond, processing(pond, clock) as processor:
        assert (status(pond, processor, "sleeps"), status(pond, processor, "works")) == ("COMPLETED", "RUNNING")


def test_runs_in_rocksdb_stay_where_they_are(url: str, tmp_path: Path) -> None:
    with opened(tmp_path / "one") as pond:
        (pond.folder / "workflows").mkdir()
    with pytest.raises(Invalid) as refused:
        millpond.copy(tmp_path / "one", url)
    assert refused.value.values["part"] == "runs of workflows in RocksDB"
