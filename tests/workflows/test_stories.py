"""The story of a run as a user watches it, also when the server was killed before it was told."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import millpond
from tests.rings.forked import run
from tests.workflows.conftest import SECONDS, WorkflowServer


@pytest.mark.sample(1)
@pytest.mark.parametrize("store", ["pond", "rocksdb"])
def test_a_run_tells_its_story_once_also_over_a_kill(tmp_path: Path, store: str) -> None:
    server = WorkflowServer(tmp_path / "pond", store)
    server.settings = {"MILLPOND_WORKFLOWS_EVENTS": "on"}
    server.start()
    program = server.program("all", output=subprocess.DEVNULL)  # type: ignore[arg-type]
    assert program.wait(SECONDS) == 0
    server.end(signal.SIGKILL)
    server.start()
    try:
        watch = ["watch", "default", "all", "--exit-when-done", "--json"]
        shown = run([*watch, "--pond", f"http://127.0.0.1:{server.port}"], timeout=SECONDS)
        with millpond.open(f"http://127.0.0.1:{server.port}") as pond:
            events = list(pond.events.read("default", "all"))
    finally:
        server.end()
    assert shown.returncode == 0, shown.stderr
    story = [(event.headers["job_id"], event.kind, event.headers.get("attempt", "")) for event in events]
    assert story[0] == ("all", "running", "")
    assert ("all", "succeeded", "") in story
    assert max(Counter(story).values()) == 1
    for job in {job for job, _, _ in story if job != "all"}:
        kinds = [kind for name, kind, _ in story if name == job]
        assert kinds[:2] == ["queued", "running"]
        assert kinds[-1] in ("succeeded", "failed")
