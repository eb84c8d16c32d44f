"""A process killed while it purges a map in a bucket: each ref says what it said, and the purge goes on."""

from __future__ import annotations

import os
import signal
from itertools import count
from typing import TYPE_CHECKING

import pytest

import millpond
from millpond.testing.faults import KILL_AT, STEPS_LOG, occurrences
from tests.crash.test_purges_crash import REFS, fill, said
from tests.rings.forked import run_python
from tests.rings.sampling import drawn

if TYPE_CHECKING:
    from pathlib import Path

    from tests.s3_server import S3Server

pytestmark = pytest.mark.usefixtures("process")

CHILD = """
import sys
import millpond
from millpond.maps.layered import secured
from millpond.testing import faults

armed = faults.arm()
secured.LEASE_SECONDS = 0.3
with millpond.open(sys.argv[1], cache=sys.argv[2], max_staleness=0) as pond:
    report = pond.map("m").delete("key = 'ann-of-the-hill'", now=True, branches=True)
    print(report.purged, *report.left)
"""
_NUMBERS = count(1)


def test_killed_at_any_step(tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = s3_server.make_bucket(f"purges-{os.getpid()}-{next(_NUMBERS)}")

    def filled(name: str) -> str:
        with millpond.open(f"{bucket}/{name}", cache=tmp_path / "begun") as pond:
            fill(pond)
        return f"{bucket}/{name}"

    child = str(tmp_path / "child")
    done = run_python("-c", CHILD, filled("whole"), child, **{STEPS_LOG: str(tmp_path / "log")})
    assert (done.returncode, done.stdout) == (0, "True\n"), (done.stdout, done.stderr)
    moments = occurrences(tmp_path / "log")
    steps = {"purge.history_forgotten", "purge.leased", "garbage.deleted", "purge.swept", "files.rewriting",
             "refs.deleted_on_branch", "refs.let_go", "refs.stands_in"}  # fmt: skip
    assert steps <= {moment.partition(":")[0] for moment in moments}
    kinds = ("refs.", "purge.", "garbage.", "files.", "fold.", "delete.")
    kills = [moment for moment in moments if moment.startswith(kinds)]
    for number, moment in drawn(list(enumerate(kills)), 2, name="purges in a bucket"):
        url = filled(str(number))
        killed = run_python("-c", CHILD, url, child, **{KILL_AT: moment})
        assert killed.returncode == -signal.SIGKILL, (moment, killed.stderr)
        with millpond.open(url, cache=tmp_path / f"other-{number}", max_staleness=0) as pond:
            now = said(pond)
            assert pond.verify(full=True).ok, moment
            for ref, rows in REFS.items():
                assert now[ref] in (rows, rows | {"ann-of-the-hill": 9}), (moment, ref)
            again = run_python("-c", CHILD, url, child)
            assert (again.returncode, again.stdout) == (0, "True\n"), (moment, again.stdout, again.stderr)
            assert said(pond) == REFS, moment
            assert pond.verify(full=True).ok, moment
        places = (
            s3_server.folder / url.removeprefix("s3://") / "snapshots",
            tmp_path / f"other-{number}",
            tmp_path / "child",
        )
        files = [path for place in places for path in place.rglob("*") if path.is_file()]
        assert not [path for path in files if b"ann-of-the-hill" in path.read_bytes()], moment
